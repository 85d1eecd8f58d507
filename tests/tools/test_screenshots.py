"""Pictures of the documentation exist, are small, and are made by the tool."""

import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tools.screenshots import FOLDER, LARGEST_BYTES, SHOTS, palette_png

DOCS = Path(__file__).parents[2] / "docs"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def named_pictures() -> list[Path]:
    """Return the pictures that pages show; all of them have a text for those who cannot see."""
    found = []
    for page in DOCS.rglob("*.md"):
        for text, target in IMAGE.findall(page.read_text()):
            assert text, page
            found.append((page.parent / target).resolve())
    return found


def test_every_picture_that_a_page_shows_exists() -> None:
    pictures = named_pictures()
    assert len(pictures) > 5
    assert [picture for picture in pictures if not picture.is_file()] == []


def test_the_tool_makes_every_screenshot_that_a_page_shows_and_no_other() -> None:
    shown = {picture for picture in named_pictures() if picture.suffix == ".png"}
    assert shown == {FOLDER / name for name in SHOTS} == set(DOCS.rglob("*.png"))


@pytest.mark.parametrize("name", SHOTS)
def test_screenshots_are_small(name: str) -> None:
    content = (FOLDER / name).read_bytes()
    assert len(content) < LARGEST_BYTES
    assert len(np.unique(decoded(content).reshape(-1, 3), axis=0)) > 10  # not an empty page


def decoded(content: bytes) -> NDArray[np.uint8]:
    """Decode a picture with a palette and without filters."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    parts: dict[bytes, bytes] = {}
    position = 8
    while position < len(content):
        (length,) = struct.unpack_from(">I", content, position)
        kind = content[position + 4 : position + 8]
        parts[kind] = content[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", content, position + 8 + length)
        assert checksum == zlib.crc32(kind + parts[kind])
        position += 12 + length
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)
    return palette[lines[:, 1:]]


def test_few_colours_are_kept_as_they_are() -> None:
    pixels = np.random.default_rng(1).integers(0, 2, (7, 9, 3), np.uint8) * 255
    assert np.array_equal(decoded(palette_png(pixels)), pixels)


def test_many_colours_become_near_ones() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (40, 50, 3), np.uint8)
    pixels[:20] = [200, 10, 10]
    result = decoded(palette_png(pixels))
    assert (result[:20] == [200, 10, 10]).all()
    distances = np.linalg.norm(result.astype(float) - pixels, axis=2)
    assert distances.max() < np.sqrt(3 * 64**2)
    assert len(np.unique(result.reshape(-1, 3), axis=0)) <= 256
