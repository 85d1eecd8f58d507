"""The stage that parses files: each one once, on executors.

Rows that come out are of two kinds. Those without a path hold the facts of many files, and are
gathered by the driver. The others hold the references of one array of one file; Spark keeps them
on the disks of executors until they are written, and nobody gathers them.
"""

from collections.abc import Iterator, Sequence
from itertools import batched
from typing import TYPE_CHECKING, Any, Final

from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import (
    FileFacts,
    Problem,
    SourceState,
    binary_column,
    from_batches,
    int_column,
    text_column,
    to_batch,
)
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.schema import Kind
from icefloe.pipeline.planning import scan_tasks
from icefloe.pipeline.writing.plans import stamp
from icefloe.repo.context import RepoContext
from icefloe.spark.workers import Shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCANNED: Final = "number long, path string, stamp string, payload binary"

_FILES_AT_ONCE: Final = 64
"""So many files are parsed before their rows leave the worker."""


def scan(
    spark: "SparkSession",
    sources: Sequence[SourceState],
    options: ParseOptions,
    reach: Shipped,
    *,
    cores: int,
) -> "DataFrame":
    """Plan the parsing of files; nothing is done before somebody asks for rows."""
    tasks = scan_tasks(len(sources), cores)
    rows = spark.createDataFrame(_source_table(sources, tasks))
    return rows.repartitionById(tasks, "slice").mapInArrow(_scanner(options, reach), SCANNED)


def gather_facts(scanned: "DataFrame", sources: Sequence[SourceState]) -> list[FileFacts]:
    """Fetch the facts of all files, in the order of the sources."""
    packed = scanned.where("path is null").select("payload").toArrow()
    batches = (
        batch for row in packed.column("payload").to_pylist() for batch in pa.ipc.open_stream(row)
    )
    by_url = {fact.url: fact for fact in from_batches(batches)}
    return [by_url[source.url] for source in sources]


def _source_table(sources: Sequence[SourceState], slices: int) -> "pa.Table":
    numbers = list(range(len(sources)))
    return pa.table(
        {
            "number": int_column(numbers),
            "slice": int_column([number % slices for number in numbers]).cast(pa.int32()),
            "url": text_column([source.url for source in sources]),
            "size": int_column([source.size for source in sources]),
            "etag": text_column([source.etag for source in sources]),
            "modified": int_column([source.modified for source in sources]),
        }
    )


def _scanner(options: ParseOptions, reach: Shipped) -> Any:
    # What Spark pickles is this much only: the rest is imported where it runs.
    def scan_files(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _scan_files(batches, options, reach)

    return scan_files


def _scan_files(
    batches: "Iterator[pa.RecordBatch]", options: ParseOptions, reach: Shipped
) -> "Iterator[pa.RecordBatch]":
    context, access = reach()
    rows = (row for batch in batches for row in batch.to_pylist())
    for some in batched(rows, _FILES_AT_ONCE):
        yield _scan_some(some, options, context, access)


def _scan_some(
    rows: Sequence[dict[str, Any]],
    options: ParseOptions,
    context: RepoContext,
    access: SourceAccess,
) -> "pa.RecordBatch":
    numbers: list[int | None] = [None]
    paths: list[str | None] = [None]
    stamps: list[str | None] = [None]
    payloads: list[bytes] = [b""]
    facts = []
    for row in rows:
        listed = SourceState(row["url"], row["size"], row["etag"], row["modified"])
        parsed = parse_or_report(listed.url, options, access, listed=listed)
        if isinstance(parsed, ParsedFile):
            parsed = _uncovered(parsed, context) or parsed
        if isinstance(parsed, FileFacts):
            facts.append(parsed)
            continue
        facts.append(parsed.facts)
        for path, references in parsed.references.items():
            if path not in parsed.facts.values:  # also if it is empty: it may not have been
                numbers.append(row["number"])
                paths.append(path)
                stamps.append(stamp(parsed.facts.state))
                payloads.append(references.to_bytes())
    payloads[0] = _packed(to_batch(facts))
    return pa.RecordBatch.from_arrays(
        [int_column(numbers), text_column(paths), text_column(stamps), binary_column(payloads)],
        names=["number", "path", "stamp", "payload"],
    )


def _uncovered(parsed: ParsedFile, context: RepoContext) -> FileFacts | None:
    """Refuse a file with data where nobody may read it."""
    texts = sorted(
        {text for reference in parsed.references.values() for text in reference.locations}
    )
    _, is_refused = context.virtual.recorded(BytesColumn.from_strings(texts), validate=True)
    if is_refused is None or not is_refused.any():
        return None
    refused = texts[int(is_refused.argmax())]
    message = (
        f"no virtual chunk container covers {refused}: add one to the repository's configuration"
    )
    return FileFacts(parsed.facts.state, problem=Problem(Kind.UNCOVERED, message))


def _packed(batch: "pa.RecordBatch") -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
