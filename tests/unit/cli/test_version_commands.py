"""`icefloe log`, `show`, `diff`, `tree`, `status`, `branch` and `tag` on local repositories."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli import history as history_commands
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot_table import SnapshotTable
from icefloe.pipeline.files import RECORDS_GROUP
from icefloe.records import replace

FIRST = "1CECHNKREP0F1RSTCMT0"
ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{20}\b|\b(?!20)[0-9A-HJKMNP-TV-Z]{8}\b")
TIME = re.compile(r"2\d{3}-\d\d-\d\d \d\d:\d\d(?!:)|2\d{3}-\d\d-\d\dT[\d:.]+\+00:00")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a repository with two branches, a tag, coordinates, and an array without any."""
    path = tmp_path_factory.mktemp("versions") / "repo"
    repository = open_or_create(path)
    with repository.transaction("main", message="first data") as store:
        root = zarr.create_group(store)
        time = root.create_array(
            "time", shape=48, chunks=48, dtype="i8", dimension_names=["time"], fill_value=0
        )
        time[:] = np.arange(48)
        time.attrs.update(units="hours since 2020-01-01", calendar="standard")
        lat = root.create_array(
            "lat", shape=90, chunks=90, dtype="f4", dimension_names=["lat"], fill_value=0
        )
        lat[:] = np.linspace(-89, 89, 90)
        sst = root.create_group("ocean").create_array(
            "sst",
            shape=(48, 90),
            chunks=(12, 30),
            dtype="f4",
            dimension_names=["time", "lat"],
            fill_value=0,
            attributes={"units": "degC"},
        )
        sst[:12] = 1
        root.create_array("plain", shape=10, chunks=3, dtype="u1", fill_value=0)
    repository.create_tag("v1", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    sst = zarr.open_array(session.store, path="ocean/sst")
    sst[12:36], sst[36:, 60:] = 2, 3
    zarr.open_array(session.store, path="plain")[8:] = 4
    session.commit("two days\n\nwith a second line", metadata={"author": "ada", "run": 7})
    repository.create_branch("try", repository.lookup_tag("v1"))
    with repository.transaction("try", message="a trial") as store:
        zarr.create_group(store, path="extra")
    return path


@pytest.fixture
def place(stored: Path, tmp_path: Path) -> Path:
    """Copy the repository, for commands that change it."""
    return Path(shutil.copytree(stored, tmp_path / "repo"))


def open_or_create(path: Path) -> icefloe.Repository:
    return icefloe.Repository.open_or_create(icefloe.local_filesystem_storage(str(path)))


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=answer)


def text(*arguments: object) -> str:
    """Run a command, and return what it printed with ids and times replaced."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    shown = result.stdout.replace(FIRST[:8], "FFFFFFFF")
    shown = re.sub(r"\bFFFFFFFF\w*", "<first>", shown)
    return TIME.sub("<time>", ID.sub("<id>", shown))


def found(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def failure(kind: type[IcefloeError], *arguments: object) -> str:
    """Run a command that fails, and return its message on one line."""
    result = run(*arguments)
    code = next(code for error, code in EXIT_CODES.items() if issubclass(kind, error))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


# -- log -----------------------------------------------------------------------------------


def test_log_draws_all_branches_and_tags(stored: Path) -> None:
    assert text("log", stored, "--all") == (
        "  ● <id> <time> (try) a trial\n"
        "● │ <id> <time> (main) two days\n"
        "●─╯ <id> <time> (tag: v1) first data\n"
        "●   <first> <time> Repository initialized\n"
    )


def test_log_draws_the_history_of_a_version(stored: Path) -> None:
    assert text("log", stored) == (
        "● <id> <time> (main) two days\n"
        "● <id> <time> (tag: v1) first data\n"
        "● <first> <time> Repository initialized\n"
    )
    assert text("log", stored, "v1").startswith("● <id> <time> (tag: v1) first data\n")
    assert text("log", stored, "--as-of", "now") == text("log", stored)


def test_log_stops_at_a_limit(stored: Path) -> None:
    result = run("log", stored, "--all", "-n", 2)
    assert len(result.stdout.splitlines()) == 2
    assert "--max-rows" in result.stderr
    assert len(found("log", stored, "-n", 2)["versions"]) == 2
    assert not found("log", stored, "-n", 2)["is_complete"]
    assert found("log", stored, "-n", 3)["is_complete"]
    assert found("log", stored, "--all", "-n", 4)["is_complete"]


def test_log_as_json(stored: Path) -> None:
    versions = found("log", stored, "--all")["versions"]
    repository = open_or_create(stored)
    assert [version["id"] for version in versions[1:]] == [
        info.id for info in repository.ancestry(branch="main")
    ]
    assert versions[0]["branches"] == ["try"]
    assert versions[1]["metadata"] == {"author": "ada", "run": 7}
    assert versions[1]["message"] == "two days\n\nwith a second line"
    assert versions[2]["tags"] == ["v1"]
    assert versions[3] | {"written_at": ""} == {
        "id": FIRST,
        "parent_id": None,
        "written_at": "",
        "message": "Repository initialized",
        "metadata": {"__icechunk": {"is_root": True}},
        "branches": [],
        "tags": [],
    }


def test_log_has_colours_on_a_terminal_only(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("log", stored).stdout
    assert "\x1b" not in plain
    monkeypatch.setattr(history_commands, "is_coloured", lambda: True)
    coloured = CliRunner().invoke(app, ["log", str(stored)], color=True).stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_log_of_all_takes_no_version(stored: Path) -> None:
    assert "leave out v1, or --all" in failure(InvalidInputError, "log", stored, "v1", "--all")


# -- versions ------------------------------------------------------------------------------


def head(path: Path, branch: str = "main") -> str:
    return open_or_create(path).lookup_branch(branch)


def test_a_version_is_a_branch_a_tag_an_id_its_beginning_or_a_moment(stored: Path) -> None:
    main = head(stored)
    names = ["main", main, main.lower(), main[:8], main[:8].lower(), "now", "main@now"]
    for name in names:
        assert found("show", stored, name)["id"] == main, name
    assert found("show", stored, "v1")["id"] == open_or_create(stored).lookup_tag("v1")
    assert found("show", stored, "try@now")["id"] == head(stored, "try")
    assert found("show", stored, "try", "--as-of", "now")["id"] == head(stored, "try")


def test_a_moment_picks_the_version_of_then(stored: Path) -> None:
    versions = found("log", stored)["versions"]
    for version in versions:
        assert found("show", stored, version["written_at"])["id"] == version["id"]
    message = failure(NotFoundError, "show", stored, "2001-01-01")
    assert "no snapshot as old as 2001-01-01" in message


def test_an_ambiguous_version_lists_the_candidates(place: Path) -> None:
    repository = open_or_create(place)
    forged = []
    for number in range(2):
        session = repository.writable_session("main")
        forged.append(session.commit(f"no. {number}", allow_empty=True))
    twin = SnapshotId(SnapshotId.parse(forged[0]).raw[:8] + bytes(4))
    shared = [forged[0], _renamed(place, forged[1], twin)]
    message = failure(InvalidInputError, "tree", place, shared[0][:8])
    assert "(ambiguous-version)" in message
    assert all(snapshot_id in message for snapshot_id in shared)
    assert "give more characters" in message
    assert failure(InvalidInputError, "inspect", place, shared[0][:8]).count(shared[0][:8]) > 2
    assert found("show", place, shared[0])["id"] == shared[0]
    (place / "snapshots" / f"{shared[0][:8]}UUUUUUUUUUUU").touch()  # no id
    assert run("inspect", place, shared[0][:18], "--max-rows", 0).exit_code == 0
    repository = open_or_create(place)
    repository.create_branch("both", shared[0])
    repository.create_tag("both", shared[1])
    message = failure(InvalidInputError, "show", place, "both")
    assert f"the branch, at {shared[0]}" in message
    assert f"the tag, at {shared[1]}" in message


def test_what_is_both_an_id_and_a_moment_is_ambiguous(place: Path) -> None:
    new = open_or_create(place).writable_session("main").commit("new", allow_empty=True)
    renamed = _renamed(place, new, SnapshotId.parse("1200D" + "0" * 15))
    message = failure(InvalidInputError, "show", place, "1200d")
    assert renamed in message
    assert "write main@1200d" in message
    assert found("log", place, "1200d0")["versions"][0]["id"] == renamed
    assert "no snapshot as old as" in failure(NotFoundError, "show", place, "main@1200d")


def _renamed(place: Path, snapshot_id: str, new: SnapshotId) -> str:
    """Give a snapshot another id, which chance would do in years."""
    repo = decode_repo_info((place / "repo").read_bytes())
    old = SnapshotId.parse(snapshot_id)
    entries = [repo.snapshots.entry(row) for row in range(len(repo.snapshots.ids))]
    renamed = [
        replace(
            entry,
            id=new if entry.id == old else entry.id,
            parent=new if entry.parent == old else entry.parent,
        )
        for entry in entries
    ]
    branches = {name: new if tip == old else tip for name, tip in repo.branches.items()}
    forged = replace(repo, history=SnapshotTable.from_entries(renamed), branches=branches)
    (place / "repo").write_bytes(encode_repo_info(forged))
    for folder in ("snapshots", "transactions"):
        if (place / folder / snapshot_id).exists():
            shutil.copy(place / folder / snapshot_id, place / folder / str(new))
    return str(new)


@pytest.mark.parametrize("name", ["nosuch", "ZZZZZZZZ", "2026-13-45", "main@yesterday"])
def test_what_is_no_version_is_explained(stored: Path, name: str) -> None:
    result = run("tree", stored, name)
    assert result.exit_code in (2, EXIT_CODES[NotFoundError])
    assert name.rpartition("@")[2] in result.stderr
    if result.exit_code != 2:
        assert "branches main, try" in " ".join(result.stderr.split())


def test_options_that_name_a_version_are_named_as_options(stored: Path, tmp_path: Path) -> None:
    message = failure(InvalidInputError, "coverage", stored, "--branch", "main", "--tag", "v1")
    assert "--branch and --tag exclude each other" in message
    message = failure(InvalidInputError, "access", stored, "--tag", "v1", "--as-of", "now")
    assert "--as-of goes with --branch, not with --tag" in message
    arguments = ("clone", stored, tmp_path / "x", "--snapshot", "1cec", "--as-of", "now")
    assert "--as-of goes with --branch" in failure(InvalidInputError, *arguments)
    assert "--as-of" in failure(InvalidInputError, "show", stored, "v1", "--as-of", "now")


def test_options_take_beginnings_of_ids_and_moments(stored: Path, tmp_path: Path) -> None:
    repository = open_or_create(stored)
    tag = repository.lookup_tag("v1")
    written_at = repository.lookup_snapshot(tag).written_at.isoformat()
    for number, options in enumerate(
        [("--snapshot", tag[:8]), ("--as-of", written_at), ("--branch", "try", "--as-of", "now")]
    ):
        target = tmp_path / f"{number}.zarr"
        assert run("export", stored, target, *options).exit_code == 0
        values = zarr.open_array(str(target / "ocean" / "sst"), mode="r")
        assert np.asarray(values[12:]).max() == 0
        target = tmp_path / f"{number}.clone"
        assert run("clone", stored, target, *options).exit_code == 0
        cloned = icefloe.Repository.open(icefloe.local_filesystem_storage(str(target)))
        expected = head(stored, "try") if "try" in options else tag
        assert cloned.lookup_branch("main") == expected
    for options in (("--snapshot", tag[:8]), ("--tag", "v1"), ("--as-of", written_at)):
        manifests = found("manifests", "show", stored, *options)
        assert sum(manifest["references"] for manifest in manifests) == 5
    assert run("dependencies", stored, "--snapshot", tag[:8]).exit_code == 0
    assert run("access", stored, "--as-of", written_at).exit_code == 0
    missing = failure(NotFoundError, "access", stored, "--snapshot", "ZZZZZZ")
    assert "begins with 'ZZZZZZ'" in missing


# -- show and diff -------------------------------------------------------------------------

CHANGES = """\
change          path        index           coordinates                                            \
       chunks
chunks changed  /ocean/sst  [12:36, 0:90]   time 2020-01-01 12:00:00 … 2020-01-02 11:00:00,\
 lat -89 … 89  7
chunks changed  /ocean/sst  [36:48, 60:90]  time 2020-01-02 12:00:00 … 2020-01-02 23:00:00,\
 lat 31 … 89
chunks changed  /plain      [6:10]                                                                 \
       2
"""


def test_show(stored: Path) -> None:
    shown = text("show", stored)
    assert shown == (
        "version   main\n"
        "id        <id>\n"
        "parent    <id>\n"
        "written   <time>\n"
        "branches  main\n"
        "tags\n"
        "\n"
        "    two days\n"
        "    \n"
        "    with a second line\n"
        "\n"
        "metadata  value\n"
        "author    ada\n"
        "run       7\n"
        "\n" + CHANGES
    )
    assert "there is no version before it" in text("show", stored, FIRST)


def test_show_as_json(stored: Path) -> None:
    version = found("show", stored, "v1")
    assert version["tags"] == ["v1"]
    assert version["branches"] == []
    assert version["message"] == "first data"
    assert version["changes"]["new_groups"] == ["/", "/ocean"]
    assert version["changes"]["new_arrays"] == ["/lat", "/ocean/sst", "/plain", "/time"]
    assert found("show", stored, FIRST)["changes"] is None


def test_diff_shows_regions_in_index_and_coordinates(stored: Path) -> None:
    assert text("diff", stored, "v1", "main") == CHANGES
    assert text("diff", stored, "v1") == CHANGES


def test_diff_of_nodes(stored: Path) -> None:
    assert text("diff", stored, "v1", "try") == (
        "change         path    index  coordinates  chunks\ngroup created  /extra\n"
    )
    shown = text("diff", stored, FIRST, "v1")
    assert "group created   /ocean\n" in shown
    assert "array created   /ocean/sst\n" in shown


def test_diff_as_json(stored: Path) -> None:
    diff = found("diff", stored, "v1", "main")
    assert set(diff) == {
        "from", "to", "new_groups", "new_arrays", "updated_groups", "updated_arrays",
        "deleted_groups", "deleted_arrays", "moved_nodes", "updated_chunks",
    }  # fmt: skip
    assert diff["to"] == head(stored)
    sst, plain = diff["updated_chunks"]
    assert sst == {
        "path": "/ocean/sst",
        "num_chunks": 7,
        "is_exact": True,
        "regions": [
            {
                "chunks": [[1, 3], [0, 3]],
                "index": [[12, 36], [0, 90]],
                "coordinates": {
                    "time": ["2020-01-01 12:00:00", "2020-01-02 11:00:00"],
                    "lat": ["-89", "89"],
                },
            },
            {
                "chunks": [[3, 4], [2, 3]],
                "index": [[36, 48], [60, 90]],
                "coordinates": {
                    "time": ["2020-01-02 12:00:00", "2020-01-02 23:00:00"],
                    "lat": ["31", "89"],
                },
            },
        ],
    }
    assert plain["regions"] == [{"chunks": [[2, 4]], "index": [[6, 10]], "coordinates": {}}]


def test_many_regions_are_shown_as_the_box_around_them(stored: Path) -> None:
    sst = found("diff", stored, "v1", "--max-regions", 1)["updated_chunks"][0]
    assert not sst["is_exact"]
    assert [region["index"] for region in sst["regions"]] == [[[12, 48], [0, 90]]]
    assert "within [12:48, 0:90]" in text("diff", stored, "v1", "--max-regions", 1)
    few = found("diff", stored, "v1", "--max-rows", 1)["updated_chunks"]
    assert [array["regions"] is None for array in few] == [False, True]
    assert few[1]["num_chunks"] == 2
    assert "... and 2 more" in text("diff", stored, "v1", "--max-rows", 1)


def test_diff_after_an_array_became_smaller_or_went(place: Path) -> None:
    repository = open_or_create(place)
    before = head(place)
    with repository.transaction("main", message="shrink") as store:
        zarr.open_array(store, path="plain").resize(3)
    [plain] = found("diff", place, before)["updated_chunks"]
    assert [region["index"] for region in plain["regions"]] == [[[3, 10]]]
    with repository.transaction("main", message="delete") as store:
        del zarr.open_group(store)["plain"]
    diff = found("diff", place, before)
    assert diff["deleted_arrays"] == ["/plain"]
    assert "array deleted   /plain" in text("diff", place, before)


def test_diff_of_an_uneven_grid_and_of_no_dimension(tmp_path: Path) -> None:
    path = tmp_path / "repo"
    repository = open_or_create(path)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        with repository.transaction("main", message="create") as store:
            zarr.create_array(
                store, name="uneven", shape=(12,), chunks=[[5, 3, 4]], dtype="u1", fill_value=0
            )
            zarr.create_array(store, name="scalar", shape=(), dtype="u1", fill_value=0)
        repository.create_tag("empty", head(path))
        with repository.transaction("main", message="write") as store:
            zarr.open_array(store, path="uneven")[5:] = 1
            zarr.open_array(store, path="scalar")[...] = 1
    scalar, uneven = found("diff", path, "empty")["updated_chunks"]
    assert uneven["regions"] == [{"chunks": [[1, 3]], "index": [[5, 12]], "coordinates": {}}]
    assert scalar["regions"] == [{"chunks": [], "index": [], "coordinates": {}}]
    assert "/scalar" in text("diff", path, "empty")


def test_diff_needs_an_ancestor(stored: Path) -> None:
    assert "is not an ancestor" in failure(InvalidInputError, "diff", stored, "try", "main")


def test_a_version_does_not_differ_from_itself(stored: Path) -> None:
    assert text("diff", stored, "main", "main") == "nothing changed\n"
    same = found("diff", stored, "main", "main")
    assert same["from"] == same["to"]
    assert same["updated_chunks"] == same["new_arrays"] == []


def test_the_record_of_ingested_files_is_not_in_the_way(place: Path) -> None:
    def write(day: int) -> None:
        with open_or_create(place).transaction("main", message=f"day {day}") as store:
            root = zarr.open_group(store, mode="a")
            for path in ("t2m", f"{RECORDS_GROUP}/root/url"):
                root.require_array(path, shape=(2,), chunks=(1,), dtype="i4")[day] = 1

    write(0)
    write(1)
    note = "the record of ingested files changed; `icefloe sources` lists them\n"
    first, second = (version["id"] for version in found("log", place)["versions"][1::-1])
    for arguments in (("show", place, "main"), ("diff", place, first, second)):
        shown = run(*arguments)
        assert "/t2m" in shown.stdout
        assert "sources/root" not in shown.stdout
        assert note in shown.output
        assert "sources/root/url" in json.dumps(found(*arguments))
    drawn = text("tree", place)
    assert "└── sources  the record of ingested files: `icefloe sources` lists them\n" in drawn
    assert "url" not in drawn
    assert "url" in text("tree", place, "--group", RECORDS_GROUP)
    assert "sources/root/url" in json.dumps(found("tree", place))


# -- tree and status -----------------------------------------------------------------------


def test_tree(stored: Path) -> None:
    assert text("tree", stored, "try") == (
        "/\n"
        "├── extra\n"
        "├── lat  float32 (lat: 90)  chunks 90\n"
        "├── ocean\n"
        "│   └── sst  float32 (time: 48, lat: 90)  chunks 12×30  degC\n"
        "├── plain  uint8 (dim_0: 10)  chunks 3\n"
        "└── time  int64 (time: 48)  chunks 48  hours since 2020-01-01\n"
    )
    assert text("tree", stored, "--group", "ocean") == (
        "/ocean\n└── sst  float32 (time: 48, lat: 90)  chunks 12×30  degC\n"
    )
    assert "sst" not in text("tree", stored, "--depth", 1)
    empty = run("tree", stored, FIRST)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "no groups and no arrays" in empty.stderr


def test_tree_as_json(stored: Path) -> None:
    tree = found("tree", stored)
    assert tree["is_complete"]
    assert [node["path"] for node in tree["nodes"]] == [
        "/", "/lat", "/ocean", "/ocean/sst", "/plain", "/time",
    ]  # fmt: skip
    assert tree["nodes"][3] == {
        "path": "/ocean/sst",
        "kind": "array",
        "dimensions": ["time", "lat"],
        "shape": [48, 90],
        "data_type": "float32",
        "chunk_shape": [12, 30],
        "num_chunks": [4, 3],
        "units": "degC",
    }
    assert tree["nodes"][2] == {"path": "/ocean", "kind": "group"}


def test_tree_of_a_part(stored: Path) -> None:
    result = run("tree", stored, "--max-rows", 2)
    assert result.stdout.splitlines()[1] == "└── lat  float32 (lat: 90)  chunks 90"
    assert "4 more nodes" in result.stderr
    assert not found("tree", stored, "--max-rows", 2)["is_complete"]
    assert "/nowhere" in failure(NotFoundError, "tree", stored, "--group", "nowhere")


def test_status(place: Path) -> None:
    status = found("status", place)
    assert status["spec_version"] == 2
    assert status["status"] == "online"
    assert [branch["name"] for branch in status["branches"]] == ["main", "try"]
    assert status["branches"][0]["snapshot_id"] == head(place)
    assert status["counts"] == {
        "branches": 2, "tags": 1, "versions": 4, "groups": 2, "arrays": 4, "manifests": 1,
        "chunks": 14,
    }  # fmt: skip
    assert status["settings"] == {}
    assert run("config", "set", place, "compression.level=9").exit_code == 0
    assert found("status", place)["settings"] == {"compression.level": 9}
    shown = text("status", place)
    assert "compression.level  9" in shown
    assert "main    <id>  <time>  two days\n" in shown


def test_status_of_a_repository_that_is_closed(place: Path) -> None:
    availability = icefloe.RepoAvailability
    for state, name, count in [
        (availability.read_only, "read-only", 2),
        (availability.offline, "offline", 0),
    ]:
        open_or_create(place).set_status(
            icefloe.RepoStatus(state, limited_availability_reason="moving")
        )
        status = found("status", place)
        assert (status["status"], status["reason"]) == (name, "moving")
        assert len(status["branches"]) == count
        assert "moving" in text("status", place)


def test_all_commands_read_spec_1(tmp_path: Path) -> None:
    path = tmp_path / "old"
    assert run("create", path, "--spec-version", 1).exit_code == 0
    with open_or_create(path).transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=4, chunks=2, dtype="i4", fill_value=0)[:] = 1
    main = head(path)
    assert found("log", path, main[:6])["versions"][0]["id"] == main
    assert found("log", path, "--all", "-n", 1)["versions"][0]["message"] == "data"
    assert found("status", path)["counts"]["arrays"] == 1
    [changed] = found("diff", path, FIRST[:4])["updated_chunks"]
    assert changed["regions"][0]["index"] == [[0, 4]]
    assert run("tag", "create", path, "v1", main[:6]).exit_code == 0
    assert found("tag", "list", path)["tags"][0]["snapshot_id"] == main


# -- branches and tags ---------------------------------------------------------------------


def test_branches(place: Path) -> None:
    assert text("branch", "list", place) == (
        "branch  version   written           message\n"
        "main    <id>  <time>  two days\n"
        "try     <id>  <time>  a trial\n"
    )
    tag = open_or_create(place).lookup_tag("v1")
    created = found("branch", "create", place, "new", tag[:8])
    assert created == {"name": "new", "snapshot_id": tag}
    assert head(place, "new") == tag
    assert "created the branch other at <id>\n" in text("branch", "create", place, "other")
    assert head(place, "other") == head(place)
    names = [entry["name"] for entry in found("branch", "list", place)["branches"]]
    assert names == ["main", "new", "other", "try"]
    message = failure(AlreadyExistsError, "branch", "create", place, "new")
    assert "`icefloe branch reset`" in message
    assert "reset_branch" not in message


def test_deleting_a_branch_asks(place: Path) -> None:
    tip = head(place, "try")
    refused = run("branch", "delete", place, "try", answer="n\n")
    assert refused.exit_code == 1
    assert "delete the branch try, at" in refused.stderr
    assert "a trial" in refused.stderr
    assert run("branch", "delete", place, "try").exit_code == 1  # nobody is there to answer
    assert head(place, "try") == tip
    assert run("branch", "delete", place, "try", answer="y\n").exit_code == 0
    assert open_or_create(place).list_branches() == {"main"}
    assert run("branch", "create", place, "again", tip).exit_code == 0  # the versions are there
    assert found("branch", "delete", place, "again", "--yes") == {
        "deleted": "again",
        "snapshot_id": tip,
    }
    failure(NotFoundError, "branch", "delete", place, "again", "--yes")
    failure(IcefloeError, "branch", "delete", place, "main", "--yes")
    assert open_or_create(place).list_branches() == {"main"}


def test_resetting_a_branch_asks(place: Path) -> None:
    before, tag = head(place), open_or_create(place).lookup_tag("v1")
    refused = run("branch", "reset", place, "main", "v1", answer="n\n")
    assert refused.exit_code == 1
    assert f"from {before[:8]}" in refused.stderr
    assert f"to {tag[:8]}" in " ".join(refused.stderr.split())
    assert head(place) == before
    assert found("branch", "reset", place, "main", "v1", "--yes") == {
        "name": "main",
        "snapshot_id": tag,
        "previous_snapshot_id": before,
    }
    assert head(place) == tag
    assert run("branch", "reset", place, "main", "v1").exit_code == 0  # nothing to ask about
    assert run("branch", "reset", place, "main", before[:8], "-y").exit_code == 0
    assert head(place) == before


@pytest.mark.parametrize("arguments", [("delete", "try"), ("reset", "try", "v1")])
def test_a_branch_that_moved_before_the_answer_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    from icefloe.cli import refs

    def moves_meanwhile(*_: object, **__: object) -> None:
        open_or_create(place).writable_session("try").commit("meanwhile", allow_empty=True)

    monkeypatch.setattr(refs, "require_consent", moves_meanwhile)
    command, *rest = arguments
    failure(ConflictError, "branch", command, place, *rest)
    assert found("show", place, "try")["message"] == "meanwhile"


def test_tags(place: Path) -> None:
    assert text("tag", "list", place).splitlines()[1] == "v1   <id>  <time>  first data"
    assert found("tag", "create", place, "v2") == {"name": "v2", "snapshot_id": head(place)}
    failure(AlreadyExistsError, "tag", "create", place, "v2", "v1")
    assert [entry["name"] for entry in found("tag", "list", place)["tags"]] == ["v1", "v2"]
    assert run("tag", "delete", place, "v2", answer="n\n").exit_code == 1
    assert open_or_create(place).list_tags() == {"v1", "v2"}
    assert found("tag", "delete", place, "v2", "--yes")["deleted"] == "v2"
    assert open_or_create(place).list_tags() == {"v1"}
    failure(AlreadyExistsError, "tag", "create", place, "v2")  # never again


@pytest.mark.parametrize(
    "arguments",
    [
        lambda path: ("log", path),
        lambda path: ("show", path),
        lambda path: ("diff", path, "a", "b"),
        lambda path: ("tree", path),
        lambda path: ("status", path),
        lambda path: ("branch", "list", path),
        lambda path: ("tag", "create", path, "v1"),
        lambda path: ("config", "show", path),
        lambda path: ("container", "list", path),
    ],
)
def test_where_there_is_no_repository(
    tmp_path: Path, arguments: Callable[[Path], tuple[object, ...]]
) -> None:
    failure(NotFoundError, *arguments(tmp_path / "nowhere"))
