"""Three organisations that share, or ask for, data in buckets that no test reads."""

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    DeclaredContainer,
    Member,
    Organisation,
    Person,
    Platform,
    Repository,
    Role,
)
from icefloe.service.database import accounts, assets, rows, tables
from tests.support.desk import Desk

TAPES = "s3://tapes/daily/"


def populate(desk: Desk) -> None:
    """Add a lab (ada, bob) that refers to the archive of eve, and a zoo of zoe."""
    for name in ("ada", "bob", "eve", "zoe"):
        desk.add_person(Person(name))
    with desk.service.database.writing() as connection:
        for organisation, admin in (("lab", "ada"), ("archive", "eve"), ("zoo", "zoe")):
            accounts.create_organisation(connection, Organisation(organisation), admin, desk.now)
        accounts.set_member(connection, Member("lab", "bob", Role.READER))
        for organisation, bucket in (("lab", "disks"), ("archive", "tapes"), ("zoo", "cages")):
            proven = Bucket(organisation, "main", Platform.S3, bucket, state=BucketState.PROVEN)
            rows.add(connection, tables.buckets, proven)
            repository = Repository(organisation, "sst", "main", "sst/")
            assets.create_repository(connection, repository, desk.now)
        container = DeclaredContainer(TAPES, TAPES)
        assets.set_containers(connection, Repository("lab", "sst", "main", ""), "1", [container])
