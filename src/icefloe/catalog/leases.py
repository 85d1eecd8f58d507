"""Repositories of a service, opened with vended credentials that renew themselves.

Every store of an open repository asks for its credential by a handle, which names the service and
the repository. All stores of a process share one lease: what the service answered last. When the
lease is about to end, or a store refuses a credential of it, one request renews all of them. A
pickle has the handle and no credential, so that another process makes a lease of its own, with a
token of its own.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from icefloe.api.repository import Repository
from icefloe.catalog.handles import Handle
from icefloe.catalog.logins import Secret, TokenSource
from icefloe.catalog.model import Platform
from icefloe.catalog.stores import container_of, credentials_of, storage_of
from icefloe.catalog.transport import Transport
from icefloe.catalog.wire import (
    ContainerAnswer,
    CreatedToken,
    CredentialAnswer,
    NewDelegation,
    OpenAnswer,
    OpenRequest,
)
from icefloe.config import RepositoryConfig
from icefloe.credentials.access import containers_credentials
from icefloe.credentials.refresh import Deadline
from icefloe.effects import run_blocking
from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    IcefloeError,
    RepositoryNotFoundError,
    ServiceError,
)
from icefloe.forks import renew_lock_in_children
from icefloe.records import Record, replace
from icefloe.repo.lifecycle import open_
from icefloe.repo.repo_ledger import RepoObjectLedger, StoredRepo
from icefloe.storage import Storage

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

type Clock = Callable[[], datetime]

_log: Final = logging.getLogger(__name__)

_SCHEMES: Final = {
    Platform.S3: ("s3://",),
    Platform.GCS: ("gs://", "gcs://"),
    Platform.AZURE: ("az://", "azure://", "abfs://"),
}
"""What the prefixes of containers begin with, by platform: no files, no memory, no web servers."""


def utc_now() -> datetime:
    """Read the clock."""
    return datetime.now(UTC)


class Lease:
    """The last answer of the service for a repository, in this process."""

    def __init__(self, handle: Handle, transport: Transport, clock: Clock = utc_now) -> None:
        self.handle: Final = handle
        self.transport: Final = transport
        self.is_of_worker = False
        """Whether this process got the handle from another one, and looked up its own token."""
        self._clock: Final = clock
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._answer: OpenAnswer | None = None
        self._deadline: Deadline | None = None

    async def open(self) -> OpenAnswer:
        """Ask the service for everything that is needed to open the repository."""
        return await self._ask("open")

    def credential(self, container: str | None) -> CredentialAnswer:
        """Return the credential of a container, by prefix, or of the repository itself.

        All credentials are renewed by one request if any of them is about to end.
        """
        with self._lock:  # callers wait for the one that asks
            answer = self._answer
            is_over = self._deadline is not None and self._deadline.is_over(self._clock)
            if answer is None or is_over:
                answer = run_blocking(self._ask("credentials"))
        return self._credential_of(answer, container)

    def replace(
        self, container: str | None, is_refused: Callable[[CredentialAnswer], bool]
    ) -> CredentialAnswer:
        """Return another credential than the one that a store refused before its end.

        One request serves all who were refused; the service makes a new credential.
        """
        with self._lock:
            answer = self._answer
            current = None if answer is None else self._credential_of(answer, container)
            if answer is None or current is None or is_refused(current):
                _log.info("a store refused a credential of %s early", self.handle.repository)
                refused = {} if current is None else {container or "": current.fingerprint}
                answer = run_blocking(self._ask("credentials", refused))
        return self._credential_of(answer, container)

    def _credential_of(self, answer: OpenAnswer, container: str | None) -> CredentialAnswer:
        if (credential := answer.credential_of(container)) is not None:
            return credential
        problem = f"{self.handle.repository} does not refer to {container} any more"
        raise AccessDeniedError(f"{problem}: open the repository again")

    async def _ask(self, what: str, refused: Mapping[str, str] | None = None) -> OpenAnswer:
        """Ask the service, and keep its answer."""
        request = OpenRequest(self.handle.access, dict(refused or {}))
        path, asked_at = f"{self.handle.path}/{what}", self._clock()
        answer = await self.transport.call(OpenAnswer, "POST", path, request, is_repeatable=True)
        self._answer, end = _by_our_clock(answer, asked_at)
        self._deadline = None if end is None else Deadline(end, self._clock)
        return self._answer


def _by_our_clock(answer: OpenAnswer, asked_at: datetime) -> tuple[OpenAnswer, datetime | None]:
    """Return an answer in which credentials end by the clock of this machine, and their end.

    The service tells how long they live, so that it does not matter which time it is here.
    """
    left = answer.refresh.seconds_left
    if left is None:
        credentials = (answer.credential, *(c.credential for c in answer.containers))
        return answer, min((c.expires_at for c in credentials if c.expires_at), default=None)
    end = asked_at + timedelta(seconds=left)

    def ending(credential: CredentialAnswer) -> CredentialAnswer:
        return replace(credential, expires_at=end) if credential.expires_at else credential

    containers = tuple(replace(c, credential=ending(c.credential)) for c in answer.containers)
    return replace(answer, credential=ending(answer.credential), containers=containers), end


_leases: Final = WeakValueDictionary[Handle, Lease]()
_delegated: Final[dict[Handle, Secret]] = {}
"""Tokens that the driver of a job made for this process."""
_lock: Final = threading.Lock()


def lease_of(handle: Handle, transport: Transport | None = None) -> Lease:
    """Return the lease of this process for a handle; one without a transport looks up a token."""
    with _lock:
        lease = _leases.get(handle)
        if lease is None:
            is_of_worker = transport is None
            if transport is None:
                tokens = TokenSource(
                    handle.service, _delegated.get(handle), token_command=handle.token_command
                )
                transport = Transport(handle.service, tokens)
            lease = _leases[handle] = Lease(handle, transport)
            lease.is_of_worker = is_of_worker
        return lease


class Vended:
    """Returns the present credential of one store of a repository; it travels without any."""

    __slots__ = ("_lease", "container", "handle")

    def __init__(self, handle: Handle, container: str | None = None) -> None:
        self.handle: Final = handle
        self.container: Final = container
        self._lease: Lease | None = None

    def __call__(self) -> CredentialAnswer:
        """Return the credential, renewed if need be."""
        return self._own_lease().credential(self.container)

    def replace(self, is_refused: Callable[[CredentialAnswer], bool]) -> CredentialAnswer:
        """Return another credential than the one that the store refused before its end."""
        return self._own_lease().replace(self.container, is_refused)

    def _own_lease(self) -> Lease:
        if self._lease is None:
            self._lease = lease_of(self.handle)
        return self._lease

    def __reduce__(self) -> tuple[type["Vended"], tuple[Handle, str | None]]:
        return (Vended, (self.handle, self.container))


class _LastRead:
    """The state of a repository that was read when it was last opened."""

    repo: StoredRepo | None = None


class Opened(Record):
    """The storage, containers and credentials of a repository, ready for opening it."""

    handle: Handle
    lease: Lease
    answer: OpenAnswer
    storage: Storage
    config: RepositoryConfig
    """The containers of the answer, and no others."""
    access: "dict[str, AnyCredential | None]"
    last_read: _LastRead

    @property
    def exists(self) -> bool:
        """Whether there is a repository yet."""
        return self.answer.config_version is not None

    async def repository(self) -> Repository:
        """Open the repository, with the containers of the answer only.

        The service has just looked at the repository. If that is in the state that was read when
        it was opened before, it is not read again.
        """
        version = self.answer.config_version
        if version is None:
            problem = f"{self.handle.repository} is registered, but no repository was created yet"
            raise RepositoryNotFoundError(f"{problem}: create it with `icefloe repo create`")
        known = self.last_read.repo
        if known is not None and known.version.etag != version:
            known = None
        context = await open_(self.storage, self.config, access=self.access, known=known)
        ledger = context.ledger
        self.last_read.repo = ledger.known if isinstance(ledger, RepoObjectLedger) else None
        return Repository(context)


async def open_lease(handle: Handle, transport: Transport, former: Opened | None = None) -> Opened:
    """Ask the service to open a repository, by one request.

    `former` is the result of an earlier call: its storage, with open connections, is used again
    if the service has answered the same.
    """
    lease = lease_of(handle, transport)
    answer = await lease.open()
    if former is not None and former.lease is lease and _is_same(answer, former.answer):
        return replace(former, answer=answer)
    config = RepositoryConfig(virtual_chunk_containers={})
    access: dict[str, Any] = {}
    for granted in answer.containers:
        check_container(handle.repository, granted)
        config.set_virtual_chunk_container(container_of(granted))
        renew = Vended(handle, granted.prefix)
        access[granted.prefix] = credentials_of(granted.credential, granted.store.platform, renew)
    storage = storage_of(answer.store, answer.credential, Vended(handle))
    vended = containers_credentials(access)
    return Opened(handle, lease, answer, storage, config, vended, _LastRead())


def _is_same(answer: OpenAnswer, other: OpenAnswer) -> bool:
    """Return whether two answers name the same places, with the same credentials."""

    def places(of: OpenAnswer) -> list[object]:
        own = (of.store, of.credential.kind, of.credential.values)
        return [own, *((c.prefix, c.name, c.store, c.credential.values) for c in of.containers)]

    return places(answer) == places(other)


def check_container(repository: str, granted: ContainerAnswer) -> None:
    """Raise `ServiceError` for a container that no service may send a client to."""
    store, prefix = granted.store, granted.prefix
    starts = [f"{scheme}{store.bucket}/" for scheme in _SCHEMES[store.platform]]
    if store.platform is Platform.AZURE:  # az://account/container/ and az://container/
        starts += [f"{s}{store.account}/{store.bucket}/" for s in _SCHEMES[Platform.AZURE]]
    if not any(prefix.startswith(start) for start in starts):
        problem = f"the service sent {prefix!r} as a container of {repository}"
        reason = f"which is not in the bucket {store.bucket!r} that it named with it"
        text = f"{problem}, {reason}: nothing is read from there"
        raise ServiceError(text, ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER)


class Delegation:
    """A token on its way to the workers of a job, which use it for one repository.

    It is the only thing that carries a token in a pickle: it must never be part of a plan.
    """

    def __init__(self, handle: Handle, token: Secret) -> None:
        self.handle: Final = handle
        self._token: Final = token

    def __repr__(self) -> str:
        return f"Delegation({self.handle.repository!r}, '***')"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_receive, (self.handle, self._token.reveal()))


def _receive(handle: Handle, token: str) -> Delegation:
    """Use a token for a repository in this process from now on."""
    secret = Secret(token)
    with _lock:
        _delegated[handle] = secret
        lease = _leases.get(handle)
    if lease is not None and lease.is_of_worker:
        lease.transport.tokens.use(secret)
    return Delegation(handle, secret)


@contextmanager
def delegating(payload: bytes, name: str) -> Iterator[list[Delegation]]:
    """Make tokens for the workers of a job, for each repository of a service in a pickle.

    Each token opens its repository for a day, at most, and does nothing else. It ends with the
    block.
    """
    with _lock:
        leases = [
            lease
            for handle, lease in _leases.items()
            if all(
                text is None or text.encode() in payload
                for text in (handle.service, handle.repository, handle.token_id)
            )
        ]
    with ExitStack() as tokens:
        yield [tokens.enter_context(_delegated_token(lease, name)) for lease in leases]


@contextmanager
def _delegated_token(lease: Lease, name: str) -> Iterator[Delegation]:
    handle, transport = lease.handle, lease.transport
    new = NewDelegation(handle.access, name)
    path = f"{handle.path}/tokens"
    created = run_blocking(transport.create(CreatedToken, path, new))
    token = Secret(created.secret)
    del created
    try:
        yield Delegation(handle, token)
    finally:
        own = Transport(handle.service, TokenSource(handle.service, token))
        try:
            run_blocking(own.call(type(None), "DELETE", "/me/token"))
        except IcefloeError:
            _log.warning("the token of the job %r could not be ended: it ends by itself", name)
