"""A really ingested archive, without Spark: files, references, and the record of the files."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import xarray
import zarr

import icefloe
from icefloe.pipeline.combining.combine import combine
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.sources import SourceAccess, list_states
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.writing.dataset import read_existing
from icefloe.pipeline.writing.provenance import (
    options_to_json,
    read_record,
    recorded_files,
    write_record,
)
from tests.pipeline.repositories import repository_for

HOSTILE = " <img src=x onerror=alert(1)>"
DAILY = CombineOptions(("time",), gaps="leave", check_values="none")


def write_day(path: Path, day: int, grid: tuple[int, int] = (12, 16)) -> None:
    """Write a file with the field of a day, and a smaller one beside it."""
    lat = (np.arange(grid[0]) + 0.5) * 180 / grid[0] - 90
    lon = np.linspace(0, 360, grid[1], endpoint=False)
    waves = np.sin(np.radians(3 * lon[None, :] + 12 * day)) * np.cos(np.radians(lat[:, None])) ** 2
    field = 300 - 45 * np.sin(np.radians(lat[:, None])) ** 2 + 8 * waves
    xarray.Dataset(
        {
            "temperature": (
                ("time", "lat", "lon"),
                field[None].astype("f4"),
                {"units": "K", "long_name": "Temperature at the surface"},
            ),
            "wind": (("time", "lat", "lon"), (10 * waves)[None].astype("f4"), {"units": "m s-1"}),
        },
        {
            "time": ("time", np.array([day]), {"units": "days since 2024-01-01"}),
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
        {"title": "Daily fields of a planet that does not exist"},
    ).to_netcdf(path, engine="h5netcdf")


def ingest(repository: icefloe.Repository, paths: Sequence[Path], message: str) -> None:
    """Add files to the dataset in the root as a job does, in one commit."""
    access, how = SourceAccess(), DAILY.parse_options(None)
    session = repository.writable_session("main")
    record = read_record(session.store, "")
    urls = [path.as_uri() for path in paths]
    parsed = [
        parse_or_report(state.url, how, access, listed=state) for state in list_states(urls, access)
    ]
    facts = [file.facts if isinstance(file, ParsedFile) else file for file in parsed]
    existing = None if record is None else read_existing(session.store, "", DAILY)
    recorded = recorded_files(facts, combine(facts, DAILY, existing), DAILY)
    virtualize_locally(session, urls, DAILY, append=record is not None)
    write_record(session.store, "", record, recorded, options_to_json(DAILY, how))
    session.commit(message)


class DayArchive:
    """A repository of daily files: two days are missing, and one came in a later commit."""

    days = 20
    missing = (8, 9)
    late = 5
    hostile = 3
    damaged = (11, 12, 13)
    """The days whose files `damage` deletes, changes and cuts."""

    def __init__(self, root: Path, grid: tuple[int, int]) -> None:
        self.folder = root / "data"
        self.url = str(root / "cube")
        self.folder.mkdir()
        self.paths = {
            day: self.folder / f"day_{day:02d}{HOSTILE if day == self.hostile else ''}.nc"
            for day in range(self.days)
            if day not in self.missing
        }
        self.modified: dict[int, datetime] = {}
        """When each file was written, in whole seconds."""
        for day, path in self.paths.items():
            write_day(path, day, grid)
            seconds = 1_700_000_000 + 86_400 * day
            os.utime(path, (seconds, seconds))
            self.modified[day] = datetime.fromtimestamp(seconds, UTC)
        storage = icefloe.local_filesystem_storage(self.url)
        self.repository = repository_for(self.folder, storage=storage)
        first = [path for day, path in self.paths.items() if day != self.late]
        ingest(self.repository, first, "17 files by reference")
        self.repository.create_tag("first", self.repository.lookup_branch("main"))
        ingest(self.repository, [self.paths[self.late]], "a file that came late")
        with self.repository.transaction("main", message="numbers of our own") as store:
            zarr.create_array(
                store, name="native", shape=1000, chunks=1000, dtype="i4", compressors=None
            )[:] = np.arange(1000)

    def opened(self) -> icefloe.Repository:
        """Open the repository as a reader who authorised nothing."""
        return icefloe.Repository.open(icefloe.local_filesystem_storage(self.url))

    def damage(self) -> None:
        """Delete a file, change another, and cut a third."""
        deleted, changed, cut = (self.paths[day] for day in self.damaged)
        deleted.unlink()
        changed.touch()
        modified = cut.stat().st_mtime
        cut.write_bytes(cut.read_bytes()[:1000])
        os.utime(cut, (modified, modified))


def day_archive(root: Path, grid: tuple[int, int] = (12, 16)) -> DayArchive:
    """Write files below a folder, and ingest them into a repository beside them."""
    return DayArchive(root, grid)
