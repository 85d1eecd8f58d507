"""Credentials of Cloudflare R2: temporary access credentials for prefixes of a bucket.

Cloudflare makes them from an access key of the organisation, which stays on the server as well as
the API token that may ask for them. Nobody can read such objects without listing their names, so
a grant that hides names is refused.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import httpx2 as httpx

from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import AccessDeniedError
from icefloe.service.vending.grants import Grant, Secret, check_grant
from icefloe.service.vending.network import ask, text_field

_API: Final = "https://api.cloudflare.com"
_WHO: Final = "the API of Cloudflare"
_NAMES: Final = {
    "access_key_id": "accessKeyId",
    "secret_access_key": "secretAccessKey",
    "session_token": "sessionToken",
}


def temporary_access(grant: Grant, parent_key_id: str) -> dict[str, Any]:
    """Return the request for a credential that allows what a grant says.

    >>> from icefloe.catalog.model import Bucket, Platform
    >>> bucket = Bucket("lab", "main", Platform.S3, "data", "era5/")
    >>> temporary_access(Grant(bucket, ("era5/daily/",), "ada"), "parent")["prefixes"]
    ['era5/daily/']
    """
    check_grant(grant)
    if not grant.may_list:
        problem = f"credentials of R2 can list what they can read, in bucket {grant.bucket.name}"
        raise AccessDeniedError(f"{problem}: the names of these objects cannot be hidden")
    writes = grant.access is Access.WRITE
    request: dict[str, Any] = {
        "bucket": grant.bucket.bucket,
        "parentAccessKeyId": parent_key_id,
        "permission": "object-read-write" if writes else "object-read-only",
        "ttlSeconds": grant.seconds,
    }
    if "" not in grant.prefixes:
        request["prefixes"] = list(grant.prefixes)
    return request


class R2Vendor:
    """Asks Cloudflare for credentials."""

    def __init__(self, client: httpx.AsyncClient, clock: Callable[[], datetime]) -> None:
        self._client: Final = client
        self._clock: Final = clock

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return the grant: a credential may have any number of prefixes."""
        return (grant,)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return a credential that allows what a grant says, and nothing else."""
        del external_id
        bucket = grant.bucket
        request = temporary_access(grant, secret.require("parent_access_key_id"))
        base = (bucket.sts_endpoint or _API).rstrip("/")
        url = f"{base}/client/v4/accounts/{bucket.account}/r2/temp-access-credentials"
        headers = {"authorization": f"Bearer {secret.require('api_token')}"}
        now = self._clock()
        response = await ask(self._client, bucket, _WHO, "POST", url, json=request, headers=headers)
        values = {
            name: text_field(response, bucket, _WHO, "result", theirs)
            for name, theirs in _NAMES.items()
        }
        return CredentialAnswer("s3", values, now + timedelta(seconds=grant.seconds))
