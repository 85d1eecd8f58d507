"""A running service: its settings, its database, its keys and its clock."""

import asyncio
import hashlib
import hmac
import json
import os
import secrets as random
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from icefloe.catalog.model import Bucket, Delegation, Token
from icefloe.catalog.tokens import token_id
from icefloe.catalog.wire import AuditEntry
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.database import accounts, audit
from icefloe.service.database.accounts import Caller
from icefloe.service.database.engine import Database
from icefloe.service.database.vault import (
    LocalMasterKey,
    Vault,
    get_secret,
    parse_master_key,
    put_secret,
    read_former_keys,
    read_master_key,
    run_key_command,
)
from icefloe.service.limits import Limits
from icefloe.service.metrics import Metrics
from icefloe.service.rounds import Rounds
from icefloe.service.settings import Settings
from icefloe.service.vending.azure import AzureVendor
from icefloe.service.vending.broker import Broker, Minted
from icefloe.service.vending.gcs import GcsVendor
from icefloe.service.vending.grants import Grant, Secret, Vendor
from icefloe.service.vending.network import AddressBook, guarded_client
from icefloe.service.vending.r2 import R2Vendor
from icefloe.service.vending.static import AnonymousVendor, StaticVendor
from icefloe.service.vending.sts import StsVendor

type Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Read the clock."""
    return datetime.now(UTC)


def secret_name(organisation: str, bucket: str) -> str:
    """Return the name of a bucket's secrets in the vault."""
    return f"bucket/{organisation}/{bucket}"


class Keys(Record):
    """Keys of the service itself, sealed in the vault."""

    pepper: bytes
    """Goes into the digests of tokens: a stolen database is no list of them."""
    audit: bytes
    external_ids: bytes
    """Makes the external id of each organisation."""
    answers: bytes
    """Seals answers that are kept for requests with an idempotency key."""

    def __repr__(self) -> str:
        return "Keys(***)"


def load_master_keys(settings: Settings) -> list[LocalMasterKey]:
    """Return the present master key, and the former ones after it."""
    ways = (settings.key_file, settings.key_command, settings.key_variable)
    if sum(bool(way) for way in ways) > 1:
        problem = "set one of key_file, key_command and key_variable, not several"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
    beside: list[LocalMasterKey] = []
    if settings.key_command:
        current = run_key_command(settings.key_command)
    elif settings.key_variable:
        current = parse_master_key(os.environ.get(settings.key_variable, ""))
    elif settings.key_file:
        current = read_master_key(settings.key_file)
    else:
        current = read_master_key(settings.own_key_file, create=True)
        beside = read_former_keys(settings.own_key_file)
    former = [read_master_key(path) for path in settings.former_key_files]
    former += [run_key_command(command) for command in settings.former_key_commands]
    return [current, *former, *beside]


class Journal:
    """Writes entries of requests that run at the same time to the audit, in one transaction."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database: Final = database
        self._key: Final = key
        self._waiting: list[tuple[AuditEntry, Token | None, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, entry: AuditEntry, token: Token | None = None) -> None:
        """Write an entry, and the last use of its token; return when it is stored for good."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, token, written))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        await written

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                entries = [(entry, token) for entry, token, _ in batch]
                await self._database.run(self._append, entries)
            except Exception as error:  # noqa: BLE001 - every waiting request raises it
                for *_, written in batch:
                    if not written.done():
                        written.set_exception(error)
            else:
                for *_, written in batch:
                    if not written.done():
                        written.set_result(None)

    def _append(self, entries: list[tuple[AuditEntry, Token | None]]) -> None:
        uses = {
            token.id: entry.at
            for entry, token in entries
            if token is not None and accounts.is_use_noteworthy(token, entry.at)
        }
        with self._database.writing() as connection:
            audit.append(connection, self._key, [entry for entry, _ in entries])
            for identifier, at in uses.items():
                accounts.note_token_use(connection, identifier, at)


class Service:
    """The state that all requests share."""

    def __init__(self, settings: Settings, *, clock: Clock = utc_now) -> None:
        self.settings: Final = settings
        self.clock: Final = clock
        self.limits: Final = Limits()
        self.metrics: Final = Metrics()
        self.rounds: Final = Rounds()
        self.vault: Final = Vault(load_master_keys(settings), lambda: load_master_keys(settings))
        self.database: Final = Database(settings.database_url)
        self.database.migrate()
        self.keys: Final = self._load_keys()
        self.journal: Final = Journal(self.database, self.keys.audit)
        self.client: Final = guarded_client(AddressBook(settings.allowed_endpoints))
        self.vendors: Final[dict[Delegation, Vendor]] = {
            Delegation.ROLE: StsVendor(self.client),
            Delegation.DOWNSCOPED_TOKEN: GcsVendor(self.client, clock),
            Delegation.SAS: AzureVendor(self.client, clock, settings.token_files),
            Delegation.R2_TEMPORARY: R2Vendor(self.client, clock),
            Delegation.ANONYMOUS: AnonymousVendor(),
            Delegation.STATIC: StaticVendor(),
        }
        self.broker: Final = Broker(self.vendors, clock)
        self.job_bell: Final = asyncio.Event()
        """Set when there may be a job to run."""

    async def close(self) -> None:
        """Close the database and the connections to stores."""
        await self.client.aclose()
        self.database.close()

    def _load_keys(self) -> Keys:
        names = Keys.__struct_fields__
        with self.database.writing() as connection:
            values = {name: get_secret(connection, self.vault, f"service/{name}") for name in names}
            for name, value in values.items():
                if value is None:
                    values[name] = new = random.token_bytes(32)
                    put_secret(connection, self.vault, f"service/{name}", new, self.clock())
        return Keys(**{name: value for name, value in values.items() if value is not None})

    def digest(self, token: str) -> bytes:
        """Return what the database keeps of a token."""
        return hmac.digest(self.keys.pepper, token.encode(), hashlib.sha256)

    def external_id(self, organisation: str) -> str:
        """Return the id that an organisation's role must demand of the service.

        Without it, an organisation could register the role of another one (a confused deputy).
        """
        return hmac.digest(self.keys.external_ids, organisation.encode(), hashlib.sha256).hex()[:32]

    def challenge(self, bucket: Bucket) -> str:
        """Return the text that the owner of a public bucket puts into it, to prove it."""
        text = f"{bucket.organisation}/{bucket.name}/{bucket.bucket}/{bucket.prefix}"
        code = hmac.digest(self.keys.external_ids, f"challenge {text}".encode(), hashlib.sha256)
        return f"icefloe-challenge-{code.hex()[:40]}"

    def issued_until(self) -> datetime:
        """Return until when credentials that were issued before now may live, at the latest."""
        return self.clock() + timedelta(minutes=self.settings.credential_minutes)

    async def credential(self, grant: Grant, caller: str, refused: Collection[str] = ()) -> Minted:
        """Return a credential for a grant, which is kept or made now.

        Raise `ServiceError` if too many are made for one caller. `refused` has the fingerprints of
        credentials that the store refused.
        """
        if (minted := self.broker.kept(grant, refused)) is not None:
            return minted
        bucket = grant.bucket

        async def load_secret() -> Secret:
            self.limits.take("mint", caller, per_minute=self.settings.limits.mints)
            self.metrics.count_mint(bucket.delegation)
            # Many grants of one bucket read it once.
            key = ("secret", bucket.organisation, bucket.name)
            return await self.rounds.ask(key, lambda: self.database.run(self.bucket_secret, bucket))

        external_id = self.external_id(bucket.organisation)
        return await self.broker.get(grant, load_secret, external_id, refused=refused)

    def bucket_secret(self, bucket: Bucket) -> Secret:
        """Return what the service authenticates with at a bucket."""
        name = secret_name(bucket.organisation, bucket.name)
        with self.database.reading() as connection:
            content = get_secret(connection, self.vault, name)
        return Secret(json.loads(content) if content else {})

    def put_bucket_secret(
        self, connection: Connection, bucket: Bucket, values: Mapping[str, str]
    ) -> None:
        """Seal what the service authenticates with at a bucket."""
        name, content = secret_name(bucket.organisation, bucket.name), json.dumps(dict(values))
        put_secret(connection, self.vault, name, content.encode(), self.clock())

    def find_caller(self, connection: Connection, token: str) -> Caller | None:
        """Return who a token acts for; None if it is not valid."""
        try:
            identifier = token_id(token)
        except InvalidInputError:
            return None
        digest = self.digest(token)
        return accounts.find_caller_by_token(connection, identifier, digest, self.clock())

    def note_use(self, caller: Caller | None) -> None:
        """Remember that a token was used, unless that was noted a moment ago."""
        token, now = caller.token if caller else None, self.clock()
        if token is not None and accounts.is_use_noteworthy(token, now):
            with self.database.writing() as connection:
                accounts.note_token_use(connection, token.id, now)
