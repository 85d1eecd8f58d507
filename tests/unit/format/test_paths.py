"""Paths of nodes."""

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.paths import absolute_path, ancestors, check_path, is_below, parent_path


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/c/0", "/…/zarr.json", "/a b"])
def test_good_paths_come_back(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a/./b", "/\ud800"]
)
def test_bad_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="is not the path of a node") as caught:
        check_path(path)
    assert caught.value.kind == ErrorKind.INVALID_PATH


@pytest.mark.parametrize("text", ["a/b", "/a/b", "a/b/", "/a/b/"])
def test_outer_slashes_do_not_matter_to_users(text: str) -> None:
    assert absolute_path(text) == "/a/b"


def test_inner_empty_segments_do() -> None:
    with pytest.raises(InvalidInputError):
        absolute_path("a//b")


def test_everything_is_below_the_root_but_the_root() -> None:
    assert is_below("/a", "/")
    assert not is_below("/", "/")


def test_the_root_has_no_parent() -> None:
    assert parent_path("/") is None
    assert list(ancestors("/")) == []
