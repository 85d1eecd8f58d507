"""Pages for admins with real stores: prefixes are picked, and a dry run tells who opens what."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from icefloe.catalog.model import Member, Person, Role
from icefloe.service.database import accounts
from icefloe.service.settings import Settings
from tests.service.test_admin_pages import changed, rows_after, text_of
from tests.service.test_open import make_repository
from tests.support.browser import visitor
from tests.support.desk import Desk, add_bucket, add_organisation, bucket_body, root_of
from tests.support.servers import VENDOR, S3Endpoint

pytestmark = pytest.mark.server


@pytest.fixture
def desk(
    tmp_path: Path, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> Iterator[Desk]:
    """The lab of ada and bob, and the archive of eve, with proven buckets."""
    endpoints = (lab_store.url, archive_store.url)
    # The stores have the true time.
    desk = Desk(Settings(folder=tmp_path, allowed_endpoints=endpoints), datetime.now(UTC))
    with desk.client:
        for organisation, admin in (("lab", "ada"), ("archive", "eve")):
            add_organisation(desk, organisation, admin)
        desk.add_person(Person("bob"))
        with desk.service.database.writing() as connection:
            accounts.set_member(connection, Member("lab", "bob", Role.READER))
        add_bucket(desk, "ada", "lab", lab_store, f"{prefix}/")
        add_bucket(desk, "eve", "archive", archive_store, f"{prefix}/", "tapes")
        yield desk


def openers(desk: Desk) -> set[tuple[str, str]]:
    """Return who gets credentials for the repository of the lab."""
    people = ("ada", "bob", "eve")
    answers = {person: desk.ask(person, "POST", "/repos/lab/sst/open") for person in people}
    return {(person, "lab/sst") for person, answer in answers.items() if answer.is_success}


def test_a_dry_run_tells_who_then_opens_the_repository(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> None:
    make_repository(desk, lab_store, archive_store, prefix)
    for key in ("hourly/a.bin", "hourly/deep/b.bin", "odd *name/c.bin"):
        root_of(archive_store).put(f"{prefix}/{key}", b"12345")
    assert openers(desk) == set()
    eve, path = visitor(desk, "eve"), "/organisations/archive/policies/new"

    eve.open(f"{path}?bucket=tapes")
    for folder in ("daily/", "hourly/"):
        assert f'name="folder" value="{folder}"' in eve.text
    assert "odd *name/ cannot be shared by itself" in text_of(eve.text)
    eve.open(f"{path}?bucket=tapes&prefix=&shared_with=lab&folder=hourly/")
    assert rows_after(eve.text, "Some of the objects") == [
        [f"{prefix}/hourly/a.bin", "5 B"],
        [f"{prefix}/hourly/deep/b.bin", "5 B"],
    ]
    assert 'name="folder" value="hourly/deep/"' in eve.text
    assert changed(eve.text, "People who gain access")[0] == 0
    uses = [entry for entry in desk.audited() if entry[1] == "buckets:use"]
    assert uses == [("eve", "buckets:use", "bucket tapes", True)] * 2

    eve.open(f"{path}?bucket=tapes&prefix=daily/&shared_with=lab")
    assert changed(eve.text, "People who gain access")[0] == 2
    policy = str(eve.send(path).url.path)
    assert openers(desk) == {("ada", "lab/sst"), ("bob", "lab/sst")}
    eve.open(f"{policy}/edit?ends_at=2020-01-01T00:00")
    assert changed(eve.text, "People who lose access")[0] == 2
    eve.send(f"{policy}/edit")
    assert openers(desk) == set()
    eve.open(f"{policy}/undo")
    eve.send(f"{policy}/undo")
    assert openers(desk) == {("ada", "lab/sst"), ("bob", "lab/sst")}


def test_a_probe_by_the_page_shows_each_attempt(
    desk: Desk, archive_store: S3Endpoint, prefix: str
) -> None:
    eve, path = visitor(desk, "eve"), "/organisations/archive/new-bucket"
    body = bucket_body("second", archive_store, f"{prefix}/second/")
    fields = {k: v for k, v in body.items() if isinstance(v, str)} | body["secrets"]
    eve.open(path)
    eve.send(path, path_style="yes", allow_http="yes", **fields)
    eve.send("/organisations/archive/buckets/second/probe")
    eve.open("/organisations/archive/buckets/second")  # attempts are shown later, too
    checks = {row[0]: row[1] for row in rows_after(eve.text, "Attempts of the last probe")}
    assert f"All {len(checks)} ended as they should" in eve.text.replace("</span>", "")
    assert {"read inside", "read outside", "writer: delete outside"} <= checks.keys()
    assert set(checks.values()) == {"as it should be"}
    assert VENDOR["secret_access_key"] not in eve.text
