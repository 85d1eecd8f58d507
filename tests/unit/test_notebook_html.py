"""What notebooks show: complete, escaped, self-contained, and readable in dark mode."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from examples.archives import Fault, write_archive
from icefloe.pipeline import CombineOptions, MisfitsError, read_coverage
from icefloe.pipeline.files.containers import container_at, container_prefixes

EVIL = "<img src=x onerror=alert(1)>"
VOID = {"br", "img", "meta"}


class Elements(HTMLParser):
    """Reads HTML, and notes what is open, what is shown, and what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.loaded: list[str] = []
        self.style = ""
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loaded += [f"{name}={value}" for name, value in attrs if name in {"src", "href"}]
        self.loaded += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += f" {data}"


def shown(value: Any) -> Elements:
    """Return what a notebook shows of a value, after checks that hold for all of them."""
    page = Elements()
    page.feed(value._repr_html_())
    page.close()
    assert page.open == []
    assert page.loaded == []
    assert not page.names & {"script", "link", "iframe", "img"}
    assert not re.search(r"@import|url\(", page.style)
    # Colours are those of the notebook, or all of a drawing change with the mode.
    assert not re.search(r"(?<![-\w])(color|background)\s*:", page.style)
    assert "#24292f" not in page.style or "prefers-color-scheme: dark" in page.style
    return page


@pytest.fixture
def repository() -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with repository.transaction("main", message=f"first {EVIL}\nand more") as store:
        zarr.create_array(
            store, name="ocean/sst", shape=(4, 2), chunks=(1, 2), dtype="f4", fill_value=0,
            dimension_names=["time", "lat"],
        )  # fmt: skip
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch(EVIL, repository.lookup_branch("main"))
    return repository


def test_a_repository_shows_its_tree_branches_tags_and_last_commit(
    repository: icefloe.Repository,
) -> None:
    page = shown(repository)
    newest = repository.lookup_branch("main")
    for text in ("2 branches", "1 tag", "v1", "last commit", newest[:8], "sst (time: 4, lat: 2)"):
        assert text in page.text
    assert page.text.count(EVIL) == 5  # a branch, and the message: last commit, three refs
    assert "and more" not in page.text
    for number in range(30):
        repository.create_tag(f"t{number}", newest)
    assert "… and 11 more" in shown(repository).text


def test_a_diff_lists_changes(repository: icefloe.Repository) -> None:
    first = repository.lookup_branch("main")
    with repository.transaction("main", message="second") as store:
        zarr.open_array(store, path="ocean/sst")[1:3] = 7
        zarr.create_group(store, path=EVIL.replace("/", ""))
    diff = repository.diff(from_snapshot_id=first, to_branch="main")
    page = shown(diff)
    assert "2 changes" in page.text
    assert "group created" in page.text
    assert "2 chunks, at [1–2, 0] of the chunk grid" in page.text
    assert EVIL in page.text
    unchanged = repository.writable_session("main").status()
    assert "none" in shown(unchanged).text


def test_reports_and_coverage_show_what_is_missing(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", 6, faults={1: Fault.TRUNCATED})
    config = icefloe.RepositoryConfig.default()
    [prefix] = container_prefixes([archive.pattern])
    config.set_virtual_chunk_container(container_at(prefix))
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    options = CombineOptions(("time",))
    with pytest.raises(MisfitsError) as caught:
        icefloe.ingest(repository, archive.pattern, options)
    page = shown(caught.value.report)
    assert "1 misfit" in page.text
    assert archive.path(1).as_uri() in page.text
    assert "truncated" in page.text
    archive.path(1).unlink()
    report = icefloe.ingest(repository, archive.pattern, options)
    page = shown(report)
    assert "5 of 5 files fit" in page.text
    assert str(report.snapshot) in page.text
    coverages = read_coverage(repository.readonly_session("main"))
    page = shown(coverages)
    assert {"svg", "table"} <= page.names
    assert re.search(r"missing .*\b1 step\b|missing .*time \d", page.text)
    assert shown(coverages[0]).text == page.text
    assert str(coverages) == str(coverages[0])
    nothing = icefloe.ingest(repository, archive.pattern, options, group="again")
    assert "version" in shown(nothing).text
