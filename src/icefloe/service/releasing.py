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
from icefloe.api.session import Session
from icefloe.catalog.model import Bucket, DeclaredContainer, Embargo, Filter, Role
from icefloe.catalog.stores import container_of, storage_of
from icefloe.catalog.wire import Access, ContainerAnswer, CredentialAnswer, ReleaseAnswer
from icefloe.config import RepositoryConfig
from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, BytesColumn
from icefloe.format.ids import encode_ids
from icefloe.format.layout import CHUNKS_PREFIX
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record, replace
from icefloe.service.database import rows, tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.facts import Entry, load_entry, load_facts, load_offers
from icefloe.service.derivation import BRANCH, Plan, Side, derive, keep_config, state_of
from icefloe.service.domain.decide import Missing, match_containers
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.following import WORKER, reading_side, writing_side
from icefloe.service.opening import Opener, store_answer
from icefloe.service.runtime import Service
from icefloe.service.windows import chunk_shape
from icefloe.storage import Backend
from icefloe.transactions.chunks import chunk_tables, put_refs

_AT_ONCE: Final = 16


class Job(Record):
    """The inputs of a release."""

    embargo: Embargo
    private: Entry
    bucket: Bucket
    public: Entry | None
    until: datetime


async def release(service: Service, organisation: str, repository: str) -> ReleaseAnswer:
    """Make public what a rolling embargo does not hold back any more."""
    job = await asyncio.to_thread(load_job, service, organisation, repository)
    return await (await Release.prepare(service, job)).run()


def load_job(service: Service, organisation: str, name: str) -> Job:
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
    return Job(embargo, private, bucket, public, now - timedelta(days=embargo.days))


class Release:
    """One release in steps, each of which may be the last one that happens."""

    def __init__(
        self,
        service: Service,
        job: Job,
        private: Side,
        public: Side | None,
        public_store: Backend,
        url: str,
    ) -> None:
        self._service: Final = service
        self._job: Final = job
        self._private: Final = private
        self._public: Final = public
        self._place: Final = public_store
        """Where public data is written."""
        self._url: Final = url
        self._chunks = self._bytes = 0
        self._moved: dict[str, list[tuple[ChunkTable, Bools]]] = {}

    @classmethod
    async def prepare(cls, service: Service, job: Job) -> "Release":
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
        known = {container.prefix: container for container in containers}
        for container in ({url: public_container} | known).values():
            config.set_virtual_chunk_container(container_of(container))
        private = await writing_side(service, job.private, config)
        private = replace(private, credentials=source.credentials)
        public = None
        if job.public is not None:
            public = await writing_side(service, job.public, config)
        caller = Caller(WORKER, {bucket.organisation: Role.WRITER})
        opener = Opener(service)
        credential = await opener.place_credential(bucket, prefix, caller, Access.WRITE)
        return cls(service, job, private, public, storage_of(store, credential).open(), url)

    async def run(self) -> ReleaseAnswer:
        """Do all steps."""
        repository, session = await asyncio.to_thread(self.open)
        windows = await asyncio.to_thread(self.choose, session)
        await self.copy(session, windows)
        await asyncio.to_thread(self.declare, repository)
        snapshot = await asyncio.to_thread(self.commit, session)
        public_snapshot = await asyncio.to_thread(self.publish, repository)
        await asyncio.to_thread(self.remember)
        return ReleaseAnswer(self._job.until, self._chunks, self._bytes, snapshot, public_snapshot)

    def open(self) -> tuple[Repository, Session]:
        """Open the private repository."""
        repository = self._private.open()
        return repository, repository.writable_session(BRANCH)

    @property
    def _offer(self) -> Filter:
        ranges = {self._job.embargo.dimension: (None, self._job.until.isoformat())}
        return Filter(self._job.embargo.nodes, ranges)

    def choose(self, session: Session) -> Plan:
        """Plan what is old enough, in whole chunks."""
        return Plan.of(session, self._offer, None)

    async def copy(self, session: Session, plan: Plan) -> None:
        """Copy the bytes of chunks that are old enough to the public place."""
        state = state_of(session)
        source = state.context.backend
        for path, node in plan.nodes.items():
            if not isinstance(node, ArrayNode):
                continue
            async for table in chunk_tables(state, node):
                chosen = _released_rows(table, node, plan)
                if chosen.any():
                    await self._copy_rows(source, table.take(chosen))
                    self._moved.setdefault(path, []).append((table, chosen))

    async def _copy_rows(self, source: Backend, table: ChunkTable) -> None:
        ids = [raw.decode() for raw in encode_ids(table.chunk_ids[table.targets]).tolist()]
        ranges = list(
            zip(ids, table.offsets.tolist(), table.lengths.tolist(), _names(table), strict=True)
        )

        async def copy(row: tuple[str, int, int, bytes]) -> None:
            chunk, offset, length, name = row
            fetched = await source.get(f"{CHUNKS_PREFIX}{chunk}", (offset, offset + length))
            await self._place.put(name.decode(), fetched.data)

        await map_concurrently(copy, ranges, limit=_AT_ONCE)
        self._chunks += len(ranges)
        self._bytes += int(table.lengths.sum())

    def declare(self, repository: Repository) -> None:
        """Allow the private repository to refer to the public bucket."""
        if self._moved:
            keep_config(repository, self._private)

    def commit(self, session: Session) -> str:
        """Refer to the copies in the private repository, by one commit."""
        if not self._moved:
            return session.snapshot_id
        state = state_of(session)
        for path, tables_of_array in self._moved.items():
            node = state.tree.find(path)
            assert isinstance(node, ArrayNode)
            for table, chosen in tables_of_array:
                put_refs(state, node, _as_public(table.take(chosen), self._url))
        return session.commit(f"Release data up to {self._job.until.isoformat()}")

    def publish(self, repository: Repository) -> str | None:
        """Bring the public repository to what is released."""
        if self._public is None:
            return None
        name = self._job.private.repository.full_name
        message = f"Data up to {self._job.until.isoformat()}"
        answer = derive(name, repository, self._public, self._offer, None, None, message)
        return answer.snapshot

    def remember(self) -> None:
        """Keep the age limit of this release."""
        table, embargo = tables.embargoes, self._job.embargo
        query = table.update().where(
            table.c.organisation == embargo.organisation,
            table.c.repository == embargo.repository,
        )
        with self._service.database.writing() as connection:
            connection.execute(query.values(released_until=self._job.until))


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
