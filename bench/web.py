"""The pages of repositories in a real browser: `python -m bench web`.

Repositories in local folders, the pages in this process, and Chromium without a window. Each figure
is of a repository that was just opened and a browser with an empty cache. The first visit of a
process also imports modules, so that one page of a small repository is shown before.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import zarr
from playwright.sync_api import Browser, Response
from rich.console import Console
from rich.table import Table

import icefloe
from bench.manifests_building import config_of, set_refs
from bench.measure import scratch
from icefloe.web.server import listening_socket, server_of
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium

GROUPS: Final = 100
ARRAYS: Final = 100
SHAPE: Final = (256, 1024, 1024)
"""One GiB of 32-bit numbers."""
CHUNKS: Final = 10_000_000
CHANGED: Final = 1_000
DENSE: Final = 100_000_000
MANY_GROUPS: Final = 1_000
_AT_ONCE: Final = 1_000_000
_IN_A_COMMIT: Final = 10_000_000
type Figures = dict[str, tuple[float, str, float]]
"""The measured value by name, with its unit and what is asked of it."""


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench web")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="of the array that is compared")
    parser.add_argument("--groups", type=int, default=GROUPS, help="with 100 nodes each")
    parser.add_argument(
        "--dense", type=int, default=DENSE, help="chunks of an array without gaps; 0 for none"
    )
    parser.add_argument(
        "--many-groups", type=int, default=MANY_GROUPS, help="of another tree; 0 for none"
    )
    options = parser.parse_args(arguments)
    table = Table("figure", "measured", "asked", title="Pages in Chromium; the best of all rounds")
    with scratch() as folder:
        _create_map(folder / "map")
        _create_tree(folder / "tree", options.groups)
        _create_versions(folder / "versions", options.chunks)
        if options.dense:
            _create_dense(folder / "dense", options.dense)
        if options.many_groups:
            _create_tree(folder / "many", options.many_groups)
        rounds = [_measure(folder, options) for _ in range(options.rounds)]
    for name, (_, unit, limit) in rounds[0].items():
        value = min(figures[name][0] for figures in rounds)
        colour = "green" if value <= limit else "red"
        table.add_row(name, f"[{colour}]{value:.4g} {unit}[/]", f"≤ {limit:g}")
    Console().print(table)
    Console().print("load of the machine:", *(f"{load:.1f}" for load in os.getloadavg()))


def _create_map(folder: Path) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    latitude, longitude = np.linspace(-90, 90, SHAPE[1]), np.linspace(0, 359, SHAPE[2])
    plane = np.cos(np.deg2rad(latitude))[:, None] + np.sin(np.deg2rad(longitude))
    with repository.transaction("main", message="a GiB") as store:
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
        noise = np.random.default_rng(0).normal(size=SHAPE[1:]).astype("f4")
        zarr.create_array(store, name="noise", data=noise, dimension_names=["lat", "lon"])


def _create_tree(folder: Path, groups: int) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    with repository.transaction("main", message="many nodes") as store:
        root = zarr.open_group(store, mode="a")
        for number in range(groups):
            group = root.create_group(f"g{number:04}")
            for place in range(ARRAYS - 1):
                group.create_array(f"a{place:03}", shape=10, dtype="f4")
    repository.create_tag("before", repository.lookup_branch("main"))
    with repository.transaction("main", message="a few changes") as store:
        root = zarr.open_group(store, mode="a")
        root.create_group("new")
        root["g0007"].attrs["title"] = "changed"


def _create_versions(folder: Path, chunks: int) -> None:
    """Write an array of virtual chunks, and a version in which some are others."""
    storage = icefloe.local_filesystem_storage(str(folder))
    repository = icefloe.Repository.create(storage, config_of(icefloe, "default"))
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=(chunks,), chunks=(1,), dtype="u1", compressors=None
    )
    for first in range(0, chunks, _AT_ONCE):
        set_refs(session, "/v", first, min(_AT_ONCE, chunks - first))
    session.commit("all chunks")
    repository.create_tag("before", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    for part in range(10):  # files and chunks go together in another way
        set_refs(session, "/v", part * chunks // 10 + 500, CHANGED // 10)
    session.commit("some chunks")


def _create_dense(folder: Path, chunks: int) -> None:
    """Write an array of virtual chunks without gaps, by several commits."""
    storage = icefloe.local_filesystem_storage(str(folder))
    repository = icefloe.Repository.create(storage, config_of(icefloe, "default"))
    with repository.transaction("main", message="an array") as store:
        zarr.create_array(
            store, name="v", shape=(chunks,), chunks=(1,), dtype="u1", compressors=None
        )
    for begin in range(0, chunks, _IN_A_COMMIT):
        session = repository.writable_session("main")
        end = min(chunks, begin + _IN_A_COMMIT)
        for first in range(begin, end, _AT_ONCE):
            set_refs(session, "/v", first, min(_AT_ONCE, end - first))
        session.commit(f"chunks {begin:,} to {end:,}")


@contextmanager
def _served(folder: Path) -> Iterator[tuple[icefloe.Repository, str]]:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder)))
    server = server_of(Viewed(repository, "cube", str(folder)))
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield repository, f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class _Visit:
    """A visit of a page, with what it took."""

    def __init__(self, browser: Browser, folder: Path, path: str, selector: str) -> None:
        with _served(folder) as (repository, address):
            context = browser.new_context(locale="en-US")
            page = context.new_page()
            responses: list[Response] = []
            page.on("response", lambda response: responses.append(response))  # noqa: PLW0108
            before = repository.storage.request_counts()
            started = time.perf_counter()
            page.goto(f"{address}{path}", wait_until="commit")
            if selector.startswith("#chunks"):  # they are counted when they are seen
                page.locator("#chunks").scroll_into_view_if_needed()
            page.wait_for_selector(selector)
            self.seconds = time.perf_counter() - started
            self.read_bytes = (repository.storage.request_counts() - before).bytes_in
            page.wait_for_load_state("networkidle")  # what a reader of the whole page waits for
            weights = {response.url: _weight(response) for response in responses}
            self.weight_bytes = sum(weights.values())
            self.value_bytes = sum(weight for url, weight in weights.items() if "/picture/" in url)
            files = repository.list_manifest_files(repository.lookup_branch("main"))
            self.manifest_bytes = sum(file.size_bytes for file in files)
            context.close()


def _weight(response: Response) -> int:
    """Return the bytes of an answer on the wire: compressed, with its headers."""
    response.finished()
    sizes = response.request.sizes()
    return sizes["responseBodySize"] + sizes["responseHeadersSize"]


def _measure(folder: Path, options: argparse.Namespace) -> Figures:
    nodes = options.groups * ARRAYS
    with chromium() as browser:

        def visit(name: str, path: str, selector: str) -> _Visit:
            return _Visit(browser, folder / name, path, selector)

        visit("tree", "/history", "table.tree")
        first_map = visit("map", "/node/t2m", ".picture[data-ready]")
        noise = visit("map", "/node/noise", ".picture[data-ready]")
        tree, group = visit("tree", "/", "table.tree"), visit("tree", "/node/g0050", "table.tree")
        tree_diff = visit("tree", "/diff?from=before&to=main", "h2")
        diff = visit("versions", "/diff?from=before&to=main", "table.tree")
        array_diff = visit("versions", "/diff/v?from=before&to=main", "table.regions")
        array = visit("versions", "/node/v", "#chunks canvas")
        more: Figures = {}
        if options.dense:
            home = visit("dense", "/", "table.tree .chip")
            dense = visit("dense", "/node/v", "#chunks canvas")
            uses = visit("dense", "/dependencies", "main h2")
            name = f"{options.dense:,} chunks without gaps"
            more[f"contents of a repository with {name}"] = (home.seconds, "s", 1.0)
            more["bytes read for them"] = (home.read_bytes / 1e6, "MB", 5.0)
            more[f"page of an array with {name}"] = (dense.seconds, "s", 5.0)
            more["bytes read for it, of those of its manifests, in %"] = (
                100 * dense.read_bytes / dense.manifest_bytes,
                "%",
                5.0,
            )
            more[f"dependencies of {name}"] = (uses.seconds, "s", 5.0)
        if options.many_groups:
            many = visit("many", "/", "table.tree")
            group_of_many = visit("many", "/node/g0050", "table.tree")
            number = f"{options.many_groups * ARRAYS:,}"
            more[f"tree of {number} nodes"] = (many.seconds, "s", 1.0)
            more[f"group with 99 arrays, one of {number} nodes"] = (
                group_of_many.seconds,
                "s",
                1.0,
            )
    return {
        "first map of a 1 GiB array, cold": (first_map.seconds, "s", 1.5),
        "bytes read for it": (first_map.read_bytes / 1e6, "MB", 5.0),
        "weight of its page, uncached": (first_map.weight_bytes / 1e3, "KB", 400.0),
        "weight of its page without the values": (
            (first_map.weight_bytes - first_map.value_bytes) / 1e3,
            "KB",
            400.0,
        ),
        "weight of a map of noise, which nothing compresses": (
            noise.weight_bytes / 1e3,
            "KB",
            400.0,
        ),
        f"tree of {nodes:,} nodes": (tree.seconds, "s", 0.5),
        "group with 99 arrays": (group.seconds, "s", 0.5),
        f"difference of two trees of {nodes:,} nodes": (tree_diff.seconds, "s", 1.0),
        f"difference of {CHANGED:,} of {options.chunks:,} chunks": (diff.seconds, "s", 1.0),
        "bytes read for it, of those of its manifests": (
            100 * diff.read_bytes / diff.manifest_bytes,
            "%",
            1.0,
        ),
        "regions of the changed chunks": (array_diff.seconds, "s", 1.0),
        "weight of their page, uncached": (array_diff.weight_bytes / 1e3, "KB", 400.0),
        f"page of the array with {options.chunks:,} chunks": (array.seconds, "s", 3.0),
        **more,
    }
