from pathlib import Path

from tools import reference


def test_the_reference_shows_signatures_and_docstrings(tmp_path: Path) -> None:
    reference.main(tmp_path / "api")
    page = (tmp_path / "api" / "icefloe.effects.md").read_text()
    assert "## run_blocking" in page
    assert "Run a core coroutine to its end on this thread." in page
    assert "_map_on_loop" not in page
    index = (tmp_path / "api" / "index.md").read_text()
    assert "[icefloe.storage.port](icefloe.storage.port.md)" in index
