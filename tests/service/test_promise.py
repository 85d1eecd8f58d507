"""The promise of the service: who knows a name reads everything, by one request.

Four organisations keep data on three stores with different owners and keys; one of them is open to
the public. A repository has chunks of all four. Its reader is in none of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import numpy as np
import pytest
import xarray
import zarr
from obstore.store import S3Store

import icefloe
from icefloe.catalog.model import Delegation, Organisation, Person, Platform
from icefloe.catalog.wire import BucketSettings
from icefloe.service.database import accounts
from icefloe.service.settings import Settings
from tests.service.client_world import bucket_at
from tests.support.desk import container_at
from tests.support.served import ServedDesk, served
from tests.support.servers import PUBLIC_BUCKET, S3Endpoint, seaweedfs

pytestmark = pytest.mark.server

LENGTH, CHUNK = 6_000, 1_000
VALUES = {
    name: np.random.default_rng(number).integers(0, 2**31, LENGTH, np.int32)
    for number, name in enumerate(("native", "tapes", "scans", "stars"))
}


@pytest.fixture(scope="session")
def museum_store(servers_folder: Path) -> Iterator[S3Endpoint]:
    """The object store of a third owner, a part of which everybody may read."""
    keys = {"access_key_id": "museum-root", "secret_access_key": "museum-y"}
    with seaweedfs(
        shared=servers_folder, name="sts-museum", bucket="scans", has_sts=True, **keys
    ) as endpoint:
        client = botocore.session.get_session().create_client(
            "s3",
            region_name=endpoint.region,
            endpoint_url=endpoint.url,
            aws_access_key_id=endpoint.access_key_id,
            aws_secret_access_key=endpoint.secret_access_key,
        )
        client.create_bucket(Bucket=PUBLIC_BUCKET)
        yield endpoint


@dataclass
class Place:
    """Where an organisation keeps an array of the repository."""

    array: str
    admin: str
    organisation: str
    endpoint: S3Endpoint
    bucket: str
    prefix: str

    @property
    def folder(self) -> str:
        return f"{self.prefix}/{self.array}/"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.folder}"

    def root(self) -> S3Store:
        """Return a store with the keys of the owner."""
        endpoint = self.endpoint
        return S3Store(
            self.bucket,
            endpoint=endpoint.url,
            access_key_id=endpoint.access_key_id,
            secret_access_key=endpoint.secret_access_key,
            region=endpoint.region,
            client_options={"allow_http": True},
        )

    def register(self, desk: ServedDesk) -> None:
        """Register, prove and share the folder."""
        client, settings = desk.client_of(self.admin), bucket_at(self.endpoint, self.folder)
        if self.bucket == PUBLIC_BUCKET:
            settings = BucketSettings(
                Platform.S3,
                self.bucket,
                self.folder,
                region=self.endpoint.region,
                endpoint=self.endpoint.url,
                path_style=True,
                allow_http=True,
                delegation=Delegation.ANONYMOUS,
            )
        client.register_bucket(self.organisation, "main", settings)
        if self.bucket == PUBLIC_BUCKET:
            challenge = desk.service.challenge(client.show_bucket(self.organisation, "main"))
            self.root().put(f"{self.folder}.icefloe-challenge", challenge.encode())
        report = client.probe_bucket(self.organisation, "main")
        assert report.state == "proven", report
        if self.array != "native":
            client.create_policy(
                self.organisation, bucket="main", scope="anyone", confirm_prefix=self.url
            )


@pytest.fixture
def places(
    lab_store: S3Endpoint, archive_store: S3Endpoint, museum_store: S3Endpoint, prefix: str
) -> list[Place]:
    return [
        Place("native", "ada", "lab", lab_store, lab_store.bucket, prefix),
        Place("tapes", "eve", "archive", archive_store, archive_store.bucket, prefix),
        Place("scans", "mia", "museum", museum_store, museum_store.bucket, prefix),
        Place("stars", "tycho", "observatory", museum_store, PUBLIC_BUCKET, prefix),
    ]


@pytest.fixture
def desk(tmp_path: Path, places: list[Place]) -> Iterator[ServedDesk]:
    endpoints = tuple({place.endpoint.url for place in places})
    with served(Settings(folder=tmp_path / "service", allowed_endpoints=endpoints)) as desk:
        for name in ("rae", *(place.admin for place in places)):
            desk.add_person(Person(name))
        owners = [("guests", "rae"), *((place.organisation, place.admin) for place in places)]
        with desk.service.database.writing() as connection:
            for organisation, admin in owners:
                made = Organisation(organisation)
                accounts.create_organisation(connection, made, admin, desk.now)
        for place in places:
            place.register(desk)
        yield desk


def make_repository(desk: ServedDesk, places: list[Place]) -> None:
    """Create `lab/sky`, with an array in each place."""
    config = icefloe.RepositoryConfig.default()
    own, *others = places
    for place in others:
        config.set_virtual_chunk_container(container_at(place.endpoint, place.url))
    client = desk.client_of(own.admin)
    repository = client.create_repo("lab/sky", bucket="main", visibility="everyone", config=config)
    session = repository.writable_session("main")
    group = zarr.group(session.store)
    options: dict[str, Any] = {"shape": (LENGTH,), "chunks": (CHUNK,), "dtype": "i4"}
    options |= {"compressors": None, "dimension_names": ["x"]}
    group.create_array("native", **options)[:] = VALUES["native"]
    for place in others:
        group.create_array(place.array, **options)
        for number, part in enumerate(VALUES[place.array].reshape(-1, CHUNK)):
            key = f"{place.folder}{number}.bin"
            place.root().put(key, part.tobytes())
            location = f"s3://{place.bucket}/{key}"
            session.store.set_virtual_ref(
                f"{place.array}/c/{number}", location, offset=0, length=part.nbytes
            )
    session.commit("chunks of four organisations")


def read_independently(places: list[Place], prefix: str) -> Any:
    """Open the repository with the reference implementation and the keys of all owners."""
    import icechunk

    def keys(endpoint: S3Endpoint) -> dict[str, Any]:
        return {
            "access_key_id": endpoint.access_key_id,
            "secret_access_key": endpoint.secret_access_key,
        }

    own, *others = places
    config, credentials = icechunk.RepositoryConfig.default(), {}
    for place in others:
        options = icechunk.s3_store(
            region=place.endpoint.region,
            endpoint_url=place.endpoint.url,
            s3_compatible=True,
            allow_http=True,
            force_path_style=True,
        )
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place.url, options))
        credentials[place.url] = icechunk.s3_credentials(**keys(place.endpoint))
    repository = icechunk.Repository.open(
        icechunk.s3_storage(
            bucket=own.bucket,
            prefix=prefix,
            region=own.endpoint.region,
            endpoint_url=own.endpoint.url,
            allow_http=True,
            force_path_style=True,
            **keys(own.endpoint),
        ),
        config,
        authorize_virtual_chunk_access=icechunk.containers_credentials(credentials),
    )
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def test_a_name_is_all_that_a_reader_needs(
    desk: ServedDesk, places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(desk, places)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    desk.forget_requests()
    repository = desk.client_of("rae").get_repo("lab/sky")
    group: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    read = {name: group[name][:] for name in VALUES}
    assert desk.requests == [("POST", "/api/v1/repos/lab/sky/open")]
    spec: Any = repository.storage.spec
    reference = read_independently(places, spec.prefix)
    for name, values in VALUES.items():
        np.testing.assert_array_equal(read[name], values)
        np.testing.assert_array_equal(read[name], reference[name][:])

    # The public data was read without any credential, the rest with one for its folder only.
    access: Any = repository._context.access
    kinds = {place.array: type(access[place.url].credentials).__name__ for place in places[1:]}
    assert kinds == {"tapes": "Refreshable", "scans": "Refreshable", "stars": "Anonymous"}

    # The same by URL, with nothing but a token.
    monkeypatch.setenv("ICEFLOE_TOKEN", desk.tokens["rae"])
    monkeypatch.setenv("ICEFLOE_SERVICE", desk.url)
    desk.forget_requests()
    url = f"icefloe://{desk.url.partition('://')[2]}/lab/sky"
    with xarray.open_dataset(url, engine="icefloe") as dataset:
        for name, values in VALUES.items():
            np.testing.assert_array_equal(dataset[name].values, values)
    assert desk.requests == [("POST", "/api/v1/repos/lab/sky/open")]

    # If a single owner says no, all of it is closed.
    (policy,) = desk.client_of("mia").list_policies("museum")
    desk.client_of("mia").delete_policy("museum", policy.id)
    with pytest.raises(icefloe.AccessDeniedError) as refused:
        desk.client_of("rae").get_repo("lab/sky")
    (missing,) = refused.value.missing
    assert (missing.owner, missing.reason) == ("museum", "no_policy")
