"""A real Chromium, from the npm project `tools/browser`: it needs no root and no other package."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tools" / "browser"
UNPACKED = ROOT / ".cache" / "browser"
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars")

expect.set_options(timeout=60_000)  # a busy machine is no failure


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser without a window."""
    program = _unpack()
    environment: dict[str, str | float | bool] = {
        **os.environ,
        "LD_LIBRARY_PATH": str(UNPACKED / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(_fonts()),
        "HOME": str(UNPACKED),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(program), args=list(_OPTIONS), env=environment
        )
        yield browser
        browser.close()


def _unpack() -> Path:
    """Unpack the program and its libraries once, also among several test processes."""
    UNPACKED.mkdir(parents=True, exist_ok=True)
    environment = dict(
        os.environ, TMPDIR=str(UNPACKED), AWS_LAMBDA_JS_RUNTIME="nodejs22.x", HOME=str(UNPACKED)
    )
    with (UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["node", "unpack.js"],
            cwd=PROJECT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    return Path(done.stdout.strip())


def _fonts() -> Path:
    """Write where the fonts are: the configuration that comes with them looks in /tmp/fonts.

    Without any font, the browser ends as soon as it has to draw a text.
    """
    file = UNPACKED / "fonts.conf"
    new = UNPACKED / f"fonts.{os.getpid()}.conf"
    new.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{UNPACKED / 'fonts'}</dir><cachedir>{UNPACKED / 'fonts-cache'}</cachedir>"
        "</fontconfig>"
    )
    new.replace(file)
    return file


def serious_problems(page: Page) -> list[str]:
    """Return the problems of accessibility that axe calls serious or critical."""
    # The policy of our pages allows no other scripts; this way of running one is not a page's.
    source = (PROJECT / "node_modules" / "axe-core" / "axe.min.js").read_text()
    page.evaluate(source + "; undefined")
    results = page.evaluate("() => axe.run()")
    return [
        f"{problem['id']}: {problem['help']} ({node['html'][:200]})"
        for problem in results["violations"]
        if problem["impact"] in ("serious", "critical")
        for node in problem["nodes"]
    ]
