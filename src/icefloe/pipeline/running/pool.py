"""A pool of processes that outlives tasks which kill their process.

Processes are fresh interpreters, neither forked nor told about the main module: a script needs no
guard, and threads and clients of this process do not matter. They end with the pipe to them, so
that none outlives this process for longer than its task.
"""

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from icefloe.errors import ErrorKind, IcefloeError
from icefloe.pipeline.running.tasks import ATTEMPTS
from icefloe.pipeline.running.worker import Request

_PROGRAM: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from icefloe.pipeline.running.worker import main; main()"
)


class _DiedError(Exception):
    """A process ended in the middle of a task."""


class _Process:
    """One process, which runs one task at a time."""

    def __init__(self) -> None:
        # In a session of its own: a key press on the terminal is for this process only.
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._is_new = True
        self._known: set[str] = set()
        self._stage: bytes | None = None

    def run(self, stage: bytes, shared: Mapping[str, bytes], task: bytes) -> tuple[bool, bytes]:
        """Run a task; return whether it went well, and its result or its error."""
        request = Request(
            names=frozenset(shared),
            values={name: value for name, value in shared.items() if name not in self._known},
            stage=None if stage is self._stage else stage,
            task=task,
        )
        if self._is_new:
            self._send(sys.path)
            self._is_new = False
        self._send(request)
        self._known, self._stage = set(shared), stage
        assert self._process.stdout is not None
        try:
            answer: tuple[bool, bytes] = pickle.load(self._process.stdout)  # noqa: S301 - our own
        except (EOFError, OSError, pickle.UnpicklingError):
            raise _DiedError from None
        return answer

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            raise _DiedError from None

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def reap(self) -> int:
        """Wait for the end of a killed process; return how it ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        return self._process.wait()


class Pool:
    """Starts processes when there are tasks for them, and keeps them for the next tasks."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._lock: Final = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    def run(
        self, stage: bytes, shared: Mapping[str, bytes], tasks: Sequence[bytes]
    ) -> Iterator[tuple[int, Any]]:
        """Run tasks; yield the number and the result of each as it ends.

        The first error is raised, and ends all processes. So does leaving early.
        """
        run = _Run(self, stage, dict(shared), tasks)
        threads = [
            threading.Thread(target=run.serve, name=f"icefloe-task-{number}", daemon=True)
            for number in range(min(self._size, len(tasks)))
        ]
        is_done = False
        try:
            for thread in threads:
                thread.start()
            for _ in tasks:
                number, is_good, answer = run.results.get()
                if not is_good:
                    raise answer
                yield number, answer
            is_done = True
        finally:
            if not is_done:
                run.is_over.set()
                self.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def stop(self) -> None:
        """End all processes, whatever they do; the next tasks start new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            for process in (*idle, *self._busy):
                process.kill()
        for process in idle:  # those with a task are waited for by their threads
            process.reap()

    def _take(self, is_over: threading.Event) -> _Process | None:
        with self._lock:
            if is_over.is_set():
                return None
            process = self._idle.pop() if self._idle else _Process()
            self._busy.add(process)
            return process

    def _give_back(self, process: _Process, *, is_alive: bool) -> int:
        with self._lock:
            self._busy.remove(process)
            if is_alive:
                self._idle.append(process)
                return 0
        process.kill()
        return process.reap()


class _Run:
    """The tasks of a stage, and what came of them."""

    def __init__(
        self, pool: Pool, stage: bytes, shared: Mapping[str, bytes], tasks: Sequence[bytes]
    ) -> None:
        self._pool, self._stage, self._shared, self._tasks = pool, stage, shared, tasks
        self._waiting = SimpleQueue[int]()
        for number in range(len(tasks)):
            self._waiting.put(number)
        self.results = SimpleQueue[tuple[int, bool, Any]]()
        self.is_over = threading.Event()

    def serve(self) -> None:
        """Have a process run one waiting task after the other."""
        while not self.is_over.is_set():
            try:
                number = self._waiting.get_nowait()
            except Empty:
                return
            try:
                is_good, answer = self._run(self._tasks[number])
                self.results.put((number, is_good, pickle.loads(answer)))  # noqa: S301 - our own
            except Exception as error:  # noqa: BLE001 - the caller raises it
                self.results.put((number, False, error))

    def _run(self, task: bytes) -> tuple[bool, bytes]:
        code = 0
        for _ in range(ATTEMPTS):
            process = self._pool._take(self.is_over)  # noqa: SLF001 - the same module
            if process is None:
                break
            is_alive = False
            try:
                answer = process.run(self._stage, self._shared, task)
                is_alive = True
            except _DiedError:
                continue
            else:
                return answer
            finally:
                code = self._pool._give_back(process, is_alive=is_alive)  # noqa: SLF001 - the same
        raise IcefloeError(
            f"a process that worked for this job ended {ATTEMPTS} times with the same task, last"
            f" with code {code}: perhaps the machine ran out of memory, or a library crashed."
            " Try fewer processes, or leave out the files of this task",
            ErrorKind.UNKNOWN,
        )
