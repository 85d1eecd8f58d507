"""Changes within a session, each done to the session and to its model alike."""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tests.stateful.actors import (
    Actor,
    chunk_key,
    delete,
    delete_dir,
    key_of,
    put,
    seen_by,
    told_by,
)
from tests.stateful.model import (
    CHUNK_LENGTH,
    Coords,
    NodeModel,
    SessionModel,
    child_path,
    seen_in,
)

NAMES: Final = ("a", "b", "c-d")
MAX_DEPTH: Final = 3

attributes = st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), max_size=2)
lengths = st.integers(1, 4 * CHUNK_LENGTH)
shapes = st.lists(lengths, min_size=1, max_size=2).map(tuple)
contents = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4)
steps = st.integers(-2, 2)


@dataclass
class Open:
    """A session of an actor, with its model."""

    actor: Actor
    session: Any
    branch: str
    model: SessionModel

    def check(self) -> None:
        """The session shows and tells what the model does."""
        record = self.model.record
        assert seen_by(self.session) == seen_in(self.model.content), self.actor
        told, expected = told_by(self.session.status()), self.model.status()
        assert told == expected, (self.actor, told, expected)
        if not record.is_disputed:
            assert self.session.has_uncommitted_changes == (not record.is_empty)


type Edit = Callable[[st.DataObject, Open], None]


def some_path(data: st.DataObject, opened: Open, *, arrays: bool) -> str | None:
    content = opened.model.content
    paths = sorted(path for path, node in content.items() if node.is_array == arrays)
    return data.draw(st.sampled_from(paths), "path") if paths else None


def some_coords(data: st.DataObject, node: NodeModel) -> Coords:
    return tuple(data.draw(st.integers(0, size - 1)) for size in node.grid)


def create_node(data: st.DataObject, opened: Open) -> None:
    parent = some_path(data, opened, arrays=False)
    path = "/" if parent is None else child_path(parent, data.draw(st.sampled_from(NAMES), "name"))
    if path in opened.model.content or path.count("/") > MAX_DEPTH:
        return
    is_array = path != "/" and data.draw(st.booleans(), "is array")
    node = NodeModel(data.draw(attributes), data.draw(shapes, "shape") if is_array else None)
    put(opened.session, key_of(path, "zarr.json"), node.encoded())
    opened.model.create(path, node)


def update_attributes(data: st.DataObject, opened: Open) -> None:
    path = some_path(data, opened, arrays=data.draw(st.booleans(), "of an array"))
    if path is not None:
        opened.model.update(path, data.draw(attributes, "attributes"))
        node = opened.model.content[path]
        put(opened.session, key_of(path, "zarr.json"), node.encoded())


def set_chunks(data: st.DataObject, opened: Open) -> None:
    if (path := some_path(data, opened, arrays=True)) is not None:
        for content in data.draw(contents, "chunks"):
            coords = some_coords(data, opened.model.content[path])
            put(opened.session, chunk_key(path, coords), content)
            opened.model.set_chunk(path, coords, content)


def delete_chunk(data: st.DataObject, opened: Open) -> None:
    if (path := some_path(data, opened, arrays=True)) is not None:
        coords = some_coords(data, opened.model.content[path])
        delete(opened.session, chunk_key(path, coords))
        opened.model.delete_chunk(path, coords)


def resize(data: st.DataObject, opened: Open) -> None:
    if (path := some_path(data, opened, arrays=True)) is None:
        return
    node = opened.model.content[path]
    shape = tuple(data.draw(lengths, "length") for _ in node.shape or ())
    if shape != node.shape:
        for coords in opened.model.resize(path, shape):
            delete(opened.session, chunk_key(path, coords))
        put(opened.session, key_of(path, "zarr.json"), node.encoded())


def shift(data: st.DataObject, opened: Open) -> None:
    if (path := some_path(data, opened, arrays=True)) is None:
        return
    offset = tuple(data.draw(steps, "step") for _ in opened.model.content[path].grid)
    opened.session.shift_array(path, list(offset))
    opened.model.shift(path, offset)
    _take_over_chunk_record(opened, path)


def reindex(data: st.DataObject, opened: Open) -> None:
    """Turn the first dimension around, up to a point."""
    if (path := some_path(data, opened, arrays=True)) is None:
        return
    node = opened.model.content[path]
    last = data.draw(st.integers(0, node.grid[0] - 1), "last")

    def turned(coords: Iterable[int]) -> Coords | None:
        first, *rest = coords
        return (last - first, *rest) if first <= last else None

    opened.session.reindex_array(path, turned)
    opened.model.reindex(path, turned)
    _take_over_chunk_record(opened, path)


def _take_over_chunk_record(opened: Open, path: str) -> None:
    """Take over which places count as touched by a relabelling: that is not laid down."""
    told = told_by(opened.session.status())["updated_chunks"].get(path, [])
    node, record = opened.model.content[path], opened.model.record
    touched = {tuple(coords) for coords in told}
    assert touched >= record.chunks.get(node.uid, set())
    if touched:
        record.chunks[node.uid] = touched


def delete_node(data: st.DataObject, opened: Open) -> None:
    path = some_path(data, opened, arrays=data.draw(st.booleans(), "an array"))
    if path is not None and path != "/":
        delete_dir(opened.session, key_of(path))
        opened.model.delete(path)


def discard(_: st.DataObject, opened: Open) -> None:
    opened.session.discard_changes()
    opened.model.discard()
    assert not opened.session.has_uncommitted_changes


def fork_and_merge(data: st.DataObject, opened: Open) -> None:
    """Let workers write chunks; where they meet, the one merged later wins."""
    if (path := some_path(data, opened, arrays=True)) is None:
        return
    fork = opened.session.fork()
    workers = data.draw(st.integers(1, 3), "workers")
    forks = [pickle.loads(pickle.dumps(fork)) for _ in range(workers)]
    for one in forks:
        for content in data.draw(contents, "chunks"):
            coords = some_coords(data, opened.model.content[path])
            put(one, chunk_key(path, coords), content)
            opened.model.set_chunk(path, coords, content)
    opened.session.merge(*forks)
    opened.check()


EDITS: Final[tuple[Edit, ...]] = (
    create_node,
    create_node,
    update_attributes,
    set_chunks,
    set_chunks,
    delete_chunk,
    resize,
    shift,
    reindex,
    delete_node,
    fork_and_merge,
    discard,
)
"""Some twice, to come up more often."""
