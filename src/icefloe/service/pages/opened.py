"""Repositories that pages show: opened in the name of a person, and kept for a short while.

Every request is decided about with the facts of this moment. A repository that was opened before
is used again only if the decision grants the very same: the same buckets, the same containers, by
the same policies. Otherwise, and every few minutes, it is opened as the API opens it, by one
`Opener`, with an entry in the audit. Credentials are read-only, those of the person, and are not
renewed behind the back of a decision.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match, Route

from icefloe.catalog.handles import repository_url
from icefloe.catalog.wire import OpenAnswer, OpenRequest
from icefloe.config import CachingConfig, RepositoryConfig
from icefloe.credentials.refresh import Deadline
from icefloe.errors import ErrorKind, NotFoundError, StorageError
from icefloe.records import Record, replace
from icefloe.service.domain.decide import Granted, decide
from icefloe.service.following import side_of
from icefloe.service.http.access import Permit, actor_of
from icefloe.service.http.repositories import open_with_audit
from icefloe.service.pages.site import ZARR, navigation_of
from icefloe.service.runtime import Service
from icefloe.web.site import Site
from icefloe.web.versions import Recipe, Version, Viewed, literal

_MOST_REPOSITORIES: Final = 64
"""How many repositories this process keeps open for pages."""
_MOST_REQUESTS: Final = 16
"""How many requests read repositories at the same time; the threads of the others stay free."""
_KEPT: Final = timedelta(minutes=4)
"""After this time, nearly, a repository is opened again; its credentials live for longer."""
_CACHES: Final = CachingConfig(num_snapshot_nodes=50_000, num_chunk_refs=500_000)
"""What one repository keeps in memory, beside a few sessions."""


class ServedRepository(Viewed):
    """A repository of the service, which people open by its name."""

    def __init__(self, repository: Any, name: str, service_url: str) -> None:
        super().__init__(repository, name, repository_url(service_url, name))
        self._service_url: Final = service_url

    def opening_code(self) -> str:
        """Return the lines that open the repository through the service."""
        client = f"client = icefloe.Client({literal(self._service_url)}).login()"
        return f"import icefloe\n{client}\nrepository = client.get_repo({literal(self.name)})"

    def zarr_recipe(self, version: Version, origin: str) -> Recipe:
        """Return the lines that read a version as Zarr over HTTP, with a token."""
        del origin
        url = literal(f"{self._service_url}{ZARR}/{self.name}@{version.path_name}")
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
        return Recipe("Zarr over HTTP, with a token", "\n".join(lines))


class _Kept(Record, eq=False):
    """An open repository, and what it was opened by."""

    answer: OpenAnswer
    basis: tuple[Any, ...]
    deadline: Deadline
    site: Site
    routes: list[Route]
    is_replacement: bool = False
    """Whether a store refused the credentials of the one before: this one is not replaced so."""

    def __repr__(self) -> str:
        return f"_Kept({self.answer.repo.full_name!r})"


class _Slot:
    """The place of a repository that is kept for a person; one request at a time opens it."""

    def __init__(self) -> None:
        self.lock: Final = asyncio.Lock()
        self.kept: _Kept | None = None


class OpenedRepositories:
    """The repositories that pages of this process have open."""

    def __init__(self, service: Service) -> None:
        self._service: Final = service
        self._slots: Final = OrderedDict[tuple[str, str], _Slot]()
        self._turns: Final = asyncio.Semaphore(_MOST_REQUESTS)

    async def show_page(self, request: Request, permit: Permit) -> Response:
        """Return the page of a repository that a request asks for, below the repository's path."""
        root = request.scope.get("root_path", "") + f"/repos/{permit.resource_name}"
        scope = {**request.scope, "root_path": root}

        def show(kept: _Kept) -> Response:
            for route in kept.routes:
                match, matched = route.matches(scope)
                if match is Match.FULL:
                    page: Response = route.endpoint(Request({**scope, **matched}))
                    return page
            raise NotFoundError("there is no such page", ErrorKind.ENTRY_NOT_FOUND)

        return await self._run(permit, show)

    async def read_zarr(self, request: Request, permit: Permit, version: str, key: str) -> Response:
        """Return a key of a version of a repository, as Zarr stores it."""
        response = await self._run(permit, lambda kept: kept.site.zarr_file(request, version, key))
        # The next person at this browser may not see it: it is asked for again each time.
        response.headers["cache-control"] = "private, no-cache"
        return response

    async def _run(self, permit: Permit, work: Callable[[_Kept], Response]) -> Response:
        """Do work with an open repository in a thread."""
        kept = await self._open(permit)
        try:
            async with self._turns:
                return await run_in_threadpool(work, kept)
        except StorageError as error:
            if isinstance(error, NotFoundError) or kept.is_replacement:
                raise
        # The store may have ended the credentials before their time: other ones decide.
        kept = await self._open(permit, refused=kept)
        async with self._turns:
            return await run_in_threadpool(work, kept)

    async def _open(self, permit: Permit, refused: _Kept | None = None) -> _Kept:
        """Return a repository that is open; raise the error of the API if it may not be.

        Another one is opened in the place of the one whose credentials a store refused.
        """
        slot = self._slot(permit)
        async with slot.lock:
            kept, basis = slot.kept, self._basis_now(permit)
            is_refused = kept is not None and kept is refused
            is_over = kept is None or kept.deadline.is_over(self._service.clock)
            if kept is None or is_over or is_refused or kept.basis != basis:
                slot.kept = None  # if this fails, nobody gets the former one
                request = OpenRequest(refused=_fingerprints(kept) if kept and is_refused else {})
                slot.kept = kept = await self._open_again(permit, kept, request)
            return kept

    def _slot(self, permit: Permit) -> _Slot:
        key = (permit.person, permit.resource_name)
        slot = self._slots.setdefault(key, _Slot())
        self._slots.move_to_end(key)
        while len(self._slots) > _MOST_REPOSITORIES:
            self._slots.popitem(last=False)
        return slot

    def _basis_now(self, permit: Permit) -> tuple[Any, ...] | None:
        """Return what the present facts grant; None if they do not grant all of it."""
        if permit.remembered is None:
            return None
        actor = actor_of(permit.caller)
        verdict = decide(actor, permit.action, permit.resource, permit.remembered)
        return _basis(permit, verdict.granted) if verdict.allowed else None

    async def _open_again(
        self, permit: Permit, former: _Kept | None, request: OpenRequest
    ) -> _Kept:
        """Open a repository as the API does; keep the object if its credentials are the same."""
        clock = self._service.clock
        asked_at = clock()
        opened = await open_with_audit(permit, request)
        answer, left = opened.answer, opened.answer.refresh.seconds_left
        life = _KEPT if left is None else min(_KEPT, timedelta(seconds=left))
        basis, deadline = _basis(permit, opened.verdict.granted), Deadline(asked_at + life, clock)
        if former is not None and replace(answer, refresh=former.answer.refresh) == former.answer:
            return replace(former, basis=basis, deadline=deadline, is_replacement=False)
        async with self._turns:
            viewed = await run_in_threadpool(_viewed, answer, self._service.settings.url)
        site = Site(viewed, navigation_of)
        return _Kept(answer, basis, deadline, site, site.routes(), bool(request.refused))


def _fingerprints(kept: _Kept) -> dict[str, str]:
    """Return the credentials of a repository as the API names those that a store refused."""
    answer = kept.answer
    of_containers = {part.prefix: part.credential.fingerprint for part in answer.containers}
    return {"": answer.credential.fingerprint, **of_containers}


def _basis(permit: Permit, granted: tuple[Granted, ...]) -> tuple[Any, ...]:
    """Return all that a repository is opened by: a change of any of it opens it again."""
    assert permit.entry is not None
    return permit.entry.repository, permit.entry.bucket, granted


def _viewed(answer: OpenAnswer, service_url: str) -> Viewed:
    side = side_of(answer)
    config = side.config.merge(RepositoryConfig(caching=_CACHES))
    repository = replace(side, config=config).open()
    return ServedRepository(repository, answer.repo.full_name, service_url)
