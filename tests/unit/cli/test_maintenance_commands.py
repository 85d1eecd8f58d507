"""`icefloe expire`, `gc`, `stats` and `repair`: plans, questions, JSON, and exit codes."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.common import INTERRUPTED, moment
from icefloe.cli.main import EXIT_CODES, app
from icefloe.cli.space import INCOMPLETE
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.maintenance import expiration, garbage
from icefloe.storage.local import LocalBackend
from icefloe.storage.port import DeleteReport

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
    )
    for number in range(4):
        with repository.transaction("main", message=f"no. {number}") as store:
            array = zarr.create_array(
                store, name="t2m", shape=1000, dtype="u1", compressors=None, overwrite=True
            )
            array[:] = number + 1
        if number == 1:
            repository.create_tag("v1", repository.lookup_branch("main"))
    return path


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=answer)


def messages(place: Path) -> list[str]:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))
    return [one.message for one in repository.ancestry(branch="main")]


ALL = ["no. 3", "no. 2", "no. 1", "no. 0", "Repository initialized"]


# -- moments -------------------------------------------------------------------------------


def test_moments() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert moment("now", now) == now
    for text, period in {
        "90s": timedelta(seconds=90),
        "5m": timedelta(minutes=5),
        "12h": timedelta(hours=12),
        "30d": timedelta(days=30),
        "2w": timedelta(weeks=2),
    }.items():
        assert moment(text, now) == now - period
    assert moment("2026-01-31T06:00+01:00") == datetime(2026, 1, 31, 5, tzinfo=UTC)
    assert moment("2026-01-31T06:00") == datetime(2026, 1, 31, 6, tzinfo=UTC)
    for wrong in ("", "d", "30 days", "-3d", "yesterday", "2026-13-01", "9" * 30 + "w"):
        with pytest.raises(typer.BadParameter):
            moment(wrong)


@pytest.mark.parametrize("command", ["expire", "gc"])
def test_a_moment_that_is_none(place: Path, command: str) -> None:
    result = run(command, place, "--older-than", "soon")
    assert result.exit_code == 2
    assert messages(place) == ALL


# -- expire --------------------------------------------------------------------------------


def test_expire_shows_the_plan_and_asks(place: Path) -> None:
    result = run("expire", place, "--older-than", "now", answer="n\n")
    assert result.exit_code == 1
    heading, *rows = result.stdout.splitlines()
    assert heading.split() == ["version", "written", "message"]
    assert [row.split("  ")[-1] for row in rows[:2]] == ["no. 2", "no. 0"]
    assert "versions to lose: 2" in result.stdout
    assert "could be reclaimed:" in result.stdout
    assert "nothing was changed" in result.stderr
    assert messages(place) == ALL
    result = run("expire", place, "--older-than", "now", answer="y\n")
    assert result.exit_code == 0
    assert "expired: 2 versions" in result.stdout
    assert messages(place) == ["no. 3", "Repository initialized"]


def test_nobody_there_to_answer_is_no(place: Path) -> None:
    assert run("expire", place, "--older-than", "now").exit_code == 1
    assert run("gc", place, "--older-than", "now").exit_code == 0  # there is no garbage
    assert messages(place) == ALL


def test_expire_dry_run(place: Path) -> None:
    result = run("expire", place, "--older-than", "now", "--dry-run", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["expired"] is None
    assert [one["message"] for one in found["plan"]["snapshots"]] == ["no. 2", "no. 0"]
    assert found["plan"]["kept"] == 3
    assert found["plan"]["reclaimable_objects"]["chunks"] == 2
    assert messages(place) == ALL


def test_expire_what_is_young_is_nothing(place: Path) -> None:
    result = run("expire", place, "--older-than", "30d")
    assert result.exit_code == 0
    assert "versions to lose: 0" in result.stdout


def test_expire_with_protected_refs(place: Path) -> None:
    protecting = ("--older-than", "now", "--yes", "--json", "--protect-tag", "v1")
    found = json.loads(run("expire", place, *protecting).stdout)
    assert len(found["expired"]) == 1
    assert messages(place) == ["no. 3", "Repository initialized"]
    arguments = ("--older-than", "now", "--yes", "--delete-expired-tags")
    assert run("expire", place, *arguments).exit_code == 0
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))
    assert repository.list_tags() == set()
    wrong = run("expire", place, "--older-than", "now", "--yes", "--protect-branch", "nobody")
    assert wrong.exit_code == EXIT_CODES[NotFoundError]


# -- gc ------------------------------------------------------------------------------------


def expired(place: Path) -> None:
    assert run("expire", place, "--older-than", "now", "--yes").exit_code == 0


def chunk_count(place: Path) -> int:
    """Count the chunk objects; the lock file of the folder is none."""
    return sum(not file.name.startswith("#") for file in (place / "chunks").iterdir())


@pytest.mark.parametrize("incremental", [(), ("--incremental",)])
def test_gc(place: Path, incremental: tuple[str, ...]) -> None:
    expired(place)
    chunks = chunk_count(place)
    dry = run("gc", place, "--older-than", "now", "--dry-run", *incremental)
    assert dry.exit_code == 0
    assert "chunks" in dry.stdout
    assert "can be reclaimed" in dry.stdout
    assert run("gc", place, "--older-than", "now", *incremental, answer="n\n").exit_code == 1
    assert chunk_count(place) == chunks
    result = run("gc", place, "--older-than", "now", *incremental, answer="y\n")
    assert result.exit_code == 0
    assert "reclaimed:" in result.stdout
    assert chunk_count(place) == chunks - 2
    assert run("verify", place).exit_code == 0


def test_gc_spares_what_is_young(place: Path) -> None:
    expired(place)
    found = json.loads(run("gc", place, "--yes", "--json").stdout)
    assert found["chunks_deleted"] == found["snapshots_deleted"] == 0
    found = json.loads(run("gc", place, "--older-than", "now", "--yes", "--json").stdout)
    assert (found["chunks_deleted"], found["dry_run"], found["is_complete"]) == (2, False, True)


def test_gc_that_could_not_delete_everything(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expired(place)
    delete_many = LocalBackend.delete_many

    async def fails(backend: LocalBackend, keys: Sequence[str]) -> DeleteReport:
        if any(key.startswith("chunks/") for key in keys):
            raise icefloe.StorageError("not today")
        return await delete_many(backend, keys)

    monkeypatch.setattr(LocalBackend, "delete_many", fails)
    result = run("gc", place, "--older-than", "now", "--yes")
    assert result.exit_code == INCOMPLETE
    assert "run it again" in result.stderr
    assert "not today" in result.stderr
    monkeypatch.undo()
    assert run("gc", place, "--older-than", "now", "--yes").exit_code == 0
    assert chunk_count(place) == 2


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [("expire", expiration, "expire"), ("gc", garbage, "collect")],
)
def test_a_key_press_leaves_a_sound_repository(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: Any, name: str
) -> None:
    if command == "gc":
        expired(place)
    real = getattr(module, name)

    async def interrupted(*arguments: Any) -> Any:
        await real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    result = run(command, place, "--older-than", "now", "--yes")
    assert result.exit_code == INTERRUPTED
    assert "interrupted: " in result.stderr
    monkeypatch.undo()
    assert run("verify", place).exit_code == 0
    assert run(command, place, "--older-than", "now", "--yes").exit_code == 0


# -- stats ---------------------------------------------------------------------------------


def test_stats(place: Path) -> None:
    result = run("stats", place)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["native", "3.9", "KiB", "4"]
    assert json.loads(run("stats", place, "--json").stdout)["native_bytes"] == 4000
    rows = run("stats", place, "--by", "snapshot").stdout.splitlines()
    assert len(rows) == 6
    found = json.loads(run("stats", place, "--by", "array", "--json").stdout)
    assert sum(row["native_chunks"] for row in found["rows"]) == 4
    assert "more" in run("stats", place, "--by", "array", "--max-rows", "1").stdout
    assert run("stats", place, "--by", "container").exit_code == 0
    assert run("stats", place / "nowhere").exit_code == EXIT_CODES[NotFoundError]


# -- repair --------------------------------------------------------------------------------


def test_repair_is_a_dry_run_unless_told_otherwise(place: Path) -> None:
    (place / "repo").write_bytes(b"torn")
    result = run("repair", place)
    assert result.exit_code == 10
    assert "restore-repo-object" in result.stdout
    assert "dry run" in result.stdout
    assert (place / "repo").read_bytes() == b"torn"
    result = run("repair", place, "--apply", "--recover-versions")
    assert result.exit_code == 0, result.output
    assert "done: " in result.stdout
    assert messages(place)[0] == "no. 2"
    assert run("repair", place).exit_code == 0
    kept = [each for each in (place / "overwritten").iterdir() if each.name.startswith("damaged.")]
    assert [each.read_bytes() for each in kept] == [b"torn"]


def test_repair_of_what_is_lost_for_good(place: Path) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))
    [batch] = repository.readonly_session("main").store.array_chunk_iterator("t2m")
    [newest] = batch[2]
    (place / "chunks" / newest).unlink()
    plain = run("repair", place, "--apply")
    assert plain.exit_code == 10
    assert "left: " in plain.stdout
    assert "  to do: " in plain.stdout
    result = run("repair", place, "--apply", "--drop-lost-references", "--json")
    assert result.exit_code == 10  # the version before is still damaged
    found = json.loads(result.stdout)
    [step] = found["steps"]
    assert step["arrays"][0]["path"] == "/t2m"
    assert step["arrays"][0]["region"] == [[[0, 1]]]
    assert [damage["versions"] for damage in found["after"]["damages"]] == [
        step["arrays"][0]["versions"]
    ]
    result = run("repair", place, "--apply", "--drop-damaged-versions")
    assert result.exit_code == 0, result.output
    assert run("verify", place, "--deep").exit_code == 0
    assert messages(place) == ["drop references to lost data", *ALL[1:]]


def test_repair_with_refs_given(place: Path) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))
    target = list(repository.ancestry(branch="main"))[2].id
    (place / "repo").unlink()
    result = run("repair", place, "--apply", "--branch", f"main={target}", "--tag", f"x={target}")
    assert result.exit_code == 0, result.output
    assert messages(place) == ALL[2:]
    assert run("repair", place, "--branch", "main").exit_code == 2
    wrong = run("repair", place, "--branch", "main=nothing")
    assert wrong.exit_code == EXIT_CODES[InvalidInputError]
    assert run("repair", place / "nowhere").exit_code == EXIT_CODES[NotFoundError]
