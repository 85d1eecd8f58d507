from pathlib import Path
from types import ModuleType

import pytest

import icefloe
from tools import reference


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "api"
    reference.write_reference(folder)
    return folder


def test_the_reference_shows_signatures_and_docstrings(pages: Path) -> None:
    page = (pages / "modules" / "icefloe.effects.md").read_text()
    assert "## run_blocking" in page
    assert "Run a core coroutine to its end on this thread." in page
    assert "_map_on_loop" not in page


def test_every_public_name_has_a_subject_and_a_section(pages: Path) -> None:
    index = (pages / "index.md").read_text()
    sections = "".join(page.read_text() for page in pages.glob("*.md"))
    for name in icefloe.__all__:
        if not isinstance(getattr(icefloe, name), ModuleType):
            assert f"[`{name}`](" in index
            assert f"\n## {name.removesuffix('_async')}\n" in sections


def test_no_public_name_is_left_without_a_subject() -> None:
    assert "more" not in reference.names_by_subject()


def test_modules_for_users_come_before_all_modules(pages: Path) -> None:
    _, _, modules = (pages / "index.md").read_text().partition("## Modules beside it")
    assert "[icefloe.xarray](icefloe.xarray.md)" in modules
    everything = (pages / "modules" / "index.md").read_text()
    assert "[icefloe.storage.port](icefloe.storage.md#icefloestorageport)" in everything


def test_a_class_shows_what_it_inherits_and_one_form_of_each_method(pages: Path) -> None:
    page = (pages / "repositories.md").read_text()
    assert "### Repository.create_tag\n" in page
    assert "Async form: `create_tag_async`." in page
    assert "### Repository.create_tag_async" not in page


def test_examples_and_fields_are_shown(pages: Path) -> None:
    assert "```pycon\n>>> import icefloe, zarr\n" in (pages / "repositories.md").read_text()
    page = (pages / "configuration.md").read_text()
    assert "- `max_tries: NonZeroU16 | None = setting(10)`" in page


def test_values_of_an_enumeration_are_shown(pages: Path) -> None:
    assert "- `read_only` = `1`" in (pages / "repositories.md").read_text()


def test_a_signature_has_the_text_of_its_source() -> None:
    shown = reference.signature("create_tag", icefloe.Repository.create_tag)
    assert shown == "def create_tag(tag: str, snapshot_id: str) -> None"
