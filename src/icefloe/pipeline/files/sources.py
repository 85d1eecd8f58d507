"""Which files are to be ingested: globs, listings and URLs to columns.

    url       string          as it will stand in references
    size      int64           bytes
    etag      string          null where the storage has none
    modified  timestamp[us]   null for what was given by name only

Rows come in batches, sorted by URL within each pattern, and no URL twice.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from os import PathLike
from typing import Any, Final, Protocol
from urllib.parse import unquote

from icefloe.effects import iterate_blocking
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.arrow import pa
from icefloe.pipeline.files.access import Place, SourceAccess, as_url
from icefloe.pipeline.files.facts import SourceState, int_column, text_column
from icefloe.storage import ObjectInfo

type Pattern = str | PathLike[str]


class TableSource(Protocol):
    """A table of another library, such as one of Spark."""

    def toArrow(self) -> "pa.Table":  # noqa: N802 - the name that Spark gave it
        """Return its rows."""
        ...


type Sources = "Pattern | Iterable[Pattern] | pa.Table | TableSource"
"""Globs, URLs, or a table (of Arrow or Spark) with the column `url`."""

_MAGIC: Final = re.compile(r"[*?\[{]")
_BATCH_ROWS: Final = 10_000


@lru_cache(maxsize=1)
def source_schema() -> "pa.Schema":
    """Return the columns of a table of sources."""
    return pa.schema(
        [
            pa.field("url", pa.string(), nullable=False),
            pa.field("size", pa.int64()),
            pa.field("etag", pa.string()),
            pa.field("modified", pa.timestamp("us", tz="UTC")),
        ]
    )


def list_sources(
    patterns: Pattern | Iterable[Pattern], access: SourceAccess | None = None
) -> "Iterator[pa.RecordBatch]":
    """List the files that patterns name, in batches of columns.

    A pattern is a path or URL. With `*`, `?`, `[...]`, `{a,b}` or `**` (any number of
    directories) it is matched against the storage's listing; ending in `/` it stands for all
    files below; anything else is taken as a file's own name, without a request. A pattern that
    matches nothing is an error, since the job would silently do less than was asked for.

    >>> [batch] = list_sources("s3://bucket/a.nc")
    >>> batch.column("url").to_pylist()
    ['s3://bucket/a.nc']
    """
    pattern_list = [patterns] if isinstance(patterns, (str, PathLike)) else list(patterns)
    reached = access or SourceAccess()
    seen: set[str] = set()
    rows: list[_Row] = []
    for pattern in pattern_list:
        for row in _matches(as_url(pattern), reached):
            if row[0] not in seen:
                seen.add(row[0])
                rows.append(row)
        while len(rows) >= _BATCH_ROWS:
            yield _batch(rows[:_BATCH_ROWS])
            del rows[:_BATCH_ROWS]
    if rows:
        yield _batch(rows)


def sources_from_table(table: "pa.Table") -> "pa.RecordBatch":
    """Take sources from a table that has at least the column `url`, in its order."""
    schema = source_schema()
    if "url" not in table.column_names:
        raise InvalidInputError(
            f"a table of sources needs the column url, and this one has {table.column_names}",
            ErrorKind.BAD_METADATA,
        )
    columns = [
        table.column(column.name).cast(column.type).combine_chunks()
        if column.name in table.column_names
        else pa.nulls(table.num_rows, column.type)
        for column in schema
    ]
    flat = [
        column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns
    ]
    return pa.RecordBatch.from_arrays(flat, schema=schema)


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


type _Row = tuple[str, int | None, str | None, datetime | None]


def _matches(url: str, access: SourceAccess) -> Sequence[_Row]:
    if not _MAGIC.search(url) and not url.endswith("/"):
        return [(url, None, None, None)]
    fixed = _fixed_part(url)
    source_place = access.place(fixed)
    glob = None if url.endswith("/") else compile_glob(unquote(url[len(source_place.root) :]))
    matches = sorted(
        _row(source_place, info)
        for batch in iterate_blocking(source_place.backend.list(source_place.key))
        for info in batch
        if glob is None or glob.fullmatch(info.key)
    )
    if not matches:
        raise NotFoundError(
            f"no file matches {url!r}: is the path right, and may it be listed?",
            ErrorKind.OBJECT_NOT_FOUND,
            pattern=url,
        )
    return matches


def _row(source_place: Place, info: ObjectInfo) -> _Row:
    return (source_place.url_of(info.key), info.size_bytes, info.version.etag, info.last_modified)


def folder_of(url: str) -> str:
    """Return the folder that all files lie in which a pattern can name.

    >>> folder_of("s3://era5/2020/*/t2m.nc")
    's3://era5/2020/'
    """
    fixed = _fixed_part(url)
    return fixed if fixed.endswith("/") else fixed[: fixed.rindex("/") + 1]


def _fixed_part(url: str) -> str:
    """Return the part before the first special character, up to a slash."""
    match = _MAGIC.search(url)
    return url if match is None else url[: url.rindex("/", 0, match.start()) + 1]


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Make a regular expression of a glob over whole keys.

    >>> compile_glob("a/**/t_{min,max}_*.nc").fullmatch("a/2020/01/t_min_1.nc") is not None
    True
    >>> compile_glob("a/*.nc").fullmatch("a/b/c.nc") is None
    True
    """
    parts: list[str] = []
    position = depth = 0
    while position < len(pattern):
        sign = pattern[position]
        if pattern.startswith("**/", position):
            parts.append("(?:.*/)?")
            position += 3
            continue
        if pattern.startswith("**", position):
            parts.append(".*")
            position += 2
            continue
        if sign == "[" and (end := pattern.find("]", position + 2)) > 0:
            inside = pattern[position + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            parts.append(f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]")
            position = end + 1
            continue
        if sign == "{" and "}" in pattern[position:]:
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
            parts.append(")")
            position += 1
            continue
        parts.append(_translated(sign, in_braces=depth > 0))
        position += 1
    return re.compile("".join(parts), re.DOTALL)


def _translated(sign: str, *, in_braces: bool) -> str:
    match sign:
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case "{" if in_braces:
            return "(?:"
        case "," if in_braces:
            return "|"
        case _:
            return re.escape(sign)


def _batch(rows: Sequence[_Row]) -> "pa.RecordBatch":
    moments = [None if row[3] is None else microseconds(row[3]) for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            text_column([row[0] for row in rows]),
            int_column([row[1] for row in rows]),
            text_column([row[2] for row in rows]),
            int_column(moments).cast(pa.timestamp("us", tz="UTC")),
        ],
        schema=source_schema(),
    )


def microseconds(moment: datetime) -> int:
    """Count microseconds since 1970."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)
