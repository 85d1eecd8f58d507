"""Repositories of the reference, each built once per worker and copied for every test."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import icechunk as ic
import pytest

from tests.interop.reference import BUILDERS, RAW, Place

type CopyOf = Callable[[str], Place]


@pytest.fixture(scope="session", autouse=True)
def quiet_reference() -> None:
    ic.set_logs_filter("error")


@pytest.fixture(scope="session")
def virtual_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("virtual")
    (folder / "raw.bin").write_bytes(RAW)
    return folder


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, virtual_folder: Path) -> CopyOf:
    """Give the repository of a name: for reading only."""

    @cache
    def build(name: str) -> Place:
        place = Place(tmp_path_factory.mktemp("original") / name, virtual_folder)
        builder, spec = BUILDERS[name]
        builder(place, spec)
        return place

    return build


@pytest.fixture
def copy_of(original: CopyOf, tmp_path: Path) -> CopyOf:
    """Copy the repository of a name into the folder of this test."""

    def copy(name: str) -> Place:
        source = original(name)
        target = Place(tmp_path / name, source.virtual)
        shutil.copytree(source.path, target.path)
        return target

    return copy
