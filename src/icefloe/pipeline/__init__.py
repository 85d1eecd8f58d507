"""From files of an archive to one versioned cube, without copying their data.

    files         sources to what is known of them: what they contain, where their chunks lie
    combining     the facts of many files -> where each file goes, and what does not fit
    checking      are the values right, and can the result be opened: before anything is committed
    writing       their references -> whole manifests, in one commit or in several
    copying       values instead of references, with chunks of one's own choice
    provenance    which files a dataset was made of, what it covers, lacks, and got late

    planning      what a job takes, before it runs: from a sample of the files
    copy_planning the same for a copy of the values
    local         all of it in this process

Nothing here knows Spark; `icefloe.spark` runs the same parts on many machines.
"""
