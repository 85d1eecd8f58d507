"""Servers of the kit start, are shared, and never outlive their users."""

import http.client
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
import pytest

from tests.conformance.waiting import wait_for
from tests.support.processes import LOOPBACK, Launch, ServerStartError, free_ports, running

pytestmark = pytest.mark.server
SPAWN = multiprocessing.get_context("spawn")


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def web_server(folder: Path) -> Launch:
    (port,) = free_ports(1)
    options = ["--bind", LOOPBACK, "--directory", str(folder / "data")]
    return Launch(
        [sys.executable, "-m", "http.server", str(port), *options],
        {"port": str(port)},
        partial(answers, port),
    )


def use_until_told(shared: Path, has_begun: Event, may_end: Event) -> None:
    with running("web", web_server, shared=shared):
        has_begun.set()
        may_end.wait(300)  # longer than any test may take


def eventually(is_true: Callable[[], bool]) -> bool:
    """Wait for what another process is about to do."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(0.02)
    return False


def servers_in(folder: Path) -> list[psutil.Process]:
    """Find processes whose command names the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in part for part in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_private_server_ends_with_its_block() -> None:
    with running("web", web_server) as address:
        port = int(address["port"])
        assert answers(port)
    assert not answers(port)


def test_server_ends_when_the_block_fails() -> None:
    with pytest.raises(KeyError), running("web", web_server) as address:
        raise KeyError
    assert not answers(int(address["port"]))


def test_shared_server_ends_with_its_last_user(tmp_path: Path) -> None:
    has_begun, may_end = SPAWN.Event(), SPAWN.Event()
    arguments = (tmp_path, has_begun, may_end)
    other = SPAWN.Process(target=use_until_told, args=arguments, daemon=True)
    other.start()
    wait_for(has_begun, other)
    with running("web", web_server, shared=tmp_path) as address:
        assert len(servers_in(tmp_path / "web" / "data")) == 1
        may_end.set()
        other.join()
        assert answers(int(address["port"]))
    assert eventually(lambda: not (tmp_path / "web").exists())
    assert not answers(int(address["port"]))
    with running("web", web_server, shared=tmp_path) as later:
        assert answers(int(later["port"]))


def test_server_ends_when_its_user_is_killed(tmp_path: Path) -> None:
    has_begun, may_end = SPAWN.Event(), SPAWN.Event()
    arguments = (tmp_path, has_begun, may_end)
    user = SPAWN.Process(target=use_until_told, args=arguments, daemon=True)
    user.start()
    wait_for(has_begun, user)
    (server,) = servers_in(tmp_path / "web" / "data")
    assert user.pid is not None
    os.kill(user.pid, signal.SIGKILL)
    user.join()
    assert eventually(lambda: not server.is_running() and not (tmp_path / "web").exists())


WRITER = """
import itertools, os, pathlib, sys, time
server, place, ends = os.getppid(), pathlib.Path(sys.argv[1]), None
place.mkdir()
for number in itertools.cycle(range(50)):
    (place / str(number)).write_text("still here")
    if ends is None and os.getppid() != server:
        ends = time.monotonic() + 0.5
    if ends is not None and time.monotonic() > ends:
        break
"""
SERVER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True).wait()
"""


def test_no_folder_stays_although_helpers_outlive_their_server_for_a_moment(
    tmp_path: Path,
) -> None:
    def plan(folder: Path) -> Launch:
        place = folder / "data" / "deep"
        command = [sys.executable, "-c", SERVER, WRITER, str(place)]
        return Launch(command, {}, (place / "0").exists)

    with running("untidy", plan, shared=tmp_path):
        assert (tmp_path / "untidy").exists()
    assert eventually(lambda: not (tmp_path / "untidy").exists())


def test_failed_start_shows_the_log() -> None:
    def plan(_: Path) -> Launch:
        complaint = "import sys; sys.exit('my port is gone')"
        return Launch([sys.executable, "-c", complaint], {}, lambda: False)

    with pytest.raises(ServerStartError, match="my port is gone"), running("broken", plan):
        pytest.fail("it did not start")


def test_failed_start_is_tried_again(tmp_path: Path) -> None:
    """A port can be taken between finding it free and binding it."""
    tries: list[Path] = []

    def plan(folder: Path) -> Launch:
        tries.append(folder)
        launch = web_server(folder)
        command = (
            launch.command if len(tries) > 1 else [sys.executable, "-c", "raise SystemExit(1)"]
        )
        return Launch(command, launch.address, launch.is_ready)

    with running("web", plan, shared=tmp_path) as address:
        assert answers(int(address["port"]))
    assert len(tries) == 2
