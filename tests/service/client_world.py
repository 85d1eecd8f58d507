"""Three organisations, two stores, and repositories whose chunks lie in all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.catalog.model import Member, Organisation, Person, Platform, Role
from icefloe.catalog.wire import BucketSettings
from icefloe.service.database import accounts
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import prove, root_of
from tests.support.served import ServedDesk, served
from tests.support.servers import VENDOR, S3Endpoint

LENGTH, CHUNK = 20_000, 2_000


@dataclass
class World:
    """A service with organisations: lab and archive have buckets, eve admins a third one."""

    desk: ServedDesk
    lab_store: S3Endpoint
    archive_store: S3Endpoint
    prefix: str

    def client(self, person: str) -> icefloe.Client:
        return self.desk.client_of(person)

    def share_everything(self) -> dict[str, str]:
        """Let everybody read the virtual chunks of the others; return the ids of the policies."""
        policies = {}
        for person, organisation, folder in (
            ("eve", "archive", "tapes"),
            ("mia", "museum", "scans"),
        ):
            policy = self.client(person).create_policy(
                organisation,
                bucket="main",
                scope="anyone",
                confirm_prefix=f"s3://{self.archive_store.bucket}/{self.prefix}/{folder}/",
            )
            policies[organisation] = policy.id
        return policies


def bucket_at(endpoint: S3Endpoint, prefix: str) -> BucketSettings:
    return BucketSettings(
        Platform.S3,
        endpoint.bucket,
        prefix,
        region=endpoint.region,
        endpoint=endpoint.url,
        sts_endpoint=endpoint.url,
        path_style=True,
        allow_http=True,
        role=VENDOR["role"],
        secrets={
            "access_key_id": VENDOR["access_key_id"],
            "secret_access_key": VENDOR["secret_access_key"],
        },
    )


@contextmanager
def world(
    folder: Path,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    prefix: str,
    *,
    allowed_origins: tuple[str, ...] = (),
) -> Iterator[World]:
    """Serve organisations: ada admins lab, bob writes there, cid reads; eve and mia have others."""
    settings = Settings(
        folder=folder,
        allowed_endpoints=(lab_store.url, archive_store.url),
        allowed_origins=allowed_origins,
        allows_anonymous=True,
        limits=RateLimits(refusals=100_000),
    )
    with served(settings) as desk:
        desk.add_person(Person("root", operator=True))
        for name in ("ada", "bob", "cid", "eve", "mia"):
            desk.add_person(Person(name))
        with desk.service.database.writing() as connection:
            for organisation, admin in (("lab", "ada"), ("archive", "eve"), ("museum", "mia")):
                accounts.create_organisation(
                    connection, Organisation(organisation), admin, desk.now
                )
            accounts.set_member(connection, Member("lab", "bob", Role.WRITER))
            accounts.set_member(connection, Member("lab", "cid", Role.READER))
        for admin, organisation, endpoint, part in (
            ("ada", "lab", lab_store, "lab"),
            ("eve", "archive", archive_store, "tapes"),
            ("mia", "museum", archive_store, "scans"),
        ):
            client = desk.client_of(admin)
            bucket = bucket_at(endpoint, f"{prefix}/{part}/")
            client.register_bucket(organisation, "main", bucket)
            prove(desk, organisation)
        yield World(desk, lab_store, archive_store, prefix)


def make_cube(world: World, name: str = "sst", *, extra_containers: tuple[str, ...] = ()) -> Any:
    """Create `lab/<name>` with native chunks and virtual ones of two others; return the values."""
    values = np.arange(LENGTH, dtype="i4")
    root = root_of(world.archive_store)
    bucket = world.archive_store.bucket
    config = icefloe.RepositoryConfig.default()
    store = icefloe.s3_store(
        endpoint_url=world.archive_store.url,
        s3_compatible=True,
        allow_http=True,
        force_path_style=True,
    )
    for folder in ("tapes", "scans"):
        url = f"s3://{bucket}/{world.prefix}/{folder}/"
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    repository = world.client("bob").create_repo(f"lab/{name}", bucket="main", config=config)
    session = repository.writable_session("main")
    group = zarr.group(session.store)
    options: dict[str, Any] = {"shape": (LENGTH,), "chunks": (CHUNK,), "dtype": "i4"}
    group.create_array("native", **options, compressors=None)[:] = values + 1
    for number, folder in enumerate(("tapes", "scans")):
        group.create_array(folder, **options, compressors=None)
        for chunk, part in enumerate(values.reshape(-1, CHUNK)):
            key = f"{world.prefix}/{folder}/{name}-{chunk}.bin"
            root.put(key, (part * (number + 2)).tobytes())
            session.store.set_virtual_ref(
                f"{folder}/c/{chunk}", f"s3://{bucket}/{key}", offset=0, length=part.nbytes
            )
    session.commit("all kinds")
    return values


def check_cube(repository: icefloe.Repository, values: Any) -> None:
    """Compare all values of a cube with those it was made from."""
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for name, factor, added in (("native", 1, 1), ("tapes", 2, 0), ("scans", 3, 0)):
        array = group[name]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(array[:], values * factor + added)
