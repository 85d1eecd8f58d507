"""Repositories written by the reference implementation, with all that its API can store."""

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import icechunk as ic
import numpy as np
import zarr
from obstore.store import LocalStore

RAW: Final = bytes((i * 7 + i // 256) % 256 for i in range(1 << 16))
"""Contents of the file that virtual chunks lie in."""
BUCKET: Final = "s3://interop-bucket/"
"""A place that no reader is authorised for, so that nothing touches a network."""
NEVER: Final = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
LONG_AGO: Final = dt.datetime(1971, 1, 1, tzinfo=dt.UTC)
TOMORROW: Final = dt.timedelta(days=1)
EVERY_JSON_KIND: Final[dict[str, Any]] = {
    "author": "interop",
    "int": 3,
    "neg": -5,
    "big": 2**40,
    "huge": 2**64 - 1,
    "small": -(2**63),
    "float": 1.5,
    "inexact": 0.1,
    "none": None,
    "flag": True,
    "off": False,
    "list": [1, 2, 3],
    "long": list(range(300)),
    "floats": [0.5, 0.25],
    "flags": [True, False, True],
    "words": ["a", "b", ""],
    "mixed": [1, "a", None, [2.5, {"x": []}]],
    "map": {"k": {"z": 1, "a": [0.5]}},
    "empty": {},
    "nothing": [],
    "text": "héllo 数",
    "": "no name",
    "ключ": "x" * 300,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a repository is, and the folder that its virtual chunks lie in."""

    path: Path
    virtual: Path

    @property
    def container(self) -> str:
        return self.virtual.as_uri() + "/"

    def etag(self) -> str:
        """Give the entity tag of the file that virtual chunks lie in."""
        return str(LocalStore(self.virtual).head("raw.bin")["e_tag"])

    def config(self) -> ic.RepositoryConfig:
        config = ic.RepositoryConfig.default()
        config.set_virtual_chunk_container(
            ic.VirtualChunkContainer(
                self.container, ic.local_filesystem_store(str(self.virtual)), name="data"
            )
        )
        config.set_virtual_chunk_container(
            ic.VirtualChunkContainer(BUCKET, ic.s3_store(region="us-east-1", anonymous=True))
        )
        return config

    def create(self, spec: int, config: ic.RepositoryConfig | None = None) -> ic.Repository:
        storage = ic.local_filesystem_storage(str(self.path))
        return ic.Repository.create(
            storage, config=config or self.config(), spec_version=spec
        ).reopen(authorize_virtual_chunk_access=self._authorised())

    def open(self) -> ic.Repository:
        return ic.Repository.open(
            ic.local_filesystem_storage(str(self.path)),
            config=self.config(),
            authorize_virtual_chunk_access=self._authorised(),
        )

    def _authorised(self) -> dict[str, Any]:
        return {self.container: ic.credentials.LocalFileSystemAccess}


def array_at(session: ic.Session, path: str) -> Any:
    return zarr.open_array(session.store, path=path)


def delete_key(session: ic.Session, key: str) -> None:
    asyncio.run(session.store.delete(key))


def build_varied(place: Place, spec: int) -> None:
    """Every kind of node, chunk and metadata, and every operation that leaves a trace."""
    repo = place.create(spec)
    session = repo.writable_session("main")
    _write_nodes(session, spec)
    _write_virtual(session, place)
    first = session.commit("first", metadata=EVERY_JSON_KIND)
    repo.create_tag("v1", first)
    repo.create_tag("gone", first)
    repo.delete_tag("gone")
    repo.create_branch("dev", first)

    session = repo.writable_session("main")
    array_at(session, "inline2d")[0, 0] = 1000
    delete_key(session, "native1d/c/1")
    zarr.open_group(session.store).attrs["n"] = 2
    session.commit("second: overwrite a chunk, delete a chunk, edit attributes")

    session = repo.writable_session("dev")
    root = zarr.open_group(session.store)
    root.create_array("only_on_dev", shape=(3,), dtype="i8", chunks=(3,))[:] = [1, 2, 3]
    del root["sub"]
    session.commit("dev: new array, delete a group")

    session = repo.writable_session("main")
    array_at(session, "native1d").resize((1500,))
    session.commit("third: shrink an array", metadata={"author": "interop", "step": 3})
    session = repo.writable_session("main")
    array_at(session, "fill_only")[0] = 1
    session.flush("")
    if spec > 1:
        _operate(repo, first)


def _write_nodes(session: ic.Session, spec: int) -> None:
    root = zarr.group(session.store, attributes={"title": "interop", "n": 1})
    scalar = root.create_array(
        "scalar", shape=(), dtype="f8", chunks=(), compressors=None, fill_value=0.0
    )
    scalar[...] = 3.25
    root.create_array("named scalar", shape=(), dtype="i1", chunks=(), dimension_names=())
    root.create_array("empty0", shape=(0, 4), dtype="i4", chunks=(2, 2))
    root.create_array("fill_only", shape=(5,), dtype="i2", chunks=(2,), fill_value=-7)
    inline = root.create_array(
        "inline2d",
        shape=(5, 7),
        dtype="i4",
        chunks=(2, 3),
        compressors=None,
        dimension_names=("y", None),
        attributes={"units": "K"},
    )
    inline[...] = np.arange(35, dtype="i4").reshape(5, 7)
    native = root.create_array(
        "native1d",
        shape=(2500,),
        dtype="u2",
        chunks=(1000,),
        compressors=None,
        dimension_names=("time",),
    )
    native[...] = np.arange(2500, dtype="u2")
    sub = root.create_group("sub", attributes={"deep": {"list": [1, None, "x"]}})
    cube = sub.create_array("zstd3d", shape=(4, 6, 10), dtype="f4", chunks=(2, 3, 10))
    cube[...] = np.linspace(0, 1, 240, dtype="f4").reshape(4, 6, 10)
    sub.create_group("leaf")
    named = root.create_array(
        "数組 ñ", shape=(3,), dtype="i1", chunks=(1,), dimension_names=("tëmps",)
    )
    named[:] = [1, 2, 3]
    if spec > 1:
        with zarr.config.set({"array.rectilinear_chunks": True}):
            grid = root.create_array(
                "rectilinear", shape=(10, 6), dtype="i4", chunks=((2, 3, 5), (3, 3))
            )
            grid[...] = np.arange(60).reshape(10, 6)


def _write_virtual(session: ic.Session, place: Place) -> None:
    root = zarr.open_group(session.store)
    virtual = root.create_array(
        "virtual", shape=(100,), dtype="u1", chunks=(10,), compressors=None, fill_value=255
    )
    refs: list[tuple[str, int, str | dt.datetime | None]] = [
        ("vcc://data/raw.bin", 0, None),
        ("vcc://data/raw.bin", 100, NEVER),
        ("vcc://data/raw.bin", 200, LONG_AGO),
        (f"{BUCKET}a/b.nc", 4096, '"0123456789abcdef"'),
        (f"{BUCKET}a//b%20c.nc", 0, None),
        (f"{place.container}raw.bin", 300, None),
        (f"{place.container}raw.bin", 400, place.etag()),
        (f"{place.container}raw.bin", 500, '"of an older file"'),
    ]
    for i, (location, offset, checksum) in enumerate(refs):
        session.store.set_virtual_ref(
            f"virtual/c/{i}", location, offset=offset, length=10, checksum=checksum
        )
    virtual[90:] = 9


def _operate(repo: ic.Repository, first: str) -> None:
    """Do what only spec 2 can, so that each kind of operation is in the log."""
    session = repo.writable_session("main")
    array_at(session, "scalar")[...] = -1.0
    session.commit("to be amended")
    session = repo.writable_session("main")
    array_at(session, "fill_only")[4] = 8
    session.amend("amended commit", metadata={"amended": True})
    session = repo.rearrange_session("main")
    session.move("/sub", "/moved")
    session.move("/moved/zstd3d", "/cube")
    session.commit("move nodes")
    # Spec 1 on a local file system lists such names percent-encoded and then finds none.
    repo.create_branch("ветка/1", first)
    repo.create_tag("étiquette", first)
    repo.create_branch("doomed", first)
    repo.delete_branch("doomed")
    repo.create_branch("reset-me", first)
    repo.reset_branch("reset-me", repo.lookup_branch("main"))
    repo.set_metadata({"owner": "interop", "rank": 1, "nested": {"a": [1, 2.5, None]}})
    repo.save_config()
    repo.set_feature_flag("delete_tag", setting=False)
    repo.set_feature_flag("move_node", setting=True)
    repo.set_feature_flag("create_tag", setting=True)
    repo.set_feature_flag("create_tag", setting=None)
    repo.set_status(
        ic.RepoStatus(ic.RepoAvailability.read_only, limited_availability_reason="frozen")
    )


def build_split(place: Place, spec: int) -> None:
    """Arrays cut over several manifests, one of which is written again."""
    config = place.config()
    config.manifest = ic.ManifestConfig(
        splitting=ic.ManifestSplittingConfig.from_dict(
            {
                ic.ManifestSplitCondition.name_matches("^grid$"): {
                    ic.ManifestSplitDimCondition.DimensionName("y"): 2,
                    ic.ManifestSplitDimCondition.Axis(1): 3,
                },
                ic.ManifestSplitCondition.AnyArray(): {ic.ManifestSplitDimCondition.Any(): 4},
            }
        )
    )
    repo = place.create(spec, config)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    grid = root.create_array(
        "grid",
        shape=(5, 8),
        dtype="u1",
        chunks=(1, 1),
        compressors=None,
        dimension_names=("y", "x"),
    )
    grid[...] = np.arange(40, dtype="u1").reshape(5, 8) + 1
    line = root.create_array("line", shape=(10,), dtype="u1", chunks=(1,), compressors=None)
    line[3:9] = 5
    session.commit("split manifests")
    session = repo.writable_session("main")
    array_at(session, "grid")[4, 7] = 200
    session.commit("touch one split")


def build_expired(place: Place, spec: int) -> None:
    """A history of which old parts were released and collected."""
    config = place.config()
    config.inline_chunk_threshold_bytes = 0
    repo = place.create(spec, config)
    commits: list[str] = []

    def commit(value: int) -> None:
        session = repo.writable_session("main")
        if not commits:
            zarr.group(session.store).create_array(
                "a", shape=(4,), dtype="u1", chunks=(2,), compressors=None
            )
        array_at(session, "a")[:] = value
        commits.append(session.commit(f"commit {value}"))

    for value in range(1, 5):
        commit(value)
    repo.create_tag("kept", commits[1])
    repo.create_branch("kept-branch", commits[0])
    for value in range(5, 8):
        commit(value)
    [cutoff] = [s.written_at for s in repo.ancestry(branch="main") if s.id == commits[4]]
    place.open().expire_snapshots(cutoff)
    place.open().garbage_collect(dt.datetime.now(dt.UTC) + TOMORROW)


def build_many(place: Place, spec: int) -> None:
    """Thousands of references, so that ours need several blocks; spec 2 compresses locations."""
    repo = place.create(spec)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    root.create_array("line", shape=(1600,), dtype="u1", chunks=(1,), compressors=None)
    root.create_array("cube", shape=(10, 15, 8), dtype="u1", chunks=(1, 1, 1), compressors=None)
    session.store.set_virtual_refs(
        "line",
        [
            ic.VirtualChunkSpec(
                index=[i],
                location=f"{BUCKET}year={2000 + i // 80}/part-{i // 10:06d}.nc",
                offset=i,
                length=1,
                etag_checksum=f'"{i // 10:032x}"' if i % 3 else None,
            )
            for i in range(1590)
        ],
    )
    session.store.set_virtual_refs(
        "cube",
        [
            ic.VirtualChunkSpec(
                index=list(index),
                location=f"{place.container}raw.bin",
                offset=offset,
                length=1,
                last_updated_at_checksum=NEVER if offset % 2 else None,
            )
            for offset, index in enumerate(np.ndindex(10, 15, 8))
        ],
    )
    session.commit("virtual references")
    session = repo.writable_session("main")
    array_at(session, "cube")[3, 4:9] = 77  # inline rows among virtual ones
    array_at(session, "line")[1590:] = np.arange(10)
    delete_key(session, "cube/c/9/14/7")
    session.commit("mixed kinds")


def build_ops_log(place: Place, spec: int) -> None:
    """A log of operations that goes on in backups of the repo object."""
    config = place.config()
    config.num_updates_per_repo_info_file = 3
    repo = place.create(spec, config)
    root = repo.lookup_branch("main")
    for i in range(7):
        repo.create_tag(f"t{i}", root)


def build_migrated(place: Place, spec: int) -> None:
    """A repository of spec 1, upgraded: its old files keep their spec version."""
    build_varied(place, spec - 1)
    ic.upgrade_icechunk_repository(place.open(), dry_run=False, delete_unused_v1_files=True)


BUILDERS: Final[dict[str, tuple[Callable[[Place, int], None], int]]] = {
    "varied-v1": (build_varied, 1),
    "varied-v2": (build_varied, 2),
    "split-v1": (build_split, 1),
    "split-v2": (build_split, 2),
    "expired-v1": (build_expired, 1),
    "expired-v2": (build_expired, 2),
    "many-v1": (build_many, 1),
    "many-v2": (build_many, 2),
    "ops-log-v2": (build_ops_log, 2),
    "migrated-v2": (build_migrated, 2),
}
