"""Repositories that pages and data routes read: opened in a person's name, kept for a short while.

Every request is decided about with the facts of this moment. A repository that was opened before
is used again only if the decision grants the very same: the same buckets, the same containers, by
the same policies. Otherwise, and every few minutes, it is opened as the API opens it, by one
`Opener`, with an entry in the audit. Credentials are read-only, those of the person. One that a
store refuses before its end is replaced once, below all that pages and data do: that is an opening
of its own, with the decision and the entry in the audit of one.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match, Route

from icefloe.api.repository import Repository
from icefloe.catalog.handles import repository_url
from icefloe.catalog.wire import CredentialAnswer, OpenAnswer, OpenRequest
from icefloe.config import CachingConfig, RepositoryConfig
from icefloe.credentials.refresh import Deadline
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError, NotFoundError
from icefloe.records import Record, replace
from icefloe.service.derivation import Side
from icefloe.service.domain.decide import Granted, Missing, decide
from icefloe.service.domain.sharing import Share, Source, shares_of
from icefloe.service.following import credential_in, side_of
from icefloe.service.http.access import Permit, actor_of
from icefloe.service.http.gate import API
from icefloe.service.http.problems import status_of
from icefloe.service.http.repositories import open_with_audit
from icefloe.service.opening import prefix_of
from icefloe.service.runtime import Service
from icefloe.web.data_site import DataSite
from icefloe.web.dependencies import Shared, SharedBy
from icefloe.web.site import HEADERS, Site, is_document
from icefloe.web.versions import Version, Viewed, literal
from icefloe.zarr_store.store import size_of_value

ZARR: Final = "/zarr"
"""The path of Zarr over HTTP, which programs read."""
_MOST_REPOSITORIES: Final = 32
"""How many repositories this process keeps open for pages."""
_MOST_REQUESTS: Final = 16
"""How many requests read repositories at the same time; the threads of the others stay free."""
_MOST_OF_ONE: Final = 6
"""How many of them are of one person, for one repository: as many as a browser sends at once."""
_KEPT: Final = timedelta(minutes=4)
"""After this time, nearly, a repository is opened again; its credentials live for longer."""
_CACHES: Final = CachingConfig(num_snapshot_nodes=50_000, num_chunk_refs=200_000)
"""The content of the caches of a repository, beside a few sessions."""
_LARGEST_FILE: Final = 256 * 1024**2
"""The largest part of a chunk that is sent at once: it is in memory meanwhile."""
_RANGE: Final = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")


class ServedRepository(Viewed):
    """A repository of the service, which people open by its name."""

    def __init__(
        self, repository: Repository, name: str, service_url: str, description: str = ""
    ) -> None:
        super().__init__(repository, name, repository_url(service_url, name), description)
        self._service_url: Final = service_url

    def zarr_url(self, version_name: str, origin: str) -> str:
        """Return the address of a version as Zarr over HTTP, wherever the pages are."""
        del origin
        return f"{self._service_url}{ZARR}/{self.name}@{version_name}"

    def zarr_code(self, version: Version, origin: str) -> tuple[str, str]:
        """Return a title, and the lines that read a version as Zarr over HTTP, with a token."""
        url = literal(self.zarr_url(version.path_name, origin))
        is_encrypted = self._service_url.startswith("https:")
        options = '{"default_headers": headers' + ("" if is_encrypted else ', "allow_http": True')
        lines = (
            "import os, zarr",
            "from obstore.store import HTTPStore",
            "from zarr.storage import ObjectStore",
            'headers = {"Authorization": f"Bearer {os.environ[\'ICEFLOE_TOKEN\']}"}',
            f"store = HTTPStore({url}, client_options={options}}})",
            'group = zarr.open_group(ObjectStore(store, read_only=True), mode="r")',
        )
        return "Zarr over HTTP, with a token", "\n".join(lines)


class _Lease:
    """The last answer for a repository that is open: its stores get their credentials here."""

    def __init__(self, permit: Permit, answer: OpenAnswer) -> None:
        self.permit = permit
        """That of the newest request which uses the repository."""
        self.answer = answer
        self._lock: Final = asyncio.Lock()

    async def renew(self, container: str | None, refused: str | None) -> CredentialAnswer:
        """Return the credential of a container; another one than that which a store refused."""
        async with self._lock:
            present = credential_in(self.answer, container).fingerprint
            if refused is not None and present == refused:
                request = OpenRequest(refused={container or "": refused})
                self.answer = (await open_with_audit(self.permit, request)).answer
            return credential_in(self.answer, container)


class _Kept(Record, eq=False):
    """An open repository, and what it was opened by."""

    lease: _Lease
    side: Side
    basis: tuple[Any, ...]
    deadline: Deadline
    viewed: Viewed
    site: Site
    routes: list[Route]
    data: DataSite
    """The data below the API."""

    def __repr__(self) -> str:
        return f"_Kept({self.viewed.name!r})"


class _Slot:
    """The place of a repository that is kept for a person; one request at a time opens it."""

    def __init__(self) -> None:
        self.lock: Final = asyncio.Lock()
        self.turns: Final = asyncio.Semaphore(_MOST_OF_ONE)
        self.kept: _Kept | None = None


class OpenedRepositories:
    """The repositories that this process has open for pages and data routes.

    `navigation` returns the HTML above each page.
    """

    def __init__(self, service: Service, navigation: Callable[[Request], str]) -> None:
        self._service: Final = service
        self._navigation: Final = navigation
        self._slots: Final = OrderedDict[tuple[str, str], _Slot]()
        self._turns: Final = asyncio.Semaphore(_MOST_REQUESTS)

    async def show_page(self, request: Request, permit: Permit) -> Response:
        """Return the page of a repository that a request asks for, below the repository's path."""
        root = request.scope.get("root_path", "") + f"/repos/{permit.resource_name}"
        scope = {**request.scope, "root_path": root}
        request.state.permit = permit

        def show(view: _Kept) -> Response:
            for route in view.routes:
                match, matched = route.matches(scope)
                if match is Match.FULL:
                    inner = Request({**scope, **matched})
                    try:
                        page: Response = route.endpoint(inner)
                    except (NodeNotFoundError, InvalidInputError) as error:
                        if not is_document(inner) or "authorization" in inner.headers:
                            raise
                        page = view.site.problem(inner, error)
                        page.status_code = status_of(error)
                    return page
            raise NotFoundError("there is no such page", ErrorKind.ENTRY_NOT_FOUND)

        return await self._run(permit, show)

    async def read_data(
        self,
        request: Request,
        permit: Permit,
        read: Callable[[DataSite, Request], Response],
    ) -> Response:
        """Return an answer with data of a repository."""
        return await self._run(permit, lambda view: read(view.data, request))

    async def read_zarr(self, request: Request, permit: Permit, version: str, key: str) -> Response:
        """Return a key of a version of a repository, as Zarr stores it."""

        def read(view: _Kept) -> Response:
            _check_size(view.viewed.version(version), key, request.headers.get("range", ""))
            return view.site.zarr_file(request, version, key)

        return await self._run(permit, read)

    async def _run(self, permit: Permit, work: Callable[[_Kept], Response]) -> Response:
        """Return the answer of work with an open repository, which is done in a thread."""
        slot = self._slot(permit)
        async with slot.turns:
            view = await self._open(slot, permit)
            response = await self._in_thread(work, view)
        if response.headers.get("cache-control", "no-store") != "no-store":
            # The next person at this browser may not see it: it is asked for again each time.
            response.headers["cache-control"] = "private, no-cache"
        return response

    async def _in_thread[**P, R](
        self, work: Callable[P, R], *arguments: P.args, **options: P.kwargs
    ) -> R:
        async with self._turns:
            return await run_in_threadpool(work, *arguments, **options)

    async def _open(self, slot: _Slot, permit: Permit) -> _Kept:
        """Return a repository that is open; raise the error of the API if it may not be."""
        async with slot.lock:
            view, basis = slot.kept, self._basis_now(permit)
            is_over = view is None or view.deadline.is_over(self._service.clock)
            if view is None or is_over or view.basis != basis:
                slot.kept = None  # if this fails, nobody gets the former one
                slot.kept = view = await self._open_again(permit, view)
            view.lease.permit = permit
            return view

    def _slot(self, permit: Permit) -> _Slot:
        key = (permit.person, permit.resource_name)
        slot = self._slots.setdefault(key, _Slot())
        self._slots.move_to_end(key)
        while len(self._slots) > _MOST_REPOSITORIES:
            self._slots.popitem(last=False)
        for other in self._slots.values():
            view = other.kept
            if other is not slot and view and view.deadline.is_over(self._service.clock):
                other.kept = None
        return slot

    def _basis_now(self, permit: Permit) -> tuple[Any, ...] | None:
        """Return what the present facts grant; None if they do not grant all of it."""
        if permit.remembered is None:
            return None
        actor = actor_of(permit.caller)
        verdict = decide(actor, permit.action, permit.resource, permit.remembered)
        return _basis(permit, verdict.granted) if verdict.allowed else None

    async def _open_again(self, permit: Permit, former: _Kept | None) -> _Kept:
        """Open a repository as the API does; keep the object if its credentials are the same."""
        clock = self._service.clock
        asked_at = clock()
        opened = await open_with_audit(permit, OpenRequest())
        answer, left = opened.answer, opened.answer.refresh.seconds_left
        life = _KEPT if left is None else min(_KEPT, timedelta(seconds=left))
        basis, deadline = _basis(permit, opened.verdict.granted), Deadline(asked_at + life, clock)
        if former is not None:
            former_answer = former.lease.answer
            if replace(answer, refresh=former_answer.refresh) == former_answer:
                return replace(former, basis=basis, deadline=deadline)
        lease = _Lease(permit, answer)
        side = side_of(answer, lease.renew)
        viewed = await self._in_thread(self._viewed, side, answer)
        site = Site(viewed, self._navigation, _shares_of)
        root = f"{self._service.settings.url}{API}/repos/{answer.repo.full_name}"
        data = DataSite(viewed, HEADERS, lambda _: root)
        return _Kept(lease, side, basis, deadline, viewed, site, site.routes(), data)

    def _viewed(self, side: Side, answer: OpenAnswer) -> Viewed:
        """Open a repository with the containers and credentials of an answer only."""
        config = side.config.merge(RepositoryConfig(caching=_CACHES))
        repository, entry = replace(side, config=config).open(), answer.repo
        url = self._service.settings.url
        return ServedRepository(repository, entry.full_name, url, entry.description)


def opened_of(request: Request) -> OpenedRepositories:
    """Return the open repositories of the application that a request was sent to."""
    opened: OpenedRepositories = request.app.state.opened
    return opened


def _shares_of(request: Request) -> dict[str, Shared] | None:
    """Return who shares the containers of a repository with the person who looks at a page."""
    permit: Permit = request.state.permit
    if permit.remembered is None:
        return None
    return {
        prefix_of(share[0]): shared_of(share[1])
        for share in shares_of(permit.remembered)
        if not isinstance(share, Missing)
    }


def shared_of(share: Share) -> Shared:
    """Return the owner of a container and their policies, as pages show them."""

    def page_of(source: Source) -> str:
        return f"/organisations/{share.owner}/policies/{source.id}" if source.policy else ""

    by = (SharedBy(s.id or "public", s.readers, s.until, page_of(s)) for s in share.sources)
    return Shared(share.owner or "public data", tuple(by))


def _basis(permit: Permit, granted: tuple[Granted, ...]) -> tuple[Any, ...]:
    """Return all that a repository is opened by: a change of any of it opens it again."""
    assert permit.entry is not None
    return permit.entry.repository, permit.entry.bucket, granted


def _check_size(version: Version, key: str, byte_range: str) -> None:
    """Raise `InvalidInputError` for a chunk, or a range of it, that is too large to be sent."""
    size = _range_size(byte_range, run_blocking(size_of_value(version.state, key)) or 0)
    if size > _LARGEST_FILE:
        problem = f"{key} has {size} bytes, and the service sends {_LARGEST_FILE} at most"
        advice = "ask for ranges, or open the repository with icefloe.Client"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)


def _range_size(byte_range: str, size: int) -> int:
    """Return how many bytes of a file a `Range` header asks for.

    >>> [_range_size(text, 100) for text in ("bytes=10-19", "bytes=90-", "bytes=-5", "", "x")]
    [10, 10, 5, 100, 100]
    """
    match = _RANGE.fullmatch(byte_range)
    if match is None:
        return size
    start, stop, suffix = match.groups()
    if suffix:
        return min(int(suffix), size)
    end = min(int(stop) + 1, size) if stop else size
    return max(0, end - int(start))
