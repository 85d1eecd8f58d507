"""Reading from a store that is far away: `python -m bench distance [--delay MS] [--rounds N]`.

SeaweedFS behind a proxy that delays each request. Both sides read the same repository through
xarray, turn and turn about, in processes of their own; the best of all rounds counts. The reference
reads with Zarr's defaults, and with 128 chunks at a time.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from rich.console import Console
from rich.table import Table

import icefloe
from bench.engine_location import Location, seconds_of
from tests.support.distance import far_away
from tests.support.servers import seaweedfs

SMALL, LARGE, POINTS, SHOW = "small", "large", "points", "show"
ROWS: Final = {
    SMALL: "1,500 chunks of 100 KB, zstd, whole array",
    LARGE: "48 chunks of 4 MB, zstd, whole array",
    POINTS: "100 random points of a 3-D array",
    SHOW: "open 30 variables with 6 coordinates, and show them",
}
GOALS: Final = {
    0: {SMALL: (0.7, 0.7), LARGE: (0.7, None)},
    20: {SMALL: (0.22, 0.75), LARGE: (0.7, None), POINTS: (0.3, None), SHOW: (0.6, None)},
}
"""For a delay and a row: ratios to the reference with its defaults, and with 128 chunks at once."""
SIDES: Final = (("icefloe", 0), ("icechunk", 0), ("icechunk", 128))


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench distance")
    parser.add_argument("--delay", type=int, action="append", help="in milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    console = Console()
    with seaweedfs() as endpoint:
        _create(Location.on(endpoint, "distance"))
        for delay in options.delay or sorted(GOALS):
            with far_away(endpoint.url, delay / 1000) as url:
                location = Location.on(endpoint, "distance", url)
                best: dict[tuple[str, int], dict[str, float]] = {side: {} for side in SIDES}
                for _ in range(options.rounds):
                    for side in SIDES:
                        for row, seconds in _run(*side, location).items():
                            best[side][row] = min(seconds, best[side].get(row, seconds))
            console.print(_table(delay, best))


def _table(delay: int, best: dict[tuple[str, int], dict[str, float]]) -> Table:
    table = Table(
        "work", "ours", "icechunk", "ratio", "with 128", "ratio", title=f"{delay} ms for a request"
    )
    ours, *others = (best[side] for side in SIDES)
    for row, text in ROWS.items():
        cells = [text, f"{ours[row] * 1e3:.0f} ms"]
        goals = GOALS.get(delay, {}).get(row, (None, None))
        for other, goal in zip(others, goals, strict=True):
            ratio = ours[row] / other[row]
            shown = f"{ratio:.2f}x"
            if goal is not None:
                shown = f"[{'green' if ratio <= goal else 'red'}]{shown}[/] (≤ {goal:g})"
            cells += [f"{other[row] * 1e3:.0f} ms", shown]
        table.add_row(*cells)
    return table


def _create(location: Location) -> None:
    repository = location.create(icefloe)
    random = np.random.default_rng(0)
    with repository.transaction("main", message="arrays of all kinds") as store:
        root = zarr.create_group(store)
        for name, count, side in ((SMALL, 1_500, 160), (LARGE, 48, 1_024)):
            values = random.integers(0, 2_000, (count, side, side)).astype("f4")
            root.create_group(name).create_array(
                "values",
                shape=values.shape,
                chunks=(1, side, side),
                dtype="f4",
                dimension_names=("time", "y", "x"),
            )[:] = values
        variables = root.create_group(SHOW)
        for number in range(6):
            data = np.arange(500.0)
            name = f"c{number}"
            variables.create_array(name, data=data, chunks=(250,), dimension_names=(name,))
        for number in range(30):
            names = (f"c{number % 6}", f"c{(number + 1) % 6}")
            variables.create_array(
                f"v{number}", shape=(500, 500), chunks=(500, 500), dtype="f4", dimension_names=names
            )[:] = number


def _run(side: str, concurrency: int, location: Location) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", __name__, side, str(concurrency), location.dumps()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ICECHUNK_LOG": "error"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side} failed:\n{done.stderr[-1500:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _work(side: str, concurrency: int, location: Location) -> dict[str, float]:
    lib = importlib.import_module(side)
    if concurrency:
        zarr.config.set({"async.concurrency": concurrency})

    def opened(group: str) -> xr.Dataset:
        session: Any = location.open(lib).readonly_session("main")
        if side == "icefloe":
            return xr.open_dataset(session.store, engine="icefloe", group=group)
        dataset: xr.Dataset = xr.open_zarr(
            session.store, group=group, consolidated=False, chunks=None
        )
        return dataset

    figures = {SHOW: seconds_of(lambda: str(opened(SHOW)))}
    small = opened(SMALL)["values"]
    places = np.random.default_rng(1).integers(0, [1_500, 160, 160], (100, 3)).T
    points = {
        name: xr.DataArray(row, dims="point") for name, row in zip(small.dims, places, strict=True)
    }
    figures[POINTS] = seconds_of(lambda: small.isel(points).load())
    for name in (SMALL, LARGE):
        values = opened(name)["values"]
        figures[name] = seconds_of(values.load)
    return figures


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], int(sys.argv[2]), Location.loads(sys.argv[3]))))
