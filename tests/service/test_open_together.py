"""Opens share work, and no answer is older than its question."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

import icefloe
from icefloe.catalog.model import (
    Bucket,
    Member,
    Organisation,
    Person,
    PersonKind,
    Platform,
    Role,
    Token,
)
from icefloe.catalog.tokens import token_id
from icefloe.catalog.wire import Access, AuditEntry, CredentialAnswer
from icefloe.records import replace
from icefloe.service.database import accounts, audit, rows, tables
from icefloe.service.database.facts import load_entry, load_offers
from icefloe.service.domain.decide import Actor
from icefloe.service.limits import Limits
from icefloe.service.opening import Opened, Opener
from icefloe.service.settings import RateLimits, Settings
from icefloe.service.vending.grants import Grant
from icefloe.service.vending.sts import session_policy
from tests.support.desk import Desk, bucket_body
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server

OPEN = "/repos/lab/sst/open"
PREFIXES = ("files/", "more/")
"""The parts of the bucket that a policy shares."""


class Lab:
    """A service with one repository, whose containers can be changed in its store."""

    def __init__(self, settings: Settings, store: S3Endpoint, prefix: str) -> None:
        self.desk = Desk(settings, datetime.now(UTC))
        self.service = self.desk.service
        self._store, self._prefix = store, prefix

    def set_up(self) -> None:
        desk = self.desk
        for name in ("ada", "bob", "cyd"):
            desk.add_person(Person(name))
        with self.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("lab"), "ada", desk.now)
        self.set_reader("bob")
        self.set_reader("cyd")
        body = bucket_body("main", self._store, f"{self._prefix}/")
        desk.ask("ada", "POST", "/orgs/lab/buckets", body)
        assert desk.ask("ada", "POST", "/orgs/lab/buckets/main/probe").json()["state"] == "proven"
        for prefix in PREFIXES:
            desk.ask("ada", "POST", "/orgs/lab/policies", {"bucket": "main", "prefix": prefix})
        new = {"name": "sst", "bucket": "main", "prefix": "sst/", "imports": True}
        desk.ask("ada", "POST", "/orgs/lab/repos", new)
        icefloe.Repository.create(self._storage(), self._config(["files/"]))

    def set_reader(self, person: str) -> None:
        with self.service.database.writing() as connection:
            accounts.set_member(connection, Member("lab", person, Role.READER))

    def remove(self, person: str) -> None:
        with self.service.database.writing() as connection:
            accounts.remove_member(connection, "lab", person)

    def declare(self, *prefixes: str) -> None:
        """Let the configuration in the store declare containers for these parts of the bucket."""
        icefloe.Repository.open(self._storage(), self._config(prefixes)).save_config()

    def container(self, prefix: str) -> str:
        return f"s3://{self._store.bucket}/{self._prefix}/{prefix}"

    def _config(self, prefixes: Sequence[str]) -> icefloe.RepositoryConfig:
        store = icefloe.s3_store(
            endpoint_url=self._store.url,
            s3_compatible=True,
            allow_http=True,
            force_path_style=True,
        )
        config = icefloe.RepositoryConfig.default()
        for prefix in prefixes:
            url = self.container(prefix)
            config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
        return config

    def _storage(self) -> icefloe.Storage:
        return icefloe.s3_storage(
            bucket=self._store.bucket,
            prefix=f"{self._prefix}/sst",
            endpoint_url=self._store.url,
            access_key_id=self._store.access_key_id,
            secret_access_key=self._store.secret_access_key,
            region=self._store.region,
            allow_http=True,
            force_path_style=True,
        )

    def open(self, person: str) -> list[str]:
        """Open the repository, and return the prefixes of its containers."""
        response = self.desk.ask(person, "POST", OPEN)
        assert response.status_code == 200, response.text
        return [container["prefix"] for container in response.json()["containers"]]

    def audited(self) -> list[AuditEntry]:
        """Return the entries about opens, the first one first."""
        self.desk.audited()  # which verifies the chain
        with self.service.database.reading() as connection:
            entries = audit.read(connection, tables.audit.c.action == "repositories:open")
        return entries[::-1]

    def withheld(self) -> list[str]:
        """Return the places of credentials that the last open made, but did not hand out."""
        places = [made["place"] for made in self.audited()[-1].details.get("withheld", [])]
        return [place.removeprefix(f"lab/main/{self._prefix}/") for place in places]

    @contextmanager
    def queries(self) -> Iterator[list[str]]:
        """Collect the statements that the service sends to its database."""
        statements: list[str] = []
        listen = lambda *arguments: statements.append(arguments[2])  # noqa: E731
        event.listen(self.service.database.engine, "before_cursor_execute", listen)
        yield statements
        event.remove(self.service.database.engine, "before_cursor_execute", listen)


@pytest.fixture
def settings(tmp_path: Path, database_url: str, lab_store: S3Endpoint) -> Settings:
    return Settings(
        folder=tmp_path / "service",
        database=database_url,
        allowed_endpoints=(lab_store.url,),
        allows_anonymous=False,
        probe_hours=0,
        limits=RateLimits(requests=100_000),
    )


@pytest.fixture
def lab(settings: Settings, lab_store: S3Endpoint, prefix: str) -> Iterator[Lab]:
    lab = Lab(settings, lab_store, prefix)
    with lab.desk.client:
        lab.set_up()
        yield lab


# Sharing


def test_an_open_asks_the_database_a_few_questions_at_one_moment(lab: Lab) -> None:
    lab.open("bob")
    with lab.queries() as statements:
        lab.open("bob")
    tables_asked = [text.split("FROM ")[1].split()[0] for text in statements if "FROM " in text]
    assert tables_asked == [
        "people",  # with their roles, by the token
        "repositories",  # with the bucket
        "listings",
        "subscriptions",
        "containers",
        "buckets",
        "policies",
        "audit_head",
    ]


def test_opens_at_the_same_time_are_checked_and_audited_one_by_one(lab: Lab) -> None:
    number = 40
    lab.open("cyd")
    mints, audited = lab.service.broker.mints, len(lab.audited())
    with lab.queries() as statements, ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: lab.open("bob"), range(number)))
    assert opened == [[lab.container("files/")]] * number
    entries = lab.audited()[audited:]
    assert [(entry.person, entry.allowed) for entry in entries] == [("bob", True)] * number
    assert len({entry.request_id for entry in entries}) == number
    assert lab.service.broker.mints == mints + 2  # for the repository and for its container
    assert sum("FROM people " in text for text in statements) <= number


def test_a_limit_counts_requests_that_share_work(
    settings: Settings, lab_store: S3Endpoint, prefix: str
) -> None:
    lab = Lab(settings, lab_store, prefix)
    with lab.desk.client:
        lab.set_up()
        few = replace(settings, limits=RateLimits(requests=10))
        object.__setattr__(lab.service, "settings", few)
        object.__setattr__(lab.service, "limits", Limits(lambda: 0.0))  # nothing is filled up
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: lab.desk.ask("bob", "POST", OPEN), range(30)))
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (10, 20)


def test_many_see_a_new_configuration_at_the_same_time(lab: Lab) -> None:
    for prefixes in (("files/", "more/"), ("more/",), ("files/",)):
        lab.declare(*prefixes)
        with ThreadPoolExecutor(8) as threads:
            opened = list(threads.map(lambda _: lab.open("bob"), range(16)))
        assert opened == [[lab.container(prefix) for prefix in prefixes]] * 16


def test_containers_in_one_bucket_share_a_credential(lab: Lab) -> None:
    lab.declare("files/", "more/")
    lab.open("cyd")
    mints = lab.service.broker.mints
    first = lab.desk.ask("bob", "POST", OPEN).json()
    assert lab.service.broker.mints == mints + 2
    shared, also = (container["credential"] for container in first["containers"])
    assert shared == also != first["credential"]
    told = lab.audited()[-1].details["containers"]
    assert told.keys() == {lab.container("files/"), lab.container("more/")}
    assert len({told[prefix]["by"] for prefix in told}) == 2  # each by a policy of its own
    assert all(told[prefix]["new"] and told[prefix]["until"] for prefix in told)

    # Whichever container it was refused for, it is replaced once, for all of them.
    fingerprint = CredentialAnswer("s3", shared["values"]).fingerprint
    for prefix in PREFIXES:
        body = {"refused": {lab.container(prefix): fingerprint}}
        answer = lab.desk.ask("bob", "POST", "/repos/lab/sst/credentials", body).json()
        new, other = (container["credential"] for container in answer["containers"])
        assert new["values"] == other["values"] != shared["values"]
        assert answer["credential"]["values"] == first["credential"]["values"]
    assert lab.service.broker.mints == mints + 3


def test_more_containers_than_one_credential_can_serve(lab: Lab) -> None:
    prefixes = [f"files/{'x' * 200}-{number}/" for number in range(9)]
    lab.declare(*prefixes)
    lab.open("cyd")
    mints = lab.service.broker.mints
    answer = lab.desk.ask("bob", "POST", OPEN).json()
    made = {str(container["credential"]["values"]) for container in answer["containers"]}
    assert 1 < len(made) < len(prefixes)
    assert lab.service.broker.mints == mints + 1 + len(made)
    for container in answer["containers"]:
        grants = [c for c in answer["containers"] if c["credential"] == container["credential"]]
        policy = session_policy(
            Grant(
                Bucket("lab", "main", Platform.S3, container["store"]["bucket"]),
                tuple(sorted(c["store"]["prefix"] for c in grants)),
                "bob",
            )
        )
        assert len(policy) <= 2048


# Revocation


def test_a_member_who_is_removed_is_refused_in_a_crowd(
    lab: Lab, settings: Settings, lab_store: S3Endpoint, prefix: str
) -> None:
    """Another server removes somebody while their requests are under way here."""
    other = Lab(settings, lab_store, prefix)
    stop = threading.Event()

    def keep_asking() -> set[int]:
        statuses = set()
        while not stop.is_set():
            statuses.add(lab.desk.ask("bob", "POST", OPEN).status_code)
        return statuses

    lab.open("bob")
    with ThreadPoolExecutor(4) as threads:
        crowd = [threads.submit(keep_asking) for _ in range(4)]
        try:
            for _ in range(10):
                other.remove("bob")
                assert lab.desk.ask("bob", "POST", OPEN).status_code == 404
                other.set_reader("bob")
                assert lab.desk.ask("bob", "POST", OPEN).status_code == 200
        finally:
            stop.set()
        assert set.union(*(asking.result() for asking in crowd)) <= {200, 404}
    other.service.database.close()


def test_policies_and_tokens_end_at_once(lab: Lab) -> None:
    lab.open("bob")
    policies = lab.desk.ask("ada", "GET", "/orgs/lab/policies").json()["items"]
    (policy,) = (policy for policy in policies if policy["prefix"] == "files/")
    assert lab.desk.ask("ada", "DELETE", f"/orgs/lab/policies/{policy['id']}").is_success
    mints = lab.service.broker.mints
    assert lab.desk.ask("bob", "POST", OPEN).json()["code"] == "virtual-access-required"
    assert lab.service.broker.mints == mints
    with lab.service.database.writing() as connection:
        accounts.revoke_token(connection, token_id(lab.desk.tokens["bob"]), lab.desk.now)
    assert lab.desk.ask("bob", "POST", OPEN).status_code == 401


# Credentials that are made while the configuration is read


def test_a_changed_configuration_is_decided_about_anew(lab: Lab) -> None:
    assert lab.open("bob") == [lab.container("files/")]
    assert lab.withheld() == []

    lab.declare("more/")
    assert lab.open("cyd") == [lab.container("more/")]
    assert lab.withheld() == ["files/"]
    assert lab.open("cyd") == [lab.container("more/")]
    assert lab.withheld() == []

    lab.declare("more/", "secret/")
    mints = lab.service.broker.mints
    refused = lab.desk.ask("bob", "POST", OPEN)
    assert (refused.status_code, refused.json()["code"]) == (403, "virtual-access-required")
    assert [m["container"] for m in refused.json()["missing"]] == [lab.container("secret/")]
    assert "secret_access_key" not in refused.text
    assert lab.withheld() == ["more/"]
    assert lab.service.broker.mints == mints + 1

    # Now that the service knows the containers, it makes nothing for somebody who is refused.
    for person in ("bob", "ada"):
        assert lab.desk.ask(person, "POST", OPEN).status_code == 403
        assert lab.withheld() == []
    assert lab.service.broker.mints == mints + 1

    lab.declare("files/")
    assert lab.open("bob") == [lab.container("files/")]


def test_an_answer_is_the_same_with_and_without_remembered_facts(lab: Lab) -> None:
    lab.open("bob")
    portal: Any = lab.desk.client.portal

    def load() -> tuple[Any, ...]:
        with lab.service.database.reading() as connection:
            caller = accounts.find_caller(connection, "bob")
            entry = load_entry(connection, "lab", "sst")
            assert caller is not None
            assert entry is not None
            offers = load_offers(connection, entry.repository, caller.roles, lab.desk.now)
        remembered = Opener(lab.service).facts_of(entry, None, offers)
        return caller, entry, offers, remembered

    caller, entry, offers, remembered = load()
    actor = Actor("bob", PersonKind.PERSON)

    async def open_with(*facts: Any) -> Opened:
        return await Opener(lab.service).open(actor, caller, entry, Access.READ, offers, *facts)

    alone, shared = portal.call(open_with), portal.call(open_with, remembered)
    # The time that is left is that of each answer; all else is the same.
    refresh = replace(alone.answer.refresh, seconds_left=shared.answer.refresh.seconds_left)
    assert replace(alone.answer, refresh=refresh) == shared.answer
    assert alone.verdict == shared.verdict


def test_an_open_notes_the_use_of_its_token(lab: Lab) -> None:
    def last_use(person: str) -> datetime | None:
        identifier = token_id(lab.desk.tokens[person])
        with lab.service.database.reading() as connection:
            return rows.require(connection, tables.tokens, Token, id=identifier).last_used_at

    assert last_use("bob") is None
    lab.open("bob")
    assert last_use("bob") == lab.desk.now
    lab.remove("cyd")
    assert lab.desk.ask("cyd", "POST", OPEN).status_code == 404
    assert last_use("cyd") == lab.desk.now
