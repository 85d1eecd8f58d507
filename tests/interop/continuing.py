"""Work that the reference does on top of a repository, and what is there afterwards."""

import datetime as dt
from typing import Any

import icechunk as ic
import numpy as np
import zarr

from tests.interop.observing import contents
from tests.interop.reference import TOMORROW, Place, array_at, delete_key


def carry_on(place: Place) -> dict[str, Any]:
    """Append, overwrite, delete, rename, tag, amend, merge, expire and collect; tell the end.

    Starts from the repository that `build_varied` makes. The end has no ids and no times, so
    that two repositories which began alike can be compared.
    """
    repo = place.open()
    has_moves = repo.spec_version > 1
    if has_moves:
        repo.set_status(ic.RepoStatus(ic.RepoAvailability.online))
        repo.set_feature_flag("delete_tag", setting=None)
    _edit(repo, "cube" if has_moves else "sub/zstd3d")
    if has_moves:
        session = repo.rearrange_session("main")
        session.move("/moved", "/elsewhere")
        session.move("/cube", "/elsewhere/cube")
        session.commit("rename")
        session = repo.writable_session("main")
        array_at(session, "scalar")[...] = 12.5
        session.commit("to be amended")
        session = repo.writable_session("main")
        array_at(session, "appended")[0] = -1
        session.amend("amended")
    repo.create_tag("after", repo.lookup_branch("main"))
    repo.delete_tag("v1")
    repo.create_branch("side", repo.lookup_branch("dev"))
    session = repo.writable_session("side")
    array_at(session, "only_on_dev")[1] = 22
    session.commit("on a side branch")
    repo.delete_branch("dev")
    _split_and_shift(place)
    summary = _expire_and_collect(place)
    return summary | {"state": _end(place.open())}


def _edit(repo: ic.Repository, cube: str) -> None:
    mine = repo.writable_session("main")
    theirs = repo.writable_session("main")
    growing = array_at(theirs, "native1d")
    growing.resize((4000,))
    growing[1000:] = np.arange(3000)
    array_at(theirs, cube)[1, 1, 1] = 99
    root = zarr.open_group(theirs.store)
    root.create_array("appended", shape=(3,), dtype="i4", chunks=(1,))[:] = [1, 2, 3]
    del root["fill_only"]
    root.attrs["edited"] = [True, None]
    theirs.commit("append, overwrite, delete", metadata={"by": ["reference"]})
    array_at(mine, "inline2d")[1, 1] = -5
    delete_key(mine, "virtual/c/4")
    mine.store.set_virtual_ref("virtual/c/8", "vcc://data/raw.bin", offset=7, length=10)
    mine.commit("rebased", rebase_with=ic.ConflictDetector())


def _split_and_shift(place: Place) -> None:
    config = place.config()
    config.manifest = ic.ManifestConfig(
        splitting=ic.ManifestSplittingConfig.from_dict(
            {ic.ManifestSplitCondition.AnyArray(): {ic.ManifestSplitDimCondition.Any(): 2}}
        )
    )
    repo = place.open().reopen(config=config)
    repo.rewrite_manifests("split", branch="main")
    session = repo.writable_session("main")
    session.shift_array("/virtual", (1,))
    session.commit("shift")


def _expire_and_collect(place: Place) -> dict[str, Any]:
    repo = place.open()
    cutoff = next(iter(repo.ancestry(branch="main"))).written_at
    released = repo.expire_snapshots(cutoff, delete_expired_branches=True)
    repo = place.open()
    summary = repo.garbage_collect(dt.datetime.now(dt.UTC) + TOMORROW)
    return {
        "released": len(released),
        "collected": (
            summary.chunks_deleted,
            summary.manifests_deleted,
            summary.snapshots_deleted,
            summary.transaction_logs_deleted,
        ),
    }


def _end(repo: ic.Repository) -> dict[str, Any]:
    tips = {f"branch {name}": repo.lookup_branch(name) for name in repo.list_branches()}
    tips |= {f"tag {name}": repo.lookup_tag(name) for name in repo.list_tags()}
    return {
        name: {
            "history": [(one.message, one.metadata) for one in repo.ancestry(snapshot_id=tip)],
            "contents": contents(repo.readonly_session(snapshot_id=tip)),
        }
        for name, tip in tips.items()
    }
