"""A round trip: writers that race on a plain folder, and a manifest of a million references."""

import argparse
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from icefloe import local_filesystem_storage
from icefloe.effects import run_blocking
from icefloe.errors import PreconditionFailedError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ManifestFile, encode_manifest

REFERENCES_PER_FILE = 10
COUNTER = "counter"


def main() -> None:
    """Run both parts and show what happened."""
    options = parse_options()
    console = Console()
    shutil.rmtree(options.folder, ignore_errors=True)
    race(console, options.folder, options.processes, options.increments)
    key = round_trip(console, options.folder, options.references)
    console.print("\n[bold]Next[/bold]")
    inspect = f".venv/bin/icefloe inspect {options.folder} {key}"
    console.print(f"  look inside      {inspect}", soft_wrap=True)
    console.print("  see the code     examples/demo.py")
    console.print("  paste along      docs/tutorial/first-round-trip.md")
    console.print("  run every test   make test")


def parse_options() -> argparse.Namespace:
    """Read sizes, for those who want others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--increments", type=int, default=100)
    parser.add_argument("--references", type=int, default=1_000_000)
    return parser.parse_args()


def race(console: Console, folder: Path, processes: int, increments: int) -> None:
    """Let processes count together on one object; none of their writes may be lost."""
    console.rule("Writers racing on a plain folder")
    storage = local_filesystem_storage(str(folder)).open()
    run_blocking(storage.put(COUNTER, b"0", if_absent=True))
    work = partial(count_up, str(folder), increments)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        seconds, lost_races = timed(lambda: sum(pool.map(work, range(processes))))
    total = int(bytes(run_blocking(storage.get(COUNTER)).data))
    console.print(
        f"{processes} processes added 1 to one object {increments} times each, by compare-and-swap"
        f" ({seconds:.1f} s with their start)."
    )
    console.print(
        f"They lost {lost_races} races and tried again; the counter says [bold]{total}[/bold]."
    )
    if total != processes * increments:
        raise SystemExit(f"writes were lost: expected {processes * increments}")


def count_up(folder: str, increments: int, _writer: int) -> int:
    """Add to the counter as one of many writers; tell how many races were lost."""
    storage, lost_races = local_filesystem_storage(folder).open(), 0
    while increments:
        current = run_blocking(storage.get(COUNTER))
        value = int(bytes(current.data)) + 1
        try:
            run_blocking(storage.put(COUNTER, b"%d" % value, if_version=current.info.version))
        except PreconditionFailedError:
            lost_races += 1
        else:
            increments -= 1
    return lost_races


def round_trip(console: Console, folder: Path, references: int) -> str:
    """Write references to an archive as a manifest, read them back, and compare."""
    console.rule(f"A manifest of {references:,} virtual references")
    storage = local_filesystem_storage(str(folder)).open()
    array, manifest = NodeId.random(), ManifestId.random()
    key = f"manifests/{manifest}"
    seconds: dict[str, float] = {}
    seconds["describe in columns"], table = timed(lambda: archive(references))
    seconds["encode"], encoded = timed(lambda: encode_manifest(manifest, {array: table}))
    seconds["store"], _ = timed(lambda: run_blocking(storage.put(key, encoded, if_absent=True)))
    seconds["fetch"], stored = timed(lambda: run_blocking(storage.get(key)))
    seconds["open and find one"], chunk = timed(
        lambda: ManifestFile(stored.data).find(array, [references // 2])
    )
    seconds["decode all"], decoded = timed(lambda: ManifestFile(stored.data).table(array))
    if decoded != table:
        raise SystemExit("what was read is not what was written")
    figures = Table("step", "seconds", box=None)
    for step, taken in seconds.items():
        figures.add_row(step, f"{taken:.3f}")
    console.print(figures)
    console.print(
        f"{len(encoded):,} bytes on disk, {len(encoded) / references:.2f} per reference;"
        " read back equal."
    )
    console.print(f"The one in the middle: {chunk}")
    return key


def archive(references: int) -> ChunkTable:
    """Describe an archive of files that hold a few chunks each."""
    rows = np.arange(references)
    files = -(-references // REFERENCES_PER_FILE)
    names = [f"s3://archive/model/run-{n:07}.nc" for n in range(files)]
    return ChunkTable.virtual(
        coordinates=rows.astype(np.uint32).reshape(-1, 1),
        locations=BytesColumn.from_strings(names),
        targets=(rows // REFERENCES_PER_FILE).astype(np.uint32),
        offsets=(20_000 + rows % REFERENCES_PER_FILE * 65_536).astype(np.uint64),
        lengths=np.full(references, 65_536, np.uint64),
    )


def timed[T](work: Callable[[], T]) -> tuple[float, T]:
    """Measure how long something takes."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
