"""`icefloe view` as a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_COMMAND = (sys.executable, "-c", "from icefloe.cli.main import app; app()", "view")


@contextmanager
def viewing(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Show a repository as people do; yield what the command printed. It ends by Ctrl-C."""
    process = subprocess.Popen(
        [*_COMMAND, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()


def address_in(line: str) -> str:
    """Return the address that the command printed."""
    address = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert address is not None, line
    return address[0]
