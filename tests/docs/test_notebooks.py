"""The example notebooks run, and show what they store."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import differences, save, shown_text

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_stores(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(difference) for difference in differences(path)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_linked_and_has_outputs_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    assert sum(bool(cell.get("outputs")) for cell in cells) >= 5
    assert "text/html" in text
    assert str(Path.home()) not in text.replace("/home/ada", "")
    assert "/tmp/" not in text
    assert path.name in (ROOT / "docs" / "tutorial" / "notebooks.md").read_text()
    for link in ("own-arrays-and-versions", "archive-to-cube", "xarray-and-maintenance"):
        assert (path.parent / f"{link}.ipynb").exists()


def test_a_cell_that_shows_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.ipynb"
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
    }
    save(path, [{**cell, "source": ["print('a')\n", f"{os.sep!r} and 7"]}])
    [difference] = differences(path, write=True)
    assert (difference.stored, difference.shown) == ("", "a\n7\n")
    assert differences(path) == []
    [stored] = json.loads(path.read_text())["cells"]
    assert shown_text(stored["outputs"]) == "a\n7\n"
    path.write_text(path.read_text().replace('"7"', '"8"'))
    assert len(differences(path)) == 1
