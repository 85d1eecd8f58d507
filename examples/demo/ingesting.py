"""The jobs of the demonstration: each is one call, and each ends in one commit or in none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import icefloe
from examples.demo.weather import Deliveries, Weather
from icefloe.pipeline import CombineOptions, MisfitsError
from icefloe.spark import JobReport, append, terminal_progress, virtualize

OCEAN = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
WEATHER = CombineOptions(("time",), gaps="leave")


@dataclass(frozen=True, slots=True)
class Ingest:
    """Takes the archives to the repository."""

    console: Console
    spark: Any
    repository: icefloe.Repository

    def ingest_ocean(self, months: Sequence[Path]) -> None:
        """Make a dataset of files whose usual coordinate is empty: another one tells the time."""
        self.console.rule("Months of the ocean")
        with terminal_progress() as on_progress:
            report = virtualize(
                self.spark,
                self.repository,
                months,
                OCEAN,
                group="ocean",
                message="two months of the ocean",
                on_progress=on_progress,
            )
        self.tell(report)

    def catch_a_broken_file(self, archive: Weather) -> None:
        """Try to ingest a file that was cut off: nothing is committed, and the file is named."""
        self.console.rule("A broken file")
        before = self.repository.lookup_branch("main")
        try:
            self.ingest_weather(archive)
        except MisfitsError as error:
            for misfit in error.report.misfits:
                text = f"{misfit.kind}: {misfit.message}"
                self.console.print(text, markup=False, soft_wrap=True)
        else:
            raise SystemExit("nobody noticed the broken file")
        if self.repository.lookup_branch("main") != before:
            raise SystemExit("something was committed")
        self.console.print("Nothing was committed. The file is delivered again; we try again:")

    def ingest_weather(self, archive: Weather) -> None:
        """Make a dataset of thousands of files, with room for days that are late."""
        with terminal_progress() as on_progress:
            report = virtualize(
                self.spark,
                self.repository,
                archive.pattern,
                WEATHER,
                group="weather",
                message="the first delivery",
                on_progress=on_progress,
            )
        self.tell(report)
        self.repository.create_tag("first-delivery", str(report.snapshot))

    def append_weather(self, archive: Weather, deliveries: Deliveries) -> None:
        """Add what is new, and do so twice: the second time there is nothing to do."""
        for expected in (len(deliveries.second), 0):
            with terminal_progress() as on_progress:
                report = append(
                    self.spark,
                    self.repository,
                    archive.pattern,
                    group="weather",
                    message="the second delivery",
                    on_progress=on_progress,
                )
            self.tell(report)
            if report.scan.used != expected:
                raise SystemExit(f"{report.scan.used} files were added, not {expected}")

    def append_ocean(self, months: Sequence[Path]) -> None:
        """Add the third month."""
        with terminal_progress() as on_progress:
            report = append(
                self.spark,
                self.repository,
                months,
                group="ocean",
                message="a third month of the ocean",
                on_progress=on_progress,
            )
        self.tell(report)

    def tell(self, report: JobReport) -> None:
        """Print what a job did."""
        self.console.print(f"[bold]{report.group}[/]: {report.summary()}")
