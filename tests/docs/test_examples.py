"""The demonstration runs, and checks itself."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_runs(tmp_path: Path) -> None:
    sizes = ["--processes=2", "--increments=5", "--references=1000"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--folder=demo", *sizes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the counter says 10." in done.stdout
    assert "read back equal" in done.stdout
    assert len(list((tmp_path / "demo" / "manifests").iterdir())) == 1
