"""The choice of a version: the branches and tags that are offered, and the page that each opens.

A choice keeps the page and its other parameters. The page of a commit is about that commit alone:
there, a version opens the page of its newest commit.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Self
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request

from icefloe.records import Record
from icefloe.web.texts import fits_address
from icefloe.web.versions import Ref, Version

REFS_PER_PAGE: Final = 50
VERSIONS_PAGE: Final = "/versions"
_MOST_OFFERED: Final = 6
"""How many branches, and how many tags, the header of a page offers."""
_OWN_TO_A_VERSION: Final = ("version", "page", "after")
"""Parameters that another version has no use for."""
_TITLES: Final = {"branch": "Branches", "tag": "Tags"}


class Target(Record):
    """A page without its version: path and parameters."""

    path: str
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_request(cls, request: Request, root: str) -> Self:
        """Return the page that the choice of a version opens, from a page below the root."""
        path = request.scope["path"].removeprefix(root)
        if path == VERSIONS_PAGE:
            return cls.parse(request.query_params.get("of", "/"))
        if path.startswith("/commit/"):
            return cls("/commit")
        pairs = request.query_params.multi_items()
        return cls(path, tuple(pair for pair in pairs if pair[0] not in _OWN_TO_A_VERSION))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` wrote; pages of other sites become the first page.

        >>> Target.parse("/diff?from=v1&to=main").query
        (('from', 'v1'), ('to', 'main'))
        >>> Target.parse("//evil.example/").path
        '/'
        """
        path, _, query = text.partition("?")
        if not path.startswith("/") or path.startswith("//"):
            return cls("/")
        return cls(path, tuple(parse_qsl(query, keep_blank_values=True)))

    @property
    def text(self) -> str:
        """The page as the parameter of another page."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def address(self, root: str, version: str) -> str:
        """Return the URL of the page for a version.

        >>> Target("/chunk/a b", (("at", "1"), ("at", "2"))).address("", "v/1")
        '/chunk/a%20b?at=1&at=2&version=v%2F1'
        """
        query = urlencode([*self.query, ("version", version)], quote_via=quote, safe="")
        return f"{quote(root + self.path, safe='/')}?{query}"


class Picker(Record):
    """The choice of a version in the header of a page."""

    target: Target
    action: str
    """The address that the chosen version is sent to."""
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Titles, with the names of some branches or tags."""
    count: int
    """How many branches and tags there are."""

    @classmethod
    def of(cls, target: Target, root: str, refs: Sequence[Ref]) -> Self:
        """Offer the first branches and tags of a list."""
        groups = []
        for kind, title in _TITLES.items():
            named = (ref.name for ref in refs if ref.kind == kind)
            names = tuple(islice(filter(fits_address, named), _MOST_OFFERED))
            if names:
                groups.append((title, names))
        return cls(target, quote(root + target.path, safe="/"), tuple(groups), len(refs))

    def offers(self, version: Version) -> bool:
        """Return whether a version is among those that are offered."""
        title = _TITLES.get(version.kind)
        return any(title == offered and version.name in names for offered, names in self.groups)


class RefPage(Record):
    """Some branches and tags of a list."""

    refs: tuple[Ref, ...]
    number: int
    pages: int
    total: int


def ref_page(refs: Iterable[Ref], search: str, number: int) -> RefPage:
    """Return a page of the branches and tags whose names contain a text; pages count from 1."""
    folded = search.casefold()
    chosen = [ref for ref in refs if folded in ref.name.casefold()]
    pages = max(1, -(-len(chosen) // REFS_PER_PAGE))
    number = min(max(1, number), pages)
    first = (number - 1) * REFS_PER_PAGE
    return RefPage(tuple(chosen[first : first + REFS_PER_PAGE]), number, pages, len(chosen))
