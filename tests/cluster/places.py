"""Repositories and archives that every process of a cluster can reach, and jobs on them."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import icefloe
from examples.archives import Archive
from icefloe.effects import run_blocking
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import replace
from icefloe.spark import CopyReport, JobReport, append, rechunk, virtualize
from icefloe.spark import ingest as ingest_natively
from tests.spark.archives import TIME
from tests.support.servers import S3Endpoint


@dataclass(frozen=True)
class Site:
    """A repository, and where the files are that it refers to."""

    storage: icefloe.Storage
    prefix: str
    """The URL that files lie below."""
    store: Any
    credentials: Any
    access: SourceAccess

    @property
    def pattern(self) -> str:
        return f"{self.prefix}*/model_*.nc"

    def create(self) -> icefloe.Repository:
        return icefloe.Repository.create(self.storage, *self._settings())

    def open(self) -> icefloe.Repository:
        return icefloe.Repository.open(self.storage, *self._settings())

    def through(self, storage: icefloe.Storage) -> "Site":
        return replace(self, storage=storage)

    def _settings(self) -> tuple[icefloe.RepositoryConfig, Any]:
        config = icefloe.RepositoryConfig.default()
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(self.prefix, self.store))
        return config, icefloe.containers_credentials({self.prefix: self.credentials})


def on_disk(folder: Path) -> Site:
    """Use directories that all processes see."""
    data = folder / "data"
    return Site(
        icefloe.local_filesystem_storage(str(folder / "repository")),
        f"{data.as_uri()}/",
        icefloe.local_filesystem_store(str(data)),
        icefloe.credentials.LocalFileSystemAccess,
        SourceAccess(),
    )


def on_s3(endpoint: S3Endpoint, prefix: str, credentials: Any = None) -> Site:
    """Use a bucket, for the repository and for the files."""
    place: dict[str, Any] = {
        "endpoint_url": endpoint.url,
        "region": endpoint.region,
        "allow_http": True,
        "force_path_style": True,
    }
    keys: Any = credentials or {
        "access_key_id": endpoint.access_key_id,
        "secret_access_key": endpoint.secret_access_key,
    }

    def storage(name: str) -> icefloe.Storage:
        return icefloe.s3_storage(
            bucket=endpoint.bucket, prefix=f"{prefix}/{name}", **place, **keys
        )

    url = f"s3://{endpoint.bucket}/{prefix}/data/"
    return Site(
        storage("repository"),
        url,
        icefloe.s3_store(**place, s3_compatible=True),
        icefloe.s3_credentials(**keys),
        SourceAccess({url: storage("data")}),
    )


def upload(site: Site, archive: Archive) -> None:
    """Copy the files of an archive to where the site has them."""
    backend = site.access.storages[site.prefix].open()
    for number in range(archive.files):
        path = archive.path(number)
        key = str(path.relative_to(archive.folder))
        run_blocking(backend.put(key, path.read_bytes()))


def ingest(spark: Any, site: Site, sources: Any = None, access: SourceAccess | None = None) -> Any:
    """Make a dataset of all files, or of those named."""
    return virtualize(
        spark, site.open(), sources or site.pattern, TIME, access=access or site.access
    )


def add(spark: Any, site: Site) -> JobReport:
    """Add what is new."""
    return append(spark, site.open(), site.pattern, TIME, access=site.access)


def write_noise(site: Site) -> NDArray[np.int32]:
    """Make a repository with an array, all of whose chunks are objects: noise does not shrink."""
    values = np.random.default_rng(7).integers(0, 2**31, (24, 20, 10), np.int32)
    with site.create().transaction("main", message="noise") as store:
        names = ["time", "lat", "lon"]
        zarr.create_array(store, name="a", data=values, chunks=(1, 20, 10), dimension_names=names)
    return values


def copy_files(spark: Any, site: Site, **options: Any) -> CopyReport:
    """Copy the values of all files, into chunks that are objects of their own."""
    return ingest_natively(
        spark,
        site.open(),
        site.pattern,
        TIME,
        chunks={"time": 4},
        compressors=None,
        access=site.access,
        **options,
    )


def copy_site(spark: Any, source: Site, target: Site, **options: Any) -> CopyReport:
    """Turn the maps of a repository into series in another one."""
    chunks = {"time": -1, "lat": 5, "lon": 5}
    version = source.open().readonly_session("main")
    return rechunk(spark, target.open(), version, chunks=chunks, **options)


def contents(*folders: Path) -> dict[Path, bytes]:
    """Read all files of some folders but those that vanish meanwhile."""
    found: dict[Path, bytes] = {}
    for path in (path for folder in folders for path in folder.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def assert_not_told(secret: str, kept: dict[Path, bytes]) -> None:
    """Check that a secret is in none of some files."""
    told = [path for path, content in kept.items() if secret.encode() in content]
    assert not told, f"a secret is in {told}"
