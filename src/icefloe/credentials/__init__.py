"""Credentials as values: static, anonymous, from the environment, or renewed by a function.

Nothing here talks to a storage. Printing a credential never shows its secrets.
"""

from icefloe.credentials.access import (
    AnyCredential,
    Credentials,
    HttpAccess,
    LocalFileSystemAccess,
    containers_credentials,
)
from icefloe.credentials.azure import (
    AnyAzureCredential,
    AnyAzureStaticCredential,
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    azure_anonymous_credentials,
    azure_credentials,
    azure_from_env_credentials,
    azure_refreshable_credentials,
    azure_static_credentials,
)
from icefloe.credentials.gcs import (
    AnyGcsCredential,
    AnyGcsStaticCredential,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    gcs_anonymous_credentials,
    gcs_credentials,
    gcs_from_env_credentials,
    gcs_refreshable_credentials,
    gcs_static_credentials,
)
from icefloe.credentials.s3 import (
    AnyS3Credential,
    S3Credentials,
    S3StaticCredentials,
    s3_anonymous_credentials,
    s3_credentials,
    s3_from_env_credentials,
    s3_refreshable_credentials,
    s3_static_credentials,
)

__all__ = [
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "Credentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "HttpAccess",
    "LocalFileSystemAccess",
    "S3Credentials",
    "S3StaticCredentials",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
]
