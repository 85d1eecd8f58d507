"""Credentials of AWS and of stores that speak its STS: AssumeRole with a session policy.

The role may do more than any single credential: the session policy cuts it down to prefixes of
one bucket, as many as it has room for. A store that ignores session policies would hand out the
whole role, which is why a bucket is probed before anybody else gets credentials for it.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx2 as httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from icefloe.catalog.model import Bucket
from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import ErrorKind, InternalError, StorageError
from icefloe.service.vending.grants import Grant, Secret, check_grant, divided
from icefloe.service.vending.network import ask, no_credential

_LONGEST_POLICY: Final = 2048
_TOO_LARGE: Final = "PackedPolicyTooLarge"
_WHO: Final = "the STS"
_READ: Final = ("s3:GetObject",)
_WRITE: Final = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)


def session_policy(grant: Grant) -> str:
    """Return the policy that cuts a role down to a grant.

    >>> from icefloe.catalog.model import Bucket, Platform
    >>> bucket = Bucket("lab", "main", Platform.S3, "data", "era5/")
    >>> print(session_policy(Grant(bucket, ("era5/daily/",), "ada", may_list=False)))
    {"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject"],\
"Resource":["arn:aws:s3:::data/era5/daily/*"]}]}
    """
    policy = _policy(grant)
    if len(policy) > _LONGEST_POLICY:
        problem = f"the prefixes {grant.prefixes!r} are too long for a session policy"
        raise InternalError(problem, ErrorKind.ACCESS_DENIED)
    return policy


def _policy(grant: Grant) -> str:
    check_grant(grant)
    writes = grant.access is Access.WRITE
    name = f"arn:aws:s3:::{grant.bucket.bucket}"
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": list(_WRITE if writes else _READ),
            "Resource": [f"{name}/{prefix}*" for prefix in grant.prefixes],
        }
    ]
    if grant.may_list:
        listing = ["s3:ListBucket", *(["s3:ListBucketMultipartUploads"] if writes else [])]
        statement: dict[str, Any] = {"Effect": "Allow", "Action": listing, "Resource": [name]}
        if "" not in grant.prefixes:
            below = [f"{prefix}*" for prefix in grant.prefixes]
            statement["Condition"] = {"StringLike": {"s3:prefix": below}}
        statements.append(statement)
    if grant.bucket.kms_key:
        actions = ["kms:Decrypt", *(["kms:GenerateDataKey"] if writes else [])]
        statements.append(
            {"Effect": "Allow", "Action": actions, "Resource": [grant.bucket.kms_key]}
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


@lru_cache(maxsize=1000)
def _divided(grant: Grant, longest: int) -> tuple[Grant, ...]:
    """Divide a grant by the length of session policies; the same one is asked about often."""
    return divided(grant, lambda part: len(_policy(part)) <= longest)


class StsVendor:
    """Asks an STS for credentials.

    Amazon's also packs a session policy, in a way that it does not tell, and refuses what is too
    large then. After that, grants are divided into smaller ones.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client: Final = client
        self._longest = _LONGEST_POLICY

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return grants whose session policies are short enough."""
        return _divided(grant, self._longest)

    def form_of(self, grant: Grant, external_id: str) -> dict[str, str]:
        """Return the fields of the request for a credential."""
        return {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": grant.bucket.role or "",
            "RoleSessionName": f"icefloe-{grant.person}"[:64],
            "DurationSeconds": str(grant.seconds),
            "ExternalId": external_id,
            "Policy": session_policy(grant),
        }

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return a credential that allows what a grant says, and nothing else."""
        bucket = grant.bucket
        form = self.form_of(grant, external_id)
        region = bucket.region or "us-east-1"
        url = bucket.sts_endpoint or f"https://sts.{region}.amazonaws.com/"
        keys = Credentials(
            secret.require("access_key_id"),
            secret.require("secret_access_key"),
            secret.values.get("session_token"),
        )
        request = AWSRequest(
            method="POST",
            url=url,
            data=urlencode(form),
            headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
        )
        SigV4Auth(keys, "sts", region).add_auth(request)
        signed = request.prepare()
        body, headers = signed.body, signed.headers
        try:
            response = await ask(
                self._client,
                bucket,
                _WHO,
                "POST",
                url,
                code=_TOO_LARGE,
                content=body,
                headers=headers,
            )
        except StorageError as error:
            if error.context.get("code") != _TOO_LARGE or len(grant.prefixes) == 1:
                raise
            self._longest = min(self._longest, len(form["Policy"]) * 3 // 4)
            problem = f"{_WHO} of bucket {bucket.organisation}/{bucket.name} wants shorter policies"
            kind = ErrorKind.INVALID_CREDENTIALS
            raise StorageError(f"{problem}: ask again", kind, retryable=True) from error
        return _read(bucket, response)


def _read(bucket: Bucket, response: httpx.Response) -> CredentialAnswer:
    """Read the answer of an STS."""
    root = _parsed(response)
    values = {
        "access_key_id": _text(root, "AccessKeyId"),
        "secret_access_key": _text(root, "SecretAccessKey"),
        "session_token": _text(root, "SessionToken"),
    }
    end = _text(root, "Expiration")
    if end is None or not all(values.values()):
        raise no_credential(bucket, _WHO)
    complete = {name: value for name, value in values.items() if value is not None}
    return CredentialAnswer("s3", complete, datetime.fromisoformat(end))


def _parsed(response: httpx.Response) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(response.content)  # noqa: S314 - short, and no entities
    except ElementTree.ParseError:
        return None


def _text(root: ElementTree.Element | None, name: str) -> str | None:
    """Return the text of the first element of a name, in whatever namespace."""
    for element in root.iter() if root is not None else ():
        if element.tag.rpartition("}")[2] == name:
            return element.text
    return None
