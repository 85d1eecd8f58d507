"""What users authorise on the command line: places of virtual chunks, by their URL."""

from collections.abc import Mapping, Sequence

from icefloe.credentials import (
    AnyCredential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError


def authorised(
    with_environment: Sequence[str], anonymously: Sequence[str]
) -> Mapping[str, AnyCredential | None]:
    """Give each url prefix the credential of its platform.

    >>> sorted(authorised(["file:///data/"], ["s3://public/"]))
    ['file:///data/', 's3://public/']
    """
    return {prefix: _credential(prefix, is_anonymous=False) for prefix in with_environment} | {
        prefix: _credential(prefix, is_anonymous=True) for prefix in anonymously
    }


def _credential(prefix: str, *, is_anonymous: bool) -> AnyCredential:
    match prefix.partition("://")[0].lower():
        case "file":
            return Credentials.LocalFileSystemAccess()
        case "http" | "https":
            return Credentials.HttpAccess()
        case "s3" | "tigris":
            return Credentials.S3(
                S3Credentials.Anonymous() if is_anonymous else S3Credentials.FromEnv()
            )
        case "gs" | "gcs":
            return Credentials.Gcs(
                GcsCredentials.Anonymous() if is_anonymous else GcsCredentials.FromEnv()
            )
        case "az" | "azure" | "abfs":
            return Credentials.Azure(
                AzureCredentials.Anonymous() if is_anonymous else AzureCredentials.FromEnv()
            )
    raise InvalidInputError(
        f"{prefix!r} is not the URL of a place that can be authorised: write file:///…, s3://…,"
        " gs://…, az://… or https://…",
        ErrorKind.INVALID_CREDENTIALS,
    )
