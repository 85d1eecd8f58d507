from pathlib import Path

from tools.check_files import LARGEST_BYTES, problems


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(bytes(LARGEST_BYTES))
    assert problems(file) == []
    file.write_bytes(bytes(LARGEST_BYTES + 1))
    assert len(problems(file)) == 1


def test_a_conflict_marker_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("a = 1\n" + "<" * 7 + " ours\n")
    assert len(problems(file)) == 1
