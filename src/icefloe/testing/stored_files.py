"""All files of a repository, read once and decoded once, for `testing.invariants`."""

import hashlib
from typing import cast

from icefloe.maintenance.verify.files import CheckedFiles, Decoder
from icefloe.maintenance.verify.findings import Findings
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import Backend, Buffer


async def read_all(backend: Backend) -> dict[str, bytes]:
    """Read every object of a storage."""
    infos = [info async for batch in backend.list() for info in batch]
    return {info.key: bytes((await backend.get(info.key)).data) for info in infos}


async def kept_in_memory(contents: dict[str, bytes]) -> Backend:
    """Return a storage with the same objects, which nobody else changes."""
    backend = MemoryBackend()
    for key, data in contents.items():
        await backend.put(key, data)
    return backend


def digest(data: Buffer) -> bytes:
    """Return a digest of contents."""
    return hashlib.blake2b(data, digest_size=16).digest()


class DecodedFiles:
    """Files decoded before: they never change, so neither does what they say."""

    def __init__(self) -> None:
        self._by_content: dict[tuple[str, bytes], object] = {}

    def reader(self, backend: Backend, findings: Findings) -> CheckedFiles:
        """Return a reader of the files of a storage that decodes only new files."""
        return _RememberingFiles(backend, findings, self._by_content)


class _RememberingFiles(CheckedFiles):
    def __init__(
        self, backend: Backend, findings: Findings, decoded: dict[tuple[str, bytes], object]
    ) -> None:
        super().__init__(backend, findings)
        self._decoded = decoded

    async def decode[T](self, key: str, data: Buffer, decoder: Decoder[T]) -> T:
        cache_key = (key, digest(data))
        if cache_key not in self._decoded:
            self._decoded[cache_key] = await super().decode(key, data, decoder)
        return cast("T", self._decoded[cache_key])
