"""Repositories as somebody with bad intentions writes them, and servers that lie in wait."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

import icefloe
from icefloe import Repository
from icefloe.config import RepositoryConfig
from icefloe.credentials import AnyCredential
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.flexbuffers import encode_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.records import replace
from icefloe.transactions.chunks import put_ref
from icefloe.transactions.nodes import require_array
from tests.support.loopback import LoopbackHandler, LoopbackServer, serving

LENGTH = 6
"""How many bytes each chunk of a forged repository decodes to."""


@dataclass(frozen=True, slots=True)
class Forged:
    """A container as it is to stand in the stored configuration, whether that is allowed or not."""

    url_prefix: str
    store: Mapping[str, JsonValue]
    """The kind of store, and its content."""
    key: str | None = None
    """What it is listed under, if not under its prefix."""
    name: str | None = None

    @property
    def entry(self) -> tuple[str, JsonValue]:
        content: JsonValue = {
            "url_prefix": self.url_prefix,
            "store": dict(self.store),
            "name": self.name,
        }
        return self.key or self.url_prefix, content


def forge(
    folder: Path,
    containers: Sequence[Forged],
    chunks: Sequence[VirtualChunk | str],
    spec_version: int,
) -> Path:
    """Write a repository with an array `a` of these chunks, and this configuration.

    Locations are written as they are, past all that is checked where chunks are recorded.
    """
    repository = Repository.create(
        icefloe.local_filesystem_storage(str(folder)), spec_version=spec_version
    )
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=(LENGTH * len(chunks),),
        chunks=(LENGTH,),
        dtype="u1",
        compressors=None,
    )
    state = session._session
    node = require_array(state, "/a")
    for number, chunk in enumerate(chunks):
        ref = VirtualChunk(chunk, 0, LENGTH) if isinstance(chunk, str) else chunk
        put_ref(state, node, (number,), ref)
    session.commit("chunks that nobody checked")
    plant_config(folder, containers, spec_version)
    return folder


def plant_config(folder: Path, containers: Sequence[Forged], spec_version: int) -> None:
    tree: JsonValue = {"virtual_chunk_containers": dict(each.entry for each in containers)}
    if spec_version == 1:
        (folder / "config.yaml").write_text(json.dumps(tree))  # which is YAML, too
        return
    stored = decode_repo_info((folder / "repo").read_bytes())
    planted = replace(stored, config=encode_flexbuffer(tree))
    (folder / "repo").write_bytes(encode_repo_info(planted))


def opened(
    folder: Path,
    access: Mapping[str, AnyCredential | None] | None = None,
    config: RepositoryConfig | None = None,
) -> Repository:
    return Repository.open(
        icefloe.local_filesystem_storage(str(folder)),
        config,
        authorize_virtual_chunk_access=dict(access or {}),
    )


def chunk_of(repository: Repository, number: int = 0) -> bytes:
    """Read a chunk as users do, through zarr."""
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    return np.asarray(array[number * LENGTH : (number + 1) * LENGTH]).tobytes()


@dataclass(frozen=True, slots=True)
class Heard:
    """A request that came to somebody who lay in wait."""

    line: str
    headers: dict[str, str] = field(repr=False)


class Listener(LoopbackServer):
    """Answers whoever comes with what they want to hear, and takes notes.

    Connections count, too: of one that is encrypted nothing else is understood.
    """

    def __init__(self, answers: bytes = b"BAIT!!") -> None:
        super().__init__(_Listening)
        self.answers = answers
        self._heard: list[Heard] = []
        self._connections = 0
        self._state = threading.Lock()

    @property
    def heard(self) -> list[Heard]:
        with self._state:
            return list(self._heard)

    @property
    def connections(self) -> int:
        with self._state:
            return self._connections

    @property
    def authority(self) -> str:
        return self.url.removeprefix("http://")

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._state:
            self._connections += 1
        super().process_request(request, client_address)

    def record(self, heard: Heard) -> None:
        with self._state:
            self._heard.append(heard)


class _Listening(LoopbackHandler):
    def respond(self) -> None:
        listener = cast("Listener", self.server)
        self.read_body()
        listener.record(Heard(f"{self.command} {self.path}", dict(self.headers.items())))
        size = len(listener.answers)
        headers = {
            "ETag": '"bait"',
            "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
            "Content-Range": f"bytes 0-{size - 1}/{size}",
        }
        self.answer(206 if "Range" in self.headers else 200, listener.answers, headers)

    def send_error(self, *args: object, **options: object) -> None:
        """Hang up on what is no request, such as the beginning of an encrypted talk."""
        self.close_connection = True


@contextmanager
def listener() -> Iterator[Listener]:
    """Lie in wait at an address of this machine."""
    with serving(Listener()) as server:
        yield server
