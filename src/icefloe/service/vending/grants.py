"""The rights of a credential, in checked names only.

A grant is made of what the service knows by itself: a registered bucket and prefixes in it. The
names go into policies of clouds, some of which give `*`, `?` and `$` a meaning. So they are
checked here once more, whatever was checked before, and never escaped.
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

from icefloe.catalog.model import BUCKET_NAME, PREFIX, Bucket
from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import ErrorKind, InternalError, InvalidInputError
from icefloe.records import Record, replace

_BUCKET: Final = re.compile(BUCKET_NAME)
_PREFIX: Final = re.compile(PREFIX)
_PERSON: Final = re.compile(r"[a-z0-9._-]{1,64}")
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,32}")
_KMS_KEY: Final = re.compile(r"arn:[A-Za-z0-9:/_-]{10,500}")
SHORTEST_SECONDS: Final = 900
LONGEST_SECONDS: Final = 3600


class Grant(Record):
    """The rights of a person in parts of a bucket, for a limited time."""

    bucket: Bucket
    prefixes: tuple[str, ...]
    """In order. They begin at the bucket as a whole: each includes that of the registration."""
    person: str
    """In whose name the credential is made."""
    access: Access = Access.READ
    may_list: bool = True
    seconds: int = 3600


class Secret(Record):
    """The keys that the service itself authenticates with, from the vault."""

    values: dict[str, str]

    def require(self, name: str) -> str:
        """Return a key; raise `InvalidInputError` if the bucket was registered without it."""
        if name not in self.values:
            problem = f"the service has no {name} for this bucket"
            remedy = "an admin can set the secrets of the bucket again"
            raise InvalidInputError(f"{problem}: {remedy}", ErrorKind.INVALID_CONFIG)
        return self.values[name]

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret does not leave its process")


class Vendor(Protocol):
    """Makes credentials for one way of delegation."""

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return a credential that allows what a grant says, and nothing else."""

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return grants that together say what a grant says: a credential is made for each."""


def divided(grant: Grant, fits: Callable[[Grant], bool]) -> tuple[Grant, ...]:
    """Divide the prefixes of a grant among few grants that fit, each into the first with room.

    A grant with a single prefix is not divided, whether it fits or not.

    >>> from icefloe.catalog.model import Platform
    >>> grant = Grant(Bucket("lab", "main", Platform.S3, "data"), ("a/", "b/", "c/"), "ada")
    >>> [part.prefixes for part in divided(grant, lambda part: len(part.prefixes) <= 2)]
    [('a/', 'b/'), ('c/',)]
    """
    if len(grant.prefixes) == 1 or fits(grant):
        return (grant,)
    parts: list[Grant] = []
    for prefix in grant.prefixes:
        for number, part in enumerate(parts):
            larger = replace(part, prefixes=(*part.prefixes, prefix))
            if fits(larger):
                parts[number] = larger
                break
        else:
            parts.append(replace(grant, prefixes=(prefix,)))
    return tuple(parts)


def check_grant(grant: Grant) -> None:
    """Raise an error for a grant with a name that could mean more than it says."""
    bucket = grant.bucket
    is_plain = (
        _BUCKET.fullmatch(bucket.bucket)
        and _PREFIX.fullmatch(bucket.prefix)
        and all(map(_PREFIX.fullmatch, grant.prefixes))
        and _PERSON.fullmatch(grant.person)
        and (bucket.account is None or _ACCOUNT.fullmatch(bucket.account))
        and (bucket.kms_key is None or _KMS_KEY.fullmatch(bucket.kms_key))
    )
    if not is_plain:
        problem = f"no credential is made for {bucket.bucket!r} {grant.prefixes!r}"
        raise InternalError(f"{problem}: a name is not plain", ErrorKind.ACCESS_DENIED)
    if not grant.prefixes or [*grant.prefixes] != sorted({*grant.prefixes}):
        problem = f"no credential is made for {grant.prefixes!r}: they are not in order"
        raise InternalError(problem, ErrorKind.ACCESS_DENIED)
    for prefix in grant.prefixes:
        if not prefix.startswith(bucket.prefix):
            problem = f"no credential is made for {prefix!r}: it is outside of the bucket's part"
            raise InternalError(problem, ErrorKind.ACCESS_DENIED)
    if not SHORTEST_SECONDS <= grant.seconds <= LONGEST_SECONDS:
        problem = f"no credential is made for {grant.seconds} seconds"
        limits = f"it lives from {SHORTEST_SECONDS} to {LONGEST_SECONDS} seconds"
        raise InternalError(f"{problem}: {limits}", ErrorKind.ACCESS_DENIED)
