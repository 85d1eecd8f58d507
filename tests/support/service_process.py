"""`icefloe serve` as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx

PATIENCE_SECONDS = 120
COMMAND = (sys.executable, "-c", "from icefloe.cli.main import app; app()")


@dataclass(frozen=True, slots=True)
class Served:
    """A service that runs."""

    url: str
    first_link: str
    process: subprocess.Popen[str]
    log: Path


@contextmanager
def served(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Run `icefloe serve` in an empty folder, on any port, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    with (
        log.open("a") as errors,
        subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *arguments],
            cwd=folder,
            env=os.environ | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert " serves " in line, log.read_text()
            url = line.rpartition(" ")[2].strip()
            process.stdout.readline()
            link = process.stdout.readline().strip()
            # Several workers start, on a machine that others use.
            httpx.get(f"{url}/api/v1/health", timeout=PATIENCE_SECONDS).raise_for_status()
            yield Served(url, link, process, log)
        finally:
            process.terminate()
            process.wait(60)
