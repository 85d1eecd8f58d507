"""Writes or collects in a process of its own, whose clock may be faked.

The storage comes pickled on the first line of the input, in hexadecimal digits. A writer says when
its chunks are written, and commits when it is told to.
"""

import pickle
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.faults.sessions import BIG, put_chunk

OLDER_THAN = timedelta(minutes=5)
VALUES = {3: 4, 5: 6}
"""Chunks that a writer writes, and what is in them."""


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def write(storage: Storage) -> None:
    session = icefloe.Repository.open(storage).writable_session("main")
    for number, value in VALUES.items():
        run_blocking(put_chunk(session, number, value, BIG))
    say("written at", datetime.now(UTC).isoformat())
    sys.stdin.readline()
    try:
        say("committed", session.commit("written with a wrong clock"))
    except icefloe.IcefloeError as error:
        say("refused", error.kind)


def collect(storage: Storage) -> None:
    repo = icefloe.Repository.open(storage)
    summary = repo.garbage_collect(datetime.now(UTC) - OLDER_THAN)
    assert summary.is_complete, summary
    say("collected", str(summary.objects_deleted))


def sleep(seconds: SupportsIndex | float) -> None:
    """Wait as `time.sleep` does, which fails under libfaketime unless all clocks are faked."""
    threading.Event().wait(float(seconds))


if __name__ == "__main__":
    time.sleep = sleep
    storage = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    {"write": write, "collect": collect}[sys.argv[1]](storage)
