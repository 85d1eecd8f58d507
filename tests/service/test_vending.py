"""Vended credentials against real stores: inside works, and everything else is refused.

Each platform is registered with a service, probed, and asked for a credential for one folder by
the API. The attempts use the client of the library's storages, not that of the service.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import botocore.session
import msgspec
import obstore
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from obstore.store import AzureStore, GCSStore, S3Store

from icefloe.catalog.model import Bucket, Delegation, Organisation, Person, Platform
from icefloe.catalog.wire import CredentialAnswer, StoreAnswer
from icefloe.errors import StorageError
from icefloe.records import replace
from icefloe.service.database import accounts, rows, tables
from icefloe.service.settings import Settings
from icefloe.service.vending.grants import Grant, Secret
from icefloe.service.vending.network import AddressBook, guarded_client
from icefloe.service.vending.objects import Contents, StoreClient, StoredObject
from icefloe.service.vending.sts import StsVendor, session_policy
from tests.support.desk import Desk, bucket_body, root_of
from tests.support.gcs_server import GcsEndpoint, gcs_server
from tests.support.http_server import ScriptedHandler, scripted_server
from tests.support.servers import VENDOR, AzureEndpoint, S3Endpoint
from tests.support.token_services import Cloudflare, GoogleCloud, cloudflare, google_cloud

pytestmark = pytest.mark.server

type AnyStore = Any
ACCOUNT = "0123456789abcdef0123456789abcdef"
SPEAK_STS = ("s3", "s3-of-another-owner", "r2")
SCOPED = (*SPEAK_STS, "gcs")
PLATFORMS = (*SCOPED, "azure")


class Clouds:
    """A service with a bucket on each platform, and what is needed to try its credentials."""

    def __init__(
        self,
        folder: Path,
        lab: S3Endpoint,
        archive: S3Endpoint,
        azure: AzureEndpoint,
        gcs: GcsEndpoint,
        google: GoogleCloud,
        r2: Cloudflare,
    ) -> None:
        self.lab, self.archive, self.azure, self.gcs = lab, archive, azure, gcs
        self.google, self.r2 = google, r2
        other = f"other-{uuid.uuid4().hex[:12]}"
        self.others = dict.fromkeys(PLATFORMS, other)
        azure_url = azure.url.rpartition("/")[0]
        endpoints = (lab.url, archive.url, azure_url, google.url, r2.url)
        settings = Settings(folder=folder, allowed_endpoints=endpoints, probe_hours=0)
        self.desk = Desk(settings, datetime.now(UTC))
        self.desk.add_person(Person("ada"))
        with self.desk.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("lab"), "ada", self.desk.now)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        self.bodies: dict[str, dict[str, Any]] = {
            "s3": bucket_body("s3", lab, ""),
            "s3-of-another-owner": bucket_body("s3-of-another-owner", archive, ""),
            "r2": bucket_body("r2", lab, "")
            | {
                "delegation": "r2-temporary",
                "sts_endpoint": r2.url,
                "account": ACCOUNT,
                "role": None,
                "secrets": {"api_token": "cf-token", "parent_access_key_id": "parent-key"},
            },
            "gcs": {
                "name": "gcs",
                "platform": "gcs",
                "bucket": gcs.bucket,
                "endpoint": google.url,
                "sts_endpoint": google.url,
                "allow_http": True,
                "delegation": "downscoped-token",
                "secrets": {"client_email": "bot@lab.iam", "private_key": pem},
            },
            "azure": {
                "name": "azure",
                "platform": "azure",
                "bucket": azure.container,
                "endpoint": azure_url,
                "account": azure.account,
                "path_style": True,
                "allow_http": True,
                "delegation": "sas",
                "secrets": {"account_key": azure.account_key},
            },
        }

    def root(self, platform: str, bucket: str | None = None) -> AnyStore:
        """Return a store with the owner's own keys."""
        match platform:
            case "gcs":
                options: Any = {"allow_http": True}
                return GCSStore(
                    bucket or self.gcs.bucket,
                    service_account_key=self.gcs.service_account_key,
                    client_options=options,
                )
            case "azure":
                return AzureStore(
                    bucket or self.azure.container,
                    account_name=self.azure.account,
                    account_key=self.azure.account_key,
                    endpoint=self.azure.url,
                    client_options={"allow_http": True},
                )
        return root_of(self.archive if platform == "s3-of-another-owner" else self.lab)

    def open(self, answer: dict[str, Any], bucket: str | None = None) -> AnyStore:
        """Return a store with a vended credential, perhaps for another bucket."""
        store, values = answer["store"], answer["credential"]["values"]
        name = bucket or store["bucket"]
        retry: Any = {"max_retries": 0}
        match answer["credential"]["kind"]:
            case "gcs-token":
                provider: Any = lambda: {"token": values["token"], "expires_at": None}  # noqa: E731
                return GCSStore(
                    name,
                    credential_provider=provider,
                    config={"base_url": store["endpoint"]},
                    client_options={"allow_http": True},
                    retry_config=retry,
                )
            case "azure-sas":
                return AzureStore(
                    name,
                    account_name=store["account"],
                    sas_token=values["sas"],
                    endpoint=f"{store['endpoint']}/{store['account']}",
                    client_options={"allow_http": True},
                    retry_config=retry,
                )
        return S3Store(
            name,
            endpoint=store["endpoint"],
            region=store["region"],
            client_options={"allow_http": True},
            retry_config=retry,
            **values,
        )

    def vend(self, platform: str, prefix: str, access: str = "read") -> dict[str, Any]:
        """Ask the service for a credential."""
        path = f"/orgs/lab/buckets/{platform}/credentials"
        response = self.desk.ask("ada", "POST", path, {"prefix": prefix, "access": access})
        assert response.status_code == 200, response.json()
        answer: dict[str, Any] = response.json()
        return answer

    def vend_together(
        self, platform: str, prefixes: tuple[str, ...], *, may_list: bool = True
    ) -> dict[str, Any]:
        """Let the service make one credential for several prefixes."""
        service, portal = self.desk.service, self.desk.client.portal
        assert portal is not None
        with service.database.reading() as connection:
            key = {"organisation": "lab", "name": platform}
            bucket = rows.require(connection, tables.buckets, Bucket, **key)
        grant = Grant(bucket, prefixes, "ada", may_list=may_list)
        assert service.broker.divide(grant) == (grant,)
        made = portal.call(service.credential, grant, "ada").credential
        credential = {"kind": made.kind, "values": dict(made.values)}
        return {"store": self.bodies[platform], "credential": credential}


@pytest.fixture(scope="module")
def clouds(
    tmp_path_factory: pytest.TempPathFactory,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    azure_endpoint: AzureEndpoint,
) -> Iterator[Clouds]:
    folder = tmp_path_factory.mktemp("vending")
    with (
        gcs_server() as gcs,
        google_cloud(gcs.url) as google,
        cloudflare(lab_store, api_token="cf-token", account=ACCOUNT) as r2,
    ):
        clouds = Clouds(folder, lab_store, archive_store, azure_endpoint, gcs, google, r2)
        with clouds.desk.client:
            for name, body in clouds.bodies.items():
                made = clouds.desk.ask("ada", "POST", "/orgs/lab/buckets", body)
                assert made.status_code == 201, made.json()
                report = clouds.desk.ask("ada", "POST", f"/orgs/lab/buckets/{name}/probe").json()
                assert report["state"] == "proven", (name, report)
            make_bucket(lab_store, clouds.others["s3"])
            make_bucket(archive_store, clouds.others["s3-of-another-owner"])
            yield clouds


def make_bucket(endpoint: S3Endpoint, name: str) -> None:
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=endpoint.region,
        endpoint_url=endpoint.url,
        aws_access_key_id=endpoint.access_key_id,
        aws_secret_access_key=endpoint.secret_access_key,
    )
    client.create_bucket(Bucket=name)
    client.put_object(Bucket=name, Key="secret", Body=b"secret")


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(clouds: Clouds, platform: str, prefix: str) -> str:
    """A folder with an object in it, one beside it, one above it, and a look-alike."""
    root = clouds.root(platform)
    for key in ("inside/a", "outside/b", "inside-evil/c", "above"):
        obstore.put(root, f"{prefix}/{key}", key.encode())
    return f"{prefix}/inside/"


def listed(store: AnyStore, prefix: str) -> list[str]:
    return [entry["path"] for batch in obstore.list(store, prefix) for entry in batch]


ALLOWED: dict[str, Callable[[AnyStore, str], object]] = {
    "read": lambda store, base: bytes(obstore.get(store, f"{base}/inside/a").bytes()),
    "range": lambda store, base: bytes(
        obstore.get_range(store, f"{base}/inside/a", start=0, end=3)
    ),
    "look": lambda store, base: obstore.head(store, f"{base}/inside/a"),
    "list": lambda store, base: listed(store, f"{base}/inside"),
}
REFUSED_WRITES: dict[str, Callable[[AnyStore, str], object]] = {
    "write": lambda store, base: obstore.put(store, f"{base}/inside/new", b"x"),
    "overwrite": lambda store, base: obstore.put(store, f"{base}/inside/a", b"x"),
    "write in parts": lambda store, base: obstore.put(
        store, f"{base}/inside/new", bytes(6 << 20), chunk_size=5 << 20, use_multipart=True
    ),
    "delete": lambda store, base: obstore.delete(store, f"{base}/inside/a"),
    "copy": lambda store, base: obstore.copy(store, f"{base}/inside/a", f"{base}/inside/b"),
    "rename": lambda store, base: obstore.rename(store, f"{base}/inside/a", f"{base}/inside/b"),
    "write outside": lambda store, base: obstore.put(store, f"{base}/outside/b", b"x"),
}
REFUSED_OUTSIDE: dict[str, Callable[[AnyStore, str], object]] = {
    "read beside": lambda store, base: obstore.get(store, f"{base}/outside/b"),
    "read a look-alike": lambda store, base: obstore.get(store, f"{base}/inside-evil/c"),
    "read above": lambda store, base: obstore.get(store, f"{base}/above"),
    "look beside": lambda store, base: obstore.head(store, f"{base}/outside/b"),
    "list beside": lambda store, base: listed(store, f"{base}/outside"),
    "list a look-alike": lambda store, base: listed(store, f"{base}/inside-evil"),
    "list above": listed,
    "list all": lambda store, base: listed(store, ""),
}


def check_refused(attempt: Callable[[], object]) -> None:
    with pytest.raises(obstore.exceptions.BaseError) as caught:
        attempt()
    kinds = (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
    is_refusal = isinstance(caught.value, kinds) or re.search(
        r"\b40[13]\b|AccessDenied", str(caught.value)
    )
    assert is_refusal, caught.value


@pytest.mark.parametrize("name", ALLOWED)
def test_inside_works(clouds: Clouds, platform: str, folder: str, name: str) -> None:
    store = clouds.open(clouds.vend(platform, folder))
    assert ALLOWED[name](store, folder.removesuffix("/inside/"))


def test_the_service_lists_some_objects_of_a_folder(
    clouds: Clouds, platform: str, prefix: str
) -> None:
    keys = [f"{prefix}/{key}" for key in ("a & b/1", "a & b/2", "c/3", "d")]
    for key in keys:
        obstore.put(clouds.root(platform), key, b"12345")
    answer = clouds.vend(platform, f"{prefix}/")
    reader = StoreClient(
        clouds.desk.service.client,
        msgspec.convert(answer["store"], StoreAnswer),
        msgspec.convert(answer["credential"], CredentialAnswer),
    )

    def contents(most: int, *, has_folders: bool, folder: str = f"{prefix}/") -> Contents:
        portal = clouds.desk.client.portal
        assert portal is not None
        lister = partial(reader.list_some, folder, most=most, has_folders=has_folders)
        return portal.call(lister)

    whole = contents(10, has_folders=True)
    assert whole.folders == (f"{prefix}/a & b/", f"{prefix}/c/")
    assert whole.objects == (StoredObject(keys[3], 5),)
    assert not whole.is_cut
    some = contents(2, has_folders=False)
    assert [entry.key for entry in some.objects] == keys[:2]
    assert some.is_cut
    assert contents(4, has_folders=False) == replace(
        some, objects=tuple(StoredObject(key, 5) for key in keys), is_cut=False
    )
    if answer["is_scoped"]:
        with pytest.raises(StorageError, match="cannot list 'elsewhere/'"):
            contents(2, has_folders=False, folder="elsewhere/")


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_a_reader_cannot_write(clouds: Clouds, platform: str, folder: str, name: str) -> None:
    base = folder.removesuffix("/inside/")
    store = clouds.open(clouds.vend(platform, folder))
    check_refused(lambda: REFUSED_WRITES[name](store, base))
    assert listed(clouds.root(platform), f"{base}/inside") == [f"{base}/inside/a"]
    assert bytes(obstore.get(clouds.root(platform), f"{base}/inside/a").bytes()) == b"inside/a"


@pytest.mark.parametrize("name", REFUSED_OUTSIDE)
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("platform", SCOPED, indirect=True)
def test_outside_is_refused(
    clouds: Clouds, platform: str, folder: str, name: str, access: str
) -> None:
    answer = clouds.vend(platform, folder, access)
    assert answer["is_scoped"]
    base = folder.removesuffix("/inside/")
    check_refused(lambda: REFUSED_OUTSIDE[name](clouds.open(answer), base))


@pytest.mark.parametrize("may_list", [True, False], ids=["lists", "hides"])
@pytest.mark.parametrize("platform", SCOPED, indirect=True)
def test_one_credential_for_several_folders(
    clouds: Clouds, platform: str, folder: str, *, may_list: bool
) -> None:
    """It reads all of its folders, and nothing beside, between or above them."""
    if platform == "r2" and not may_list:
        return  # which the documents of R2 refuse
    base, root = folder.removesuffix("/inside/"), clouds.root(platform)
    keys = {"inside/a", "second/deep/a", "third/a", "outside/b"}
    keys |= {"second/a", "second/deep-evil/c", "third-evil/c", "thir/c", "above"}
    for key in keys:
        obstore.put(root, f"{base}/{key}", key.encode())
    prefixes = tuple(f"{base}/{name}/" for name in ("inside", "second/deep", "third"))
    store = clouds.open(clouds.vend_together(platform, prefixes, may_list=may_list))
    for prefix in prefixes:
        key = f"{prefix}a".removeprefix(f"{base}/")
        assert bytes(obstore.get(store, f"{prefix}a").bytes()) == key.encode()
        attempts = {
            "write": lambda prefix=prefix: obstore.put(store, f"{prefix}new", b"x"),
            "overwrite": lambda prefix=prefix: obstore.put(store, f"{prefix}a", b"x"),
            "delete": lambda prefix=prefix: obstore.delete(store, f"{prefix}a"),
        }
        for attempt in attempts.values():
            check_refused(attempt)
        if may_list:
            assert listed(store, prefix) == [f"{prefix}a"]
        else:
            check_refused(lambda prefix=prefix: listed(store, prefix))  # type: ignore[misc]
    check_refused(lambda: obstore.copy(store, f"{prefixes[0]}a", f"{prefixes[2]}b"))
    inside = {"inside/a", "second/deep/a", "third/a"}
    for key in sorted(keys - inside):
        check_refused(lambda key=key: obstore.get(store, f"{base}/{key}"))  # type: ignore[misc]
    for place in (base, f"{base}/second", f"{base}/outside", f"{base}/third-evil", ""):
        check_refused(lambda place=place: listed(store, place))  # type: ignore[misc]
    found = {path.removeprefix(f"{base}/") for path in listed(root, base)}
    assert found == keys | {"inside-evil/c"}


def test_another_bucket_is_refused(clouds: Clouds, platform: str, folder: str) -> None:
    store = clouds.open(clouds.vend(platform, folder), clouds.others[platform])
    check_refused(lambda: obstore.get(store, "secret"))
    check_refused(lambda: listed(store, ""))
    check_refused(lambda: obstore.put(store, "new", b"x"))


def test_a_changed_credential_is_refused(clouds: Clouds, platform: str, folder: str) -> None:
    answer = clouds.vend(platform, folder)
    values = answer["credential"]["values"]
    name = {"gcs": "token", "azure": "sas"}.get(platform, "session_token")
    if name == "sas":
        values[name] = values[name].replace("sp=rl", "sp=rcwdl")
    else:
        middle = len(values[name]) // 2
        other = "A" if values[name][middle] != "A" else "B"
        values[name] = values[name][:middle] + other + values[name][middle + 1 :]
    check_refused(lambda: obstore.get(clouds.open(answer), f"{folder}a"))


def test_a_writer_writes_inside(clouds: Clouds, platform: str, folder: str) -> None:
    store = clouds.open(clouds.vend(platform, folder, "write"))
    obstore.put(store, f"{folder}new", b"new")
    obstore.put(store, f"{folder}large", bytes(6 << 20), chunk_size=5 << 20, use_multipart=True)
    obstore.delete(store, f"{folder}a")
    names = {name.removeprefix(folder) for name in listed(store, folder)}
    assert names == {"new", "large"}


@pytest.mark.parametrize("platform", SPEAK_STS, indirect=True)
def test_a_vended_credential_makes_no_other(clouds: Clouds, folder: str, platform: str) -> None:
    answer = clouds.vend(platform, folder)
    values = answer["credential"]["values"]
    client = botocore.session.get_session().create_client(
        "sts",
        region_name="us-east-1",
        endpoint_url=answer["store"]["endpoint"],
        aws_access_key_id=values["access_key_id"],
        aws_secret_access_key=values["secret_access_key"],
        aws_session_token=values["session_token"],
    )
    with pytest.raises(client.exceptions.ClientError):
        client.assume_role(RoleArn=VENDOR["role"], RoleSessionName="again")


def test_an_sts_that_wants_shorter_policies() -> None:
    """Amazon packs policies, and tells by an error that one is too large."""
    answer = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
        <AssumeRoleResult><Credentials><AccessKeyId>k</AccessKeyId>
        <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
        <Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>
        </AssumeRoleResponse>"""
    refusal = b"<ErrorResponse><Error><Code>PackedPolicyTooLarge</Code></Error></ErrorResponse>"

    def sts(handler: ScriptedHandler) -> None:
        (policy,) = parse_qs(handler.read_body().decode())["Policy"]
        if len(policy) > 1000:
            handler.answer(HTTPStatus.BAD_REQUEST, refusal)
        else:
            handler.answer(HTTPStatus.OK, answer.encode())

    with scripted_server(sts) as server:
        bucket = Bucket("lab", "main", Platform.S3, "lab", sts_endpoint=server.url, role="r")
        grant = Grant(bucket, tuple(f"{number:02}/{'x' * 40}/" for number in range(12)), "bob")
        secret = Secret({"access_key_id": "a", "secret_access_key": "b"})

        async def vend() -> None:
            async with guarded_client(AddressBook([server.url])) as client:
                vendor = StsVendor(client)
                (whole,) = vendor.divide(grant)
                with pytest.raises(StorageError, match="shorter policies: ask again") as told:
                    await vendor.vend(whole, secret, "id")
                assert told.value.retryable
                while len(session_policy((parts := vendor.divide(grant))[0])) > 1000:
                    with pytest.raises(StorageError, match="ask again"):
                        await vendor.vend(parts[0], secret, "id")
                assert 1 < len(parts) < len(grant.prefixes)
                for part in parts:
                    assert (await vendor.vend(part, secret, "id")).values["session_token"] == "t"

        asyncio.run(vend())


# The end of a credential


def test_a_role_ends(clouds: Clouds, prefix: str) -> None:
    """The server has sessions of six seconds if nobody asks for a longer one."""
    obstore.put(clouds.root("s3"), f"{prefix}/inside/a", b"a")
    bucket = Bucket("lab", "s3", Platform.S3, clouds.lab.bucket)
    made = clouds.r2.sts.assume_role(
        RoleArn=VENDOR["role"],
        RoleSessionName="short",
        Policy=session_policy(Grant(bucket, (f"{prefix}/inside/",), "ada")),
    )["Credentials"]
    values = {
        "access_key_id": made["AccessKeyId"],
        "secret_access_key": made["SecretAccessKey"],
        "session_token": made["SessionToken"],
    }
    body = clouds.bodies["s3"]
    answer = {"store": body, "credential": {"kind": "s3", "values": values}}
    store = clouds.open(answer)
    assert bytes(obstore.get(store, f"{prefix}/inside/a").bytes()) == b"a"
    end = made["Expiration"] + timedelta(seconds=20)
    while datetime.now(UTC) < end:
        try:
            obstore.get(store, f"{prefix}/inside/a")
        except obstore.exceptions.BaseError:
            break
    check_refused(lambda: obstore.get(store, f"{prefix}/inside/a"))
    assert datetime.now(UTC) >= made["Expiration"]


def test_a_signed_query_ends(clouds: Clouds, prefix: str) -> None:
    obstore.put(clouds.root("azure"), f"{prefix}/inside/a", b"a")
    present = clouds.desk.now
    try:
        clouds.desk.now = present - timedelta(hours=2)
        past = clouds.vend("azure", f"{prefix}/inside/")
    finally:
        clouds.desk.now = present
    check_refused(lambda: obstore.get(clouds.open(past), f"{prefix}/inside/a"))


def test_a_token_ends(clouds: Clouds, prefix: str) -> None:
    obstore.put(clouds.root("gcs"), f"{prefix}/inside/a", b"a")
    answer = clouds.vend("gcs", f"{prefix}/inside/")
    assert bytes(obstore.get(clouds.open(answer), f"{prefix}/inside/a").bytes()) == b"a"
    clouds.google.end_tokens()
    check_refused(lambda: obstore.get(clouds.open(answer), f"{prefix}/inside/a"))


# What the reports say


def test_the_probe_says_what_cannot_be_scoped(clouds: Clouds) -> None:
    shown = clouds.desk.ask("ada", "GET", "/orgs/lab/buckets/azure").json()
    assert shown["state"] == "proven"
    assert "for the whole container, not for a folder" in shown["state_reason"]
    assert clouds.vend("azure", "folder/")["is_scoped"] is False
    for name in ("s3", "r2", "gcs"):
        reason = clouds.desk.ask("ada", "GET", f"/orgs/lab/buckets/{name}").json()["state_reason"]
        assert re.fullmatch(r"\d\d checks passed", reason)


def test_a_folder_of_a_flat_container_is_not_shared_with_others(clouds: Clouds) -> None:
    body = {
        "bucket": "azure",
        "prefix": "daily/",
        "scope": "anyone",
        "confirm_prefix": f"az://{clouds.azure.container}/daily/",
    }
    refused = clouds.desk.ask("ada", "POST", "/orgs/lab/policies", body)
    assert refused.status_code == 422
    assert "cannot be cut to a folder" in refused.json()["message"]
    whole = body | {"prefix": "", "confirm_prefix": f"az://{clouds.azure.container}/"}
    made = clouds.desk.ask("ada", "POST", "/orgs/lab/policies", whole)
    assert made.status_code == 201
    clouds.desk.ask("ada", "DELETE", f"/orgs/lab/policies/{made.json()['id']}")


def test_documents_of_the_exchanges(clouds: Clouds) -> None:
    clouds.vend("gcs", "golden/folder/")
    clouds.vend("r2", "golden/folder/")
    assert json.dumps(clouds.google.documents[-1]).count("golden/folder/") == 2
    assert clouds.r2.documents[-1]["prefixes"] == ["golden/folder/"]
    assert clouds.r2.documents[-1]["ttlSeconds"] == 3600


def test_static_keys_are_said_to_be_so(clouds: Clouds) -> None:
    keys = {
        "access_key_id": clouds.lab.access_key_id,
        "secret_access_key": clouds.lab.secret_access_key,
    }
    body = bucket_body("keys", clouds.lab, "keys/") | {
        "delegation": Delegation.STATIC,
        "shares_static_keys": True,
        "secrets": keys,
    }
    assert clouds.desk.ask("ada", "POST", "/orgs/lab/buckets", body).status_code == 201
    report = clouds.desk.ask("ada", "POST", "/orgs/lab/buckets/keys/probe").json()
    assert report["state"] == "proven"
    assert "they have no scope and no end" in report["reason"]
    answer = clouds.vend("keys", "")
    assert (answer["is_scoped"], answer["credential"]["expires_at"]) == (False, None)
    policy = {"bucket": "keys", "scope": "anyone", "confirm_prefix": "s3://lab/keys/"}
    assert clouds.desk.ask("ada", "POST", "/orgs/lab/policies", policy).status_code == 422
