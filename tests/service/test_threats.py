"""The threats of the service's design, each with an attack that its guard stops.

The number in a docstring is that of the threat. Every test here fails if its guard is removed.
"""

import asyncio
import io
import json
import logging
import pickle
import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import botocore.session
import msgspec
import obstore
import pytest
import zstandard
from sqlalchemy import event

import icefloe
from icefloe.catalog.model import (
    Bucket,
    BucketState,
    DeclaredContainer,
    Delegation,
    Filter,
    Member,
    Organisation,
    Person,
    Platform,
    Repository,
    Role,
    TokenScope,
)
from icefloe.catalog.wire import (
    Access,
    BucketSettings,
    CredentialAnswer,
    OpenAnswer,
    StoreAnswer,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    AccessDeniedError,
    FormatError,
    IcefloeError,
    InternalError,
    StorageError,
)
from icefloe.format.envelope import HEADER_BYTES, decompress
from icefloe.format.repo_info import open_repo_info
from icefloe.records import replace
from icefloe.repo.repo_changes import stored_config
from icefloe.service.configuration import LARGEST_FILE, declared_containers, read_configuration
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.filters import chosen_nodes
from icefloe.service.domain.locations import Location
from icefloe.service.domain.scopes import is_within, scope_allows
from icefloe.service.opening import WORKER
from icefloe.service.operation.upkeep import back_up
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.service.vending.azure import SigningKey, signed_query
from icefloe.service.vending.gcs import access_boundary
from icefloe.service.vending.grants import Grant, Secret
from icefloe.service.vending.network import AddressBook, guarded_client
from icefloe.service.vending.objects import StoreClient
from icefloe.service.vending.r2 import temporary_access
from icefloe.service.vending.sts import StsVendor, session_policy
from tests.support.desk import Desk, bucket_body, root_of
from tests.support.http_server import ScriptedHandler, redirect_server, scripted_server
from tests.support.servers import VENDOR, S3Endpoint

pytestmark = pytest.mark.server


class Town:
    """Two organisations with a store each, and somebody who is in neither."""

    def __init__(
        self, folder: Path, lab: S3Endpoint, archive: S3Endpoint, prefix: str, **options: Any
    ) -> None:
        self.lab, self.archive, self.prefix = lab, archive, prefix
        settings = Settings(
            folder=folder,
            allowed_endpoints=(lab.url, archive.url, *options.pop("endpoints", ())),
            allows_anonymous=False,
            probe_hours=0,
            **options,
        )
        self.desk = Desk(settings, datetime.now(UTC))
        self.service: Service = self.desk.service
        for name in ("ada", "walt", "bob", "eve", "mal"):
            self.desk.add_person(Person(name))
        with self.service.database.writing() as connection:
            for organisation, admin in (("lab", "ada"), ("archive", "eve"), ("mallory", "mal")):
                made = Organisation(organisation)
                accounts.create_organisation(connection, made, admin, self.desk.now)
            accounts.set_member(connection, Member("lab", "walt", Role.WRITER))
            accounts.set_member(connection, Member("lab", "bob", Role.READER))

    def set_up(self) -> None:
        """Register and probe the buckets, and make a repository without containers."""
        self.ask("ada", "POST", "/orgs/lab/buckets", bucket_body("main", self.lab, self.root))
        self.ask(
            "eve", "POST", "/orgs/archive/buckets", bucket_body("vault", self.archive, self.root)
        )
        assert self.ask("ada", "POST", "/orgs/lab/buckets/main/probe")["state"] == "proven"
        assert self.ask("eve", "POST", "/orgs/archive/buckets/vault/probe")["state"] == "proven"
        body = {"name": "sst", "bucket": "main", "prefix": "sst/", "imports": True}
        self.ask("ada", "POST", "/orgs/lab/repos", body)
        storage = icefloe.s3_storage(
            bucket=self.lab.bucket,
            prefix=f"{self.root}sst",
            endpoint_url=self.lab.url,
            access_key_id=self.lab.access_key_id,
            secret_access_key=self.lab.secret_access_key,
            region=self.lab.region,
            allow_http=True,
            force_path_style=True,
        )
        icefloe.Repository.create(storage)
        self.open("bob")

    @property
    def root(self) -> str:
        """The prefix that this test has to itself, in both stores."""
        return f"{self.prefix}/"

    @property
    def daily(self) -> str:
        """The container of the archive that the repository is meant to refer to."""
        return f"s3://{self.archive.bucket}/{self.root}daily/"

    def try_(self, person: str, method: str, path: str, body: object = None, **options: Any) -> Any:
        return self.desk.ask(person, method, path, body, **options)

    def ask(self, person: str, method: str, path: str, body: object = None) -> Any:
        response = self.try_(person, method, path, body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def open(self, person: str, access: str = "read") -> Any:
        return self.ask(person, "POST", "/repos/lab/sst/open", {"access": access})

    def refusals(self, person: str = "bob") -> list[str]:
        """Open the repository, and return the reasons why it is refused."""
        response = self.try_(person, "POST", "/repos/lab/sst/open")
        assert response.status_code == 403, response.text
        return [missing["reason"] for missing in response.json()["missing"]]

    def share_daily(self, scope: str = "anyone") -> str:
        body = {"bucket": "vault", "prefix": "daily/", "scope": scope}
        policy = self.ask(
            "eve", "POST", "/orgs/archive/policies", body | {"confirm_prefix": self.daily}
        )
        return str(policy["id"])

    def declare(self, *containers: DeclaredContainer) -> None:
        """Let the configuration of the repository declare these containers."""
        with self.service.database.writing() as connection:
            entry = connection.execute(tables.repositories.select()).one()
            repository = rows.record_of(Repository, entry)
            assets.set_containers(connection, repository, entry.config_version, containers)

    def declare_s3(self, prefix: str, **fields: Any) -> None:
        """Let the configuration declare one container of S3, on the store of the archive."""
        fields = {"endpoint": self.archive.url} | fields
        listed_as = fields.pop("listed_as", prefix)
        self.declare(DeclaredContainer(listed_as, prefix, **fields))


@pytest.fixture
def town(
    tmp_path: Path, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> Iterator[Town]:
    town = Town(tmp_path / "service", lab_store, archive_store, prefix)
    with town.desk.client:
        town.set_up()
        yield town


@pytest.fixture(scope="module")
def shared_town(
    tmp_path_factory: pytest.TempPathFactory, lab_store: S3Endpoint, archive_store: S3Endpoint
) -> Iterator[Town]:
    """A town for tests that change nothing but the containers of its repository."""
    folder = tmp_path_factory.mktemp("town")
    town = Town(folder, lab_store, archive_store, f"test-{uuid.uuid4().hex}")
    with town.desk.client:
        town.set_up()
        town.share_daily()
        yield town


# What admins do


def test_an_admin_cannot_share_with_everybody_by_accident(town: Town) -> None:
    """Threat 1: the scope is explicit, and `anyone` takes the whole prefix once more."""
    body: dict[str, Any] = {"bucket": "vault", "prefix": "daily/"}
    made = town.ask("eve", "POST", "/orgs/archive/policies", body)
    assert made["scope"] == "organisation"
    wide = body | {"scope": "anyone"}
    for typed in (None, "", "daily/", town.daily.removesuffix("daily/")):
        answer = town.try_(
            "eve", "POST", "/orgs/archive/policies", wide | {"confirm_prefix": typed}
        )
        assert answer.status_code == 422, typed
    trial = {"settings": wide | {"confirm_prefix": town.daily}}
    town.declare_s3(town.daily)
    preview = town.ask("eve", "POST", "/orgs/archive/policy-simulations", trial)
    assert sum(others["people"] for others in preview["other_gains"]) > 0
    assert preview["other_opens"] + len(preview["opens"]) > 0
    town.ask("eve", "POST", "/orgs/archive/buckets/vault/suspend")
    unproven = town.try_(
        "eve", "POST", "/orgs/archive/policies", wide | {"confirm_prefix": town.daily}
    )
    assert unproven.status_code == 422


# What a configuration claims


@pytest.mark.parametrize("scheme", ["file", "memory", "http", "https"])
def test_local_files_memory_and_the_plain_web_are_refused(shared_town: Town, scheme: str) -> None:
    """Threat 2: by the server, and by the types of the client."""
    prefix = f"{scheme}:///etc/" if scheme == "file" else f"{scheme}://host/data/"
    shared_town.declare(DeclaredContainer(prefix, prefix, platform=scheme))
    assert shared_town.refusals() == ["forbidden_scheme"]
    shared_town.declare(DeclaredContainer("s3://data/x/", "s3://data/x/", platform=scheme))
    assert shared_town.refusals() == ["forbidden_scheme"]
    shared_town.declare()
    answer = shared_town.open("bob")
    answer["store"]["platform"] = scheme
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(answer, OpenAnswer)


def test_the_service_reads_with_a_credential_for_the_repository_only(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threat 3: keys of the environment are never used, and the credential is narrow."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", town.lab.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", town.lab.secret_access_key)
    body = bucket_body("main", town.lab, town.root)
    body["secrets"] = {"access_key_id": "nobody", "secret_access_key": "nothing"}
    del body["name"]
    town.ask("ada", "PUT", "/orgs/lab/buckets/main", body)
    with town.service.database.writing() as connection:
        proven = tables.buckets.update().where(tables.buckets.c.name == "main")
        connection.execute(proven.values(state=BucketState.PROVEN))
    answer = town.try_("bob", "POST", "/repos/lab/sst/open")
    assert (answer.status_code, answer.json()["code"]) == (502, "invalid-credentials")


def test_the_service_asks_stores_with_no_other_keys(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threat 3: only the bucket's own keys ask for credentials, and only these read."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"ambient-{name.lower()}")
    signed: list[tuple[str, str]] = []

    async def note(request: Any) -> None:
        authorization = request.headers["authorization"]
        key = authorization.partition("Credential=")[2].partition("/")[0]
        signed.append((request.method, key))

    town.service.client.event_hooks["request"].append(note)
    answer = town.open("ada")
    vended = answer["credential"]["values"]["access_key_id"]
    # The service reads with a credential of its own, which is for this repository only.
    kept = town.service.broker._kept
    readers = {
        known.credential.values["access_key_id"]: (grant.prefixes, grant.access)
        for grant, known in kept.items()
        if grant.person == WORKER.name
    }
    reads = [key for method, key in signed if method == "GET"]
    assert [readers[key] for key in reads] == [((f"{town.root}sst/",), Access.READ)]
    mints = [key for method, key in signed if method == "POST"]
    assert set(mints) == {VENDOR["access_key_id"]}
    assert vended not in {*reads, *mints}


def test_the_credential_of_a_repository_reads_no_other(town: Town) -> None:
    """Threat 3: what the service reads a configuration with reaches this repository alone."""
    obstore.put(root_of(town.lab), f"{town.root}other/repo", b"secret")
    answer = town.open("bob")
    store = answer["store"] | {"platform": Platform.S3}
    client = guarded_client(AddressBook([town.lab.url]))
    credential = CredentialAnswer("s3", answer["credential"]["values"])
    reader = StoreClient(client, msgspec.convert(store, StoreAnswer), credential)

    async def statuses() -> list[int]:
        keys = (f"{town.root}sst/repo", f"{town.root}other/repo")
        answers = [await reader.get(key) for key in keys]
        await client.aclose()
        return answers

    assert asyncio.run(statuses()) == [200, 403]


def test_stored_endpoints_are_ignored(town: Town) -> None:
    """Threat 4: the settings of the bucket win, and the difference is reported."""
    town.share_daily()
    town.declare_s3(town.daily, endpoint="http://evil.example:9000")
    assert town.refusals() == ["bucket_unknown"]
    own = f"s3://{town.lab.bucket}/{town.root}own/"
    town.ask("ada", "POST", "/orgs/lab/policies", {"bucket": "main", "prefix": "own/"})
    town.declare(DeclaredContainer(own, own, endpoint="http://evil.example:9000"))
    (container,) = town.open("bob")["containers"]
    assert container["store"]["endpoint"] == town.lab.url
    assert "evil.example:9000" in container["difference"]


def test_a_container_listed_under_another_prefix_is_refused(shared_town: Town) -> None:
    """Threat 5."""
    shared_town.declare_s3(shared_town.daily)
    assert shared_town.open("bob")["containers"]
    shared_town.declare_s3(
        shared_town.daily, listed_as=shared_town.daily.replace("daily", "harmless")
    )
    assert shared_town.refusals() == ["invalid"]


@pytest.mark.parametrize("ending", ["daily2/", "daily-evil/", "dail/", "Daily/"])
def test_prefixes_are_compared_by_segments(shared_town: Town, ending: str) -> None:
    """Threat 6: `pub` is not `pub2`."""
    shared_town.declare_s3(shared_town.daily.replace("daily/", ending))
    assert shared_town.refusals() == ["no_policy"]


def test_buckets_are_compared_as_a_whole(shared_town: Town) -> None:
    """Threat 6: `bucket` is not `bucket-evil`."""
    bucket = shared_town.archive.bucket
    for name in (f"{bucket}-evil", f"{bucket}s", bucket[:-1]):
        shared_town.declare_s3(shared_town.daily.replace(f"//{bucket}/", f"//{name}/"))
        assert shared_town.refusals() == ["bucket_unknown"], name
    own = Location(Platform.S3, "store", bucket)
    assert own.covers(Location(Platform.S3, "store", bucket, ("daily",)))
    assert not own.covers(Location(Platform.S3, "store", f"{bucket}-evil", ("daily",)))


@pytest.mark.parametrize(
    "path",
    [
        "daily/../",
        "daily/%2e%2e/",
        "daily/..%2f",
        "daily/%252e%252e/",
        "daily/..\\",
        "daily/\0/",
        "daily//",
        "daily/./",
        "/daily/",
    ],
)
def test_paths_with_a_second_reading_are_refused(shared_town: Town, path: str) -> None:
    """Threat 7: nothing is decoded, repaired or normalised."""
    shared_town.declare_s3(shared_town.daily.replace("daily/", path))
    assert shared_town.refusals() == ["invalid"]


@pytest.mark.parametrize(
    "text", ["d\N{CYRILLIC SMALL LETTER A}ily", "\uff44aily", "daily\u202e", "da\u0131ly", "ſ"]
)
def test_look_alike_letters_are_refused(shared_town: Town, text: str) -> None:
    """Threat 8: ASCII only, in paths and in buckets."""
    shared_town.declare_s3(shared_town.daily.replace("daily", text))
    assert shared_town.refusals() == ["invalid"]
    shared_town.declare_s3(f"s3://{text}/daily/")
    assert shared_town.refusals() == ["invalid"]
    shared_town.declare_s3(f"s3://{shared_town.archive.bucket.upper()}/{shared_town.root}daily/")
    assert shared_town.refusals() == ["invalid"]


WILD = ["*", "?", "$", "'", '"', "%", "${aws:username}", "') || true || ('", "\\", "\n"]


@pytest.mark.parametrize("text", WILD)
def test_characters_with_a_meaning_in_policies_are_refused(shared_town: Town, text: str) -> None:
    """Threat 9: when something is created, and in a configuration."""
    prefix = f"{text}/"
    new = bucket_body("more", shared_town.lab, prefix)
    assert shared_town.try_("ada", "POST", "/orgs/lab/buckets", new).status_code == 422
    new = bucket_body("more", shared_town.lab, "") | {"bucket": f"lab{text}"}
    assert shared_town.try_("ada", "POST", "/orgs/lab/buckets", new).status_code == 422
    new = bucket_body("more", shared_town.lab, "") | {"kms_key": f"arn:aws:kms:eu:1:key/{text}"}
    assert shared_town.try_("ada", "POST", "/orgs/lab/buckets", new).status_code == 422
    policy = {"bucket": "main", "prefix": prefix}
    assert shared_town.try_("ada", "POST", "/orgs/lab/policies", policy).status_code == 422
    repository = {"name": "more", "bucket": "main", "prefix": prefix}
    assert shared_town.try_("ada", "POST", "/orgs/lab/repos", repository).status_code == 422
    wanted = {"prefix": prefix}
    path = "/orgs/lab/buckets/main/credentials"
    assert shared_town.try_("ada", "POST", path, wanted).status_code == 422
    shared_town.declare_s3(f"s3://{shared_town.archive.bucket}/{text}/")
    assert shared_town.refusals() == ["invalid"]


@pytest.mark.parametrize("text", WILD)
def test_vendors_check_names_once_more(text: str) -> None:
    """Threat 9: no document is made of a name that was not checked, whoever forgot to check it."""
    plain = Bucket("lab", "main", Platform.S3, "data", account="acct")
    grants = [
        Grant(plain, (f"{text}/",), "ada"),
        Grant(replace(plain, bucket=f"data{text}x"), ("a/",), "ada"),
        Grant(replace(plain, prefix=f"{text}/"), (f"{text}/",), "ada"),
        Grant(plain, ("a/",), f"ada{text}"),
        Grant(replace(plain, account=f"acct{text}"), ("a/",), "ada"),
        Grant(replace(plain, kms_key=f"arn:aws:kms:eu:1:key/{text}"), ("a/",), "ada"),
        Grant(plain, tuple(sorted(("a/", f"{text}/"))), "ada"),
        Grant(plain, ("a",), "ada"),
        Grant(plain, (), "ada"),
        Grant(plain, ("b/", "a/"), "ada"),
        Grant(plain, ("a/", "a/"), "ada"),
        Grant(replace(plain, prefix="a/"), ("a/b/", "b/"), "ada"),
        Grant(plain, ("../",), "ada"),
        Grant(replace(plain, prefix="a/"), ("b/",), "ada"),
    ]
    end = datetime(2026, 1, 1, tzinfo=UTC)
    for grant in grants:
        with pytest.raises(InternalError):
            session_policy(grant)
        with pytest.raises(InternalError):
            access_boundary(grant)
        with pytest.raises(InternalError):
            temporary_access(grant, "parent")
        with pytest.raises(InternalError):
            signed_query(grant, SigningKey(b"k"), end)


@pytest.mark.parametrize(
    "prefix",
    [
        "s3://user@{bucket}/daily/",
        "s3://user:password@{bucket}/daily/",
        "s3://{bucket}:9000/daily/",
        "s3://{bucket}/daily/?versions/",
        "s3://{bucket}/daily/#part/",
        "s3://s3://{bucket}/daily/",
        "s3:s3://{bucket}/daily/",
        " s3://{bucket}/daily/",
    ],
)
def test_users_ports_queries_and_second_schemes_are_refused(shared_town: Town, prefix: str) -> None:
    """Threat 10."""
    shared_town.declare_s3(prefix.replace("{bucket}", shared_town.archive.bucket))
    assert shared_town.refusals() == ["invalid"]


# Requests of the service itself


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://169.254.169.254",
        "http://127.0.0.1:1",
        "http://localhost:9000",
        "http://10.0.0.1",
        "https://minio.example",
        "https://s3.amazonaws.com.evil.example",
        "https://evil.example/s3.amazonaws.com",
        "http://s3.amazonaws.com",
        "file:///etc/passwd",
    ],
)
@pytest.mark.parametrize("name", ["endpoint", "sts_endpoint"])
def test_endpoints_outside_of_the_list_are_refused(
    shared_town: Town, endpoint: str, name: str
) -> None:
    """Threat 11: only endpoints of the operator's list, and those of the platforms."""
    body = bucket_body("more", shared_town.lab, "") | {name: endpoint}
    answer = shared_town.try_("ada", "POST", "/orgs/lab/buckets", body)
    assert answer.status_code == 422
    assert name in answer.json()["message"]


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fd00:ec2::254", "127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fe80::1"],
)
def test_names_that_lead_into_the_network_are_refused(address: str) -> None:
    """Threat 11: the address counts, not the name; one bad address refuses the whole name."""

    async def resolver(host: str, port: int) -> list[str]:
        del host, port
        return ["9.9.9.9", address]

    book = AddressBook((), resolver)
    with pytest.raises(AccessDeniedError, match="does not connect"):
        asyncio.run(book.address_of("data.example", 443))
    if not address.startswith(("169", "fd00", "fe80")):
        allowed = AddressBook(["https://data.example"], resolver)
        assert asyncio.run(allowed.address_of("data.example", 443)) == "9.9.9.9"
        with pytest.raises(AccessDeniedError):
            asyncio.run(allowed.address_of("data.example", 8443))


def test_the_address_of_a_metadata_service_is_never_allowed() -> None:
    """Threat 11: not even if an operator puts it on the list."""
    book = AddressBook(["http://169.254.169.254", "http://[fd00:ec2::254]:80"])
    for host in ("169.254.169.254", "fd00:ec2::254", "2852039166"):
        with pytest.raises(AccessDeniedError):
            asyncio.run(book.address_of(host, 80))


def test_a_name_that_changes_its_address_gains_nothing() -> None:
    """Threat 11: every request is checked, and goes to the address that was checked."""
    resolved: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        del port
        resolved.append(host)
        return ["127.0.0.1"] if len(resolved) == 1 else ["169.254.169.254"]

    def script(handler: ScriptedHandler) -> None:
        handler.read_body()
        handler.answer(HTTPStatus.OK, (handler.headers["Host"] or "").encode())

    with scripted_server(script) as server:
        port = server.server_port
        book = AddressBook([f"http://data.example:{port}"], resolver)

        async def attack() -> str:
            async with guarded_client(book) as client:
                first = await client.get(f"http://data.example:{port}/")
                with pytest.raises(AccessDeniedError):
                    await client.get(f"http://data.example:{port}/")
                return first.text

        assert asyncio.run(attack()) == f"data.example:{port}"
    assert resolved == ["data.example", "data.example"]


def test_redirects_are_not_followed(town: Town, tmp_path: Path) -> None:
    """Threat 11: neither by the reading of a configuration, nor by an STS, nor by a probe."""
    stolen: list[str] = []

    def script(handler: ScriptedHandler) -> None:
        handler.read_body()
        stolen.append(handler.path)
        handler.answer(HTTPStatus.OK, b"secret", {"ETag": '"x"'})

    with (
        scripted_server(script) as metadata,
        redirect_server(f"{metadata.url}/latest", status=HTTPStatus.TEMPORARY_REDIRECT) as evil,
    ):
        options = {"endpoints": (evil.url, metadata.url)}
        hostile = Town(tmp_path / "hostile", town.lab, town.archive, town.prefix, **options)
        with hostile.desk.client:
            for fields in ({"endpoint": evil.url}, {"sts_endpoint": evil.url}):
                body = bucket_body("main", town.lab, town.root) | fields
                hostile.ask("ada", "POST", "/orgs/lab/buckets", body)
                report = hostile.ask("ada", "POST", "/orgs/lab/buckets/main/probe")
                assert report["state"] == "refused"
                hostile.ask("ada", "DELETE", "/orgs/lab/buckets/main")
            client = hostile.service.client
            store = StoreAnswer(Platform.S3, "lab", "", "us-east-1", evil.url, True, True)
            reader = StoreClient(client, store, CredentialAnswer("anonymous"))

            async def read() -> None:
                await read_configuration(reader, None)

            with pytest.raises(StorageError):
                hostile.desk.client.portal.call(read)  # type: ignore[union-attr]
    assert stolen == []


# Between check and use


def test_a_configuration_that_changes_after_the_check(town: Town) -> None:
    """Threat 12: the answer has the containers; a renewal checks all of them again."""
    town.share_daily()
    town.declare_s3(town.daily)
    answer = town.open("bob")
    assert [container["prefix"] for container in answer["containers"]] == [town.daily]
    mints = town.service.broker.mints
    secret = town.daily.replace("daily", "secret")
    containers = [DeclaredContainer(p, p, endpoint=town.archive.url) for p in (town.daily, secret)]
    town.declare(*containers)
    renewed = town.try_("bob", "POST", "/repos/lab/sst/credentials")
    assert [missing["container"] for missing in renewed.json()["missing"]] == [secret]
    assert town.service.broker.mints == mints


def test_names_of_containers_are_not_rebound(town: Town) -> None:
    """Threat 13: relative names, reserved names and names that occur twice are refused."""
    town.share_daily()
    town.declare_s3("vcc://daily/")
    assert town.refusals() == ["forbidden_scheme"]
    town.declare_s3(town.daily, name="icefloe-secret")
    assert town.refusals() == ["invalid"]
    monthly = town.daily.replace("daily", "daily/monthly")
    twice = [
        DeclaredContainer(p, p, "same", endpoint=town.archive.url) for p in (town.daily, monthly)
    ]
    town.declare(*twice)
    assert town.refusals() == ["invalid", "invalid"]


# Hostile bytes


def reading(script: Any) -> Any:
    """Read a configuration from a store that answers as a script does."""
    with scripted_server(script) as server:
        client = guarded_client(AddressBook([server.url]))
        store = StoreAnswer(Platform.S3, "lab", "", "us-east-1", server.url, True, True)
        reader = StoreClient(client, store, CredentialAnswer("anonymous"))

        async def read() -> Any:
            try:
                return await asyncio.wait_for(read_configuration(reader, None), 30)
            finally:
                await client.aclose()

        return asyncio.run(read())


def test_a_file_that_is_too_large_is_not_read() -> None:
    """Threat 14: its size is known before a byte is read, and a lie about it ends the reading."""
    sent = io.BytesIO()

    def huge(handler: ScriptedHandler) -> None:
        handler.begin(200, {"ETag": '"x"', "Content-Length": str(LARGEST_FILE + 1)})
        handler.close_connection = True

    with pytest.raises(StorageError, match="a service reads at most"):
        reading(huge)

    def endless(handler: ScriptedHandler) -> None:
        handler.begin(200, {"ETag": '"x"', "Transfer-Encoding": "chunked"})
        handler.close_connection = True
        block = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        for _ in range(200):
            try:
                handler.wfile.write(block)
            except OSError:
                return
            sent.write(b".")

    with pytest.raises(StorageError, match="unknown bytes"):
        reading(endless)
    assert len(sent.getvalue()) < 100


@pytest.mark.parametrize(
    "content", [b"", b"ICE\xf0\x9f\xa7\x8aCHUNK" + bytes(100), bytes(10_000), b"\xff" * 5_000]
)
def test_hostile_bytes_are_an_error_of_the_format(content: bytes) -> None:
    """Threat 15: the decoder has its own guards; nothing else than an error of ours comes out."""

    def script(handler: ScriptedHandler) -> None:
        handler.answer(HTTPStatus.OK, content, {"ETag": '"x"'})

    with pytest.raises(IcefloeError):
        reading(script)


def own_repo_file() -> bytes:
    """Return the file of a repository that has a container in its configuration."""
    config = icefloe.RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer("s3://data/x/", icefloe.s3_store())
    config.set_virtual_chunk_container(container)
    storage = icefloe.in_memory_storage()
    icefloe.Repository.create(storage, config)
    return bytes(run_blocking(storage.open().get("repo")).data)


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_small_file_that_expands_to_a_huge_one_is_refused(*, is_announced: bool) -> None:
    """Threat 14: whether the file says how large it is, or not."""
    zeros = bytes(128 * 2**20)
    frame = zstandard.ZstdCompressor().compressobj(size=len(zeros) if is_announced else -1)
    bomb = own_repo_file()[:HEADER_BYTES] + frame.compress(zeros) + frame.flush()
    assert len(bomb) < 100_000

    def script(handler: ScriptedHandler) -> None:
        handler.answer(HTTPStatus.OK, bomb, {"ETag": '"x"'})

    with pytest.raises(FormatError, match="refused as damaged or hostile"):
        reading(script)


def test_damaged_tables_are_an_error_of_the_format_or_a_claim() -> None:
    """Threat 15: whatever the offsets say, nothing is read outside of the file."""
    file = own_repo_file()
    whole = decompress(memoryview(file)[HEADER_BYTES:])
    choose = random.Random(15)
    claims: set[object] = set()
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(choose.randrange(1, 5)):
            damaged[choose.randrange(len(damaged))] = choose.choice((0, 1, 0x7F, 0x80, 0xFF))
        data = file[:HEADER_BYTES] + zstandard.ZstdCompressor().compress(damaged)
        try:
            containers = declared_containers(stored_config(open_repo_info(data)))
        except IcefloeError as error:
            claims.add(type(error))
        else:
            claims.update(container.platform for container in containers)
    assert {FormatError, "s3"} <= claims


def bomb_of_aliases() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        names = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{names}]")
    return "\n".join([*lines, "virtual_chunk_containers: *a11"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (bomb_of_aliases(), "it uses an alias"),
        ("a: " + "[" * 101 + "]" * 101, "nested deeper than 100 levels"),
        ("a: " + "[" * 50_000, "nested deeper than 100 levels"),
        ("a: " + "x" * 2**20, "more than the 1048576 allowed"),
        ("a: 1\na: 2", "appears twice"),
    ],
    ids=["aliases", "depth", "unclosed", "size", "twice"],
)
def test_a_bomb_in_yaml_is_refused(text: str, reason: str) -> None:
    """Threat 16 and 17: a configuration of spec 1 is YAML, and a small text may mean a huge one."""

    def script(handler: ScriptedHandler) -> None:
        if handler.path.endswith("config.yaml"):
            handler.answer(HTTPStatus.OK, text.encode(), {"ETag": '"x"'})
        else:
            handler.answer(HTTPStatus.NOT_FOUND)

    with pytest.raises(FormatError, match=reason):
        reading(script)


def test_patterns_of_people_are_no_regular_expressions() -> None:
    """Threat 18: the scope of a token is compared piece by piece."""
    for pattern in ("lab/.*", "lab/s.t", "l.b/sst", "(a+)+/sst", "lab/sst|lab/x"):
        scope = TokenScope(("read",), (pattern,))
        assert not scope_allows(scope, Action.OPEN_REPOSITORY, "lab", "sst"), pattern
    exact = TokenScope(("read",), ("lab/sst",))
    assert scope_allows(exact, Action.OPEN_REPOSITORY, "lab", "sst")
    for pattern in ("lab/.*", "lab/s*", "(a+)+/sst"):
        wide, narrow = TokenScope(("read",), (pattern,)), TokenScope(("read",), ("lab/sst",))
        assert not is_within(narrow, wide), pattern


def test_filters_are_exact_paths() -> None:
    """Threat 18: a filter is no pattern, and what it names is compared by whole segments."""
    paths = ["/", "/sea", "/sea/sst", "/seaside", "/sea.sst"]
    for node in ("/s.*", "/se?", "/sea/*", "/se", "/(a+)+", "/sea/ss"):
        assert chosen_nodes([Filter((node,))], paths) <= {"/"}, node
    assert chosen_nodes([Filter(("/sea",))], paths) == {"/", "/sea", "/sea/sst"}


# Secrets


def test_secrets_show_nowhere(town: Town, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Threat 19: not in a repr, a pickle, a log, an error, the database, its files or a backup."""
    caplog.set_level(logging.DEBUG)
    secret = Secret({"secret_access_key": "s3cr3t"})
    credential = CredentialAnswer("s3", {"secret_access_key": "s3cr3t"})
    settings = BucketSettings(Platform.S3, "data", secrets={"secret_access_key": "s3cr3t"})
    for value in (secret, credential, settings, SigningKey(b"s3cr3t"), town.service.keys):
        assert "s3cr3t" not in repr(value)
        assert "s3cr3t" not in f"{[value]}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    answer = town.open("bob")
    vended = answer["credential"]["values"]
    canary = f"canary-{uuid.uuid4().hex}"
    body = bucket_body("main", town.lab, town.root)
    body["secrets"] = {"access_key_id": "nobody", "secret_access_key": canary}
    del body["name"]
    town.ask("ada", "PUT", "/orgs/lab/buckets/main", body)
    errors = [
        town.try_("ada", "POST", "/orgs/lab/buckets/main/probe").text,
        town.try_("ada", "POST", "/repos/lab/sst/open").text,
        town.try_("ada", "PUT", "/orgs/lab/buckets/main", body | {"secrets": [canary]}).text,
    ]
    back_up(town.service.settings, tmp_path / "copy.db")
    hidden = [VENDOR["secret_access_key"], vended["secret_access_key"], vended["session_token"]]
    hidden.append(canary)
    assert not any(text in error for text in hidden for error in errors)
    stored = b"".join(
        file.read_bytes()
        for file in (*town.service.settings.folder.iterdir(), tmp_path / "copy.db")
        if file.is_file()
    )
    for text in hidden:
        assert text not in caplog.text
        assert text.encode() not in stored
    shown = json.dumps(town.ask("ada", "GET", "/orgs/lab/buckets/main"))
    assert VENDOR["secret_access_key"] not in shown
    assert town.desk.tokens["bob"].encode() not in stored


# Credentials that are out


def test_credentials_are_short_and_carry_a_name(town: Town, tmp_path: Path) -> None:
    """Threat 20: the logs of the store say who got a credential, and every mint is in the audit."""
    asked: list[dict[str, list[str]]] = []

    def sts(handler: ScriptedHandler) -> None:
        asked.append(parse_qs(handler.read_body().decode()))
        handler.answer(HTTPStatus.FORBIDDEN)

    with scripted_server(sts) as server:
        bucket = Bucket("lab", "main", Platform.S3, "lab", sts_endpoint=server.url, role="r")
        client = guarded_client(AddressBook([server.url]))
        secret = Secret({"access_key_id": "a", "secret_access_key": "b"})

        async def vend() -> None:
            grant = Grant(bucket, ("a/",), "bob")
            with pytest.raises(StorageError):
                await StsVendor(client).vend(grant, secret, "external")
            await client.aclose()

        asyncio.run(vend())
    assert asked[0]["RoleSessionName"] == ["icefloe-bob"]
    assert asked[0]["ExternalId"] == ["external"]
    for seconds in (0, 899, 3601, 86_400):
        with pytest.raises(InternalError, match="seconds"):
            session_policy(Grant(bucket, ("a/",), "bob", seconds=seconds))
    first, second = town.open("bob"), town.open("ada")
    assert first["credential"]["values"] != second["credential"]["values"]
    end = datetime.fromisoformat(first["credential"]["expires_at"])
    assert timedelta(0) < end - datetime.now(UTC) <= timedelta(hours=1)
    entries = town.ask("ada", "GET", "/orgs/lab/audit")["items"]
    opened = [e for e in entries if e["action"] == "repositories:open" and e["allowed"]]
    assert {e["person"] for e in opened} == {"bob", "ada"}
    assert all(e["details"]["own"]["until"] for e in opened)


def test_who_loses_access_gets_no_further_credential(town: Town) -> None:
    """Threat 21: a member who is removed, a policy that is deleted, a bucket that is suspended."""
    policy = town.share_daily()
    town.declare_s3(town.daily)
    town.open("bob")
    mints = town.service.broker.mints
    gone = town.try_("eve", "DELETE", f"/orgs/archive/policies/{policy}")
    assert datetime.fromisoformat(gone.headers["x-issued-until"]) > town.desk.now
    assert town.refusals() == ["no_policy"]
    town.share_daily()
    town.open("bob")
    suspended = town.ask("eve", "POST", "/orgs/archive/buckets/vault/suspend")
    assert suspended["bucket"]["state"] == "suspended"
    assert datetime.fromisoformat(suspended["issued_until"]) > town.desk.now
    assert town.refusals() == ["bucket_unknown"]
    assert town.try_("eve", "POST", "/orgs/archive/buckets/vault/credentials").status_code == 403
    assert town.try_("eve", "POST", "/orgs/archive/buckets/vault/probe").status_code == 422
    body = bucket_body("vault", town.archive, town.root)
    del body["name"]
    changed = town.ask("eve", "PUT", "/orgs/archive/buckets/vault", body)
    assert changed["state"] == "suspended"
    town.ask("eve", "POST", "/orgs/archive/buckets/vault/resume")
    assert town.refusals() == ["bucket_unknown"]
    town.ask("eve", "POST", "/orgs/archive/buckets/vault/probe")
    town.open("bob")
    town.try_("ada", "DELETE", "/orgs/lab/members/bob")
    assert town.try_("bob", "POST", "/repos/lab/sst/open").status_code == 404
    town.ask("ada", "POST", "/orgs/lab/buckets/main/suspend")
    assert town.try_("ada", "POST", "/repos/lab/sst/open").status_code == 403
    assert town.service.broker.mints <= mints + 2


# What strangers learn


def test_names_cannot_be_guessed(town: Town) -> None:
    """Threat 22: absent and forbidden have the same answer, after the same questions."""
    queries: list[str] = []
    listen = lambda *arguments: queries.append(arguments[2])  # noqa: E731
    event.listen(town.service.database.engine, "before_cursor_execute", listen)

    def look(name: str, suffix: str = "", method: str = "GET") -> tuple[int, str, list[str]]:
        queries.clear()
        answer = town.try_("mal", method, f"/repos/lab/{name}{suffix}")
        text = answer.json()["message"].replace(name, "NAME")
        return answer.status_code, text, list(queries)

    look("sst")  # the last use of the token is written once
    assert look("sst") == look("absent")
    assert look("sst", "/open", "POST") == look("absent", "/open", "POST")
    assert look("sst")[0] == 404
    event.remove(town.service.database.engine, "before_cursor_execute", listen)


def test_refusals_tell_nothing_about_others(town: Town) -> None:
    """Threat 23: what was asked for and whom to ask; no labels, prefixes, people or policies."""
    policy = town.share_daily("organisation")
    inner = town.daily + "inner/"
    town.declare_s3(inner)
    response = town.try_("bob", "POST", "/repos/lab/sst/open")
    (missing,) = response.json()["missing"]
    assert missing["container"] == inner
    assert missing["who"] == "admins of archive"
    for hidden in (policy, "vault", "eve", "checks passed", VENDOR["role"], town.archive.url):
        assert hidden not in response.text


# Rights of writers, and of strangers


def test_a_writer_grants_nothing_by_a_configuration(town: Town) -> None:
    """Threat 27: what a configuration declares is a claim; admins of the data decide."""
    town.declare_s3(town.daily)
    for person in ("walt", "ada", "bob"):
        assert town.refusals(person) == ["no_policy"]
    own = f"s3://{town.lab.bucket}/{town.root}private/"
    town.declare(DeclaredContainer(own, own, endpoint=town.lab.url))
    assert town.refusals("walt") == ["no_policy"]
    policy = {"bucket": "main", "prefix": "private/"}
    assert town.try_("walt", "POST", "/orgs/lab/policies", policy).status_code == 403
    imported = {"name": "more", "bucket": "main", "prefix": "private/", "imports": True}
    assert town.try_("walt", "POST", "/orgs/lab/repos", imported).status_code == 403


def test_a_reader_gets_no_credential_to_write(town: Town) -> None:
    """Threat 27: and none is made before that is known."""
    mints = town.service.broker.mints
    answer = town.try_("bob", "POST", "/repos/lab/sst/open", {"access": "write"})
    assert answer.status_code == 403
    assert town.service.broker.mints == mints
    assert town.open("walt", "write")["credential"]["values"]


def test_a_bucket_of_others_cannot_be_registered_and_shared(town: Town) -> None:
    """Threat 28: without the trust of its owner, a bucket is never proven."""
    body = bucket_body("stolen", town.archive, town.root)
    body["secrets"] = {"access_key_id": "mal", "secret_access_key": "guess"}
    town.ask("mal", "POST", "/orgs/mallory/buckets", body)
    report = town.ask("mal", "POST", "/orgs/mallory/buckets/stolen/probe")
    assert report["state"] == "refused"
    policy = {
        "bucket": "stolen",
        "prefix": "daily/",
        "scope": "anyone",
        "confirm_prefix": town.daily,
    }
    assert town.try_("mal", "POST", "/orgs/mallory/policies", policy).status_code == 422
    town.declare_s3(town.daily)
    assert town.refusals() == ["no_policy"]
    ids = {town.service.external_id(name) for name in ("lab", "archive", "mallory")}
    assert len(ids) == 3


def test_a_public_bucket_needs_a_challenge(tmp_path: Path) -> None:
    """Threat 28: public data is proven by an object that only its owner can write."""
    content = b""

    def store(handler: ScriptedHandler) -> None:
        handler.read_body()
        if handler.command == "GET" and handler.path.endswith("/open/.icefloe-challenge"):
            handler.answer(HTTPStatus.OK, content, {"ETag": '"x"'})
        else:
            handler.answer(HTTPStatus.FORBIDDEN)

    with ExitStack() as stack:
        server = stack.enter_context(scripted_server(store))
        settings = Settings(folder=tmp_path, allowed_endpoints=(server.url,), probe_hours=0)
        desk = Desk(settings)
        stack.enter_context(desk.client)
        desk.add_person(Person("eve"))
        with desk.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("archive"), "eve", desk.now)
        body = {
            "name": "open",
            "platform": "s3",
            "bucket": "data",
            "prefix": "open/",
            "endpoint": server.url,
            "allow_http": True,
            "path_style": True,
            "delegation": Delegation.ANONYMOUS,
        }
        assert desk.ask("eve", "POST", "/orgs/archive/buckets", body).status_code == 201
        path = "/orgs/archive/buckets/open"
        proof = desk.ask("eve", "GET", f"{path}/ownership").json()
        assert proof["challenge_key"] == "open/.icefloe-challenge"
        for content in (b"", b"icefloe-challenge-guess"):  # noqa: B007 - the store reads it
            assert desk.ask("eve", "POST", f"{path}/probe").json()["state"] == "refused"
        content = proof["challenge"].encode()
        assert desk.ask("eve", "POST", f"{path}/probe").json()["state"] == "proven"


def test_a_store_that_ignores_session_policies_is_caught(town: Town, tmp_path: Path) -> None:
    """Section 4: the probe refuses a bucket whose credentials reach more than they say."""

    client = botocore.session.get_session().create_client(
        "sts",
        region_name=town.lab.region,
        endpoint_url=town.lab.url,
        aws_access_key_id=VENDOR["access_key_id"],
        aws_secret_access_key=VENDOR["secret_access_key"],
    )

    def sts(handler: ScriptedHandler) -> None:
        handler.read_body()
        options = {"RoleArn": VENDOR["role"], "RoleSessionName": "all", "DurationSeconds": 900}
        made = client.assume_role(**options)["Credentials"]
        parts = made | {"Expiration": made["Expiration"].isoformat()}
        body = "".join(f"<{name}>{value}</{name}>" for name, value in parts.items())
        handler.answer(HTTPStatus.OK, f"<Answer>{body}</Answer>".encode())

    with scripted_server(sts) as server:
        loose = Town(
            tmp_path / "loose", town.lab, town.archive, town.prefix, endpoints=(server.url,)
        )
        with loose.desk.client:
            body = bucket_body("main", town.lab, town.root) | {"sts_endpoint": server.url}
            loose.ask("ada", "POST", "/orgs/lab/buckets", body)
            report = loose.ask("ada", "POST", "/orgs/lab/buckets/main/probe")
    assert report["state"] == "refused"
    failed = {check["name"] for check in report["checks"] if not check["passed"]}
    assert {"read outside", "write inside", "list above", "delegate further"} <= failed
