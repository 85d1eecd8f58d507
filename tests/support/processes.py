"""Start a server as a process of its own, and never leave it behind.

A run lives in a folder: the server's data, its log and the lock that its users share. Several
processes (the workers of one test run) may use one server; it ends with the last of them, also
when they are killed. POSIX only.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from icefloe.errors import IcefloeError

LOOPBACK = "127.0.0.1"
_SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_ATTEMPTS = 3  # a port found free may be taken before the server binds it
_LOG_TAIL = 4000


class ServerStartError(IcefloeError):
    """A test server did not come up; the message ends with what it logged."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server, and how to reach it once it runs."""

    command: Sequence[str]
    address: Mapping[str, str]
    """What a user of the server must know; shared with other processes as JSON."""
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_seconds: float = 120.0


def free_ports(count: int) -> list[int]:
    """Find ports of the loopback interface that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def log_tail(folder: Path) -> str:
    """Give the end of what a server logged, for messages about failures."""
    log = folder / "log.txt"
    return log.read_text(errors="replace")[-_LOG_TAIL:] if log.exists() else "(no log)"


@contextmanager
def running(
    name: str, plan: Callable[[Path], Launch], *, shared: Path | None = None
) -> Iterator[Mapping[str, str]]:
    """Use a server, starting it if need be, and give its address.

    Without `shared` the server belongs to this block alone and is gone when the block ends. With
    it, all processes that name the same folder use one server, which ends after the last of them.
    """
    if shared is None:
        base = Path(tempfile.mkdtemp(prefix=f"icefloe-{name}-"))
        try:
            with _using(base / name, plan) as address:
                yield address
        finally:
            _wait_until_gone(base / name)
            shutil.rmtree(base, ignore_errors=True)
    else:
        shared.mkdir(parents=True, exist_ok=True)
        with _using(shared / name, plan) as address:
            yield address


@contextmanager
def _using(folder: Path, plan: Callable[[Path], Launch]) -> Iterator[Mapping[str, str]]:
    with ExitStack() as held:
        with folder.with_suffix(".starting").open("wb") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)  # one starter at a time; released on close
            address = _join(folder, held)
            if address is None:
                address = _start(folder, plan, held)
        yield address


def _join(folder: Path, held: ExitStack) -> Mapping[str, str] | None:
    """Become a user of the server in that folder, if one is running."""
    with ExitStack() as trial:
        try:
            lock = trial.enter_context((folder / "users.lock").open("rb"))
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits while a supervisor is clearing up
            address: Mapping[str, str] = json.loads((folder / "address.json").read_text())
        except FileNotFoundError:
            return None
        if (folder / "ended").exists():
            return None
        held.push(trial.pop_all())
        return address


def _start(folder: Path, plan: Callable[[Path], Launch], held: ExitStack) -> Mapping[str, str]:
    for _ in range(_ATTEMPTS):
        _wait_until_gone(folder)
        (folder / "data").mkdir(parents=True)
        (folder / "users.lock").touch()
        with ExitStack() as trial:
            lock = trial.enter_context((folder / "users.lock").open("rb"))
            fcntl.flock(lock, fcntl.LOCK_SH)
            launch = plan(folder)
            _supervise(folder, launch)
            if _became_ready(folder, launch):
                (folder / "address.json").write_text(json.dumps(dict(launch.address)))
                held.push(trial.pop_all())
                return launch.address
            log = log_tail(folder)
    raise ServerStartError(
        f"{folder.name} did not start in {_ATTEMPTS} attempts; its log ends with:\n{log}",
        command=launch.command[0],
    )


def _supervise(folder: Path, launch: Launch) -> None:
    (folder / "command.json").write_text(json.dumps(list(launch.command)))
    with (folder / "log.txt").open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", str(_SUPERVISOR), str(folder)],
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,  # not ours: a reader of our output would wait for the supervisor's end
            stderr=log,
            check=True,
        )


def _became_ready(folder: Path, launch: Launch) -> bool:
    deadline = time.monotonic() + launch.patience_seconds
    while time.monotonic() < deadline and not (folder / "ended").exists():
        if launch.is_ready():
            return True
        time.sleep(0.05)
    return False


def _wait_until_gone(folder: Path, patience_seconds: float = 60.0) -> None:
    """Wait for a supervisor to remove the folder of its run."""
    deadline = time.monotonic() + patience_seconds
    while folder.exists():
        if time.monotonic() > deadline:
            raise ServerStartError(f"{folder} is still there after its last user left")
        time.sleep(0.02)
