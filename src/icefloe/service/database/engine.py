"""The database: SQLite in a file by default, PostgreSQL for several servers."""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, ServiceError

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_BUSY_MILLISECONDS: Final = 10_000
_THREADS: Final = 8
"""How many requests that are handled without a thread ask the database at the same time."""
_QUIET: Final[dict[str, Any]] = {"hide_parameters": True}
"""Errors of the database show no values of rows, which would go to the log."""
_MIGRATION_LOCK: Final = 4_212_731_006  # any number that nobody else locks


class Database:
    """Connections to the service's database, and its schema.

    >>> database = Database("sqlite://")
    >>> database.migrate()
    >>> database.is_current()
    True
    >>> database.close()
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            problem = "the database is not named by a URL like sqlite:///file or postgresql://..."
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from error
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif parsed.get_backend_name() != "sqlite":
            problem = f"databases of kind {parsed.get_backend_name()!r} are not supported"
            advice = "use sqlite:///path or postgresql://user@host/name"
            raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
        self.is_sqlite: Final = parsed.get_backend_name() == "sqlite"
        self._is_stored: Final = parsed.database not in {None, "", ":memory:"}
        self.engine: Final = _make_engine(parsed, is_sqlite=self.is_sqlite)
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="database")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads, all at one moment."""
        with _translated(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that writes; it is kept if the block ends without an error."""
        with _translated(), self.engine.connect() as plain:
            connection = plain.execution_options(icefloe_writes=True)
            with connection.begin():
                yield connection

    async def run[**P, T](self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do work with the database in a thread that does nothing else, and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *arguments, **options))

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to a revision: upwards by default; `base` removes everything.

        Several servers may start at the same time: one of them migrates, the others wait.
        """
        with self.writing() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            config = _alembic()
            config.attributes["connection"] = connection
            goes_down = revision == "base" or _is_older(revision, _revision(connection))
            (command.downgrade if goes_down else command.upgrade)(config, revision)
        if self._is_stored:
            self.engine.dispose()  # other connections may remember the former schema

    def revision(self) -> str | None:
        """Return the revision of the schema; None for an empty database."""
        with self.reading() as connection:
            return _revision(connection)

    def is_current(self) -> bool:
        """Return whether the schema is the one that this version of the service needs."""
        return self.revision() == ScriptDirectory.from_config(_alembic()).get_current_head()

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown()
        self.engine.dispose()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_older(revision: str, current: str | None) -> bool:
    if current is None or revision == "head":
        return False
    script = ScriptDirectory.from_config(_alembic())
    older = {entry.revision for entry in script.iterate_revisions(current, "base")}
    return revision in older and revision != current


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _make_engine(url: Any, *, is_sqlite: bool) -> Engine:
    if not is_sqlite:
        return create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=10, **_QUIET)
    if not url.database or url.database == ":memory:":
        from sqlalchemy.pool import StaticPool

        # One connection, which is the database.
        options = {**_QUIET, "poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        engine = create_engine(url, **options)
    else:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        # Nobody else reads it. SQLite makes the files beside it with the same mode.
        os.close(os.open(url.database, os.O_CREAT | os.O_RDWR, 0o600))
        engine = create_engine(url, pool_size=8, max_overflow=24, **_QUIET)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `begin` below starts the transactions
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"busy_timeout = {_BUSY_MILLISECONDS}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("icefloe_writes")
        # A transaction that reads first and writes later could fail in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what the database reports as an error of ours."""
    try:
        yield
    except IntegrityError as error:
        problem = "the database refused the change: the entry exists, or others depend on it"
        raise ConflictError(message=problem, kind=ErrorKind.ENTRY_IN_USE) from error
    except OperationalError as error:
        problem = "the database cannot be reached, or is busy"
        raise ServiceError(problem, retryable=True) from error
    except DBAPIError as error:
        problem = "the database refused the request"
        raise ServiceError(problem) from error
