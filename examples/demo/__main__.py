"""Run the main job: archives are virtualised, committed, appended to, queried and drawn."""

import argparse
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from examples.demo.asking import ask
from examples.demo.commands import Shell
from examples.demo.ingesting import Ingest
from examples.demo.picture import draw
from examples.demo.weather import Deliveries, Weather, copy_ocean, weather, write_days
from icefloe.spark import session_while

FEWEST_FILES = 30


def main() -> None:
    """Run all steps, and check each of them."""
    options = parse_options()
    begin = time.monotonic()
    console = Console(highlight=False)
    folder: Path = options.folder.absolute()
    deliveries = Deliveries(options.files)
    job = Ingest(Shell(console), folder)
    console.rule("Two archives")
    archive = make_archives(console, folder, deliveries)
    console.rule("Months of the ocean, without Spark")
    job.ingest_ocean("nemo_1m_20150[12]*.nc")
    with spark_here(console):
        console.rule("A broken file")
        job.catch_a_broken_file()
        archive.write(deliveries.broken)
        job.ingest_weather()
        job.name_the_delivery()
        console.rule("The next delivery")
        write_with_progress(console, archive, deliveries.second)
        job.append_weather(deliveries)
    job.append_ocean()
    ask(console, job, archive, deliveries)
    draw(job.opened(), folder / "picture.svg")
    say_goodbye(console, options.folder, archive, time.monotonic() - begin)


def parse_options() -> argparse.Namespace:
    """Read sizes, for those who want others."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    parser.add_argument("--files", type=int, default=3000, help=f"at least {FEWEST_FILES}")
    options = parser.parse_args()
    if options.files < FEWEST_FILES:
        parser.error(f"--files must be at least {FEWEST_FILES}")
    return options


def make_archives(console: Console, folder: Path, deliveries: Deliveries) -> Weather:
    """Put files where they would come from, in place of those of an earlier run."""
    for name in ("archive", "cube"):
        shutil.rmtree(folder / name, ignore_errors=True)
    months = copy_ocean(folder / "archive" / "ocean")
    archive = weather(folder / "archive" / "weather", deliveries)
    write_with_progress(console, archive, deliveries.first)
    console.print(
        f"[bold]ocean[/]    {len(months)} months of a real model, in a calendar of 360 days\n"
        f"[bold]weather[/]  {len(deliveries.first)} of {deliveries.days} days, one netCDF file"
        f" each; {len(deliveries.late)} days are late, and one upload was cut off"
    )
    return archive


def write_with_progress(console: Console, archive: Weather, days: Sequence[int]) -> None:
    """Write files of the archive."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("writing files", total=len(days))
        for done in write_days(archive, days, os.cpu_count() or 1):
            progress.advance(task, done)


@contextmanager
def spark_here(console: Console) -> Iterator[Any]:
    """Run Spark on this machine; `session_while("spark://host:7077")` would take a cluster."""
    with ExitStack() as stack:
        with console.status("starting Spark on this machine"):
            spark = stack.enter_context(session_while())
            spark.sparkContext.setLogLevel("ERROR")
        yield spark


def say_goodbye(console: Console, folder: Path, archive: Weather, seconds: float) -> None:
    """Show what to try next."""
    console.rule(f"Done in {seconds:.0f} seconds")
    cube, late = folder / "cube", archive.path(Deliveries(archive.files).late[0])
    pattern = folder / "archive" / "weather" / "*" / "*.nc"
    hints = {
        "the picture": f"{folder / 'picture.png'}, and the same as picture.svg",
        "coverage": f".venv/bin/icefloe coverage {cube}",
        "which files": f".venv/bin/icefloe sources {cube} --like '{late.stem[:-1]}?.nc'",
        "who needs a file": f".venv/bin/icefloe dependencies {cube} --by array --all-versions"
        f" --prefix {late.as_uri()}",
        "is it whole": f".venv/bin/icefloe verify {cube}",
        "run it again": f"python3 tools/bootstrap.py icefloe append '{pattern}' --repo {cube}"
        " --group weather",
        "step by step": "docs/tutorial/archive-to-cube.md",
    }
    for what, how in hints.items():
        console.print(f"  [bold]{what:18}[/]{how}", soft_wrap=True)


if __name__ == "__main__":
    main()
