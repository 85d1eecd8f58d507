"""The former reference (release 1.1), which runs in a process of its own.

Run as a program, this module takes questions as lines of JSON and answers each with a line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

INSTALLED = Path(__file__).parents[2] / ".cache" / "icechunk-1"


def require_installed() -> None:
    """Skip a test where the release is missing; on CI, that is a failure."""
    if not (INSTALLED / "icechunk").exists():
        reason = "the former reference is not installed: run `make setup`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class FormerReference:
    """Expires and collects in repositories of spec 1."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def expire(self, path: Path, older_than: datetime, **options: bool) -> set[str]:
        """Expire, and return what the release says has expired."""
        return set(self._ask("expire", path, older_than, options))

    def collect(self, path: Path, older_than: datetime) -> None:
        """Collect garbage."""
        self._ask("collect", path, older_than, {})

    def _ask(self, task: str, path: Path, moment: datetime, options: dict[str, bool]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = [task, str(path), moment.isoformat(), options]
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the former reference ended"
        reply = json.loads(line)
        assert "failure" not in reply, reply
        return reply["answer"]


@contextmanager
def former_reference() -> Iterator[FormerReference]:
    """Start the release, and end it afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(INSTALLED)}
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it logs a warning at each opening of a folder
        text=True,
        env=environment,
    )
    with process:
        yield FormerReference(process)
        assert process.stdin is not None
        process.stdin.close()


def _serve() -> None:
    import icechunk as ic  # the former release, in its own process only

    assert ic.__version__.startswith("1.1."), ic.__version__
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # it logs to the standard output
    for line in sys.stdin:
        task, path, moment, options = json.loads(line)
        reply: dict[str, Any]
        try:
            repo = ic.Repository.open(ic.local_filesystem_storage(path))
            older_than = datetime.fromisoformat(moment)
            if task == "expire":
                reply = {"answer": sorted(repo.expire_snapshots(older_than, **options))}
            else:
                repo.garbage_collect(older_than)
                reply = {"answer": None}
        except ic.IcechunkError as error:
            reply = {"failure": str(error)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
