"""The database: SQLite in a file by default, PostgreSQL for several servers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Table,
    and_,
    create_engine,
    delete,
    event,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    ServiceError,
)
from icefloe.records import Record, asdict

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_BUSY_MILLISECONDS: Final = 10_000


class Database:
    """Connections to the service's database, and its schema.

    >>> database = Database("sqlite://")
    >>> database.migrate()
    >>> database.is_current()
    True
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ValueError as error:
            problem = "the database is not named by a URL like sqlite:///file or postgresql://..."
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from error
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif parsed.get_backend_name() != "sqlite":
            problem = f"databases of kind {parsed.get_backend_name()!r} are not supported"
            advice = "use sqlite:///path or postgresql://user@host/name"
            raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
        self.is_sqlite: Final = parsed.get_backend_name() == "sqlite"
        self.engine: Final = _make_engine(parsed, is_sqlite=self.is_sqlite)

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

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to a revision: upwards by default; `base` removes everything."""
        with _translated(), self.engine.connect() as connection:
            config = _alembic()
            config.attributes["connection"] = connection
            goes_down = revision == "base" or _is_older(revision, self.revision())
            with connection.begin():
                (command.downgrade if goes_down else command.upgrade)(config, revision)

    def revision(self) -> str | None:
        """Return the revision of the schema; None for an empty database."""
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def is_current(self) -> bool:
        """Return whether the schema is the one that this version of the service needs."""
        return self.revision() == ScriptDirectory.from_config(_alembic()).get_current_head()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


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
        return create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=10)
    if not url.database or url.database == ":memory:":
        from sqlalchemy.pool import StaticPool

        # One connection, which is the database.
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        engine = create_engine(url, **options)
    else:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, pool_size=8, max_overflow=24)

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


# Records and rows


def row_of(record: Record, table: Table) -> dict[str, Any]:
    """Return the columns of a record; those that the table has no column for are left out."""
    names = {column.name for column in table.columns}
    return {name: value for name, value in asdict(record).items() if name in names}


def record_of[T: Record](kind: type[T], row: Row[Any]) -> T:
    """Make a record of a row that has its fields among its columns."""
    return msgspec.convert(row._asdict(), kind, strict=False)


def add(connection: Connection, table: Table, record: Record, **columns: Any) -> None:
    """Insert a record, with further columns; raise `AlreadyExistsError` if its key is taken."""
    values = row_of(record, table) | columns
    key = {column.name: values[column.name] for column in table.primary_key}
    if _row(connection, table, key) is not None:
        shown = "/".join(str(value) for value in key.values())
        problem = f"{shown} exists already: choose another name"
        raise AlreadyExistsError(problem, ErrorKind.ENTRY_ALREADY_EXISTS)
    connection.execute(insert(table).values(values))


def find[T: Record](connection: Connection, table: Table, kind: type[T], **key: object) -> T | None:
    """Return the record with these values in some columns; None if there is none."""
    row = _row(connection, table, key)
    return None if row is None else record_of(kind, row)


def require[T: Record](connection: Connection, table: Table, kind: type[T], **key: object) -> T:
    """Return the record with these values in some columns; raise `NotFoundError` without."""
    record = find(connection, table, kind, **key)
    if record is None:
        raise not_found(table, key)
    return record


def not_found(table: Table, key: Mapping[str, object]) -> NotFoundError:
    """Return the error for something that the database does not contain."""
    noun = table.name.replace("_", " ").removesuffix("s").replace("repositorie", "repository")
    shown = "/".join(str(value) for value in key.values())
    return NotFoundError(f"there is no {noun} {shown}", ErrorKind.ENTRY_NOT_FOUND)


def find_all[T: Record](
    connection: Connection,
    table: Table,
    kind: type[T],
    *conditions: Any,
    after: tuple[Any, ...] | None = None,
    limit: int | None = None,
) -> list[T]:
    """Return the records for which conditions hold, by key; `after` the key of a last page."""
    query = select(table).where(*conditions).order_by(*table.primary_key)
    if after is not None:
        query = query.where(_after(tuple(table.primary_key), after))
    if limit is not None:
        query = query.limit(limit)
    return [record_of(kind, row) for row in connection.execute(query)]


def _after(columns: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    """Compare a key with several columns, the first of which counts most."""
    first, value = columns[0], values[0]
    if len(columns) == 1:
        return first > value
    return (first > value) | and_(first == value, _after(columns[1:], values[1:]))


def change(
    connection: Connection, table: Table, record: Record, *, if_version: int | None = None
) -> int:
    """Replace a record, and return its new version.

    Raise `NotFoundError` if it does not exist, and `ConflictError` if it has another version
    than the one that was expected.
    """
    values = row_of(record, table)
    key = {column.name: values.pop(column.name) for column in table.primary_key}
    row = _row(connection, table, key, for_update=True)
    if row is None:
        raise not_found(table, key)
    version = int(row._asdict()["version"])
    if if_version is not None and if_version != version:
        problem = f"somebody changed it first: it has version {version} now; read it again"
        raise ConflictError(message=problem, kind=ErrorKind.ENTRY_CHANGED)
    condition = and_(*(table.c[name] == value for name, value in key.items()))
    connection.execute(update(table).where(condition).values(values | {"version": version + 1}))
    return version + 1


def remove(connection: Connection, table: Table, **key: object) -> None:
    """Delete a row; raise `NotFoundError` if it does not exist."""
    condition = and_(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(delete(table).where(condition)).rowcount:
        raise not_found(table, key)


def _row(
    connection: Connection, table: Table, key: Mapping[str, object], *, for_update: bool = False
) -> Row[Any] | None:
    condition = and_(*(table.c[name] == value for name, value in key.items()))
    query = select(table).where(condition)
    if for_update:
        query = query.with_for_update()  # which SQLite neither has nor needs
    return connection.execute(query).first()
