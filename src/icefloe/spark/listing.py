"""Sources in all forms in which users have them."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError
from icefloe.format.arrow import pa
from icefloe.pipeline.files.access import SourceAccess, as_url
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.formats import format_of_name
from icefloe.pipeline.files.sources import Pattern, list_sources, microseconds, sources_from_table
from icefloe.pipeline.provenance.records import SourceRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

type Sources = "Pattern | Iterable[Pattern] | pa.Table | DataFrame"
"""Globs, URLs, or a table (of Arrow or Spark) with the column `url`."""

_REQUESTS_AT_ONCE: Final = 32


def list_states(sources: "Sources", access: SourceAccess) -> list[SourceState]:
    """List all files, each once, with what is known of their state."""
    table: Any = sources.toArrow() if hasattr(sources, "toArrow") else sources
    if isinstance(table, pa.Table):
        batches: Iterable[pa.RecordBatch] = [sources_from_table(table)]
    else:
        batches = list_sources(table, access)
    states: dict[str, SourceState] = {}
    for batch in batches:
        columns = (
            batch.column("url").to_pylist(),
            batch.column("size").to_pylist(),
            batch.column("etag").to_pylist(),
            batch.column("modified").cast("int64").to_pylist(),
        )
        for url, size, etag, modified in zip(*columns, strict=True):
            if url is None:
                raise InvalidInputError("a source has no URL", ErrorKind.CANNOT_PARSE_URL)
            state = SourceState(as_url(url), size, etag, modified)
            states.setdefault(state.url, state)
    return list(states.values())


def look_at_known(
    states: Sequence[SourceState], record: SourceRecord | None, access: SourceAccess
) -> list[SourceState]:
    """Ask for the state of files that were given by name only, if they were ingested before.

    Without that nobody would notice that they changed. One that is gone stays as it was given.
    """
    recorded = {} if record is None else record.by_url()
    rows = [
        row
        for row, state in enumerate(states)
        if state.url in recorded and _says_nothing(state) and not _is_directory(state.url)
    ]
    urls = [states[row].url for row in rows]
    present = run_blocking(map_concurrently(partial(_look, access), urls, limit=_REQUESTS_AT_ONCE))
    looked = list(states)
    for row, state in zip(rows, present, strict=True):
        looked[row] = state
    return looked


def _says_nothing(state: SourceState) -> bool:
    return state.size is None and state.etag is None and state.modified is None


def _is_directory(url: str) -> bool:
    by_name = format_of_name(url)
    return by_name is not None and by_name.is_directory


async def _look(access: SourceAccess, url: str) -> SourceState:
    source_place = access.place(url)
    try:
        info = (await source_place.backend.head(source_place.key)).info
    except ObjectNotFoundError:
        return SourceState(url)
    return SourceState(url, info.size_bytes, info.version.etag, microseconds(info.last_modified))
