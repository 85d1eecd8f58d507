"""The setup runs on old Pythons, and its Java does what Spark asks for."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).parents[2]


def test_any_python_from_3_8_can_read_the_setup() -> None:
    source = (ROOT / "tools" / "bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 8))


def test_the_java_wrapper_drops_one_module_and_keeps_all_else(tmp_path: Path) -> None:
    odd_folder = tmp_path / "it's a folder"
    odd_folder.mkdir()
    real, wrapper = odd_folder / "real", tmp_path / "java"
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    wrapper.write_text(bootstrap.java_wrapper(real))
    for program in (real, wrapper):
        program.chmod(0o755)
    kept = ["-cp", "a b:*", "", "--add-modules=jdk.other", "$HOME"]
    done = subprocess.run(
        [wrapper, *kept[:2], "--add-modules=jdk.incubator.vector", *kept[2:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:-1] == kept


def test_the_release_of_a_java_is_read(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\n"
        "echo '    java.home = /opt/an old java' >&2\n"
        "echo '    java.specification.version = 1.8' >&2\n"
    )
    java.chmod(0o755)
    assert bootstrap.java_release(str(java)) == (8, Path("/opt/an old java"))
    assert bootstrap.java_release(str(tmp_path / "absent")) == (0, None)


def test_only_a_usable_python_is_chosen(tmp_path: Path) -> None:
    def fake(name: str, answer: str) -> Path:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {answer}\n")
        program.chmod(0o755)
        return program

    assert bootstrap.python_minor(fake("good", "cpython 3 13 0")) == 13
    assert bootstrap.python_minor(fake("old", "cpython 3 11 0")) is None
    assert bootstrap.python_minor(fake("free-threaded", "cpython 3 13 1")) is None
    assert bootstrap.python_minor(fake("other", "pypy 3 12 0")) is None


def test_the_preferred_python_wins_over_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minor in (12, 13, 14):
        program = tmp_path / f"python3.{minor}"
        program.write_text(f"#!/bin/sh\necho cpython 3 {minor} 0\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.find_python() == tmp_path / "python3.13"


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    absent = bootstrap.digest(file)
    file.write_text("a==1")
    first = bootstrap.digest(file)
    file.write_text("a==2")
    assert len({absent, first, bootstrap.digest(file)}) == 3


def test_a_failed_step_says_how_to_fix_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(bootstrap.SetupError, match="this failed: sh -c") as raised:
        bootstrap.run(["sh", "-c", "echo the reason; exit 3"], remedy="do this")
    assert raised.value.remedy == "do this"
    assert "the reason" in capfd.readouterr().err


def test_what_ci_runs_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
