"""Threads that work for others: how many there are, and how they end."""

import subprocess
import sys
import threading
from textwrap import dedent

from icefloe.threads import Threads


def test_no_more_threads_start_than_allowed_and_they_are_used_again() -> None:
    threads, seen = Threads(3, "counted"), set[int]()
    for _ in range(4):
        together, done = threading.Barrier(4), threading.Semaphore(0)

        def meet(together: threading.Barrier = together) -> None:
            seen.add(threading.get_ident())
            together.wait(60)

        for _ in range(3):
            threads.submit(meet)
        for _ in range(20):
            threads.submit(done.release)
        assert not done.acquire(blocking=False)  # all three are busy
        together.wait(60)
        assert all(done.acquire(timeout=60) for _ in range(20))
    assert len(seen) == 3


def test_threads_have_the_name_of_their_group() -> None:
    names, done = list[str](), threading.Event()

    def note() -> None:
        names.append(threading.current_thread().name)
        done.set()

    Threads(1, "named").submit(note)
    assert done.wait(60)
    assert names == ["named"]


def test_the_end_of_a_program_waits_for_what_is_under_way_and_drops_the_rest() -> None:
    program = """
        import os, sys, threading, time
        from icefloe.threads import Threads

        threads = Threads(2, "ending")
        is_under_way = threading.Semaphore(0)

        def work():
            is_under_way.release()
            time.sleep(0.2)
            print("done", flush=True)
            threads.submit(lambda: print("never", flush=True))

        for _ in range(1000):
            threads.submit(work)
        is_under_way.acquire()
        is_under_way.acquire()
        child = os.fork()
        if child == 0:  # here is none of the two threads
            done = threading.Event()
            threads.submit(done.set)
            assert done.wait(60)
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    command = [sys.executable, "-W", "ignore", "-c", dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    printed = ended.stdout.split()
    assert 2 <= len(printed) < 1000
    assert set(printed) == {"done"}
