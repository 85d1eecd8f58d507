from pathlib import Path
from types import ModuleType

import pytest

import icefloe
from tools import reference


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "api"
    reference.main(folder)
    return folder


def test_the_reference_shows_signatures_and_docstrings(pages: Path) -> None:
    page = (pages / "icefloe.effects.md").read_text()
    assert "## run_blocking" in page
    assert "Run a core coroutine to its end on this thread." in page
    assert "_map_on_loop" not in page


def test_the_index_lists_every_public_name_before_the_modules(pages: Path) -> None:
    index = (pages / "index.md").read_text()
    assert "[icefloe.storage.port](icefloe.storage.port.md)" in index
    names, _, modules = index.partition("# Modules beside it")
    for name in icefloe.__all__:
        if not isinstance(getattr(icefloe, name), ModuleType):
            assert f"[`{name}`](" in names
    assert "[icefloe.xarray](icefloe.xarray.md)" in modules.partition("# All other modules")[0]


def test_a_class_shows_what_it_inherits_and_one_form_of_each_method(pages: Path) -> None:
    page = (pages / "icefloe.api.repository.md").read_text()
    assert "### Repository.create_tag\n" in page
    assert "To be awaited: `create_tag_async`." in page
    assert "### Repository.create_tag_async" not in page
