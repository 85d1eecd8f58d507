"""A service with pages: repositories with maps, of which some open and others do not yet.

| repository | its chunks | who opens it |
|---|---|---|
| `lab/map` | of the archive, which shares them with anyone | members of the lab |
| `lab/closed` | of the museum, which shares nothing | nobody yet |
| `lab/open` | its own | everybody who is logged in |
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import zarr

import icefloe
from icefloe.catalog.model import Person
from icefloe.catalog.wire import ListingSettings
from icefloe.service import login
from tests.service.client_world import World, world
from tests.support.desk import container_at, root_of, storage_at
from tests.support.servers import S3Endpoint

HOSTILE = "<script>alert(1)</script> javascript:alert(2) \u202eevil"
PEOPLE = {"stranger": "sam", "reader": "cid", "writer": "bob", "admin": "ada"}


def map_values() -> Any:
    return np.arange(3 * 19 * 36, dtype="<f4").reshape(3, 19, 36)


def make_map(here: World, name: str, folder: str | None = None) -> None:
    """Make a repository of the lab with a map; its chunks are in a folder of others, if given."""
    prefix, archive = here.prefix, here.archive_store
    config = icefloe.RepositoryConfig.default()
    url = f"s3://{archive.bucket}/{prefix}/{folder}/"
    if folder is not None:
        config.set_virtual_chunk_container(container_at(archive, url))
    storage = storage_at(here.lab_store, f"{prefix}/lab/{name}")
    session = icefloe.Repository.create(storage, config).writable_session("main")
    group = zarr.group(session.store, attributes={"title": f"A map {HOSTILE}"})
    axes = {
        "time": (np.arange(3), "days since 2024-01-01"),
        "lat": (np.linspace(-90, 90, 19), "degrees_north"),
        "lon": (np.arange(0.0, 360, 10), "degrees_east"),
    }
    for axis, (values, units) in axes.items():
        attributes: dict[str, Any] = {"units": units}
        group.create_array(axis, data=values, dimension_names=(axis,), attributes=attributes)
    array = group.create_array(
        "t2m",
        shape=(3, 19, 36),
        chunks=(1, 19, 36),
        dtype="<f4",
        compressors=None,
        dimension_names=tuple(axes),
        attributes={"units": "K", "long_name": HOSTILE},
    )
    if folder is None:
        array[:] = map_values()
    else:
        for step, plane in enumerate(map_values()):
            key = f"{prefix}/{folder}/{name}-{step}.bin"
            root_of(archive).put(key, plane.tobytes())
            place = f"s3://{archive.bucket}/{key}"
            session.store.set_virtual_ref(f"t2m/c/{step}/0/0", place, offset=0, length=plane.nbytes)
    session.commit(f"a map {HOSTILE}")
    visibility = "organisation" if folder is not None else "everyone"
    here.client("ada").import_repo(
        f"lab/{name}",
        bucket="main",
        prefix=name,
        description=f"The map {name} {HOSTILE}",
        visibility=visibility,
    )


@contextmanager
def pages_world(
    folder: Path,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    prefix: str,
    *,
    allowed_origins: tuple[str, ...] = (),
) -> Iterator[World]:
    with world(folder, lab_store, archive_store, prefix, allowed_origins=allowed_origins) as here:
        here.desk.add_person(Person("sam"))
        url = f"s3://{archive_store.bucket}/{prefix}/tapes/"
        here.client("eve").create_policy(
            "archive", bucket="main", scope="anyone", confirm_prefix=url
        )
        make_map(here, "map", "tapes")
        make_map(here, "closed", "scans")
        make_map(here, "open")
        with suppress(icefloe.AccessDeniedError):
            here.client("ada").get_repo("lab/closed")  # the service knows now what it refers to
        offer = ListingSettings("open", f"Maps {HOSTILE}", "CC-BY-4.0", f"Cite us. {HOSTILE}")
        here.client("ada").create_listing("lab", "maps", offer)
        inner = ListingSettings("map", "For the archive", offered_to=("archive",))
        here.client("ada").create_listing("lab", "inner", inner)
        yield here


def browser_of(here: World, person: str | None) -> httpx.Client:
    """Return a browser without a window in which somebody is logged in."""
    # Without kept connections, nothing is open when a test ends.
    options: dict[str, Any] = {"headers": {"connection": "close"}, "trust_env": False}
    browser = httpx.Client(base_url=here.desk.url, timeout=60, **options)
    if person is not None:
        secret = login.start_session(here.desk.service, person, "by a test", "test")
        browser.cookies.set("icefloe", secret, domain="127.0.0.1")
    return browser
