"""Jobs: archives to versioned cubes, in one commit, on an engine of choice.

engines      the port below a job: where tasks run, and how rows travel between them
jobs         virtualize and append, ingest and rechunk: one job, one commit
job          the job itself: tasks build manifests, the driver commits them, and reports
virtual      the producer of references to files
native       the producer of copies of values
automatic    the producer that chooses one of these forms
estimates    what a job will take, before it runs
orphans      what jobs may have left behind
progress     progress of stages
local        the engine of this machine: tasks in this process, or in a pool of processes
pool         the processes of the pool
worker       one of these processes
"""
