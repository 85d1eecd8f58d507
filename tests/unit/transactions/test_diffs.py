"""What sessions and versions say that they changed."""

import numpy as np
import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, RebaseFailedError, SessionStateError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import replace
from icefloe.repo.repo_changes import Commit, ResetBranch
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.diffs import Diff
from tests.support.sides import Ours, furnish


@pytest.fixture
def side() -> Ours:
    furnished: Ours = furnish(Ours())
    return furnished


def test_nothing_changed(side: Ours) -> None:
    found = side.status(side.begin())
    assert found.is_empty()
    assert found == Diff()
    assert (str(found), repr(found)) == ("", "<Diff: no changes>")


def test_long_lists_are_shown_short() -> None:
    chunks = np.arange(50, dtype=np.uint32).reshape(-1, 1)
    diff = Diff(new_arrays={"/<a>"}, chunk_coordinates={"/<a>": chunks}, moved_nodes=[("/b", "/c")])
    assert "... 40 more" in str(diff)
    assert "/b -> /c" in str(diff)
    assert repr(diff) == str(diff)
    assert "&lt;a&gt;" in diff._repr_html_()
    assert not diff.is_empty()


def test_from_the_first_snapshot_everything_is_new(side: Ours) -> None:
    found = side.diff(INITIAL_SNAPSHOT_ID, side.tip())
    assert found.new_groups == {"/", "/g", "/g/s", "/h"}
    assert found.new_arrays == {"/a", "/g/x"}
    assert found.updated_chunks == {"/a": [[i] for i in range(8)]}


def expire(side: Ours, *, with_logs: bool = True) -> list[SnapshotId]:
    """Take the commits between the first and the last out of the history, as expiring does."""

    async def run() -> list[SnapshotId]:
        context = side.context
        history = [entry async for entry in context.ledger.ancestry(side.tip())]
        last, *between, first = history
        snapshot = await context.assets.load_snapshot(last.id)
        log = await context.assets.load_transaction_log(last.id)
        new = SnapshotId.random()
        pruned = [entry.id for entry in reversed(between)]
        if not with_logs:
            pruned.append(SnapshotId.random())
        await context.assets.save_snapshot(replace(snapshot, id=new))
        await context.assets.save_transaction_log(replace(log, id=new))
        await context.ledger.update(ResetBranch("main", first.id))
        entry = SnapshotEntry(new, first.id, snapshot.flushed_at, "last", {}, tuple(pruned))
        await context.ledger.update(Commit("main", first.id, entry))
        return [first.id, *pruned, new]

    return run_blocking(run())


def test_logs_of_expired_commits_still_count(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/g/x", 1)
    for index in (1, 2):
        other = side.begin()
        side.write(other, "/a", index)
        side.commit(other)
    first, *_, last = expire(side)
    assert side.diff(first, last).updated_chunks == {"/a": [[i] for i in range(8)]}
    # The session began on a commit that is not in the history any more.
    assert side.rebase(session, ConflictDetector()) == 1
    assert session.snapshot_id == last


def test_conflicts_with_expired_commits_are_found(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/a", 1)
    for index in (1, 2):
        other = side.begin()
        side.write(other, "/a", index)
        side.commit(other)
    expire(side)
    with pytest.raises(RebaseFailedError) as failure:
        side.rebase(session, ConflictDetector())
    assert failure.value.conflicts[0].conflicted_chunks == [[1]]


def test_an_expired_commit_without_its_log(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/g/x", 1)
    other = side.begin()
    side.write(other, "/a", 1)
    side.commit(other)
    expire(side, with_logs=False)
    with pytest.raises(SessionStateError) as failure:
        side.rebase(session, ConflictDetector())
    assert failure.value.kind == ErrorKind.REBASE_TX_LOG_PRUNED
    assert side.status(session).updated_chunks == {"/g/x": [[1]]}
