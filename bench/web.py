"""The pages of a repository in a real browser: `python -m bench web`.

A repository in a local folder, the pages in this process, and Chromium without a window. The first
map is cold: a new process of the browser, a repository that was just opened, an empty cache.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import zarr
from playwright.sync_api import Page
from rich.console import Console
from rich.table import Table

import icefloe
from bench.measure import scratch
from icefloe.web.server import listening_socket, server_of
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium

GROUPS: Final = 100
ARRAYS: Final = 100
SHAPE: Final = (256, 1024, 1024)
"""One GiB of 32-bit numbers."""


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench web")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    table = Table("figure", "measured", "asked", title="Pages in Chromium; the best of all rounds")
    with scratch() as folder:
        _create(folder)
        rounds = [_measure(folder) for _ in range(options.rounds)]
    for name, (_, unit, limit) in rounds[0].items():
        value = min(figures[name][0] for figures in rounds)
        colour = "green" if value <= limit else "red"
        table.add_row(name, f"[{colour}]{value:.3g} {unit}[/]", f"≤ {limit:g}")
    Console().print(table)


def _create(folder: Path) -> None:
    large = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "large")))
    latitude, longitude = np.linspace(-90, 90, SHAPE[1]), np.linspace(0, 359, SHAPE[2])
    plane = np.cos(np.deg2rad(latitude))[:, None] + np.sin(np.deg2rad(longitude))
    with large.transaction("main", message="a GiB") as store:
        for name, values in {"lat": latitude, "lon": longitude}.items():
            units = {"lat": "degrees_north", "lon": "degrees_east"}[name]
            zarr.create_array(
                store, name=name, data=values, dimension_names=[name], attributes={"units": units}
            )
        array = zarr.create_array(
            store,
            name="t2m",
            shape=SHAPE,
            chunks=(1, 512, 512),
            dtype="f4",
            dimension_names=["time", "lat", "lon"],
            compressors=None,
        )
        for step in range(SHAPE[0]):
            array[step] = plane + step
    many = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "many")))
    with many.transaction("main", message="10,000 nodes") as store:
        root = zarr.open_group(store, mode="a")
        for number in range(GROUPS):
            group = root.create_group(f"g{number:03}")
            for place in range(ARRAYS - 1):
                group.create_array(f"a{place:03}", shape=10, dtype="f4")


@contextmanager
def _served(folder: Path) -> Iterator[tuple[icefloe.Repository, str]]:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder)))
    server = server_of(Viewed(repository, "cube", str(folder)))
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield repository, f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def _measure(folder: Path) -> dict[str, tuple[float, str, float]]:
    figures = {}
    with chromium() as browser:
        page = browser.new_page(locale="en-US")
        weights: list[int] = []
        page.on("response", lambda response: weights.append(len(response.body())))
        with _served(folder / "large") as (repository, address):
            before = repository.storage.request_counts()
            seconds = _seconds_until(page, f"{address}/node/t2m", ".picture[data-ready]")
            read = (repository.storage.request_counts() - before).bytes_in
            page.wait_for_load_state("networkidle")
            figures["first map of a 1 GiB array, cold"] = (seconds, "s", 1.5)
            figures["bytes read for it"] = (read / 1e6, "MB", 5.0)
            figures["weight of the page, uncached"] = (sum(weights) / 1e3, "KB", 400.0)
        with _served(folder / "many") as (_, address):
            seconds = _seconds_until(page, f"{address}/", "table.tree")
            figures["tree of 10,000 nodes"] = (seconds, "s", 0.5)
            seconds = _seconds_until(page, f"{address}/node/g050", "table.tree")
            figures["group with 99 arrays"] = (seconds, "s", 0.5)
    return figures


def _seconds_until(page: Page, url: str, selector: str) -> float:
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(selector)
    return time.perf_counter() - started
