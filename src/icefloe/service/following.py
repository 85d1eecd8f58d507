"""Filtered subscriptions: repositories of manifests that follow a part of another repository.

The subscriber's repository has references to the provider's chunk objects, by a name that the
service binds when the repository is opened. The service makes it, with a credential that reads the
provider's repository and another that writes the subscriber's: nobody else ever needs both.

A range of a coordinate begins at a chunk, because a chunk is referred to as a whole. What the
subscriber asks for is widened to whole chunks. What the provider offers is narrowed to whole
chunks, so that no byte outside of the offer is referred to. Arrays of one dimension, such as the
coordinates themselves, are copied where that would not be exact.
"""

import asyncio
import json
import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, lcm
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.catalog.model import (
    Filter,
    Listing,
    Person,
    PersonKind,
    Role,
    Subscription,
    SubscriptionKind,
)
from icefloe.catalog.stores import container_of, credentials_of, storage_of
from icefloe.catalog.wire import Access, ContainerAnswer, CredentialAnswer, FollowAnswer, OpenAnswer
from icefloe.config import RepositoryConfig
from icefloe.credentials import containers_credentials
from icefloe.effects import run_blocking
from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
)
from icefloe.format.nodes import ArrayNode, Node
from icefloe.maintenance.derived import ChunkBox, derive_array
from icefloe.records import Record
from icefloe.service.database import rows, tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.facts import Entry, load_entry, load_offers
from icefloe.service.domain.decide import PROVIDER_CONTAINER, Actor, is_living
from icefloe.service.domain.filters import Bound, bounds_of, chosen_nodes
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.opening import Opener, store_answer
from icefloe.service.runtime import Service
from icefloe.storage import Storage
from icefloe.transactions.nodes import delete_node, put_metadata
from icefloe.transactions.session import SessionState

_log: Final = logging.getLogger(__name__)
_BRANCH: Final = "main"
_PREFIX: Final = f"vcc://{PROVIDER_CONTAINER}/"
_NOTE: Final = "icefloe-follows"
"""The key under which a commit of the subscriber's repository tells what it was made from."""
WORKER: Final = Person("icefloe-service", PersonKind.SERVICE)
_UNITS: Final = {
    "second": 1.0,
    "sec": 1.0,
    "minute": 60.0,
    "min": 60.0,
    "hour": 3600.0,
    "hr": 3600.0,
    "day": 86400.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}
_SINCE: Final = re.compile(r"([a-z]+?)s? since (\d{4}-\d{1,2}-\d{1,2}.*)", re.IGNORECASE)
_CALENDARS: Final = frozenset({"standard", "gregorian", "proleptic_gregorian"})

type Window = tuple[int, int]
"""First index, and first index after."""


# The job


class Side(Record):
    """A repository that the service itself opens."""

    storage: Storage
    config: RepositoryConfig
    credentials: dict[str, Any]

    def open(self) -> Repository:
        """Open the repository with the settings of the service only."""
        access = containers_credentials(self.credentials) if self.credentials else None
        return Repository.open(self.storage, self.config, access)


class _Job(Record):
    subscription: Subscription
    listing: Listing
    provider: Entry
    subscriber: Entry


async def follow(service: Service, identifier: str) -> FollowAnswer:
    """Bring the repository of a filtered subscription to the provider's newest version."""
    job = await asyncio.to_thread(_load, service, identifier)
    source, containers = await reading_side(service, job.provider)
    config = RepositoryConfig.default()
    for container in (_provider_container(job.provider), *containers):
        if container.name == PROVIDER_CONTAINER and container.prefix != _provider_url(job.provider):
            problem = f"{job.provider.repository.full_name} follows another repository itself"
            raise InvalidInputError(f"{problem}: subscribe to that one", ErrorKind.INVALID_REQUEST)
        config.set_virtual_chunk_container(container_of(container))
    target = await writing_side(service, job.subscriber, config)
    answer = await asyncio.to_thread(_follow, job, source, target)
    await asyncio.to_thread(_remember, service, identifier, answer.version)
    return answer


async def follow_all(service: Service) -> dict[str, str]:
    """Update all filtered subscriptions that live; return what failed, by id."""
    table = tables.subscriptions

    def load() -> list[Subscription]:
        with service.database.reading() as connection:
            is_filtered = table.c.kind == SubscriptionKind.FILTERED
            return rows.find_all(connection, table, Subscription, is_filtered)

    failures: dict[str, str] = {}
    for subscription in await asyncio.to_thread(load):
        if is_living(subscription, service.clock()):
            try:
                await follow(service, subscription.id)
            except IcefloeError as error:
                failures[subscription.id] = str(error)
                _log.warning("the update of %s failed", subscription.id, exc_info=error)
    return failures


async def follow_on_schedule(service: Service) -> None:
    """Update all filtered subscriptions now and then, until cancelled."""
    while True:
        # Servers that started together do not write together.
        pause = service.settings.follow_minutes * 60 * random.uniform(0.8, 1.2)  # noqa: S311
        await asyncio.sleep(pause)
        try:
            await follow_all(service)
        except IcefloeError as error:
            _log.warning("the scheduled updates of subscriptions failed", exc_info=error)


def _load(service: Service, identifier: str) -> _Job:
    now = service.clock()
    with service.database.reading() as connection:
        key = {"id": identifier, "kind": SubscriptionKind.FILTERED}
        subscription = rows.require(connection, tables.subscriptions, Subscription, **key)
        if not is_living(subscription, now):
            problem = f"the subscription {identifier} is {subscription.state}, or at its end"
            raise AccessDeniedError(f"{problem}: ask admins of {subscription.provider}")
        key = {"organisation": subscription.provider, "name": subscription.listing}
        listing = rows.require(connection, tables.listings, Listing, **key)
        provider = load_entry(connection, listing.organisation, listing.repository)
        subscriber = load_entry(connection, subscription.subscriber, subscription.repository or "")
    if provider is None or subscriber is None:
        problem = "the repository of the provider or of the subscriber does not exist any more"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    return _Job(subscription, listing, provider, subscriber)


def _remember(service: Service, identifier: str, version: str) -> None:
    table = tables.subscriptions
    query = table.update().where(table.c.id == identifier)
    with service.database.writing() as connection:
        values = {"followed_version": version, "followed_at": service.clock()}
        connection.execute(query.values(values))


async def reading_side(service: Service, entry: Entry) -> tuple[Side, tuple[ContainerAnswer, ...]]:
    """Open a repository for reading as a member of its organisation would."""
    caller = Caller(WORKER, {entry.repository.organisation: Role.READER})
    actor, now = Actor(WORKER.name, PersonKind.SERVICE), service.clock()

    def load() -> Any:
        with service.database.reading() as connection:
            return load_offers(connection, entry.repository, caller.roles, now)

    offers = await asyncio.to_thread(load)
    opened = (await Opener(service).open(actor, caller, entry, Access.READ, offers)).answer
    return side_of(opened), opened.containers


def side_of(answer: OpenAnswer) -> Side:
    """Return what an answer of the service lets one open."""
    config = RepositoryConfig.default()
    credentials = {}
    for container in answer.containers:
        config.set_virtual_chunk_container(container_of(container))
        credentials[container.prefix] = credentials_of(
            container.credential, container.store.platform, None
        )
    return Side(storage_of(answer.store, answer.credential), config, credentials)


async def writing_side(service: Service, entry: Entry, config: RepositoryConfig) -> Side:
    """Open a repository for writing in the name of the service itself."""
    caller = Caller(WORKER, {entry.repository.organisation: Role.WRITER})
    credential = await Opener(service).own_credential(entry, caller, Access.WRITE)
    prefix = entry.bucket.prefix + entry.repository.prefix
    return Side(storage_of(store_answer(entry.bucket, prefix), credential), config, {})


def _provider_url(entry: Entry) -> str:
    return location_url(bucket_location(entry.bucket).below(f"{entry.repository.prefix}chunks/"))


def _provider_container(entry: Entry) -> ContainerAnswer:
    prefix = f"{entry.bucket.prefix}{entry.repository.prefix}chunks/"
    store, nothing = store_answer(entry.bucket, prefix), CredentialAnswer("anonymous")
    return ContainerAnswer(_provider_url(entry), PROVIDER_CONTAINER, store, nothing, "")


# The repositories


def _follow(job: _Job, source: Side, target: Side) -> FollowAnswer:
    name = job.provider.repository.full_name
    filters = (job.listing.filter, job.subscription.filter)
    message = f"Follow {job.subscription.provider}/{job.subscription.listing}"
    return derive(name, source.open(), target, *filters, _PREFIX, message)


def derive(
    name: str,
    provider: Repository,
    target: Side,
    offered: Filter | None,
    wanted_filter: Filter | None,
    prefix: str | None,
    message: str,
) -> FollowAnswer:
    """Make one commit of a provider's newest version, unless it has been made already."""
    newest = provider.readonly_session(_BRANCH)
    repository = Repository.open_or_create(target.storage, target.config)
    keep_config(repository, target)
    session = repository.writable_session(_BRANCH)
    last = next(iter(repository.ancestry(branch=_BRANCH))).metadata.get(_NOTE) or {}
    plan = Plan.of(newest, offered, wanted_filter)
    note = {
        "repository": name,
        "snapshot": newest.snapshot_id,
        "nodes": [list(f.nodes) for f in (offered, wanted_filter) if f is not None],
        "windows": {path: list(window) for path, window in plan.windows.items()},
    }
    if last == note:
        return FollowAnswer(newest.snapshot_id, session.snapshot_id, changed=False)
    touched = _touched(provider, last, note)
    written, kept = plan.write(newest, session, touched, last.get("windows") or {}, prefix)
    commit = session.commit(message, {_NOTE: note}, allow_empty=True)
    return FollowAnswer(newest.snapshot_id, commit, changed=True, written=written, kept=kept)


def keep_config(repository: Repository, target: Side) -> None:
    """Store the containers of a repository, if others are stored."""
    stored = Repository.fetch_config(target.storage)
    wanted = target.config.virtual_chunk_containers
    if stored is None or stored.virtual_chunk_containers != wanted:
        repository.save_config()


def _touched(
    provider: Repository, last: Mapping[str, Any], note: Mapping[str, Any]
) -> frozenset[str] | None:
    """Return the arrays that changed since the version that was followed last.

    None if that version is gone, or was followed with other nodes.
    """
    if any(last.get(key) != note[key] for key in ("repository", "nodes")):
        return None
    try:
        diff = provider.diff(from_snapshot_id=last["snapshot"], to_snapshot_id=note["snapshot"])
    except (NotFoundError, InvalidInputError):
        return None
    if diff.moved_nodes:
        return None
    return frozenset(
        {*diff.new_arrays, *diff.updated_arrays, *diff.deleted_arrays, *diff.chunk_coordinates}
    )


class Plan(Record):
    """The selected nodes of a version, and the selected indices of their dimensions."""

    nodes: dict[str, Node]
    windows: dict[str, Window]
    """By the path of the coordinate."""
    coordinates: dict[str, tuple[str | None, ...]]
    """For each array, the path of the coordinate of each dimension that is cut."""
    copied: frozenset[str]
    """Arrays whose values are copied, because their chunks are not cut exactly."""

    @classmethod
    def of(cls, session: Session, offered: Filter | None, wanted_filter: Filter | None) -> "Plan":
        """Plan what a provider offers and a subscriber wants of a version."""
        state = state_of(session)
        filters = [f for f in (offered, wanted_filter) if f is not None]
        everything = {node.path: node for node in state.tree.below("/")}
        chosen = chosen_nodes(filters, everything)
        nodes = {path: everything[path] for path in sorted(chosen) if path in everything}
        cut = {dimension for f in filters for dimension in f.ranges}
        coordinates = {
            path: tuple(
                _coordinate(everything, path, name) if name in cut else None
                for name in node.array.dimension_names or (None,) * len(node.array.shape)
            )
            for path, node in nodes.items()
            if isinstance(node, ArrayNode)
        }
        windows = {
            path: _window(session, everything, path, _step(nodes, coordinates, path), filters)
            if offered is None
            else _offered_window(
                session, everything, path, _step(nodes, coordinates, path), offered, wanted_filter
            )
            for path in sorted({p for paths in coordinates.values() for p in paths if p})
        }
        strict = {path for path in windows if offered and path.rsplit("/", 1)[1] in offered.ranges}
        copied = frozenset(
            path
            for path, (along, *others) in ((p, c) for p, c in coordinates.items() if c)
            if not others
            and along is not None
            and (along in strict or windows[along][0] % chunk_shape(nodes[path])[0])
        )
        return cls(nodes, windows, coordinates, copied)

    def write(
        self,
        source: Session,
        target: Session,
        touched: frozenset[str] | None,
        windows_before: Mapping[str, Sequence[int]],
        prefix: str | None,
    ) -> tuple[int, int]:
        """Write the tree of the target; return how many arrays were written, and how many not.

        `prefix` is where the target finds chunk objects of the source; None if it must not.
        """
        ours = state_of(target)
        for path in [p for p in ours.tree.paths_below("/") if p not in self.nodes]:
            delete_node(ours, path)
        written = skipped = 0
        for path, node in self.nodes.items():
            present = ours.tree.find(path)
            if not isinstance(node, ArrayNode):
                if isinstance(present, ArrayNode):
                    delete_node(ours, path)
                put_metadata(ours, path, _group_metadata(node))
                continue
            cuts = [p for p in self.coordinates[path] if p]
            is_kept = (
                touched is not None
                and path not in touched
                and present is not None
                and all(list(self.windows[p]) == windows_before.get(p) for p in cuts)
            )
            if is_kept:
                skipped += 1
                continue
            delete_node(ours, path)
            self._write_array(node, source, target, prefix)
            written += 1
        return written, skipped

    def _write_array(
        self,
        node: ArrayNode,
        source: Session,
        target: Session,
        prefix: str | None,
    ) -> None:
        path, ours = node.path, state_of(target)
        windows = [
            (0, size) if along is None else self.windows[along]
            for along, size in zip(self.coordinates[path], node.array.shape, strict=True)
        ]
        shape = [last - first for first, last in windows]
        if list(node.array.shape) == shape:
            metadata = node.user_data
        else:
            document = json.loads(node.user_data)
            metadata = json.dumps(document | {"shape": shape}).encode()
        if path in self.copied:
            put_metadata(ours, path, metadata)
            ((first, last),) = windows
            values = zarr.open_array(source.store, path=path, mode="r")[first:last]
            zarr.open_array(target.store, path=path, mode="r+")[:] = values
            return
        box = self._box(node, windows)
        run_blocking(derive_array(state_of(source), ours, path, metadata, box, prefix))

    def _box(self, node: ArrayNode, windows: Sequence[Window]) -> ChunkBox:
        counts = node.array.num_chunks
        if not any(self.coordinates[node.path]):
            return [(0, count) for count in counts]
        sizes = chunk_shape(node)
        return [
            (first // size, ceil(last / size))
            for (first, last), size in zip(windows, sizes, strict=True)
        ]


def state_of(session: Session) -> SessionState:
    """Return what a session is based on."""
    return session._session  # noqa: SLF001 - the same package


def _group_metadata(node: Node) -> bytes:
    """Return the metadata of a group without that of nodes below it, which may not be shared."""
    document = json.loads(node.user_data)
    if document.pop("consolidated_metadata", None) is None:
        return node.user_data
    return json.dumps(document).encode()


def _coordinate(nodes: Mapping[str, Node], path: str, name: str | None) -> str:
    """Find the coordinate of a dimension: in the group of an array, or in one above."""
    folder = path
    while folder:
        folder = folder.rsplit("/", 1)[0]
        node = nodes.get(f"{folder}/{name}")
        if isinstance(node, ArrayNode) and len(node.array.shape) == 1:
            return node.path
    problem = f"{path} has the dimension {name!r}, for which there is no coordinate"
    raise InvalidInputError(f"{problem}: leave out its range", ErrorKind.INVALID_REQUEST)


def chunk_shape(node: Node) -> tuple[int, ...]:
    """Return the size of the chunks of an array, which must all have the same."""
    grid = json.loads(node.user_data)["chunk_grid"]
    if grid["name"] != "regular":
        problem = f"{node.path} has chunks of different sizes, which a range cannot cut"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return tuple(grid["configuration"]["chunk_shape"])


def _step(
    nodes: Mapping[str, Node], coordinates: Mapping[str, tuple[str | None, ...]], along: str
) -> int:
    """Return the number of indices at whose multiples chunks of all arrays begin."""
    return lcm(
        *(
            size
            for path, paths in coordinates.items()
            if len(paths) > 1
            for size, other in zip(chunk_shape(nodes[path]), paths, strict=True)
            if other == along
        )
    )


def _window(
    session: Session,
    nodes: Mapping[str, Node],
    path: str,
    step: int,
    filters: Iterable[Filter],
) -> Window:
    """Return the indices that filters want, from the beginning of a chunk."""
    first, last = 0, _size(nodes, path)
    for filter_ in filters:
        low, high = _indices(session, nodes, path, filter_)
        first, last = max(first, low // step * step), min(last, high)
    return first, max(first, last)


def _offered_window(
    session: Session,
    nodes: Mapping[str, Node],
    path: str,
    step: int,
    offered: Filter,
    wanted_filter: Filter | None,
) -> Window:
    """Return the indices that are wanted within the whole chunks that are offered."""
    low, high = _indices(session, nodes, path, offered)
    size = _size(nodes, path)
    low, high = ceil(low / step) * step, high if high == size else high // step * step
    first, last = _window(
        session, nodes, path, step, () if wanted_filter is None else (wanted_filter,)
    )
    first, last = max(first, low), min(last, high)
    return first, max(first, last)


def _size(nodes: Mapping[str, Node], path: str) -> int:
    node = nodes[path]
    assert isinstance(node, ArrayNode)
    return node.array.shape[0]


def _indices(session: Session, nodes: Mapping[str, Node], path: str, filter_: Filter) -> Window:
    """Return which indices of a coordinate have values within the range of a filter."""
    name = path.rsplit("/", 1)[1]
    if name not in filter_.ranges:
        return 0, _size(nodes, path)
    array = zarr.open_array(session.store, path=path, mode="r")
    values = np.asarray(array[:])
    number = _numbers(path, dict(array.attrs), values)
    bounds = [number(bound) for bound in bounds_of(filter_, name)]
    return indices_between(path, values, *bounds)


def indices_between(path: str, values: NDArray[Any], first: Any, last: Any) -> Window:
    """Return the indices of sorted values from a first to a last one, both included.

    >>> indices_between("/x", np.array([30.0, 20.0, 10.0]), 15.0, None)
    (0, 2)
    """
    steps = values[1:] > values[:-1]
    descends = len(steps) > 0 and not steps[0]
    ordered = values[::-1] if descends else values
    if not (ordered[1:] > ordered[:-1]).all():
        problem = f"the values of the coordinate {path} are not sorted: it cannot have a range"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    low = 0 if first is None else int(np.searchsorted(ordered, first, "left"))
    high = len(values) if last is None else int(np.searchsorted(ordered, last, "right"))
    high = max(low, high)
    return (len(values) - high, len(values) - low) if descends else (low, high)


def _numbers(
    path: str, attributes: Mapping[str, Any], values: NDArray[Any]
) -> Callable[[Bound], Any]:
    """Return a function that writes a bound as the values of a coordinate are written."""
    if values.dtype.kind == "M":
        return lambda bound: None if bound is None else _as_datetime64(path, bound)
    match = _SINCE.fullmatch(str(attributes.get("units", "")).strip())
    calendar = str(attributes.get("calendar", "standard")).lower()

    def number(bound: Bound) -> Any:
        if not isinstance(bound, datetime):
            return bound
        unit = _UNITS.get(match[1].lower()) if match else None
        if match is None or unit is None or calendar not in _CALENDARS:
            problem = f"the coordinate {path} has no times in a calendar that is known here"
            raise InvalidInputError(f"{problem}: use numbers", ErrorKind.INVALID_REQUEST)
        try:
            since = datetime.fromisoformat(_padded(match[2]))
        except ValueError:
            problem = f"the units of the coordinate {path} begin at no known time: {match[0]!r}"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
        since = since.replace(tzinfo=UTC) if since.tzinfo is None else since
        return (bound - since) / timedelta(seconds=1) / unit

    return number


def _as_datetime64(path: str, bound: Bound) -> np.datetime64:
    if not isinstance(bound, datetime):
        problem = f"the coordinate {path} has times: write the range like 2026-01-31"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return np.datetime64(bound.astimezone(UTC).replace(tzinfo=None))


def _padded(text: str) -> str:
    """Write a date like 1900-1-1 with two digits each."""
    date, _, rest = text.strip().replace("T", " ").partition(" ")
    year, month, day = date.split("-")
    hours = rest.removesuffix("UTC").strip().removesuffix(".0")
    return f"{year}-{int(month):02}-{int(day):02}" + (f" {hours}" if hours else "")
