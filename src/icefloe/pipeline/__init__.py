"""From files of an archive to one versioned cube, without copying their data.

    sources    which files there are
    formats    what kind of file each is
    parsing    a file -> its arrays, their references to chunks, the values of its coordinates
    schema     what arrays look like, and in what two descriptions differ
    facts      what is known of a file, as rows of Arrow
    times      moments of CF calendars, comparable across units
    combine    the files' facts -> where each file goes, and what does not fit
    report     what does not fit and what is missing, for people and programs
    local      all of it in this process

Nothing here knows Spark; `icefloe.spark` runs the same parts on many machines.
"""
