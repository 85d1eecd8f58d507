"""A really ingested archive, without Spark: files, references, and the record of the files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray

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

DAILY = CombineOptions(("time",), gaps="leave", check_values="none")


def write_day(path: Path, day: int, grid: tuple[int, int] = (12, 16)) -> None:
    """Write a file with the field of a day, and a smaller one beside it."""
    lat = np.linspace(-88, 88, grid[0])
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
