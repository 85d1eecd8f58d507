"""Content types and metadata as other clients of the same object stores see them."""

import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import AzureEndpoint, S3Endpoint

pytestmark = pytest.mark.server

GIVEN = {"icspecver": "2", "icfiletype": "repo-info"}


def put_both(storage: Storage) -> None:
    backend = storage.open()
    run_blocking(backend.put("typed", b"{}", content_type="application/json", attributes=GIVEN))
    run_blocking(backend.put("created", b"a: 1", content_type="application/yaml", if_absent=True))


def check(client: S3Store | AzureStore | GCSStore) -> None:
    typed = dict(client.get("typed").attributes)
    assert typed == {"Content-Type": "application/json", **GIVEN}
    created = dict(client.get("created").attributes)
    assert created.pop("Content-Type") == "application/yaml"
    assert list(created) == ["icechunkwriteid"]


def test_s3(s3_endpoint: S3Endpoint, prefix: str) -> None:
    put_both(s3_storage_at(s3_endpoint, prefix))
    check(
        S3Store(
            s3_endpoint.bucket,
            prefix=prefix,
            endpoint=s3_endpoint.url,
            region=s3_endpoint.region,
            access_key_id=s3_endpoint.access_key_id,
            secret_access_key=s3_endpoint.secret_access_key,
            client_options={"allow_http": True},
        )
    )


def test_azure(azure_endpoint: AzureEndpoint, prefix: str) -> None:
    put_both(azure_storage_at(azure_endpoint, prefix))
    check(
        AzureStore(
            azure_endpoint.container,
            prefix=prefix,
            endpoint=azure_endpoint.url,
            account_name=azure_endpoint.account,
            account_key=azure_endpoint.account_key,
            client_options={"allow_http": True},
        )
    )


def test_gcs(gcs_endpoint: GcsEndpoint, prefix: str) -> None:
    put_both(gcs_storage_at(gcs_endpoint, prefix))
    check(
        GCSStore(
            gcs_endpoint.bucket,
            prefix=prefix,
            service_account_key=gcs_endpoint.service_account_key,
            client_options={"allow_http": True},
        )
    )
