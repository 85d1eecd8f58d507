"""From files of an archive to one versioned cube, without copying their data.

    files         sources to what is known of them: what they contain, where their chunks lie
    combining     the facts of many files -> where each file goes, and what does not fit
    writing       the dataset of a group, the record of its files, and references -> manifests
    copying       values instead of references, with chunks of one's own choice
    checking      are the values right: compared with independent readers before a commit
    planning      what a job takes, before it runs: from a sample of the files
    coverage      which steps a dataset covers, lacks, and got late
    running       jobs: all of it, by tasks on an engine, and one commit
    local         the same through a session that the caller commits

Nothing here knows Spark: `icefloe.spark` is another engine for the same jobs, on many machines.
Names are imported when they are first used, so that commands without the pipeline start quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
