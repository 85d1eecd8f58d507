"""The demonstrations run, and check themselves."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import icefloe
from icefloe.cli.main import app

ROOT = Path(__file__).parents[2]
JAVA_HOME = ROOT / ".cache" / "java_home"


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if JAVA_HOME.exists():
        environment["JAVA_HOME"] = JAVA_HOME.read_text().strip()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spark
def test_the_demo_runs_and_its_hints_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run(tmp_path, "-m", "examples.demo", "--folder=demo", "--files=60")
    assert "truncated" in shown
    assert "model_000030.nc" in shown.replace("\n", "")
    assert "14 of 14 files fit" in shown
    assert "nothing to commit" in shown
    assert re.search(r"^/weather/temperature +1 ", shown, re.MULTILINE)
    assert "2 came late" in shown
    picture = tmp_path / "demo" / "picture.svg"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    for text in ("longitude [°]", "temperature [°C]", "2000-", "the first delivery, 46 days"):
        assert text in picture.read_text()
    assert picture.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    commands = re.findall(r"^\$ icefloe (\S+)", shown, re.MULTILINE)
    assert commands[:4] == ["ingest", "ingest", "ingest", "tag"]
    assert commands.count("append") == 3
    assert ">>> ocean = xr.open_dataset(" in shown
    storage = icefloe.local_filesystem_storage(str(tmp_path / "demo" / "cube"))
    history = list(icefloe.Repository.open(storage).ancestry(branch="main"))
    assert len(history) == 5  # created; the ocean and the weather, each twice
    monkeypatch.chdir(tmp_path)
    hints = re.findall(r"\.venv/bin/icefloe (.+)$", shown, re.MULTILINE)
    assert len(hints) == 4
    for hint in hints:
        outcome = CliRunner().invoke(app, shlex.split(hint))
        assert outcome.exit_code == 0, outcome.output


def test_the_story_about_versions_runs(tmp_path: Path) -> None:
    options = ["--folder=demo", "--processes=2", "--commits=3"]
    shown = run(tmp_path, str(ROOT / "examples" / "versions.py"), *options)
    assert "Chunk double update at /t2m, chunks [[0, 0, 0]]" in shown
    assert "3 of 3 commits are in the history" in shown
    assert "what if it were two degrees warmer?" in shown
    assert ElementTree.parse(tmp_path / "demo-history.svg").getroot().tag.endswith("svg")
    storage = icefloe.local_filesystem_storage(str(tmp_path / "demo"))
    history = list(icefloe.Repository.open(storage).ancestry(branch="main"))
    assert len(history) == 8  # created, first, corrected, Ana, Ben, and three of the processes
