"""The demonstration runs, and checks itself."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import icefloe

ROOT = Path(__file__).parents[2]


def test_the_demo_runs(tmp_path: Path) -> None:
    options = ["--folder=demo", "--processes=2", "--commits=3"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Chunk double update at /t2m, chunks [[0, 0, 0]]" in done.stdout
    assert "3 of 3 commits are in the history" in done.stdout
    assert "what if it were two degrees warmer?" in done.stdout
    assert ElementTree.parse(tmp_path / "demo-history.svg").getroot().tag.endswith("svg")
    storage = icefloe.local_filesystem_storage(str(tmp_path / "demo"))
    history = list(icefloe.Repository.open(storage).ancestry(branch="main"))
    assert len(history) == 8  # created, first, corrected, Ana, Ben, and three of the processes
