"""What a repository needs from outside: sums over versions, and what reading them takes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.config.containers import stored_container
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import replace
from icefloe.repo.repo_changes import AddDetached
from icefloe.virtual_chunks.grouping import LocationQuery, PlaceIndex, absolute_all

BUCKET = icefloe.VirtualChunkContainer(
    "s3://bucket/", icefloe.s3_store(region="eu-west-1"), name="data"
)


def repository(*containers: icefloe.VirtualChunkContainer) -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    for container in containers or (BUCKET,):
        config.set_virtual_chunk_container(container)
    return icefloe.Repository.create(icefloe.in_memory_storage(), config)


def record(repo: icefloe.Repository, array: str, locations: Sequence[str], length: int = 10) -> str:
    """Commit an array whose chunks lie in these places."""
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name=array, shape=len(locations), chunks=1, dtype="i4", overwrite=True
    )
    for index, location in enumerate(locations):
        session.store.set_virtual_ref(
            f"{array}/c/{index}", location, offset=0, length=length, validate_container=False
        )
    return session.commit(f"{array} again")


def places(found: icefloe.VirtualDependencies) -> dict[str, int]:
    return {row.place: row.chunks for row in found}


# -- over versions -------------------------------------------------------------------------


def test_who_needs_a_file() -> None:
    repo = repository()
    first = record(repo, "old", ["s3://bucket/1.nc", "s3://bucket/1.nc"])
    second = record(repo, "new", ["s3://bucket/1.nc", "s3://bucket/2.nc"])
    third = record(repo, "old", ["s3://bucket/2.nc"])
    by_file = repo.virtual_dependencies("file", prefix="s3://bucket/1.nc", all_versions=True)
    [row] = by_file
    assert (row.place, row.chunks, row.arrays, row.versions) == ("s3://bucket/1.nc", 1, 1, 3)
    assert (row.newest_snapshot, row.oldest_snapshot) == (third, first)
    by_array = repo.virtual_dependencies("array", prefix="s3://bucket/1.nc", all_versions=True)
    rows = {row.place: (row.chunks, row.newest_snapshot, row.oldest_snapshot) for row in by_array}
    assert rows == {"/new": (1, third, second), "/old": (2, second, first)}


def test_one_version_is_looked_at_unless_told_otherwise() -> None:
    repo = repository()
    first = record(repo, "a", ["s3://bucket/1.nc"])
    repo.create_tag("v1", first)
    record(repo, "a", ["s3://bucket/2.nc"])
    assert places(repo.virtual_dependencies("file")) == {"s3://bucket/2.nc": 1}
    assert places(repo.virtual_dependencies("file", tag="v1")) == {"s3://bucket/1.nc": 1}
    both = repo.virtual_dependencies("file", branch="main", all_versions=True)
    assert places(both) == {"s3://bucket/1.nc": 1, "s3://bucket/2.nc": 1}
    before = repo.virtual_dependencies("file", tag="v1", all_versions=True)
    assert places(before) == {"s3://bucket/1.nc": 1}


def test_a_file_that_left_and_came_back_counts_for_the_versions_that_had_it() -> None:
    repo = repository()
    for name in ("1", "2", "1", "1"):
        record(repo, "a", [f"s3://bucket/{name}.nc"])
    versions = {
        row.place: row.versions for row in repo.virtual_dependencies("file", all_versions=True)
    }
    assert versions == {"s3://bucket/1.nc": 3, "s3://bucket/2.nc": 1}


def test_manifests_that_versions_share_are_read_once() -> None:
    repo = repository()
    for number in range(5):
        record(repo, f"array{number}", [f"s3://bucket/{number}.nc"] * 3)
    again = repo.reopen()
    storage = again.storage
    before = storage.request_counts()
    found = again.virtual_dependencies("file", all_versions=True)
    requests = (storage.request_counts() - before).get
    assert places(found) == {f"s3://bucket/{number}.nc": 3 for number in range(5)}
    manifests = {
        one.id for each in repo.ancestry(branch="main") for one in repo.list_manifest_files(each.id)
    }
    snapshots = len(list(repo.ancestry(branch="main")))
    repo_object = 3  # branches, tags and their history
    assert requests <= len(manifests) + snapshots + repo_object


def test_progress_ends_at_all() -> None:
    repo = repository()
    for number in range(4):
        record(repo, f"array{number}", [f"s3://bucket/{number}.nc"])
    heard: list[tuple[int, int]] = []
    repo.virtual_dependencies(
        all_versions=True, on_progress=lambda done, total: heard.append((done, total))
    )
    assert [done for done, _ in heard] == list(range(1, len(heard) + 1))
    assert {total for _, total in heard} == {len(heard)}


def test_on_an_event_loop_it_is_the_same() -> None:
    repo = repository()
    for number in range(3):
        record(repo, f"array{number}", [f"s3://bucket/{number}.nc", "s3://bucket/all.nc"])

    async def ask() -> tuple[icefloe.VirtualDependencies, icefloe.AccessReport, list[str]]:
        again = await repo.reopen_async()
        found = await again.virtual_dependencies_async("file", all_versions=True)
        session = await again.readonly_session_async("main")
        batches = [batch async for batch in session.virtual_chunk_locations(batch_size=2)]
        return found, await again.describe_access_async(), [one for each in batches for one in each]

    found, report, locations = asyncio.run(ask())
    assert repr(found) == repr(repo.virtual_dependencies("file", all_versions=True))
    assert report.to_dict() == repo.describe_access().to_dict()
    assert sorted(locations) == sorted(row.place for row in found)


def test_a_batch_has_at_least_one_location() -> None:
    session = repository().readonly_session("main")
    with pytest.raises(InvalidInputError, match="batch_size must be at least 1"):
        list(session.virtual_chunk_locations(batch_size=0))


def test_an_array_goes_by_its_newest_path() -> None:
    repo = repository()
    record(repo, "draft", ["s3://bucket/1.nc"])
    session = repo.rearrange_session("main")
    session.move("/draft", "/final")
    session.commit("move it")
    [row] = repo.virtual_dependencies("array", all_versions=True)
    assert (row.place, row.versions) == ("/final", 2)


def test_chunks_outside_of_an_array_that_shrank_do_not_count() -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/1.nc", "s3://bucket/2.nc"])
    smaller = shrink(repo, 1)
    [row] = repo.virtual_dependencies("file", snapshot_id=smaller)
    assert row.place == "s3://bucket/1.nc"
    assert repo.readonly_session(snapshot_id=smaller).all_virtual_chunk_locations() == [row.place]
    versions = repo.virtual_dependencies("file", snapshot_id=smaller, all_versions=True)
    assert {each.place: each.versions for each in versions} == {
        "s3://bucket/1.nc": 2,
        "s3://bucket/2.nc": 1,
    }


def shrink(repo: icefloe.Repository, chunks: int) -> str:
    """Write a version whose array is smaller, and links the same manifest all the same.

    Ours and the reference's commits write the manifest again, but the format allows this.
    """
    context = repo._context
    tip = SnapshotId.parse(repo.lookup_branch("main"))
    snapshot = run_blocking(context.assets.load_snapshot(tip))
    nodes = replace(
        snapshot.nodes,
        num_chunks=np.full_like(snapshot.nodes.num_chunks, chunks),
        array_lengths=np.full_like(snapshot.nodes.array_lengths, chunks),
    )
    new = replace(
        snapshot, id=SnapshotId.random(), contents=nodes, flushed_at=snapshot.flushed_at + 1
    )
    run_blocking(context.assets.save_snapshot(new))
    entry = SnapshotEntry(new.id, tip, new.flushed_at, "smaller")
    run_blocking(context.ledger.update(AddDetached(entry)))
    return str(new.id)


def test_absurd_lengths_do_not_overflow() -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/1.nc"] * 3, length=2**63 - 1)
    [row] = repo.virtual_dependencies("file")
    assert row.bytes == 3 * 2**40


# -- questions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "planet"}, "by must be"),
        ({"by": "prefix", "depth": -1}, "depth"),
        ({"prefix": "s3:/bucket"}, "not a url"),
        ({"prefix": "s3://bucket/?x"}, "no query"),
        ({"glob": "s3://[z-a]/*"}, "cannot be understood"),
        ({"branch": "main", "tag": "v1"}, "exactly one"),
        ({"branch": "main", "tag": "v1", "all_versions": True}, "exactly one"),
    ],
)
def test_questions_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/1.nc"])
    with pytest.raises(InvalidInputError, match=message):
        repo.virtual_dependencies(**options)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("s3://foo", [True, True, False, False]),
        ("s3://foo/bar.nc", [True, False, False, False]),
        ("s3://foo/bar.nc/", [False, False, False, False]),
        ("s3://foo/ba", [False, False, False, False]),
        ("s3", [True, True, True, False]),
        ("gcs://foo", [False, False, False, True]),
    ],
)
def test_prefixes_are_compared_by_segments(prefix: str, expected: list[bool]) -> None:
    locations = ["s3://foo/bar.nc", "s3://foo/a/b.nc", "s3://foo-evil/bar.nc", "gs://foo/x.nc"]
    column = BytesColumn.from_strings(locations)
    assert LocationQuery(prefix=prefix).chosen(column).tolist() == expected


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("s3://b/*.nc", [True, False, False, False]),
        ("s3://b/**.nc", [True, True, False, False]),
        ("s3://b/**/2?.nc", [False, True, False, False]),
        ("s3://b/[a-c].nc", [True, False, False, False]),
        ("s3://b/[!b].nc", [True, False, False, False]),
        ("s3://b/ü[[]x].$", [False, False, True, False]),
        ("**", [True, True, True, True]),
        ("*.nc", [False, False, False, False]),
        ("", [False, False, False, False]),
        ("s3://b/\\d.nc", [False, False, False, False]),
        ("s3://b/**\n", [False, False, False, True]),
    ],
)
def test_globs_choose_whole_locations(glob: str, expected: list[bool]) -> None:
    locations = ["s3://b/a.nc", "s3://b/y/20.nc", "s3://b/ü[x].$", "s3://b/x\n"]
    column = BytesColumn.from_strings(locations)
    assert LocationQuery(glob=glob).chosen(column).tolist() == expected


def test_both_conditions_must_hold() -> None:
    column = BytesColumn.from_strings(["s3://b/x/a.nc", "s3://b/x/a.tif", "s3://b/y/a.nc"])
    query = LocationQuery(prefix="s3://b/x", glob="**.nc")
    assert query.chosen(column).tolist() == [True, False, False]


def test_names_of_containers_are_replaced_where_known() -> None:
    def absolute(text: str) -> str:
        if not text.startswith("vcc://known/"):
            raise InvalidInputError("unknown")
        return text.replace("vcc://known/", "gs://there/")

    given = ["vcc://known/a/b.nc", "s3://x/y", "vcc://other/a", "vcc://known/%2e", "vcc://known/q"]
    column = BytesColumn.from_strings(given)
    expected = ["gs://there/a/b.nc", "s3://x/y", "vcc://other/a", "gs://there/%2e", "gs://there/q"]
    assert absolute_all(column, absolute).to_strings() == expected


def test_places_are_numbered_alike_however_they_come() -> None:
    """Few new places among many known take another way than many among few."""
    rng = np.random.default_rng(7)
    index, known = PlaceIndex(), dict[str, int]()
    for count in (10, 5000, 3, 0, 1, 4000, 20, 20):
        some = [f"s3://bucket/{number}.nc" for number in rng.integers(0, 6000, count).tolist()]
        expected = [known.setdefault(place, len(known)) for place in some]
        assert index.numbers(BytesColumn.from_strings(some)).tolist() == expected
        assert len(index) == len(known)
    assert index.column.to_strings() == list(known)


# -- what readers need ---------------------------------------------------------------------


def test_access_tells_containers_needs_and_counts() -> None:
    elsewhere = stored_container(
        "s3://lab/",
        icefloe.s3_store(endpoint_url="https://user:hunter2@lab.example", s3_compatible=True),
        None,
        "strict",
    )
    unused = icefloe.VirtualChunkContainer("gs://unused/", icefloe.gcs_store())
    public = icefloe.VirtualChunkContainer("s3://open/", icefloe.s3_store(anonymous=True))
    repo = repository(BUCKET, elsewhere, unused, public)
    record(
        repo,
        "a",
        ["s3://bucket/1.nc", "vcc://data/2.nc", "s3://lab/3.nc", "az://nobody/4", "file:///5"],
    )
    report = icefloe.Repository.open(repo.storage).describe_access()
    rows = {row.url_prefix: row for row in report.containers}
    assert {prefix: row.references for prefix, row in rows.items()} == {
        "s3://bucket/": 2,
        "s3://lab/": 1,
        "az://nobody/": 1,
        "file://": 1,
        "gs://unused/": 0,
        "s3://open/": 0,
    }
    assert rows["s3://bucket/"].needs == "icefloe.s3_credentials(...)"
    assert rows["s3://bucket/"].region == "eu-west-1"
    assert rows["s3://bucket/"].needs_consent is None
    assert rows["s3://open/"].needs == "icefloe.s3_credentials(anonymous=True)"
    assert "lab.example" in (rows["s3://lab/"].endpoint or "")
    assert "the endpoint" in (rows["s3://lab/"].needs_consent or "")
    assert not rows["az://nobody/"].is_declared
    assert rows["az://nobody/"].platform == "Azure Blob Storage"
    assert rows["file://"].needs is None
    assert rows["file://"].platform == "local files"
    assert {row.url_prefix for row in report.missing} == rows.keys() - {
        "gs://unused/",
        "s3://open/",
    }
    for text in (repr(report), report._repr_html_(), str(report.to_dict())):
        assert "hunter2" not in text
    assert report.snapshot_id == repo.lookup_branch("main")


def test_access_tells_what_was_authorised() -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/x/1.nc", "gs://other/2.nc"])

    def opened(*prefixes: str) -> dict[str, tuple[str, ...]]:
        every = {
            prefix: icefloe.gcs_credentials(anonymous=True)
            if prefix.startswith("gs")
            else icefloe.s3_credentials(anonymous=True)
            for prefix in prefixes
        }
        again = repo.reopen(authorize_virtual_chunk_access=icefloe.containers_credentials(every))
        return {row.url_prefix: row.authorized for row in again.describe_access().containers}

    assert opened() == {"s3://bucket/": (), "gs://other/": ()}
    assert opened("s3://bucket") == {"s3://bucket/": ("s3://bucket/",), "gs://other/": ()}
    assert opened("s3", "gs") == {
        "s3://bucket/": ("s3://bucket/",),
        "gs://other/": ("gs://other/",),
    }
    assert opened("s3://bucket/x") == {"s3://bucket/": ("s3://bucket/x",), "gs://other/": ()}


def test_a_container_that_the_reader_gave_needs_no_consent() -> None:
    stored = icefloe.VirtualChunkContainer(
        "s3://lab/", icefloe.s3_store(endpoint_url="https://lab.example", s3_compatible=True)
    )
    repo = repository(stored)
    record(repo, "a", ["s3://lab/1.nc"])
    [row] = icefloe.Repository.open(repo.storage).describe_access().containers
    assert row.needs_consent is not None
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(stored)
    [row] = icefloe.Repository.open(repo.storage, config).describe_access().containers
    assert row.needs_consent is None


def test_what_to_write_is_python_that_authorises_all() -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/1.nc", "https://example.org/2.nc"])
    code = repo.describe_access().how_to_open
    assert code is not None
    runnable = code.replace("s3_credentials(...)", "s3_credentials(anonymous=True)")
    opened = eval(runnable, {"icefloe": icefloe, "storage": repo.storage})
    assert opened.describe_access().missing == ()


def test_what_a_repository_says_cannot_write_to_the_terminal() -> None:
    repo = repository()
    record(repo, "a", ["s3://bucket/%1b[31mred", "s3://bucket/<script>"])
    found = repo.virtual_dependencies("file")
    assert "\x1b" not in repr(found)
    assert "<script>" not in found._repr_html_()
    assert {row.place for row in found} == {"s3://bucket/\x1b[31mred", "s3://bucket/<script>"}


def test_a_summary_of_many_places_is_cut_and_says_so() -> None:
    repo = repository()
    record(repo, "a", [f"s3://bucket/{number:03}.nc" for number in range(40)])
    found = repo.virtual_dependencies("file")
    assert len(repr(found).splitlines()) == 32
    assert "40 in all: 40 chunks, 400 B (10 not shown)" in repr(found)
    table = found.to_arrow()
    assert table.num_rows == 40
    assert table.column("place")[0].as_py() == found[0].place == "s3://bucket/000.nc"
    assert found[-1].place == "s3://bucket/039.nc"
    assert found.to_dicts()[1]["place"] == "s3://bucket/001.nc"
    with pytest.raises(IndexError):
        found[40]
