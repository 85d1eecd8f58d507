"""Whether this process has the threads that do the requests of `obstore`.

They start with the first request and serve the whole process. A child that is forked later has
the memory that says they run, but not the threads: it would wait for them forever.
"""

import os

from icefloe.errors import StorageError

_owner: int | None = None


def require_request_threads() -> None:
    """Refuse a request in a child of a process that made some before it forked."""
    global _owner  # noqa: PLW0603 - there is one set of threads in a process
    process = os.getpid()
    if _owner is None:
        _owner = process
    elif _owner != process:
        raise StorageError(
            "this process was forked from one that had used object storage already, and the"
            " threads that do requests stayed behind there. Start processes with"
            " multiprocessing.get_context('forkserver') or 'spawn', or fork before the first use"
        )
