"""What programs notice of a library beside its data: texts, reports, types of errors, warnings.

Each test asks Icefloe and the reference the same, and compares.
"""

import asyncio
import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import icechunk as ic
import pytest
import zarr

import icefloe
from tests.stateful.model import INITIAL

pytestmark = pytest.mark.interop

BOTH = pytest.mark.parametrize("library", [icefloe, ic], ids=["icefloe", "icechunk"])


def storage_of(library: Any, path: Path) -> Any:
    return library.local_filesystem_storage(str(path))


def created(library: Any, path: Path) -> Any:
    return library.Repository.create(storage_of(library, path))


def opened(library: Any, path: Path, **options: Any) -> Any:
    return library.Repository.open(storage_of(library, path), **options)


def array(group: Any, name: str, shape: tuple[int, ...]) -> Any:
    chunks = (1,) * len(shape)
    return group.create_array(name, shape=shape, chunks=chunks, dtype="i4", fill_value=0)


def history(path: Path) -> list[str]:
    """Let the reference make versions in which everything that a diff can list occurs."""
    repo = created(ic, path)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    for name in ("g", "h", "k"):
        root.create_group(name)
    for name in ("a", "b", "d", "e"):
        array(root, f"g/{name}", (12,))[:] = 1
    array(root, "scalar", ())[...] = 4
    array(root, "named", (2, 2))[0, 0] = 1
    versions = [session.commit("first")]
    session = repo.rearrange_session("main")
    session.move("/g/a", "/moved")
    session.move("/g/b", "/h/b")
    versions.append(session.commit("moves"))
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    root.create_group("new")
    array(root, "new/array", (3,))[:] = 1
    root.attrs["x"] = 1
    root["moved"].attrs["x"] = 1
    del root["k"]
    del root["g/d"]
    changed: Any = root["g/e"]
    changed[2:4] = 4
    versions.append(session.commit("the rest"))
    return versions


# -- texts ---------------------------------------------------------------------------------


def test_the_text_of_a_diff(tmp_path: Path) -> None:
    first, *later = history(tmp_path)
    ours, theirs = opened(icefloe, tmp_path), opened(ic, tmp_path)
    root = [version.id for version in theirs.ancestry(branch="main")][-1]
    for start, end in ((root, first), (first, later[0]), (first, later[1]), (root, later[1])):
        versions = {"from_snapshot_id": start, "to_snapshot_id": end}
        text = str(theirs.diff(**versions))
        assert text
        assert str(ours.diff(**versions)) == text
        assert repr(ours.diff(**versions)) == text
    for repo in (ours, theirs):
        assert str(repo.writable_session("main").status()) == ""


SAME_BRACKETS = str.maketrans('[]"', "()'")
"""Ours shows tuples where the reference shows lists."""


@pytest.mark.parametrize("kind", ["ManifestPreloadCondition", "ManifestSplitCondition"])
def test_conditions_combine_with_operators(kind: str) -> None:
    def made(library: Any) -> Iterator[str]:
        condition = getattr(library.config, kind)
        name, path = condition.name_matches("a"), condition.path_matches("b")
        for combined in (name & path, name | path, name & path | name, name & (path | path)):
            yield repr(combined).translate(SAME_BRACKETS).replace("icefloe", "icechunk")
        for wrong in (3, "x", None):
            with pytest.raises(TypeError):
                name & wrong
            with pytest.raises(TypeError):
                name | wrong

    ours, theirs = list(made(icefloe)), list(made(ic))
    assert len(ours) == 4
    assert ours == theirs


# -- reports -------------------------------------------------------------------------------


def keys_of(report: Any, place: str = "") -> Iterator[tuple[str, type]]:
    """Walk all keys within a report, with the types of their values."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield f"{place}.{key}", type(value)
            yield from keys_of(value, f"{place}.{key}")
    elif isinstance(report, list):
        for value in report:
            yield from keys_of(value, f"{place}[]")


def reports(repo: Any, snapshots: list[str]) -> Iterator[tuple[str, Any]]:
    yield "repo", repo.inspect_repo_info()
    for snapshot in snapshots:
        yield f"snapshot {snapshot}", repo.inspect_snapshot(snapshot)
        yield f"log {snapshot}", repo.inspect_transaction_log(snapshot)
        for file in repo.list_manifest_files(snapshot):
            yield f"manifest {file.id}", repo.inspect_manifest(file.id)


def test_inspect_calls_report_what_the_reference_does(tmp_path: Path) -> None:
    versions = history(tmp_path)
    repo = opened(ic, tmp_path)
    repo.create_tag("t", versions[0])
    repo.create_branch("b", versions[0])
    repo.reset_branch("b", versions[1])
    repo.delete_branch("b")
    theirs = dict(reports(repo, versions))
    ours = dict(reports(opened(icefloe, tmp_path), versions))
    assert ours.keys() == theirs.keys()
    for name, report in theirs.items():
        assert set(keys_of(ours[name])) >= set(keys_of(report)), name


def test_the_log_of_a_version_whose_history_expired(tmp_path: Path) -> None:
    versions = history(tmp_path)
    ours, theirs = opened(icefloe, tmp_path), opened(ic, tmp_path)
    assert "synthetic_composite" not in ours.inspect_transaction_log(versions[-1])
    ours.expire_snapshots(dt.datetime.now(dt.UTC))
    for lost in ([], [versions[1]]):
        for snapshot in lost:
            (tmp_path / "transactions" / snapshot).unlink()
        fresh = opened(icefloe, tmp_path)  # others remember logs
        report, expected = (repo.inspect_transaction_log(versions[-1]) for repo in (fresh, theirs))
        composite = expected.pop("synthetic_composite")
        merged = [version for version in versions[:-1] if version not in lost]
        assert composite["merged_pruned_ancestor_tx_logs"] == merged
        ours_composite = report.pop("synthetic_composite")
        assert ours_composite.keys() == composite.keys()
        for key in ("merged_pruned_ancestor_tx_logs", "missing_tx_logs"):
            assert ours_composite[key] == composite[key]
        for key in expected.keys() - {"updated_chunks", "moved_nodes"}:
            assert report[key] == expected[key], key
        chunks = {entry["node_id"]: entry["chunks"] for entry in report["updated_chunks"]}
        assert chunks == {e["node_id"]: e["chunks"] for e in expected["updated_chunks"]}
        moves = [{"from": move["from"], "to": move["to"]} for move in report["moved_nodes"]]
        assert moves == expected["moved_nodes"]


def test_names_in_the_folder_of_an_array(tmp_path: Path) -> None:
    repo = created(ic, tmp_path)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    array(root, "empty", (4,))
    array(root, "nothing", (0,))
    array(root, "scalar", ())
    array(root, "set", (4, 2))[1, 1] = 1
    array(root, "emptied", (4,))[2] = 1
    session.commit("arrays")
    session = repo.writable_session("main")
    asyncio.run(session.store.delete("emptied/c/2"))
    session.commit("no chunk left")

    async def names(store: Any, folder: str) -> list[str]:
        return sorted([name async for name in store.list_dir(folder)])

    stores = [opened(library, tmp_path).writable_session("main").store for library in (ic, icefloe)]
    for name in ("empty", "nothing", "scalar", "set", "emptied"):
        for folder in (name, f"{name}/c", f"{name}/c/1"):
            theirs, ours = (asyncio.run(names(store, folder)) for store in stores)
            assert ours == theirs, folder
        assert "c" in asyncio.run(names(stores[1], name))


# -- errors --------------------------------------------------------------------------------


def commit_with(metadata: object) -> Callable[[Any], object]:
    def call(repo: Any) -> object:
        return repo.writable_session("main").commit("m", metadata, allow_empty=True)

    return call


WRONG_METADATA: list[object] = [
    3,
    "text",
    [1],
    {1: 2},
    {"a": object()},
    {"a": {1: 2}},
    {"a": {1, 2}},
    {"a": dt.datetime(2020, 1, 1)},
]


def settings_with(method: str, metadata: object) -> Callable[[Any], object]:
    return lambda repo: getattr(repo, method)(metadata)


def commit_saying(message: object) -> Callable[[Any], object]:
    return lambda repo: repo.writable_session("main").commit(message, allow_empty=True)


def call_with(method: str, *arguments: object) -> Callable[[Any], object]:
    return lambda repo: getattr(repo, method)(*arguments)


MOMENTS = (dt.datetime(2020, 1, 1), "2020", 3)  # none of them has a time zone
REFS = ("lookup_branch", "lookup_tag", "delete_branch", "delete_tag")
METHODS = ("set_metadata", "update_metadata", "set_default_commit_metadata")
WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    **{f"commit {value!r:.20}": commit_with(value) for value in WRONG_METADATA},
    **{
        f"{method} {value!r:.20}": settings_with(method, value)
        for value in WRONG_METADATA
        for method in METHODS
    },
    **{f"message {value!r}": commit_saying(value) for value in (None, 3, b"x")},
    **{f"{method} 3": call_with(method, 3) for method in REFS},
    **{
        f"{method} 3": call_with(method, 3, INITIAL)
        for method in ("create_branch", "create_tag", "reset_branch")
    },
    **{
        f"{method} {moment!r:.20}": call_with(method, moment)
        for method in ("expire_snapshots", "garbage_collect")
        for moment in MOMENTS
    },
}


@BOTH
@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_types_are_type_errors(library: Any, name: str) -> None:
    repo = library.Repository.create(library.in_memory_storage())
    with pytest.raises(TypeError):
        WRONG_CALLS[name](repo)
    assert len(list(repo.ancestry(branch="main"))) == 1


@BOTH
def test_settings_of_wrong_types(library: Any) -> None:
    for options in ({"inline_chunk_threshold_bytes": "x"}, {"caching": 3}, {"manifest": "x"}):
        with pytest.raises(TypeError):
            library.RepositoryConfig(**options)
    config = library.RepositoryConfig()
    with pytest.raises(TypeError):
        config.inline_chunk_threshold_bytes = "x"


@BOTH
def test_only_forks_are_merged(library: Any) -> None:
    merge_sessions: Any = __import__(
        f"{library.__name__}.distributed", fromlist=["merge_sessions"]
    ).merge_sessions
    repo = library.Repository.create(library.in_memory_storage())
    wrong: list[Any] = [None, 3, "x", b"x", [None], [[3]], repo, repo.writable_session("main")]
    for value in wrong:
        with pytest.raises(TypeError):
            merge_sessions(value)
    nothing: list[Any] = [[], [[]]]
    for empty in nothing:
        with pytest.raises(ValueError, match="least"):
            merge_sessions(empty)


def test_a_session_takes_in_nothing_but_sessions() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    wrong: list[Any] = [None, 3, "x", []]
    for value in wrong:
        with pytest.raises(TypeError, match=r"session\.fork"):
            session.merge(value)


@BOTH
def test_errors_have_notes(library: Any, tmp_path: Path) -> None:
    with pytest.raises(library.IcechunkError) as caught:
        opened(library, tmp_path / "nothing here")
    assert all(isinstance(note, str) for note in caught.value.__notes__)
    assert caught.value.__notes__


class OwnError(Exception):
    """An error of a user's own function."""


def fails() -> NoReturn:
    raise OwnError("the vault is closed")


def gives_a_number() -> int:
    return 3


@BOTH
def test_errors_of_the_users_function_that_gives_credentials(library: Any) -> None:
    at_once: dict[str, Any] = {"scatter_initial_credentials": True}
    for make in (library.s3_refreshable_credentials, library.azure_refreshable_credentials):
        with pytest.raises(OwnError, match="vault"):
            make(fails, **at_once)
        with pytest.raises(TypeError):
            make(gives_a_number, **at_once)


def test_the_users_error_is_the_cause_of_a_failed_request() -> None:
    place: dict[str, Any] = {"bucket": "b", "prefix": "p"}
    for storage in (
        icefloe.s3_storage(**place, region="us-east-1", get_credentials=fails),
        icefloe.gcs_storage(**place, get_credentials=fails),
    ):
        with pytest.raises(icefloe.StorageError, match="OwnError") as caught:
            icefloe.Repository.open(storage)
        assert isinstance(caught.value.__cause__, OwnError)
        assert caught.value.__suppress_context__
    with pytest.raises(TypeError, match="S3StaticCredentials") as wrong:
        icefloe.Repository.open(
            icefloe.s3_storage(
                **place,
                region="us-east-1",
                get_credentials=gives_a_number,  # type: ignore[arg-type]
            )
        )
    assert isinstance(wrong.value, icefloe.IcefloeError)


# -- warnings ------------------------------------------------------------------------------


@BOTH
def test_none_as_authorisation_is_deprecated(library: Any, tmp_path: Path) -> None:
    repo = created(library, tmp_path / "repo")
    storage = storage_of(library, tmp_path / "repo")
    access = {"s3://bucket/": None, "file:///folder/": None}
    calls: list[Callable[[], Any]] = [
        lambda: library.Repository.open(storage, authorize_virtual_chunk_access=access),
        lambda: library.Repository.open_or_create(storage, authorize_virtual_chunk_access=access),
        lambda: library.Repository.create(
            storage_of(library, tmp_path / "new"), authorize_virtual_chunk_access=access
        ),
        lambda: repo.reopen(authorize_virtual_chunk_access=access),
        lambda: library.Repository.open(
            storage, authorize_virtual_chunk_access=library.containers_credentials(access)
        ),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert {warning.category for warning in caught} == {DeprecationWarning}
        for prefix in access:
            assert sum(prefix in str(warning.message) for warning in caught) == 1


def test_the_deprecation_points_at_the_users_code(tmp_path: Path) -> None:
    created(icefloe, tmp_path)
    with pytest.warns(DeprecationWarning, match="LocalFileSystemAccess") as caught:
        opened(icefloe, tmp_path, authorize_virtual_chunk_access={"file:///folder/": None})
    assert [warning.filename for warning in caught] == [__file__]


@BOTH
def test_authorisations_of_wrong_types(library: Any, tmp_path: Path) -> None:
    created(library, tmp_path)
    for wrong in ({"s3://bucket/": 3}, {"s3://bucket/": "key"}):
        with pytest.raises(TypeError):
            opened(library, tmp_path, authorize_virtual_chunk_access=wrong)


# -- values --------------------------------------------------------------------------------


@BOTH
def test_azure_credentials_by_position(library: Any) -> None:
    end = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    kinds = library.credentials.AzureRefreshableCredential
    for kind in (kinds.AccessKey, kinds.SasToken, kinds.BearerToken):
        assert kind("secret", end).expires_after == end
        assert kind("secret", None).expires_after is None
        assert kind("secret", expires_after=end).expires_after == end
