"""Virtual datasets of real files, made by the real VirtualiZarr, read by both libraries."""

import json
import subprocess
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import icechunk as ic
import iris_sample_data
import pytest
import xarray as xr

import icefloe
from tests.conformance.storages import s3_storage_at
from tests.support.servers import S3Endpoint
from tests.virtual.sources import keys_of, put, store_at

pytestmark = pytest.mark.interop

SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"
HDF5 = b"\x89HDF"
FILES = {
    path.stem: path
    for path in sorted(SAMPLES.rglob("*.nc"))
    if path.read_bytes()[: len(HDF5)] == HDF5
}
LIBRARIES = ("icefloe", "icechunk")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files are, and where the repository goes."""

    prefix: str
    files: dict[str, str]
    s3: S3Endpoint | None
    parent: str

    def repository(self, library: str, spec_version: int) -> str:
        return f"{self.parent}/{library}-{spec_version}"

    def write(self, library: str, spec_version: int) -> None:
        """Let VirtualiZarr write all datasets through one of the libraries."""
        job = {
            "library": library,
            "spec_version": spec_version,
            "repository": self.repository(library, spec_version),
            "prefix": self.prefix,
            "folder": str(SAMPLES),
            "files": self.files,
            "s3": None if self.s3 is None else asdict(self.s3),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.virtual.virtualize", json.dumps(job)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def open_here(self, path: str) -> icefloe.Repository:
        """Open with Icefloe."""
        if self.s3 is None:
            access = {self.prefix: icefloe.credentials.LocalFileSystemAccess}
            storage = icefloe.local_filesystem_storage(path)
            return icefloe.Repository.open(
                storage, authorize_virtual_chunk_access=icefloe.containers_credentials(access)
            )
        config = icefloe.RepositoryConfig()
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(self.prefix, store_at(self.s3))
        )
        return icefloe.Repository.open(
            s3_storage_at(self.s3, path),
            config,
            authorize_virtual_chunk_access=icefloe.containers_credentials(
                {self.prefix: keys_of(self.s3)}
            ),
        )

    def open_there(self, path: str) -> ic.Repository:
        """Open with the reference."""
        if self.s3 is None:
            return ic.Repository.open(
                ic.local_filesystem_storage(path),
                authorize_virtual_chunk_access={self.prefix: ic.credentials.LocalFileSystemAccess},
            )
        keys: dict[str, Any] = {
            "access_key_id": self.s3.access_key_id,
            "secret_access_key": self.s3.secret_access_key,
        }
        storage = ic.s3_storage(
            bucket=self.s3.bucket,
            prefix=path,
            region=self.s3.region,
            endpoint_url=self.s3.url,
            allow_http=True,
            force_path_style=True,
            **keys,
        )
        return ic.Repository.open(
            storage,
            authorize_virtual_chunk_access=ic.containers_credentials(
                {self.prefix: ic.s3_credentials(**keys)}
            ),
        )


def on_disk(folder: Path) -> Place:
    files = {name: path.as_uri() for name, path in FILES.items()}
    return Place(f"{SAMPLES.as_uri()}/", files, None, str(folder))


def on_s3(endpoint: S3Endpoint, prefix: str) -> Place:
    files = {}
    storage = s3_storage_at(endpoint, f"{prefix}/files")
    for name, path in FILES.items():
        put(storage, path.name, path.read_bytes())
        files[name] = f"s3://{endpoint.bucket}/{prefix}/files/{path.name}"
    return Place(f"s3://{endpoint.bucket}/{prefix}/files/", files, endpoint, prefix)


@pytest.fixture(
    params=["local files", pytest.param("s3", marks=pytest.mark.server)], scope="module"
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    if request.param == "s3":
        return on_s3(request.getfixturevalue("s3_endpoint"), f"samples-{uuid.uuid4().hex}")
    return on_disk(tmp_path_factory.mktemp("repositories"))


@pytest.fixture(scope="module")
def originals() -> dict[str, xr.Dataset]:
    return {name: loaded(path, engine="h5netcdf") for name, path in FILES.items()}


def loaded(source: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(source, decode_timedelta=False, **options) as dataset:
        return dataset.load()


def test_there_are_samples() -> None:
    assert len(FILES) >= 13


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("library", LIBRARIES)
def test_virtual_datasets_equal_the_original_files(
    place: Place, originals: dict[str, xr.Dataset], library: str, spec_version: int
) -> None:
    place.write(library, spec_version)
    path = place.repository(library, spec_version)
    ours, theirs = place.open_here(path), place.open_there(path)
    their_store = theirs.readonly_session("main").store
    for name, original in originals.items():
        found = loaded(ours, engine="icefloe", group=name)
        xr.testing.assert_equal(found, original)
        assert found.attrs.keys() == original.attrs.keys()
        again = loaded(their_store, engine="zarr", group=name, consolidated=False)
        xr.testing.assert_identical(again, found)

    recorded = ours.readonly_session("main").all_virtual_chunk_locations()
    assert set(recorded) == set(place.files.values())
    assert sorted(recorded) == sorted(theirs.readonly_session("main").all_virtual_chunk_locations())
    by_file = ours.virtual_dependencies("file")
    assert {row.place for row in by_file} == set(place.files.values())
    assert by_file.chunks == len(recorded)
