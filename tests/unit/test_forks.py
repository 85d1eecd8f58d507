"""Forks while other threads work: children find locks free, and modules whole."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from icefloe.forks import renew_lock_in_children

IMPORTING = """
import os, signal, sys, threading, warnings
from importlib.machinery import PathFinder

warnings.simplefilter("ignore")
from icefloe.format.arrow import pa

assert "pyarrow" not in sys.modules
has_begun, is_forking = threading.Event(), threading.Event()


class SlowFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pyarrow.lib":  # the import of the package is under way
            has_begun.set()
            is_forking.wait()
        return None


sys.meta_path.insert(0, SlowFinder)
os.register_at_fork(before=is_forking.set)
threading.Thread(target=lambda: pa.array, daemon=True).start()
has_begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that waits for ever
    assert len(pa.array([1, 2])) == 2
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child was left waiting"
"""


def test_a_fork_waits_for_an_import_of_another_thread(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IMPORTING)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class Owner:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_lock_in_children(self)

    def hold(self, has_begun: threading.Event, may_end: threading.Event) -> None:
        with self._lock:
            has_begun.set()
            may_end.wait()

    def use(self) -> str:
        with self._lock:
            return "used"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_a_lock_of_another_thread() -> None:
    owner, has_begun, may_end = Owner(), threading.Event(), threading.Event()
    holder = threading.Thread(target=owner.hold, args=(has_begun, may_end))
    holder.start()
    has_begun.wait()
    if (child := os.fork()) == 0:  # pragma: no cover - another process
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        os._exit(0 if owner.use() == "used" else 1)
    status = os.waitpid(child, 0)[1]
    may_end.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert owner.use() == "used"
