"""Take the pictures of pages that the documentation shows.

    python -m tools.screenshots            all of them, into docs/how-to/images

The pages of a repository show an archive that is made and ingested for this purpose; those of a
service show its demo. The browser is that of the tests. Pictures have a palette, so that they stay
small.
"""

import base64
import socket
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import uvicorn
import zarr
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

import icefloe
from icefloe.records import Record, replace
from icefloe.service import login
from icefloe.service.operation.demo import object_store, populate
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.web.server import listening_socket, server_of
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium
from tests.support.ingested import day_archive
from tools.bootstrap import ROOT

FOLDER: Final = ROOT / "docs" / "how-to" / "images"
LARGEST_BYTES: Final = 120_000
_WIDTH: Final = 960
_COLOURS: Final = 256
_GRID: Final = (90, 180)
_CORRECTED_DAY: Final = 10


class Shot(Record):
    """A page, and the part of it that a picture shows."""

    path: str
    height: int
    """In pixels, from the top of the page."""
    ready: str = "main"
    """A selector of something that is there once the page is painted."""
    person: str = ""
    """Who is logged in, on a page of the service."""
    only: str = ""
    """A selector of the only part of the page to show; the whole page without."""


SHOTS: Final = {
    "view-home.png": Shot("/", 560),
    "view-map.png": Shot("/node/temperature", 780, ".picture[data-ready=true]"),
    "view-history.png": Shot("/history", 560),
    "view-coverage.png": Shot("/coverage", 540, "svg.coverage"),
    "view-diff.png": Shot(
        "/diff/temperature?from=before&to=main", 1000, ".picture[data-ready=true]"
    ),
    "service-repositories.png": Shot("/repositories", 420, person="bob"),
    "service-map.png": Shot(
        "/repos/lab/atlas/node/temperature", 760, ".picture[data-ready=true]", person="zoe"
    ),
    "service-refusal.png": Shot("/repos/lab/reef/", 620, person="ada"),
    "service-listing.png": Shot("/listings/lab/ocean", 620, person="zoe"),
    "admin-organisation.png": Shot("/organisations/lab", 900, person="ada"),
    "admin-bucket.png": Shot("/organisations/lab/buckets/main", 760, person="ada"),
    "admin-policy.png": Shot(
        "/organisations/archive/policies/new?bucket=main&prefix=tapes/&scope=anyone",
        900,
        person="eve",
        only="#dry-run",
    ),
    "admin-request.png": Shot("/organisations/archive/requests/{request}", 1000, person="eve"),
    "admin-listing.png": Shot("/organisations/lab/listings/ocean/edit", 1300, person="ada"),
    "admin-embargo.png": Shot("/organisations/lab/embargoes/live", 560, person="ada"),
    "admin-audit.png": Shot("/organisations/archive/audit", 620, person="eve"),
}
"""By the names of their files."""


def main() -> int:
    """Take all pictures; return the exit code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    too_large = []
    with example_pages() as address, example_service() as service, chromium() as browser:
        for name, shot in SHOTS.items():
            root = service.url if shot.person else address
            cookie = service.cookies.get(shot.person, "")
            path = shot.path.format(request=service.request_id)
            content = palette_png(take(browser, root, replace(shot, path=path), cookie))
            (FOLDER / name).write_bytes(content)
            print(f"{name}: {len(content):,} bytes")
            if len(content) > LARGEST_BYTES:
                too_large.append(name)
    if too_large:
        print(f"more than {LARGEST_BYTES:,} bytes: {', '.join(too_large)}", file=sys.stderr)
    return 1 if too_large else 0


@contextmanager
def example_pages() -> Iterator[str]:
    """Serve the pages of an example archive; yield their address."""
    with tempfile.TemporaryDirectory() as folder:
        archive = day_archive(Path(folder), _GRID)
        correct_a_day(archive.repository)
        server = server_of(Viewed(archive.repository, "cube", "./cube"))
        with listening_socket("127.0.0.1", 0) as listening:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join()


def correct_a_day(repository: icefloe.Repository) -> None:
    """Commit other values around one place, and tag the version before."""
    repository.create_tag("before", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="temperature", mode="r+")
    rows, columns = np.ogrid[: _GRID[0], : _GRID[1]]
    wave = np.exp(-((rows - 60) ** 2 + (columns - 70) ** 2) / 150)
    dip = np.exp(-((rows - 35) ** 2 + (columns - 105) ** 2) / 300)
    array[_CORRECTED_DAY] = np.asarray(array[_CORRECTED_DAY]) + 4 * wave - 3 * dip
    session.commit("a correction of one day")


class ExampleService(Record):
    """A service that shows the demo."""

    url: str
    cookies: dict[str, str]
    """The sessions of people, by name."""
    request_id: str
    """The id of an access request that waits for an answer."""


@contextmanager
def example_service() -> Iterator[ExampleService]:
    """Serve the demo of the service; yield what a browser needs to visit it."""
    with (
        tempfile.TemporaryDirectory() as name,
        object_store(Path(name) / "store") as store,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        folder = Path(name) / "service"
        settings = Settings(folder=folder, allowed_endpoints=(store.url,), url=url)
        demo = populate(settings, store)
        service = Service(settings)
        cookies = {
            person: login.start_session(service, person, "by the tool", "screenshots")
            for person in demo.tokens
        }
        config = uvicorn.Config(create_site(service), log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield ExampleService(url, cookies, demo.request_id)
        finally:
            server.should_exit = True
            thread.join()


def take(browser: Browser, address: str, shot: Shot, cookie: str = "") -> NDArray[np.uint8]:
    """Return the pixels of a page: rows, columns, and red, green and blue.

    `cookie` is the session of the person who is logged in.
    """
    context = browser.new_context(
        base_url=address, viewport={"width": _WIDTH, "height": shot.height}, locale="en-US"
    )
    if cookie:
        context.add_cookies([{"name": "icefloe", "value": cookie, "url": address}])
    page = context.new_page()
    page.goto(shot.path)
    page.locator(shot.ready).first.wait_for()
    page.wait_for_load_state("networkidle")
    picture = page.locator(shot.only).screenshot() if shot.only else page.screenshot()
    page.goto("about:blank")
    pixels = _decoded(page, picture)
    context.close()
    return pixels


def _decoded(page: Page, picture: bytes) -> NDArray[np.uint8]:
    """Decode a picture in the browser, which has a decoder, and return its pixels."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    answer = page.evaluate(
        """async (url) => {
            const image = new Image();
            image.src = url;
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const { data } = context.getImageData(0, 0, image.width, image.height);
            const reader = new FileReader();
            const loaded = new Promise((resolve) => { reader.onload = resolve; });
            reader.readAsDataURL(new Blob([data]));
            await loaded;
            return [image.width, image.height, reader.result];
        }""",
        url,
    )
    width, height, text = answer
    raw = np.frombuffer(base64.b64decode(text.partition(",")[2]), np.uint8)
    return np.ascontiguousarray(raw.reshape(height, width, 4)[:, :, :3])


def palette_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels as PNG with a palette of the most frequent colours.

    Other colours become the nearest one of the palette.
    """
    height, width, _ = pixels.shape
    wide = pixels.astype(np.uint32)
    codes = (wide[:, :, 0] << 16 | wide[:, :, 1] << 8 | wide[:, :, 2]).ravel()
    found, rows, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(np.int32)
    palette = colours[np.sort(_palette_rows(colours, counts))]
    nearest = np.concatenate(
        [
            ((some[:, None, :] - palette[None]) ** 2).sum(axis=2).argmin(axis=1)
            for some in np.array_split(colours, max(1, len(colours) // 4096))
        ]
    ).astype(np.uint8)
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: none
    lines[:, 1:] = nearest[rows].reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _part(b"IHDR", header),
            _part(b"PLTE", palette.astype(np.uint8).tobytes()),
            _part(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _part(b"IEND", b""),
        ]
    )


def _palette_rows(colours: NDArray[np.int32], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Choose colours for the palette: the most frequent ones, and some from everywhere else.

    Those are the most frequent ones of small cubes of colours. The cubes grow until there are few
    enough of them, so that a rare colour far from all others is kept.
    """
    order = np.argsort(-counts, kind="stable")
    if len(order) <= _COLOURS:
        return order
    frequent, others = order[: _COLOURS // 2], order[_COLOURS // 2 :]
    for bits in range(9):
        _, firsts = np.unique(colours[others] >> bits, axis=0, return_index=True)
        if len(firsts) <= _COLOURS - len(frequent):
            return np.concatenate([frequent, others[firsts]])
    raise AssertionError("one cube contains all colours")


def _part(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


if __name__ == "__main__":
    sys.exit(main())
