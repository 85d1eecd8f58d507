"""The demo: what it prints works when it is pasted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_the_commands_of_the_demo_work_when_pasted(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }
    command = [str(scripts / "icefloe"), "serve", "--demo", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        try:
            lines: list[str] = []
            while not lines or not lines[-1].endswith("zoo/part\n"):
                line = demo.stdout.readline()
                assert line, "the demo ended before it printed what to try"
                lines.append(line)
            pasted = subprocess.run(
                ["bash", "-e"],
                input="".join(lines),
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            demo.send_signal(signal.SIGTERM)
    assert pasted.returncode == 0, pasted.stderr
    assert any(line.startswith("# http://127.0.0.1:") and "/join/" in line for line in lines)
    printed = pasted.stdout.splitlines()
    all_days = "[ 0.  1.  2.  3.  4.  5.  6.  7.  8.  9. 10. 11.]"
    assert printed.count(all_days) == 2
    assert "refused" in printed
    assert "s3://demo/archive/tapes/: no policy shares it" in pasted.stderr
    assert "[ 0. 10. 20. 30. 40. 50. 60. 70. 80. 90.]" in printed
    assert "[0. 1. 2. 3. 4. 5. 6. 7.]" in printed
    assert "[ 4.  5.  6.  7.  8.  9. 10. 11.]" in printed
    assert not list(tmp_path.glob("icefloe-demo-*")), "the demo left its folder behind"
