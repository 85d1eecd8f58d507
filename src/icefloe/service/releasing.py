"""Rolling embargoes: data of a private repository becomes public when it is old enough.

The newest chunks are objects of the private repository. A release copies the chunks whose data is
all old enough to a public place, and changes their references in the private repository to
virtual ones, by one commit. It can stop at any step: copies that nothing refers to yet do no harm,
every version stays readable, and the next release goes on. Nothing is copied early, because only
bytes of chunks that are old enough are ever read for it. The former chunk objects become garbage
once the versions that refer to them have expired.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.catalog.model import Bucket, DeclaredContainer, Embargo, Filter
from icefloe.catalog.stores import container_of
from icefloe.catalog.wire import ContainerAnswer, CredentialAnswer, ReleaseAnswer
from icefloe.config import RepositoryConfig
from icefloe.conflicts import ConflictDetector
from icefloe.effects import blocking, map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, ObjectNotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, BytesColumn
from icefloe.format.ids import encode_ids
from icefloe.format.layout import CHUNKS_PREFIX
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record, replace
from icefloe.service.database import rows, tables
from icefloe.service.database.facts import Entry, load_entry, load_facts, load_offers
from icefloe.service.derivation import BRANCH, Plan, Provider, Side, derive, keep_config
from icefloe.service.domain.decide import Missing, match_containers
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.following import reading_side, writing_side, writing_storage
from icefloe.service.opening import store_answer
from icefloe.service.progress import Progress
from icefloe.service.runtime import Service
from icefloe.service.windows import chunk_shape
from icefloe.storage import Backend, Storage
from icefloe.transactions.chunks import chunk_tables, put_refs
from icefloe.transactions.nodes import require_array

_AT_ONCE: Final = 16
"""At most this many chunks are copied at the same time, or fewer if they are large."""
_BYTES_AT_ONCE: Final = 256 << 20
_BATCH: Final = 256
"""After this many chunks, a release tells its progress."""


class ReleaseInputs(Record):
    """The inputs of a release."""

    embargo: Embargo
    private: Entry
    bucket: Bucket
    public: Entry | None
    until: datetime


async def release(
    service: Service,
    organisation: str,
    repository: str,
    progress: Progress | None = None,
    *,
    is_resumed: bool = False,
) -> ReleaseAnswer:
    """Make public what a rolling embargo does not hold back any more.

    A release that is resumed looks for copies before it makes them. The progress is counted in
    chunks.
    """
    job = await asyncio.to_thread(load_release, service, organisation, repository)
    prepared = await Release.prepare(service, job, progress or Progress(), is_resumed=is_resumed)
    return await asyncio.to_thread(prepared.run)


def load_release(service: Service, organisation: str, name: str) -> ReleaseInputs:
    """Load what a release depends on; raise an error if its public place is not public."""
    now = service.clock()
    with service.database.reading() as connection:
        key = {"organisation": organisation, "repository": name}
        embargo = rows.require(connection, tables.embargoes, Embargo, **key)
        private = load_entry(connection, organisation, name)
        key = {"organisation": organisation, "name": embargo.bucket}
        bucket = rows.require(connection, tables.buckets, Bucket, **key)
        public = None
        if embargo.public_repository is not None:
            public = load_entry(connection, organisation, embargo.public_repository)
            if public is None:
                problem = f"the public repository {embargo.public_repository} does not exist"
                raise NotFoundError(f"{problem}: create it first", ErrorKind.ENTRY_NOT_FOUND)
        if private is None:
            raise rows.not_found(tables.repositories, {"organisation": organisation, "name": name})
        # Somebody without any role must be able to read the public place.
        offers = load_offers(connection, private.repository, {}, now)
        url = location_url(bucket_location(bucket).below(embargo.prefix))
        declared = DeclaredContainer(url, url, platform=bucket.platform, endpoint=bucket.endpoint)
        facts = load_facts(connection, private, [declared], offers, allows_anonymous=False)
    if any(isinstance(answer, Missing) for answer in match_containers(facts)):
        problem = f"no policy lets everybody read {url}, where released data goes"
        advice = "create one with the scope 'anyone' first"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)
    return ReleaseInputs(embargo, private, bucket, public, now - timedelta(days=embargo.days))


class Release:
    """One release in steps, each of which may be the last one that happens."""

    def __init__(
        self,
        service: Service,
        job: ReleaseInputs,
        private: Side,
        public: Side | None,
        public_storage: Storage,
        url: str,
        progress: Progress,
        *,
        is_resumed: bool,
    ) -> None:
        self._service: Final = service
        self._job: Final = job
        self._private: Final = private
        self._public: Final = public
        self._public_storage: Final = public_storage
        """Where public data is written."""
        self._url: Final = url
        self._progress: Final = progress
        self._is_resumed: Final = is_resumed
        self._chunks = self._bytes = 0
        self._released: dict[str, list[ChunkTable]] = {}
        """References to the chunk objects that become public, by array."""

    @classmethod
    async def prepare(
        cls, service: Service, job: ReleaseInputs, progress: Progress, *, is_resumed: bool = False
    ) -> "Release":
        """Get the credentials for all that a release reads and writes."""
        source, containers = await reading_side(service, job.private)
        bucket = job.bucket
        prefix = bucket.prefix + job.embargo.prefix
        store, url = (
            store_answer(bucket, prefix),
            location_url(bucket_location(bucket).below(job.embargo.prefix)),
        )
        public_container = ContainerAnswer(url, None, store, CredentialAnswer("anonymous"), "")
        config = RepositoryConfig.default()
        by_prefix = {container.prefix: container for container in containers}
        for container in ({url: public_container} | by_prefix).values():
            config.set_virtual_chunk_container(container_of(container))
        private = await writing_side(service, job.private, config)
        private = replace(private, credentials=source.credentials, anchor=source.anchor)
        public = None
        if job.public is not None:
            public = await writing_side(service, job.public, config)
        public_storage = await writing_storage(service, bucket, prefix)
        return cls(
            service, job, private, public, public_storage, url, progress, is_resumed=is_resumed
        )

    def run(self) -> ReleaseAnswer:
        """Do all steps."""
        repository, session = self.open()
        while self.choose(session):
            self.copy(session)
            self.declare(repository)
            self.commit(session)
            # Somebody may have written other data meanwhile that is old enough.
            repository, session = self.open()
        public_snapshot = self.publish(repository, session)
        self.remember()
        return ReleaseAnswer(
            self._job.until, self._chunks, self._bytes, session.snapshot_id, public_snapshot
        )

    def open(self) -> tuple[Repository, Session]:
        """Open the private repository."""
        repository = self._private.open()
        return repository, repository.writable_session(BRANCH)

    @property
    def _offer(self) -> Filter:
        ranges = {self._job.embargo.dimension: (None, self._job.until.isoformat())}
        return Filter(self._job.embargo.nodes, ranges)

    @blocking
    async def choose(self, session: Session) -> bool:
        """Find the chunks that are old enough; return whether there are any."""
        self._released = {}
        plan, state = Plan.of(session, self._offer, None), state_of(session)
        for path, node in plan.nodes.items():
            if isinstance(node, ArrayNode):
                async for table in chunk_tables(state, node):
                    chosen = _released_rows(table, node, plan)
                    if chosen.any():
                        part = table.take(chosen).compacted()
                        self._released.setdefault(path, []).append(part)
        return bool(self._released)

    @blocking
    async def copy(self, session: Session) -> None:
        """Copy the bytes of the chosen chunks to the public place, a few at a time."""
        all_tables = [table for parts in self._released.values() for table in parts]
        self._progress.expect(sum(len(table) for table in all_tables))
        source, target = state_of(session).context.backend, self._public_storage.open()
        for table in all_tables:
            for first in range(0, len(table), _BATCH):
                batch = table.take(slice(first, first + _BATCH))
                await self._copy_rows(source, target, batch)
                self._chunks += len(batch)
                self._bytes += int(batch.lengths.sum())
                self._progress.advance(len(batch))

    async def _copy_rows(self, source: Backend, target: Backend, table: ChunkTable) -> None:
        ids = [raw.decode() for raw in encode_ids(table.chunk_ids[table.targets]).tolist()]
        rows_of_table = zip(
            ids, table.offsets.tolist(), table.lengths.tolist(), _names(table), strict=True
        )

        async def copy(row: tuple[str, int, int, bytes]) -> None:
            chunk, offset, length, raw_name = row
            name = raw_name.decode()
            if self._is_resumed and await _has(target, name, length):
                return
            fetched = await source.get(f"{CHUNKS_PREFIX}{chunk}", (offset, offset + length))
            await target.put(name, fetched.data)

        at_once = _BYTES_AT_ONCE // int(table.lengths.max())
        await map_concurrently(copy, list(rows_of_table), limit=min(max(at_once, 1), _AT_ONCE))

    def declare(self, repository: Repository) -> None:
        """Allow the private repository to refer to the public bucket."""
        keep_config(repository, self._private)

    def commit(self, session: Session) -> None:
        """Refer to the copies in the private repository, by one commit."""
        state = state_of(session)
        for path, parts in self._released.items():
            node = require_array(state, path)
            for table in parts:
                put_refs(state, node, _as_public(table, self._url))
        # Others may have added data while chunks were copied.
        message = f"Release data up to {self._job.until.isoformat()}"
        session.commit(message, rebase_with=ConflictDetector())

    def publish(self, repository: Repository, session: Session) -> str | None:
        """Bring the public repository to what is released in the version of a session."""
        if self._public is None:
            return None
        name = self._job.private.repository.full_name
        message = f"Data up to {self._job.until.isoformat()}"
        provider = Provider(name, repository, session.snapshot_id)
        return derive(provider, self._public, self._offer, None, None, message).snapshot

    def remember(self) -> None:
        """Keep the age limit of this release."""
        table, embargo = tables.embargoes, self._job.embargo
        query = table.update().where(
            table.c.organisation == embargo.organisation,
            table.c.repository == embargo.repository,
        )
        with self._service.database.writing() as connection:
            connection.execute(query.values(released_until=self._job.until))


async def _has(backend: Backend, name: str, length: int) -> bool:
    try:
        return (await backend.head(name)).info.size_bytes == length
    except ObjectNotFoundError:
        return False


def _released_rows(table: ChunkTable, node: ArrayNode, plan: Plan) -> Bools:
    """Mark the chunk objects of an array whose data is all within the window of a plan."""
    chosen: Bools = table.kinds == ChunkKind.NATIVE
    for axis, along in enumerate(plan.coordinates[node.path]):
        if along is None:
            continue
        size, chunk = node.array.shape[axis], chunk_shape(node)[axis]
        first, last = plan.windows[along]
        starts = table.coordinates[:, axis].astype(np.int64) * chunk
        ends = np.minimum(starts + chunk, size)
        chosen &= (starts >= first) & (ends <= last)
    return chosen


def _names(table: ChunkTable) -> list[bytes]:
    """Return the names of copies: of a chunk object only the bytes of one chunk are copied."""
    ids = encode_ids(table.chunk_ids[table.targets])
    offsets, lengths = table.offsets.astype("S20"), table.lengths.astype("S20")
    names: list[bytes] = np.strings.add(
        np.strings.add(np.strings.add(ids, b"."), np.strings.add(offsets, b".")), lengths
    ).tolist()
    return names


def _as_public(table: ChunkTable, url: str) -> ChunkTable:
    start = url.encode()
    return ChunkTable.virtual(
        table.coordinates,
        BytesColumn.from_list([start + name for name in _names(table)]),
        np.zeros(len(table), np.uint64),
        table.lengths,
    )
