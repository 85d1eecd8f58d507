"""User delegation on Azurite over https: with a client secret, and with a token of a workload."""

import asyncio
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import obstore
import pytest
from obstore.store import AzureStore

from icefloe.catalog.model import Bucket, Delegation, Platform
from icefloe.catalog.wire import Access
from icefloe.errors import InvalidInputError, StorageError
from icefloe.service.buckets import check_bucket
from icefloe.service.settings import Settings
from icefloe.service.vending.azure import AzureVendor
from icefloe.service.vending.grants import Grant, Secret
from icefloe.service.vending.network import AddressBook, guarded_client
from tests.conftest import AZURITE_PROJECT
from tests.support.certificates import write_certificate
from tests.support.servers import AzureEndpoint, add_container, azurite, has_node
from tests.support.token_services import MICROSOFT_ASSERTION, microsoft_login

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not has_node(), reason="Azurite runs on Node.js"),
]
REFUSAL = r"(?i)auth|permission|denied|403"
WITH_SECRET = {"tenant_id": "tenant", "client_id": "app", "client_secret": "app-secret"}
WITHOUT_SECRET = {"tenant_id": "tenant", "client_id": "app"}


class Cloud:
    """Azurite with https, a login service, and the vendor of the service between them."""

    def __init__(self, endpoint: AzureEndpoint, login: Any, certificate: Path) -> None:
        self.endpoint, self.login = endpoint, login
        self._trust = ssl.create_default_context(cafile=certificate)

    @property
    def bucket(self) -> Bucket:
        return Bucket(
            "lab",
            "azure",
            Platform.AZURE,
            self.endpoint.container,
            endpoint=self.endpoint.url.rpartition("/")[0],
            sts_endpoint=self.login.url,
            account=self.endpoint.account,
            path_style=True,
            delegation=Delegation.SAS,
        )

    def vend(
        self,
        secrets: dict[str, str],
        access: Access = Access.READ,
        at: datetime | None = None,
        token_files: dict[str, Path] | None = None,
    ) -> str:
        async def vend() -> str:
            book = AddressBook((self.endpoint.url, self.login.url))
            async with guarded_client(book, self._trust) as client:
                vendor = AzureVendor(client, lambda: at or datetime.now(UTC), token_files)
                grant = Grant(self.bucket, ("",), "ada", access)
                credential = await vendor.vend(grant, Secret(secrets), "")
                return credential.values["sas"]

        return asyncio.run(vend())

    def store(self, container: str | None = None, **credential: str) -> AzureStore:
        return AzureStore(
            container or self.endpoint.container,
            account_name=self.endpoint.account,
            endpoint=self.endpoint.url,
            client_options={"allow_invalid_certificates": True},
            retry_config={"max_retries": 0},
            **credential,  # type: ignore[arg-type]
        )

    def root(self, container: str | None = None) -> AzureStore:
        return self.store(container, account_key=self.endpoint.account_key)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    files = write_certificate(tmp_path_factory.mktemp("certificate"))
    with azurite(AZURITE_PROJECT, certificate=files) as endpoint, microsoft_login() as login:
        yield Cloud(endpoint, login, files[0])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{MICROSOFT_ASSERTION}\n")
    return path


def test_a_query_of_a_user_delegation_key_does_what_it_says(cloud: Cloud) -> None:
    obstore.put(cloud.root(), "inside/a", b"a")
    query = cloud.vend(WITH_SECRET)
    fields = parse_qs(query)
    assert fields["spr"] == ["https"]
    assert {"skoid", "sktid", "skt", "ske"} <= fields.keys()
    reading = cloud.store(sas_key=query)
    assert bytes(obstore.get(reading, "inside/a").bytes()) == b"a"
    assert [entry["path"] for entry in reading.list("inside/").collect()] == ["inside/a"]
    with pytest.raises(Exception, match=REFUSAL):
        obstore.put(reading, "inside/b", b"b")
    with pytest.raises(Exception, match=REFUSAL):
        obstore.delete(reading, "inside/a")
    add_container(cloud.endpoint, "other")
    obstore.put(cloud.root("other"), "inside/a", b"other")
    with pytest.raises(Exception, match=REFUSAL):
        obstore.get(cloud.store("other", sas_key=query), "inside/a")
    changed = query.replace("sp=rl", "sp=rcwdl")
    assert changed != query
    with pytest.raises(Exception, match=REFUSAL):
        obstore.put(cloud.store(sas_key=changed), "inside/b", b"b")
    writing = cloud.store(sas_key=cloud.vend(WITH_SECRET, Access.WRITE))
    obstore.put(writing, "inside/b", b"b")
    obstore.delete(writing, "inside/b")


def test_a_query_past_its_end_is_refused(cloud: Cloud) -> None:
    obstore.put(cloud.root(), "inside/a", b"a")
    past = cloud.vend(WITH_SECRET, at=datetime.now(UTC) - timedelta(hours=2))
    with pytest.raises(Exception, match=REFUSAL):
        obstore.get(cloud.store(sas_key=past), "inside/a")


def test_a_workload_logs_in_by_a_token_in_place_of_a_secret(cloud: Cloud, token_file: Path) -> None:
    obstore.put(cloud.root(), "inside/a", b"a")
    query = cloud.vend(WITHOUT_SECRET, token_files={"lab": token_file})
    assert bytes(obstore.get(cloud.store(sas_key=query), "inside/a").bytes()) == b"a"
    assert cloud.login.documents[-1] == {
        "grant_type": "client_credentials",
        "client_id": "app",
        "scope": "https://storage.azure.com/.default",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": MICROSOFT_ASSERTION,
    }
    token_file.write_text("renewed")  # the file is read for each login
    with pytest.raises(StorageError, match="refused: status 400"):
        cloud.vend(WITHOUT_SECRET, token_files={"lab": token_file})
    assert cloud.login.documents[-1]["client_assertion"] == "renewed"


def test_a_token_serves_its_own_organisation_only(cloud: Cloud, token_file: Path) -> None:
    asked = len(cloud.login.documents)
    with pytest.raises(InvalidInputError, match=r"token_files\.lab"):
        cloud.vend(WITHOUT_SECRET, token_files={"zoo": token_file})
    token_file.write_text("")
    with pytest.raises(StorageError, match="its file is empty"):
        cloud.vend(WITHOUT_SECRET, token_files={"lab": token_file})
    with pytest.raises(StorageError, match="cannot be read"):
        cloud.vend(WITHOUT_SECRET, token_files={"lab": token_file / "missing"})
    assert len(cloud.login.documents) == asked


def test_a_bucket_is_registered_without_a_client_secret() -> None:
    bucket = Bucket(
        "lab", "azure", Platform.AZURE, "data", account="oceanlab", delegation=Delegation.SAS
    )
    check_bucket(Settings(), bucket, WITHOUT_SECRET)
    with pytest.raises(InvalidInputError, match="needs the secrets"):
        check_bucket(Settings(), bucket, {"client_id": "app"})
