"""`icefloe inspect`: any metadata file of a repository, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.common import RepositoryArgument, place_of, show_json
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.format import DEFAULT_MAX_ROWS

if TYPE_CHECKING:
    from icefloe.format.ids import IdPrefix
    from icefloe.storage import Backend


def inspect(
    url: RepositoryArgument,
    path: Annotated[
        str | None,
        typer.Argument(
            help="A file, such as snapshots/ID, or an id, or the first characters of the id of a"
            " snapshot. [default: the repository]"
        ),
    ] = None,
    *,
    max_rows: Annotated[
        int, typer.Option(help="Show at most this many entries of each list.", min=0)
    ] = DEFAULT_MAX_ROWS,
    anonymous: Annotated[bool, typer.Option(help="Send no credentials.")] = False,
) -> None:
    """Print any metadata file of a repository as JSON.

    Examples: icefloe inspect ./repo;  icefloe inspect ./repo snapshots/1CECHNKREP0F1RSTCMT0
    """
    from icefloe.effects import run_blocking

    backend = place_of(url, anonymous=anonymous).storage.open()
    described = run_blocking(describe(backend, path, max_rows))
    show_json(described)


async def describe(backend: Backend, path: str | None, max_rows: int) -> Any:
    """Describe a file, or the repository as a whole."""
    from icefloe.format.layout import CHUNKS_PREFIX, CONFIG_KEY, REPO_KEY

    if path is None:
        return await _describe_repository(backend, max_rows)
    key = path.strip("/")
    if key.startswith(CHUNKS_PREFIX):
        raise InvalidInputError(
            f"{key} holds the encoded bytes of a chunk, not metadata: there is nothing to describe",
            ErrorKind.INVALID_KEY,
        )
    if "/" not in key and key not in {REPO_KEY, CONFIG_KEY}:
        key = await _find(backend, key)
    return _describe_object(key, bytes((await backend.get(key)).data), max_rows)


def _describe_object(key: str, data: bytes, max_rows: int) -> Any:
    from icefloe.format.config_file import decode_config_yaml, encode_config_flexbuffer
    from icefloe.format.description import describe_file
    from icefloe.format.envelope import MAGIC
    from icefloe.format.flexbuffers import decode_flexbuffer
    from icefloe.format.layout import BACKUPS_PREFIX, CONFIG_KEY, REFS_PREFIX

    if data.startswith(MAGIC):
        return describe_file(data, max_rows)
    if key == CONFIG_KEY or key.startswith(f"{BACKUPS_PREFIX}{CONFIG_KEY}"):
        return {"config": decode_flexbuffer(encode_config_flexbuffer(decode_config_yaml(data)))}
    if key.startswith(REFS_PREFIX):
        return {"deleted": True} if not data else _describe_ref(key, data)
    return describe_file(data, max_rows)


def _describe_ref(key: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise FormatError(f"{key} is not JSON: {error}") from error


async def _find(backend: Backend, name: str) -> str:
    """Find which kind of file an id names; snapshots come first."""
    from icefloe.format.ids import SHOWN_LENGTH, IdPrefix, SnapshotId
    from icefloe.format.layout import MANIFESTS_PREFIX, SNAPSHOTS_PREFIX, TRANSACTIONS_PREFIX
    from icefloe.repo.history import LEAST_PREFIX

    beginning = IdPrefix.parse(name)
    if LEAST_PREFIX <= len(name) < SHOWN_LENGTH and beginning is not None:
        name = await _complete(backend, name, beginning)
    SnapshotId.parse(name)  # teaches what an id looks like when this is none
    for prefix in (SNAPSHOTS_PREFIX, MANIFESTS_PREFIX, TRANSACTIONS_PREFIX):
        try:
            await backend.head(key := f"{prefix}{name.upper()}")
        except ObjectNotFoundError:
            continue
        return key
    raise ObjectNotFoundError(
        f"no snapshot, manifest or transaction log is called {name}: "
        "`icefloe inspect URL` lists the snapshots"
    )


async def _complete(backend: Backend, text: str, prefix: IdPrefix) -> str:
    """Find the snapshot whose id begins so; the text itself if there is none."""
    from icefloe.cli.versions import ambiguous
    from icefloe.format.ids import SHOWN_LENGTH, IdPrefix, SnapshotId
    from icefloe.format.layout import SNAPSHOTS_PREFIX

    names = [
        name
        async for batch in backend.list(SNAPSHOTS_PREFIX)
        for info in batch
        if len(name := info.key.rpartition("/")[2]) == SHOWN_LENGTH
        and (whole := IdPrefix.parse(name)) is not None
        and prefix.fits(SnapshotId(whole.raw))
    ]
    if len(names) > 1:
        raise ambiguous(text, sorted(names), "give more characters")
    return names[0] if names else text


async def _describe_repository(backend: Backend, max_rows: int) -> Any:
    from icefloe.format.layout import REPO_KEY

    try:
        return _describe_object(REPO_KEY, bytes((await backend.get(REPO_KEY)).data), max_rows)
    except ObjectNotFoundError:
        return await _describe_spec_1(backend, max_rows)


async def _describe_spec_1(backend: Backend, max_rows: int) -> Any:
    """Gather refs and configuration, which spec 1 keeps in files of their own."""
    from icefloe.format.layout import CONFIG_KEY, REFS_PREFIX

    keys = [info.key async for batch in backend.list(REFS_PREFIX) for info in batch]
    if not keys:
        raise RepositoryNotFoundError(
            "there is no repository here: neither a repo object nor refs. Check the URL"
        )
    refs = {
        key: _describe_object(key, bytes((await backend.get(key)).data), max_rows)
        for key in sorted(keys)
    }
    described = {"spec_version": "1.0", "refs": refs}
    try:
        config = bytes((await backend.get(CONFIG_KEY)).data)
    except ObjectNotFoundError:
        return described
    return described | _describe_object(CONFIG_KEY, config, max_rows)
