"""Credentials of Azure Blob Storage: signed queries (SAS) for a folder, or for a whole container.

A signature is made with a user delegation key, which an application of the organisation gets for
an hour, or with an account key, which is the weaker way: it never ends by itself. The service logs
in as the application with a client secret, or without any secret by a token that the application
trusts (workload identity). That token is one of the organisation: if organisations shared it, one
of them could name the application of another. Where the
namespace is hierarchical, a signature is for one folder. Elsewhere Azure knows no folders, so the
signature is for the whole container, and the service never calls it scoped.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import httpx2 as httpx

from icefloe.catalog.model import Bucket
from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import ErrorKind, InternalError, InvalidInputError, StorageError
from icefloe.records import Record
from icefloe.service.domain.locations import segments_of
from icefloe.service.vending.grants import Grant, Secret, check_grant, divided
from icefloe.service.vending.network import ask, no_credential, text_field

VERSION: Final = "2022-11-02"
"""The version of the protocol, which says which fields are signed."""
_LOGIN: Final = "https://login.microsoftonline.com"
_AUDIENCE: Final = "https://storage.azure.com/.default"
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LOGIN_NAME: Final = "the login service"
_STORE_NAME: Final = "the store"
_KEY_FIELDS: Final = {
    "skoid": "SignedOid",
    "sktid": "SignedTid",
    "skt": "SignedStart",
    "ske": "SignedExpiry",
    "sks": "SignedService",
    "skv": "SignedVersion",
}
_KEY_NAMES: Final = (*_KEY_FIELDS, "saoid", "suoid", "scid")
_KEY_SECONDS: Final = 3600


class SigningKey(Record):
    """The key that signs a query: a user delegation key with its fields, or an account key."""

    value: bytes
    fields: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return "SigningKey(***)"


def blob_endpoint(bucket: Bucket) -> str:
    """Return the address of the account of a bucket."""
    if bucket.endpoint is None:
        return f"https://{bucket.account}.blob.core.windows.net"
    endpoint = bucket.endpoint.rstrip("/")
    return f"{endpoint}/{bucket.account}" if bucket.path_style else endpoint


def signed_query(grant: Grant, key: SigningKey, end: datetime) -> str:
    """Return a query that allows what a grant says until a moment.

    It is for the folder of the grant, or for the whole container where there are no folders.
    """
    check_grant(grant)
    bucket = grant.bucket
    writes = grant.access is Access.WRITE
    if bucket.hierarchical and len(grant.prefixes) > 1:
        problem = f"a signature is for one folder, not for {len(grant.prefixes)}"
        raise InternalError(problem, ErrorKind.ACCESS_DENIED)
    folders = segments_of(grant.prefixes[0]) if bucket.hierarchical else ()
    resource = "/".join(("", "blob", bucket.account or "", bucket.bucket, *folders))
    query = {
        "sp": ("rcwd" if writes else "r") + ("l" if grant.may_list else ""),
        "se": end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "spr": "https,http" if bucket.allow_http else "https",
        "sv": VERSION,
        "sr": "d" if folders else "c",
    }
    if folders:
        query["sdd"] = str(len(folders))
    if key.fields:
        query |= key.fields
    if key.fields and not bucket.path_style:
        # Logs of the store name who got the query, by an id that the service can compute again.
        # Azurite, which has paths for accounts, refuses queries with such an id.
        query["scid"] = str(uuid.uuid5(uuid.NAMESPACE_OID, f"icefloe:{grant.person}"))
    signed = (
        *(query.get(name, "") for name in ("sp", "st", "se")),
        resource,
        *(query.get(name, "") for name in (_KEY_NAMES if key.fields else ("si",))),
        *(query.get(name, "") for name in ("sip", "spr", "sv", "sr", "snapshot", "ses")),
        *(query.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct")),
    )
    digest = hmac.digest(key.value, "\n".join(signed).encode(), hashlib.sha256)
    query["sig"] = base64.b64encode(digest).decode()
    return urlencode(query, quote_via=quote)


class AzureVendor:
    """Signs queries."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        clock: Callable[[], datetime],
        token_files: Mapping[str, Path] | None = None,
    ) -> None:
        self._client: Final = client
        self._clock: Final = clock
        self._token_files: Final = token_files or {}
        """The tokens by which the service logs in, by organisation."""

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return a grant for each folder; one for all where signatures are for the container."""
        return divided(grant, lambda _: not grant.bucket.hierarchical)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return a query that allows what a grant says; see `signed_query` for its scope."""
        del external_id
        check_grant(grant)
        end = self._clock().replace(microsecond=0) + timedelta(seconds=grant.seconds)
        if "account_key" in secret.values:
            key = SigningKey(_decoded(secret.require("account_key")))
        else:
            key = await self._delegation_key(grant.bucket, secret)
        return CredentialAnswer("azure-sas", {"sas": signed_query(grant, key, end)}, end)

    async def _delegation_key(self, bucket: Bucket, secret: Secret) -> SigningKey:
        """Return a key that signs for an hour, in the name of an application."""
        token = await self._sign_in(bucket, secret)
        start = self._clock() - timedelta(minutes=5)  # the clock of the store may be behind
        end = start + timedelta(minutes=10, seconds=_KEY_SECONDS)
        moments = [moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for moment in (start, end)]
        body = f"<KeyInfo><Start>{moments[0]}</Start><Expiry>{moments[1]}</Expiry></KeyInfo>"
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/xml",
            "x-ms-version": VERSION,
        }
        url = f"{blob_endpoint(bucket)}/?restype=service&comp=userdelegationkey"
        response = await ask(
            self._client, bucket, _STORE_NAME, "POST", url, content=body, headers=headers
        )
        try:
            root = ElementTree.fromstring(response.content)  # noqa: S314 - short, and no entities
        except ElementTree.ParseError:
            raise no_credential(bucket, _STORE_NAME) from None
        fields = {name: root.findtext(theirs) or "" for name, theirs in _KEY_FIELDS.items()}
        value = root.findtext("Value") or ""
        if not value or not all(fields.values()):
            raise no_credential(bucket, _STORE_NAME)
        return SigningKey(_decoded(value), fields)

    async def _sign_in(self, bucket: Bucket, secret: Secret) -> str:
        """Return a token of the organisation's application."""
        form = {
            "grant_type": "client_credentials",
            "client_id": secret.require("client_id"),
            "scope": _AUDIENCE,
        }
        if "client_secret" in secret.values:
            form["client_secret"] = secret.require("client_secret")
        else:
            form["client_assertion_type"] = _ASSERTION_TYPE
            form["client_assertion"] = await asyncio.to_thread(self._token, bucket)
        base = (bucket.sts_endpoint or _LOGIN).rstrip("/")
        url = f"{base}/{quote(secret.require('tenant_id'), safe='')}/oauth2/v2.0/token"
        response = await ask(self._client, bucket, _LOGIN_NAME, "POST", url, data=form)
        return text_field(response, bucket, _LOGIN_NAME, "access_token")

    def _token(self, bucket: Bucket) -> str:
        """Read the token of an organisation, which is renewed in its file."""
        path = self._token_files.get(bucket.organisation)
        problem = f"the service has no token to log in for {bucket.organisation}"
        advice = f"its operators name a file by token_files.{bucket.organisation}"
        if path is None:
            raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
        try:
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{problem}: its file cannot be read", ErrorKind.INVALID_CREDENTIALS
            ) from error
        if not token:
            raise StorageError(f"{problem}: its file is empty", ErrorKind.INVALID_CREDENTIALS)
        return token


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        problem = "the key of the Azure account is not in base64: copy it as the portal shows it"
        raise InvalidInputError(problem, ErrorKind.INVALID_CREDENTIALS) from None
