"""Paths of groups and arrays: absolute, `/` for the root, never a trailing slash."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

ROOT: Final = "/"


def check_path(path: str) -> str:
    """Return an absolute path, or raise if it is invalid.

    >>> check_path("/climate/t2m")
    '/climate/t2m'
    """
    if (fault := _fault(path)) is not None:
        raise InvalidInputError(
            f"{path!r} is not the path of a node: {fault}", ErrorKind.INVALID_PATH, path=repr(path)
        )
    return path


def absolute_path(text: str) -> str:
    """Turn what users write for a node, with or without outer slashes, into its path.

    >>> absolute_path("climate/t2m/"), absolute_path("")
    ('/climate/t2m', '/')
    """
    return check_path("/" + text.removeprefix("/").removesuffix("/"))


@lru_cache(maxsize=4096)
def _fault(path: str) -> str | None:
    if not path.startswith("/"):
        return "it must start with `/`"
    if path == ROOT:
        return None
    segments = path[1:].split("/")
    if not all(segments):
        return "it has an empty segment"
    if "." in segments or ".." in segments:
        return "segments `.` and `..` mean nothing in a repository"
    if any("\ud800" <= character <= "\udfff" for character in path):
        return "it has a lone surrogate, which is not Unicode"
    return None


def parent_path(path: str) -> str | None:
    """Return the path of the group that holds a node; `None` for the root.

    >>> parent_path("/a/b"), parent_path("/a"), parent_path("/")
    ('/a', '/', None)
    """
    if path == ROOT:
        return None
    return path.rpartition("/")[0] or ROOT


def node_name(path: str) -> str:
    """Return the last segment of a path; empty for the root.

    >>> node_name("/a/b")
    'b'
    """
    return path.rpartition("/")[2]


def child_path(parent: str, name: str) -> str:
    """Return the path of a node within a group.

    >>> child_path("/", "a"), child_path("/a", "b")
    ('/a', '/a/b')
    """
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"


def joined_path(*parts: str) -> str:
    """Join parts of a relative path, as Zarr writes it; slashes around them do not matter.

    >>> joined_path("", "a/b"), joined_path("/group/", "a"), joined_path("", "")
    ('a/b', 'group/a', '')
    """
    return "/".join(stripped for part in parts if (stripped := part.strip("/")))


def prefix_below(path: str) -> str:
    """Return the prefix of the paths of all nodes strictly below a path.

    >>> prefix_below("/"), prefix_below("/a")
    ('/', '/a/')
    """
    return path if path == ROOT else path + "/"


def is_below(path: str, ancestor: str) -> bool:
    """Return whether a node lies strictly below another.

    >>> is_below("/a/b", "/a"), is_below("/ab", "/a"), is_below("/a", "/a")
    (True, False, False)
    """
    return path != ancestor and path.startswith(prefix_below(ancestor))


def ancestors(path: str) -> Iterator[str]:
    """Walk from the parent of a node up to the root.

    >>> list(ancestors("/a/b/c"))
    ['/a/b', '/a', '/']
    """
    above = parent_path(path)
    while above is not None:
        yield above
        above = parent_path(above)
