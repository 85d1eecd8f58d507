"""Run one server for as long as anybody holds a shared lock on a file.

Started as a plain script with the folder of the run and the command. It detaches itself, so
that nobody has to reap it, starts the command and waits for an exclusive lock on `users.lock`.
Locks end with the processes that hold them, whatever kills those, so the server never outlives
its last user; its folder is removed with it.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_REMOVAL_SECONDS = 60


def _detach() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()


def _report_when_ended(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    code = server.wait()
    (folder / "ended").write_text(str(code))


def _remove(folder: Path) -> None:
    """Remove a folder into which those that the server has started may write for a moment yet."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Supervise the command given as JSON in the file `command.json` of the run's folder."""
    folder = Path(sys.argv[1])
    command: list[str] = json.loads((folder / "command.json").read_text())
    _detach()
    with (folder / "log.txt").open("ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(server.pid))
    reporter = threading.Thread(target=_report_when_ended, args=(server, folder), daemon=True)
    reporter.start()
    with (folder / "users.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its data are thrown away: no need to ask
        reporter.join()
        _remove(folder)


if __name__ == "__main__":
    main()
