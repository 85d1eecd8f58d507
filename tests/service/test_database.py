"""The service's database, on SQLite and on PostgreSQL."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Decision,
    DeclaredContainer,
    Filter,
    Listing,
    Member,
    Organisation,
    Person,
    PersonKind,
    Platform,
    Policy,
    PolicyScope,
    Repository,
    Role,
    SharedPrefix,
    Subscription,
    SubscriptionKind,
    Token,
    TokenScope,
)
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    ServiceError,
)
from icefloe.records import replace
from icefloe.service.database import accounts, assets, facts, rows, tables
from icefloe.service.database.engine import Database
from icefloe.service.database.tables import METADATA

MIGRATE = """
import sys
from icefloe.service.database.engine import Database
database = Database(sys.argv[1])
database.migrate()
database.close()
"""
NOW = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
HOUR = timedelta(hours=1)
BUCKET = Bucket("lab", "main", Platform.S3, "lab-data", "icefloe/", state=BucketState.PROVEN)


@pytest.fixture
def lab(database: Database) -> Database:
    """A database with an organisation, its admin and a bucket."""
    with database.writing() as connection:
        accounts.create_person(connection, Person("ada", display_name="Ada"), NOW)
        accounts.create_person(connection, Person("bob"), NOW)
        accounts.create_organisation(connection, Organisation("lab"), "ada", NOW)
        rows.add(connection, tables.buckets, BUCKET)
    return database


# Schema


def test_migrations_make_the_tables_of_the_code_and_remove_them(database_url: str) -> None:
    database = Database(database_url)
    assert database.revision() is None
    assert not database.is_current()
    database.migrate()
    database.migrate()
    assert database.is_current()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, METADATA) == []
    database.migrate("base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.migrate()
    assert database.is_current()
    database.close()


def test_servers_that_start_at_once_migrate_once(database_url: str) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> bool:
        barrier.wait()
        done = subprocess.run([sys.executable, "-c", MIGRATE, database_url], check=False)
        return done.returncode == 0

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(start, range(4)))
    database = Database(database_url)
    assert database.is_current()
    database.close()


def test_nobody_else_reads_the_files_of_a_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new' / 'service.db'}")
    database.migrate()
    with database.reading() as connection:  # which keeps the files beside it
        connection.exec_driver_sql("SELECT count(*) FROM people")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert modes == dict.fromkeys(["service.db", "service.db-shm", "service.db-wal"], 0o600)
    database.close()


def test_other_databases_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="'mysql' are not supported"):
        Database("mysql://localhost/x")
    with pytest.raises(InvalidInputError, match="not named by a URL"):
        Database("service.db")


def test_a_database_that_is_away_is_told(tmp_path: object) -> None:
    database = Database(f"postgresql://nobody@127.0.0.1:1/none?connect_timeout=1&x={tmp_path!s:.0}")
    with pytest.raises(ServiceError, match="cannot be reached") as told, database.reading():
        pass
    assert told.value.retryable
    assert "nobody" not in str(told.value)


def test_an_error_takes_back_the_whole_transaction(lab: Database) -> None:
    def fail_after_adding() -> None:
        with lab.writing() as connection:
            accounts.create_person(connection, Person("eve"), NOW)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_adding()
    with lab.reading() as connection:
        assert rows.find(connection, tables.people, Person, name="eve") is None


# Records


def test_records_come_back_as_they_were(lab: Database) -> None:
    bucket = replace(
        BUCKET,
        name="far",
        region="eu-west-1",
        endpoint="https://minio.example:9000",
        path_style=True,
        probed_at=NOW,
    )
    repository = Repository("lab", "sst", "far", "sst/", "Sea surface", created_by="ada")
    listing = Listing(
        "lab",
        "ocean",
        "sst",
        offered_to=("shop", "zoo"),
        virtual_chunks=(SharedPrefix("far", "x/"),),
        filter=Filter(("/a",), {"time": ("2020-01-01", None), "lat": (-10.5, 10.0)}),
    )
    token = Token("t1", "laptop", "ada", TokenScope(("read",), ("lab/*",)), NOW, NOW + HOUR)
    with lab.writing() as connection:
        rows.add(connection, tables.buckets, bucket)
        assets.create_repository(connection, repository, NOW)
        rows.add(connection, tables.listings, listing)
        accounts.create_token(connection, token, b"digest")
    with lab.reading() as connection:
        key = {"organisation": "lab"}
        assert rows.find(connection, tables.buckets, Bucket, **key, name="far") == bucket
        stored = rows.require(connection, tables.repositories, Repository, **key, name="sst")
        assert stored == replace(repository, created_at=NOW)
        assert rows.find(connection, tables.listings, Listing, **key, name="ocean") == listing
        assert rows.find(connection, tables.tokens, Token, id="t1") == token


def test_what_exists_is_not_added_again(lab: Database) -> None:
    expected = pytest.raises(AlreadyExistsError, match="lab/main exists already")
    with expected as told, lab.writing() as connection:
        rows.add(connection, tables.buckets, BUCKET)
    assert told.value.kind == ErrorKind.ENTRY_ALREADY_EXISTS


def test_what_is_missing_is_named(lab: Database) -> None:
    with lab.writing() as connection:
        with pytest.raises(NotFoundError, match="there is no repository lab/sst"):
            rows.require(
                connection, tables.repositories, Repository, organisation="lab", name="sst"
            )
        with pytest.raises(NotFoundError, match="there is no bucket lab/other"):
            rows.remove(connection, tables.buckets, organisation="lab", name="other")
        with pytest.raises(NotFoundError, match="there is no bucket lab/other"):
            rows.change(connection, tables.buckets, replace(BUCKET, name="other"))


def test_a_change_expects_a_version(lab: Database) -> None:
    with lab.writing() as connection:
        assert rows.change(connection, tables.buckets, BUCKET, if_version=1) == 2
        assert rows.change(connection, tables.buckets, replace(BUCKET, region="x")) == 3
    with pytest.raises(ConflictError, match="version 3 now") as told, lab.writing() as connection:
        rows.change(connection, tables.buckets, BUCKET, if_version=2)
    assert told.value.kind == ErrorKind.ENTRY_CHANGED
    with lab.reading() as connection:
        stored = rows.require(connection, tables.buckets, Bucket, organisation="lab", name="main")
        assert (stored.version, stored.region) == (3, "x")


def test_of_many_changes_at_once_one_succeeds(lab: Database) -> None:
    barrier = threading.Barrier(6)

    def work(number: int) -> bool:
        barrier.wait()
        try:
            with lab.writing() as connection:
                changed = replace(BUCKET, region=f"r{number}")
                rows.change(connection, tables.buckets, changed, if_version=1)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(work, range(6))) == [False] * 5 + [True]


def test_pages(lab: Database) -> None:
    with lab.writing() as connection:
        for number in range(5):
            rows.add(connection, tables.buckets, replace(BUCKET, name=f"b{number}"))
    with lab.reading() as connection:
        table, after = tables.buckets, None
        names: list[str] = []
        while page := rows.find_all(connection, table, Bucket, after=after, limit=2):
            names.extend(bucket.name for bucket in page)
            after = (page[-1].organisation, page[-1].name)
    assert names == ["b0", "b1", "b2", "b3", "b4", "main"]


# People and organisations


def test_callers_have_all_their_roles(lab: Database) -> None:
    with lab.writing() as connection:
        accounts.create_organisation(connection, Organisation("zoo"), "bob", NOW)
        accounts.set_member(connection, Member("zoo", "ada", Role.READER))
    with lab.reading() as connection:
        caller = accounts.find_caller(connection, "ada")
        assert caller is not None
        assert caller.roles == {"lab": Role.ADMIN, "zoo": Role.READER}
        assert accounts.find_caller(connection, "nobody") is None


def test_the_last_admin_stays(lab: Database) -> None:
    with lab.writing() as connection:
        bot = Person("bot", PersonKind.SERVICE, organisation="lab")
        accounts.create_person(connection, bot, NOW)
        accounts.set_member(connection, Member("lab", "bot", Role.ADMIN))
        with pytest.raises(ConflictError, match="last admin of lab"):
            accounts.remove_member(connection, "lab", "ada")
        with pytest.raises(ConflictError, match="last admin of lab"):
            accounts.set_member(connection, Member("lab", "ada", Role.WRITER))
        accounts.set_member(connection, Member("lab", "bob", Role.ADMIN))
        accounts.set_member(connection, Member("lab", "ada", Role.READER))
        accounts.remove_member(connection, "lab", "ada")
        assert accounts.roles_of(connection, "ada") == {}


def test_two_admins_who_leave_at_once_do_not_both_leave(lab: Database) -> None:
    with lab.writing() as connection:
        accounts.set_member(connection, Member("lab", "bob", Role.ADMIN))
    barrier = threading.Barrier(2)

    def leave(person: str) -> bool:
        barrier.wait()
        try:
            with lab.writing() as connection:
                accounts.remove_member(connection, "lab", person)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(leave, ["ada", "bob"])) == [False, True]


def test_the_name_of_a_deleted_organisation_is_never_used_again(lab: Database) -> None:
    with lab.writing() as connection:
        assets.create_repository(connection, Repository("lab", "sst", "main", "sst/"), NOW)
        assets.create_policy(connection, Policy("p1", "lab", "main"), "ada", NOW)
        accounts.delete_organisation(connection, "lab", NOW)
        assert rows.find_all(connection, tables.buckets, Bucket) == []
        assert rows.find_all(connection, tables.policies, Policy) == []
        assert accounts.roles_of(connection, "ada") == {}
        with pytest.raises(AlreadyExistsError, match="nobody may take its place"):
            accounts.create_organisation(connection, Organisation("lab"), "bob", NOW)


# Tokens


def test_a_token_is_known_until_its_end(lab: Database) -> None:
    token = Token("t1", "laptop", "ada", created_at=NOW, expires_at=NOW + HOUR)
    with lab.writing() as connection:
        accounts.create_token(connection, token, b"digest")

    def person(digest: bytes = b"digest", now: datetime = NOW, token_id: str = "t1") -> str | None:
        with lab.reading() as connection:
            caller = accounts.find_caller_by_token(connection, token_id, digest, now)
            return None if caller is None else caller.person.name

    assert person() == "ada"
    assert person(digest=b"other") is None
    assert person(token_id="t2") is None
    assert person(now=NOW + HOUR) is None
    with lab.writing() as connection:
        accounts.note_token_use(connection, token.id, NOW)
        used = rows.require(connection, tables.tokens, Token, id="t1")
        assert not accounts.is_use_noteworthy(used, NOW)
        assert accounts.is_use_noteworthy(used, NOW + HOUR)
        accounts.revoke_token(connection, "t1", NOW)
    assert person() is None


def test_a_disabled_person_is_nobody(lab: Database) -> None:
    with lab.writing() as connection:
        connection.execute(tables.people.update().values(disabled=True))
        assert accounts.find_caller(connection, "ada") is None


# Repositories and policies


@pytest.mark.parametrize("prefix", ["sst/", "", "sst/deep/"])
def test_repositories_do_not_overlap(lab: Database, prefix: str) -> None:
    with lab.writing() as connection:
        assets.create_repository(connection, Repository("lab", "sst", "main", "sst/"), NOW)
        assets.create_repository(connection, Repository("lab", "sst2", "main", "sst2/"), NOW)
        with pytest.raises(ConflictError, match="overlaps with that of lab/sst"):
            assets.create_repository(connection, Repository("lab", "new", "main", prefix), NOW)


def test_a_bucket_in_use_stays(lab: Database) -> None:
    with lab.writing() as connection:
        assets.create_repository(connection, Repository("lab", "sst", "main", "sst/"), NOW)
    with pytest.raises(ConflictError, match="others depend on it"), lab.writing() as connection:
        rows.remove(connection, tables.buckets, organisation="lab", name="main")


def test_policies_have_a_history(lab: Database) -> None:
    with lab.writing() as connection:
        policy = assets.create_policy(connection, Policy("p1", "lab", "main"), "ada", NOW)
        wider = replace(policy, scope=PolicyScope.ANYONE)
        changed = assets.change_policy(connection, wider, "bob", NOW + HOUR, if_version=1)
        assert changed.version == 2
        with pytest.raises(ConflictError):
            assets.change_policy(connection, policy, "ada", NOW, if_version=1)
        assets.delete_policy(connection, changed, "ada", NOW + 2 * HOUR)
        history = assets.policy_history(connection, tables.policy_history.c.id == "p1")
    assert [version.policy for version in history] == [policy, changed, None]
    assert [version.changed_by for version in history] == ["ada", "bob", "ada"]
    assert history[1].changed_at == NOW + HOUR


# Facts


def fill(database: Database) -> None:
    """Put in something of everything that a decision may depend on."""
    s3 = Platform.S3
    proven = BucketState.PROVEN
    urls = ["s3://lab-data/icefloe/x/", "s3://tapes/era5/", "file:///home/"]
    with database.writing() as connection:
        accounts.create_organisation(connection, Organisation("zoo"), "bob", NOW)
        accounts.create_organisation(connection, Organisation("shop"), "bob", NOW)
        rows.add(connection, tables.buckets, Bucket("zoo", "tapes", s3, "tapes", state=proven))
        rows.add(connection, tables.buckets, Bucket("zoo", "disks", s3, "disks", state=proven))
        rows.add(connection, tables.buckets, Bucket("shop", "own", s3, "shop", state=proven))
        for repository in (
            Repository("lab", "sst", "main", "sst/"),
            Repository("zoo", "era5", "disks", "era5/"),
            Repository("shop", "part", "own", "part/"),
        ):
            assets.create_repository(connection, repository, NOW)
        containers = [DeclaredContainer(url, url, platform=url.split(":")[0]) for url in urls]
        for organisation, name in [("lab", "sst"), ("shop", "part")]:
            repository = rows.require(
                connection, tables.repositories, Repository, organisation=organisation, name=name
            )
            assets.set_containers(connection, repository, "v1", containers)
        assets.create_policy(connection, Policy("p1", "zoo", "tapes"), "bob", NOW)
        assets.create_policy(connection, Policy("p2", "zoo", "disks"), "bob", NOW)
        rows.add(connection, tables.listings, Listing("zoo", "weather", "era5"))
        rows.add(connection, tables.listings, Listing("lab", "ocean", "sst"))
        granted = Decision.GRANTED
        filtered = SubscriptionKind.FILTERED
        for subscription in (
            Subscription("s1", "shop", "zoo", "weather", filtered, granted, "part"),
            Subscription("s2", "zoo", "lab", "ocean", state=granted),
            Subscription("s3", "shop", "zoo", "weather", state=granted),
        ):
            rows.add(connection, tables.subscriptions, subscription, created_at=NOW)


def test_facts_of_one_repository_are_those_of_the_world(lab: Database) -> None:
    fill(lab)
    with lab.reading() as connection:
        world = facts.load_world(connection, NOW)
        for name, repository in world.repositories.items():
            for person in world.people:
                entry = facts.load_entry(connection, *name.split("/"))
                assert entry is not None
                assert entry.repository == repository
                assert entry.bucket.name == repository.bucket
                roles = accounts.roles_of(connection, person)
                containers = world.containers.get(name, ())
                offers = facts.load_offers(connection, entry.repository, roles, NOW)
                loaded = facts.load_facts(connection, entry, containers, offers)
                expected = world.facts(name, roles)
                for field in ("repository", "containers", "listings", "provider", "roles"):
                    assert getattr(loaded, field) == getattr(expected, field), (name, field)
                for field in ("buckets", "policies", "subscriptions"):
                    key = str
                    ours = sorted(getattr(loaded, field), key=key)
                    assert ours == sorted(getattr(expected, field), key=key), (name, field)
        assert world.facts("shop/part", {}).provider == world.repositories["zoo/era5"]


def test_an_entry_that_is_missing(lab: Database) -> None:
    with lab.reading() as connection:
        assert facts.load_entry(connection, "lab", "none") is None


def test_containers_are_replaced(lab: Database) -> None:
    fill(lab)
    one = DeclaredContainer("gs://x/", "gs://x/", "x", "gcs")
    with lab.writing() as connection:
        entry = facts.load_entry(connection, "lab", "sst")
        assert entry is not None
        assert entry.config_version == "v1"
        assets.set_containers(connection, entry.repository, "v2", [one])
        assert assets.all_containers(connection)["lab/sst"] == [one]
        entry = facts.load_entry(connection, "lab", "sst")
        assert entry is not None
        assert entry.config_version == "v2"
