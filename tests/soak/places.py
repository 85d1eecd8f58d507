"""Where a soak takes place: storages that fail now and then, and the same ones without faults."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Unpack

import icechunk

import icefloe
from icefloe.errors import ErrorKind, OutcomeUnknownError, StorageError
from icefloe.storage import Storage
from icefloe.storage.port import Buffer, PutOptions, Version
from icefloe.storage.wrapper import PrecededBackend
from icefloe.testing.schedules import WrappedStorage
from tests.conformance.storages import s3_storage_at
from tests.support.loopback import serving
from tests.support.proxy import (
    AnswerInstead,
    CutBody,
    CuttingProxy,
    Delay,
    LoseRequest,
    LoseResponse,
    ProxyFault,
)
from tests.support.servers import S3Endpoint

FAULT_RATE: Final = 0.01
"""The share of requests that fail."""

_FAULTS: Final[tuple[ProxyFault, ...]] = (
    LoseRequest(),
    LoseResponse(),
    CutBody(after_bytes=10),
    AnswerInstead(status=HTTPStatus.SERVICE_UNAVAILABLE),
    AnswerInstead(status=HTTPStatus.INTERNAL_SERVER_ERROR, after_forwarding=True),
    Delay(seconds=0.2),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A storage as the workers see it, and as a calm reader of each library sees it."""

    name: str
    working: Storage
    calm: Storage
    peer: icechunk.Storage


class UnreliableBackend(PrecededBackend):
    """Fails some requests, and loses the answers of some writes."""

    async def _before(self, *keys: str, writes: bool) -> None:
        if _strikes():
            raise StorageError("the disk did not answer", ErrorKind.IO, key=keys[0], retryable=True)

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        """Write, and sometimes do not report that it worked."""
        version = await super().put(key, data, **options)
        if _strikes():
            raise OutcomeUnknownError(f"no answer to the write of {key!r}", key=key)
        return version


class UnreliableStorage(WrappedStorage):
    """A storage of unreliable backends, which can be sent to other processes."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner, UnreliableBackend)

    def __reduce__(self) -> tuple[Any, ...]:
        return (UnreliableStorage, (self._inner,))


class UnreliableProxy(CuttingProxy):
    """Forwards requests to a server; some of them fail."""

    def fault_for(self, method: str, path: str) -> ProxyFault | None:
        """Choose whether a request fails, and how."""
        return random.choice(_FAULTS) if _strikes() else None


def _strikes() -> bool:
    return random.random() < FAULT_RATE


def local_place(folder: Path) -> Place:
    """Return a folder whose requests sometimes fail."""
    calm = icefloe.local_filesystem_storage(str(folder))
    peer = icechunk.local_filesystem_storage(str(folder))
    return Place("local", UnreliableStorage(calm), calm, peer)


@contextmanager
def s3_place(endpoint: S3Endpoint, prefix: str) -> Iterator[Place]:
    """Return a prefix of a bucket, behind a proxy that breaks connections."""
    with serving(UnreliableProxy(endpoint.url)) as proxy:
        peer = icechunk.s3_storage(
            bucket=endpoint.bucket,
            prefix=prefix,
            region=endpoint.region,
            endpoint_url=endpoint.url,
            allow_http=True,
            force_path_style=True,
            access_key_id=endpoint.access_key_id,
            secret_access_key=endpoint.secret_access_key,
        )
        working = s3_storage_at(endpoint, prefix, url=proxy.url)
        yield Place("S3", working, s3_storage_at(endpoint, prefix), peer)
