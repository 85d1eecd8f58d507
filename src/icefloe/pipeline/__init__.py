"""From files of an archive to one versioned cube, without copying their data.

    sources    which files there are
    formats    what kind of file each is
    parsing    a file -> its arrays, their references to chunks, the values of its coordinates
    schema     what arrays look like, and in what two descriptions differ
    facts      what is known of a file, as rows of Arrow
    times      moments of CF calendars, comparable across units
    combine    the files' facts -> where each file goes, and what does not fit
    report     what does not fit and what is missing, for people and programs
    hdf5       the structure of HDF5 files, read directly
    planning   what a job takes: tasks, memory, commits, time
    records    which files a dataset was made of, kept beside it
    coverage   what a version holds, lacks, and got late; inventory lists its files
    local      all of it in this process

And to copies of values, with chunks of one's choice:

    layouts    chunks and shards of the copies
    regions    what one task copies, within its memory; slabs divide it over several commits
    copying    values out of the source, objects into the repository
    staging    the repository in which files that are copied are virtualised first

Nothing here knows Spark; `icefloe.spark` runs the same parts on many machines.
"""
