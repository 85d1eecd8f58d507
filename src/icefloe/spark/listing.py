"""Sources in all forms in which users have them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.pipeline.access import SourceAccess, as_url
from icefloe.pipeline.facts import SourceState
from icefloe.pipeline.sources import Pattern, list_sources, sources_from_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

type Sources = "Pattern | Iterable[Pattern] | pa.Table | DataFrame"
"""Globs, URLs, or a table (of Arrow or Spark) with the column `url`."""


def list_states(sources: "Sources", access: SourceAccess) -> list[SourceState]:
    """List all files, each once, with what is known of their state."""
    table: Any = sources.toArrow() if hasattr(sources, "toArrow") else sources
    if isinstance(table, pa.Table):
        batches: Iterable[pa.RecordBatch] = [sources_from_table(table)]
    else:
        batches = list_sources(table, access)
    found: dict[str, SourceState] = {}
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
            found.setdefault(state.url, state)
    return list(found.values())
