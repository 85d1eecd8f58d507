"""The pipeline on Spark: archives to versioned cubes, on one machine or a cluster.

    session    a Spark session on this machine, with the settings that the jobs like
    jobs       virtualize and append: one job, one commit
    native     ingest and rechunk: copies of values, one job, one commit
    estimating what a job will take, told before it runs
    scan       the stage that parses files on executors
    checking   the stage that compares values with independent readers
    write      the stage that builds manifests on executors
    workers    how executors get what they need, secrets apart from plans
    attempts   what jobs may have left behind
    watching   progress of stages; cancelling them
    report     what a job did

Names are imported when they are first used, so that commands without Spark start quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
