"""Progress counts files and bytes, and has the time that is left."""

import io
import sys
from pathlib import Path

import pytest

import icefloe
from examples.archives import write_archive
from icefloe.pipeline import (
    CombineOptions,
    CopyOptions,
    StageProgress,
    container_at,
    container_prefixes,
    terminal_progress,
)


class Terminal(io.StringIO):
    """Standard error of somebody who watches."""

    def isatty(self) -> bool:
        return True


def test_stages_tell_files_and_bytes(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", 4)
    config = icefloe.RepositoryConfig.default()
    [prefix] = container_prefixes([archive.pattern])
    config.set_virtual_chunk_container(container_at(prefix))
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        config,
        icefloe.containers_credentials({prefix: icefloe.credentials.LocalFileSystemAccess}),
    )
    told: list[StageProgress] = []
    icefloe.ingest(repository, archive.pattern, CombineOptions(("time",)), on_progress=told.append)
    scans = [progress for progress in told if progress.stage == "scan"]
    sizes = sum(path.stat().st_size for path in archive.folder.rglob("*.nc"))
    assert {(progress.items, progress.size_bytes) for progress in scans} == {(4, sizes)}
    assert (scans[0].items_done, scans[0].bytes_done) == (0, 0)
    assert scans[-1].is_over
    assert (scans[-1].items_done, scans[-1].bytes_done) == (4, sizes)
    assert scans[-1].shown().startswith("4 of 4 files, ")
    [written, *_] = [progress for progress in told if progress.stage == "write"]
    assert written.noun == "chunk"
    told.clear()
    session = repository.readonly_session("main")
    icefloe.rechunk(repository, session, CopyOptions.of({}), group="copy", on_progress=told.append)
    copied = [progress for progress in told if progress.stage == "copy"]
    assert copied[-1].size_bytes > 0
    assert copied[-1].noun == "object"


def test_a_terminal_shows_counts_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with terminal_progress() as on_progress:
        assert on_progress is not None
        for done in (1, 2):
            on_progress(
                StageProgress("scan", "1 file", done, 2, done == 2, items=1, size_bytes=2**20)
            )
    assert "1 of 1 file, 1.0 MiB of 1.0 MiB" in terminal.getvalue()
    assert "0:00:0" in terminal.getvalue()
