"""The pipeline on Spark: archives to versioned cubes, on one machine or a cluster.

    session      a Spark session on this machine, with the settings that the jobs like
    jobs         virtualize and append, ingest and rechunk, in a Spark session
    engine       the engine that runs their tasks on executors, watches and cancels them
    failures     how errors of tasks reach the driver
    broadcast    how executors get what they need, secrets apart from plans

The jobs themselves are in `icefloe.pipeline.running`. Names are imported when they are first used,
so that commands without Spark start quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
