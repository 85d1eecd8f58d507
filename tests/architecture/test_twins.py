"""Every method that may wait has a twin to be awaited, with the same parameters and answer."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from icefloe import Client, ForkSession, Repository, Session

CLASSES = (Repository, Session, ForkSession, Client)

WITHOUT_TWIN = {
    "ancestry": "its twin is async_ancestry",
    "async_ancestry": "the twin of ancestry",
    "audit": "gives an iterator for both kinds of loops",
    "chunk_coordinates": "gives an iterator for both kinds of loops",
    "default_commit_metadata": "asks no storage",
    "discard_changes": "asks no storage",
    "set_default_commit_metadata": "asks no storage",
    "status": "answers from memory",
    "virtual_chunk_locations": "gives an iterator for both kinds of loops",
}


def public_functions(kind: type) -> dict[str, Any]:
    return {
        name: getattr(kind, name)
        for name in dir(kind)
        if not name.startswith("_")
        and not isinstance(inspect.getattr_static(kind, name), property)
        and callable(getattr(kind, name))
    }


def pairs() -> Iterator[tuple[type, str]]:
    for kind in CLASSES:
        for name in public_functions(kind):
            if not name.endswith("_async") and name not in WITHOUT_TWIN:
                yield kind, name


PAIRS = pytest.mark.parametrize(("kind", "name"), list(pairs()))


@PAIRS
def test_twins_take_the_same(kind: type, name: str) -> None:
    functions = public_functions(kind)
    assert f"{name}_async" in functions, f"{kind.__name__}.{name} has no twin"
    blocking = inspect.signature(functions[name])
    awaited = inspect.signature(functions[f"{name}_async"])
    assert blocking.parameters == awaited.parameters


@PAIRS
def test_twins_return_the_same(kind: type, name: str) -> None:
    functions = public_functions(kind)
    blocking = _returned(functions[name])
    awaited = _returned(functions[f"{name}_async"])
    assert _item(blocking) == _item(awaited)


def _returned(function: Any) -> str:
    annotation = inspect.signature(inspect.unwrap(function)).return_annotation
    return inspect.formatannotation(annotation)


def _item(annotation: str) -> str:
    """Name what an iterator yields; other annotations stay as they are."""
    kind, _, item = annotation.partition("[")
    return item if kind.endswith(("Iterator", "ContextManager")) else annotation


@PAIRS
def test_the_twin_that_blocks_is_documented(kind: type, name: str) -> None:
    function = public_functions(kind)[name]
    assert function.__doc__
    assert function.__name__ == name
    assert not inspect.iscoroutinefunction(function)


@pytest.mark.parametrize("kind", CLASSES)
def test_no_twin_is_alone(kind: type) -> None:
    functions = public_functions(kind)
    awaited = {name for name in functions if name.endswith("_async")}
    assert {name for name in awaited if name.removesuffix("_async") not in functions} == set()
    known = {name for each in CLASSES for name in public_functions(each)}
    assert known >= WITHOUT_TWIN.keys()
