"""The pipeline on Spark: archives to versioned cubes, on one machine or a cluster.

    session      a Spark session on this machine, with the settings that the jobs like
    jobs         virtualize and append, ingest and rechunk: one job, one commit
    estimates    what a job will take, before it runs
    job          the job itself: executors build manifests, the driver commits them, and reports
    virtual      the producer of references to files
    native       the producer of copies of values
    broadcast    how executors get what they need, secrets apart from plans
    orphans      what jobs may have left behind
    progress     progress of stages; cancelling them

Names are imported when they are first used, so that commands without Spark start quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
