"""What newcomers get wrong is answered with what to do instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

from icefloe import ConflictError, ReadOnlyError, Repository, in_memory_storage


@pytest.fixture
def repository() -> Repository:
    return Repository.create(in_memory_storage())


@pytest.mark.parametrize(
    "take",
    [Repository.create, Repository.open, Repository.open_or_create, Repository.exists],
    ids=lambda take: take.__name__,
)
def test_a_path_is_no_storage(take: Callable[[Any], object], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"storage_from_url\(url\)"):
        take(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_word_is_no_solver(repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    solver: Any = "ours"
    with pytest.raises(TypeError, match="BasicConflictSolver"):
        session.commit("with a word", rebase_with=solver)
    with pytest.raises(TypeError, match="BasicConflictSolver"):
        session.rebase(solver)
    session.commit("without")


def test_a_lost_race_says_how_to_go_on(repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    repository.writable_session("main").commit("first", allow_empty=True)
    with pytest.raises(ConflictError, match=r"rebase_with=ConflictDetector\(\)"):
        session.commit("second")


def test_a_store_for_reading_says_where_to_get_another(repository: Repository) -> None:
    with repository.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", shape=2, dtype="i4", fill_value=0)
    array = zarr.open_array(repository.readonly_session("main").store, path="a")
    with pytest.raises(ReadOnlyError, match=r"writable_session\(branch\)"):
        array[0] = 1


def test_a_graph_can_be_saved(repository: Repository) -> None:
    graph = repository.ancestry_graph()
    assert graph.to_svg() == graph._repr_svg_()
    assert graph.to_svg().startswith("<svg")
