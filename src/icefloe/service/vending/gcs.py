"""Credentials of Google Cloud Storage: a token that a credential access boundary cuts down.

A service account of the organisation signs in, and its token is exchanged for one that reaches
prefixes of one bucket. The boundary has a rule for each prefix, and at most ten. The condition of a
rule is an expression (CEL) that is made of checked names only: none of them has a quote or a
backslash.
"""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import httpx2 as httpx

from icefloe.catalog.model import Bucket
from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import ErrorKind, InternalError, InvalidInputError
from icefloe.service.vending.grants import Grant, Secret, check_grant, divided
from icefloe.service.vending.network import ask, no_credential, text_field

_LOGIN: Final = "https://oauth2.googleapis.com"
_EXCHANGE: Final = "https://sts.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type
_WHO: Final = "the token service"
_MARGIN: Final = timedelta(minutes=1)
_MOST_RULES: Final = 10


def access_boundary(grant: Grant) -> dict[str, Any]:
    """Return the boundary that cuts a token down to a grant.

    >>> from icefloe.catalog.model import Bucket, Platform
    >>> bucket = Bucket("lab", "main", Platform.GCS, "data", "era5/")
    >>> boundary = access_boundary(Grant(bucket, ("era5/daily/",), "ada", may_list=False))
    >>> boundary["accessBoundary"]["accessBoundaryRules"][0]["availabilityCondition"]
    {'expression': "resource.name.startsWith('projects/_/buckets/data/objects/era5/daily/')"}
    """
    check_grant(grant)
    if len(grant.prefixes) > _MOST_RULES:
        problem = f"a boundary has at most {_MOST_RULES} rules, not {len(grant.prefixes)}"
        raise InternalError(problem, ErrorKind.ACCESS_DENIED)
    if grant.access is Access.WRITE:
        role = "roles/storage.objectUser"
    elif grant.may_list:
        role = "roles/storage.objectViewer"
    else:
        role = "roles/storage.legacyObjectReader"
    rules = [_rule(grant, prefix, role) for prefix in grant.prefixes]
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def _rule(grant: Grant, prefix: str, role: str) -> dict[str, Any]:
    name = grant.bucket.bucket
    rule: dict[str, Any] = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{name}",
        "availablePermissions": [f"inRole:{role}"],
    }
    if prefix:
        expression = f"resource.name.startsWith('projects/_/buckets/{name}/objects/{prefix}')"
        if grant.may_list:
            listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
            expression += f" || {listed}.startsWith('{prefix}')"
        rule["availabilityCondition"] = {"expression": expression}
    return rule


class GcsVendor:
    """Signs in as a service account, and exchanges its token."""

    def __init__(self, client: httpx.AsyncClient, clock: Callable[[], datetime]) -> None:
        self._client: Final = client
        self._clock: Final = clock

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return grants with as many prefixes as a boundary has rules."""
        return divided(grant, lambda part: len(part.prefixes) <= _MOST_RULES)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return a token that allows what a grant says, and nothing else."""
        del external_id
        bucket = grant.bucket
        boundary = access_boundary(grant)
        token = await self._sign_in(bucket, secret)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": _ACCESS_TOKEN,
            "subject_token_type": _ACCESS_TOKEN,
            "subject_token": token,
            "options": json.dumps(boundary, separators=(",", ":")),
        }
        url = f"{(bucket.sts_endpoint or _EXCHANGE).rstrip('/')}/v1/token"
        now = self._clock()
        response = await ask(self._client, bucket, _WHO, "POST", url, data=form)
        values = {"token": text_field(response, bucket, _WHO, "access_token")}
        # A token lives as long as the one it was made of: an hour, and never longer.
        seconds = response.json().get("expires_in", 3600)
        if not isinstance(seconds, int) or not 0 < seconds <= 3600:
            raise no_credential(bucket, _WHO)
        return CredentialAnswer("gcs-token", values, now + timedelta(seconds=seconds))

    async def _sign_in(self, bucket: Bucket, secret: Secret) -> str:
        """Return a token of the service account, by an assertion that its key signs."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import RSAKey

        now = int((self._clock() - _MARGIN).timestamp())
        # The key names an address of its own for this, which nobody follows.
        claims = {
            "iss": secret.require("client_email"),
            "scope": _SCOPE,
            "aud": f"{_LOGIN}/token",
            "iat": now,
            "exp": now + 3600,
        }
        try:
            key = RSAKey.import_key(secret.require("private_key"))
            assertion = jwt.encode({"alg": "RS256", "typ": "JWT"}, claims, key)
        except (JoseError, ValueError, TypeError):
            problem = "the private key of the service account cannot be read: paste it as PEM"
            raise InvalidInputError(problem, ErrorKind.INVALID_CREDENTIALS) from None
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": assertion,
        }
        url = f"{(bucket.sts_endpoint or _LOGIN).rstrip('/')}/token"
        response = await ask(self._client, bucket, _WHO, "POST", url, data=form)
        return text_field(response, bucket, _WHO, "access_token")
