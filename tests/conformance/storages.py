"""Storages on the servers of the suite."""

from icefloe.config import S3Options
from icefloe.credentials import (
    AzureCredentials,
    AzureStaticCredentials,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
)
from icefloe.storage import Storage
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import AzureEndpoint, S3Endpoint


def s3_storage_at(endpoint: S3Endpoint, prefix: str, url: str | None = None) -> Storage:
    """Use a prefix of the bucket, perhaps through a proxy at another URL."""
    options = S3Options(
        region=endpoint.region,
        endpoint_url=url or endpoint.url,
        allow_http=True,
        force_path_style=True,
    )
    keys = S3StaticCredentials(endpoint.access_key_id, endpoint.secret_access_key)
    return Storage.new_s3(options, endpoint.bucket, prefix, S3Credentials.Static(keys))


def azure_storage_at(endpoint: AzureEndpoint, prefix: str) -> Storage:
    """Use a prefix of the container."""
    key = AzureStaticCredentials.AccessKey(endpoint.account_key)
    return Storage.new_azure_blob(
        endpoint.account,
        endpoint.container,
        prefix,
        AzureCredentials.Static(key),
        config={"azure_storage_endpoint": endpoint.url, "allow_http": "true"},
    )


def gcs_storage_at(endpoint: GcsEndpoint, prefix: str) -> Storage:
    """Use a prefix of the bucket."""
    key = GcsStaticCredentials.ServiceAccountKey(endpoint.service_account_key)
    return Storage.new_gcs(
        endpoint.bucket, prefix, GcsCredentials.Static(key), config={"allow_http": "true"}
    )
