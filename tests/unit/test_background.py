"""Work in the background is done, one step at a time, and is in nobody's way."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from icefloe.background import BackgroundWork, Step

LONG = 60.0
"""Seconds after which a test that waits in vain gives up; no test takes that long."""


def noting(notes: list[str], text: str) -> Step:
    async def step() -> None:
        notes.append(text)

    return step


def test_steps_are_done_in_their_order() -> None:
    notes: list[str] = []
    first = BackgroundWork.start([noting(notes, "a"), noting(notes, "b")])
    second = BackgroundWork.start(noting(notes, text) for text in "cd")
    assert second.wait(LONG)
    assert first.is_over
    assert notes == ["a", "b", "c", "d"]


def test_steps_run_on_a_thread_that_ends() -> None:
    threads: list[threading.Thread] = []

    async def step() -> None:
        threads.append(threading.current_thread())

    BackgroundWork.start([step]).wait(LONG)
    [thread] = threads
    assert thread is not threading.current_thread()
    thread.join(LONG)
    assert not thread.is_alive()
    BackgroundWork.start([step]).wait(LONG)
    assert len(threads) == 2


def test_a_failure_ends_this_work_and_no_other() -> None:
    notes: list[str] = []

    async def fails() -> None:
        raise OSError("the network is gone")

    failing = BackgroundWork.start([fails, noting(notes, "not reached")])
    after = BackgroundWork.start([noting(notes, "another")])
    assert after.wait(LONG)
    assert failing.is_over
    assert notes == ["another"]


def test_choosing_the_steps_may_fail() -> None:
    def steps() -> Iterator[Step]:
        raise ValueError("a bad pattern")
        yield

    assert BackgroundWork.start(steps()).wait(LONG)


def test_what_is_stopped_begins_no_further_step() -> None:
    notes: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        go_on.wait(LONG)
        notes.append("ended")

    work = BackgroundWork.start([waits, noting(notes, "not reached")])
    begun.wait(LONG)
    work.stop()
    go_on.set()
    BackgroundWork.start([noting(notes, "next")]).wait(LONG)
    assert notes == ["ended", "next"]


def test_only_so_much_waits() -> None:
    notes: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        go_on.wait(LONG)

    BackgroundWork.start([waits])
    begun.wait(LONG)
    many = [BackgroundWork.start([noting(notes, str(number))]) for number in range(20)]
    assert [work.is_over for work in many] == [True] * 4 + [False] * 16
    go_on.set()
    assert many[-1].wait(LONG)
    assert notes == [str(number) for number in range(4, 20)]


def test_waiting_for_a_while_says_whether_it_is_over() -> None:
    go_on = threading.Event()

    async def waits() -> None:
        go_on.wait(LONG)

    work = BackgroundWork.start([waits])
    assert not work.wait(0)
    go_on.set()
    assert work.wait(LONG)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SLOW = """
import os, threading
from icefloe.background import BackgroundWork
begun, go_on, notes = threading.Event(), threading.Event(), []
async def slow():
    begun.set()
    go_on.wait(1)
    notes.append("step ended")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_waits_for_the_step_and_the_child_has_nothing_to_do() -> None:
    found = run(
        _SLOW
        + """
work = BackgroundWork.start([slow])
begun.wait()
if os.fork() == 0:
    ended = [work.is_over, work.wait(), list(notes)]
    async def own(): print("the child works:", ended, flush=True)
    BackgroundWork.start([own]).wait()
    os._exit(0)
os.wait()
work.wait()
print("the parent goes on:", notes)
"""
    )
    assert found.splitlines() == [
        "the child works: [True, True, ['step ended']]",
        "the parent goes on: ['step ended']",
    ]


def test_the_end_of_the_program_waits_for_the_step_only() -> None:
    found = run(
        """
import threading
from icefloe.background import BackgroundWork
begun = threading.Event()
async def step():
    begun.set()
    threading.main_thread().join()
    print("step ended")
async def never():
    print("never")
BackgroundWork.start([step, never])
begun.wait()
print("end")
"""
    )
    assert found.splitlines() == ["end", "step ended"]
