"""No sequence of calls by people who are not admins ever widens what anybody can read.

The service is the real one. Behind it is a store whose STS puts the session policy into the token
of each credential, so that the answers tell what was granted. The model is a table written by
hand: who can read which folder at the beginning. Afterwards nobody may read more of these folders.
"""

import base64
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from icefloe.catalog.model import BucketState, Member, Organisation, Person, Role
from icefloe.config import RepositoryConfig, VirtualChunkContainer, s3_store
from icefloe.format.config_file import encode_config_yaml
from icefloe.service.database import accounts, tables
from icefloe.service.settings import Settings
from tests.support.desk import START, Desk
from tests.support.http_server import ScriptedHandler, scripted_server

LAB, ARCHIVE = "lab-data", "tape-data"
FOLDERS = frozenset(
    {
        f"{LAB}/sst/",
        f"{LAB}/private/",
        f"{LAB}/raw/",
        f"{ARCHIVE}/daily/",
        f"{ARCHIVE}/secret/",
        f"{ARCHIVE}/own/",
    }
)
"""All folders with data in them."""
MEMBERS = {
    "ada": ("lab", Role.ADMIN),
    "walt": ("lab", Role.WRITER),
    "bob": ("lab", Role.READER),
    "eve": ("archive", Role.ADMIN),
    "ron": ("archive", Role.WRITER),
    "mal": ("mallory", Role.WRITER),
    "ops": ("mallory", Role.ADMIN),
}
OF_LAB = {f"{LAB}/sst/", f"{ARCHIVE}/daily/", f"{LAB}/private/"}
READABLE = {
    "ada": OF_LAB | {f"{LAB}/raw/"},
    "walt": OF_LAB | {f"{LAB}/raw/"},  # writers may get a credential for a whole bucket
    "bob": OF_LAB,
    "eve": {f"{ARCHIVE}/daily/", f"{ARCHIVE}/secret/", f"{ARCHIVE}/own/"},
    "ron": {f"{ARCHIVE}/daily/", f"{ARCHIVE}/secret/", f"{ARCHIVE}/own/"},
    "mal": set(),
    "ops": set(),
}
"""The model: who can read what. `lab/sst` refers to `daily` and `private`, by policies."""
ATTACKERS = ("walt", "bob", "ron", "mal")
ORGANISATIONS = ("lab", "archive", "mallory")
PREFIXES = ("", "sst/", "private/", "raw/", "daily/", "secret/", "own/", "new/")


class TellingStore:
    """A store whose credentials tell what they are for, and which keeps configurations."""

    def __init__(self) -> None:
        self.configurations: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._number = 0

    def write(self, path: str, containers: list[VirtualChunkContainer]) -> None:
        """Write the configuration of a repository, as anybody can who may write it."""
        config = RepositoryConfig.default()
        for container in containers:
            config.set_virtual_chunk_container(container)
        with self._lock:
            self.configurations[f"/{path}config.yaml"] = encode_config_yaml(config)

    def respond(self, handler: ScriptedHandler) -> None:
        """Answer as an STS to POST, and with configurations to GET."""
        body = handler.read_body()
        if handler.command == "POST":
            policy = parse_qs(body.decode())["Policy"][0]
            with self._lock:
                self._number += 1
            parts = {
                "AccessKeyId": f"key{self._number}",
                "SecretAccessKey": "secret",
                "SessionToken": base64.b64encode(policy.encode()).decode(),
                "Expiration": (START + timedelta(hours=1)).isoformat(),
            }
            text = "".join(f"<{name}>{value}</{name}>" for name, value in parts.items())
            handler.answer(HTTPStatus.OK, f"<Answer>{text}</Answer>".encode())
            return
        with self._lock:
            content = self.configurations.get(handler.path)
        if content is None:
            handler.answer(HTTPStatus.NOT_FOUND)
        else:
            etag = f'"{hash(content) & 0xFFFFFFFF:x}"'
            handler.answer(HTTPStatus.OK, content, {"ETag": etag})


def granted_folders(answer: dict[str, Any]) -> Iterator[str]:
    """Return the folders that the credentials of an answer reach."""
    holders = [answer, *answer.get("containers", ())]
    for holder in holders:
        token = holder["credential"]["values"]["session_token"]
        statements = json.loads(base64.b64decode(token))["Statement"]
        reading = [part for part in statements if "s3:GetObject" in part["Action"]]
        for statement in reading:
            for resource in statement["Resource"]:
                name = resource.removeprefix("arn:aws:s3:::").removesuffix("*")
                # A credential for all of a bucket reaches every folder of it.
                yield from (folder for folder in FOLDERS if folder.startswith(name))


class NonAdmins(RuleBasedStateMachine):
    """People who are not admins call what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.store = TellingStore()
        server = self.stack.enter_context(scripted_server(self.store.respond))
        self.url = server.url
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        options = Settings(
            folder=folder, allowed_endpoints=(server.url,), allows_anonymous=False, probe_hours=0
        )
        self.desk = Desk(options)
        self.stack.enter_context(self.desk.client)
        self.policies: list[str] = []

    def teardown(self) -> None:
        """Stop the servers."""
        self.stack.close()

    @initialize()
    def build(self) -> None:
        """Let admins set everything up."""
        for person in MEMBERS:
            self.desk.add_person(Person(person))
        with self.desk.service.database.writing() as connection:
            for organisation, admin in (("lab", "ada"), ("archive", "eve"), ("mallory", "ops")):
                made = Organisation(organisation)
                accounts.create_organisation(connection, made, admin, START)
            for person, (organisation, role) in MEMBERS.items():
                accounts.set_member(connection, Member(organisation, person, role))
        self.must("ada", "POST", "/orgs/lab/buckets", self.bucket("main", LAB))
        self.must("eve", "POST", "/orgs/archive/buckets", self.bucket("main", ARCHIVE))
        with self.desk.service.database.writing() as connection:
            connection.execute(tables.buckets.update().values(state=BucketState.PROVEN))
        confirm = {"scope": "anyone", "confirm_prefix": f"s3://{ARCHIVE}/daily/"}
        for person, organisation, body in (
            ("eve", "archive", {"bucket": "main", "prefix": "daily/"} | confirm),
            ("ada", "lab", {"bucket": "main", "prefix": "private/"}),
        ):
            made = self.must(person, "POST", f"/orgs/{organisation}/policies", body)
            self.policies.append(made.json()["id"])
        for person, organisation, name in (("ada", "lab", "sst"), ("eve", "archive", "own")):
            place: dict[str, Any] = {
                "name": name,
                "bucket": "main",
                "prefix": f"{name}/",
                "imports": True,
            }
            self.must(person, "POST", f"/orgs/{organisation}/repos", place)
        shared = [self.container(f"{ARCHIVE}/daily/"), self.container(f"{LAB}/private/")]
        self.store.write(f"{LAB}/sst/", shared)
        self.store.write(f"{ARCHIVE}/own/", [])
        # The model and the service agree at the beginning.
        for person, folders in READABLE.items():
            assert self.readable(person) == folders, person

    def bucket(self, name: str, bucket: str, prefix: str = "") -> dict[str, Any]:
        return {
            "name": name,
            "platform": "s3",
            "bucket": bucket,
            "prefix": prefix,
            "endpoint": self.url,
            "sts_endpoint": self.url,
            "path_style": True,
            "allow_http": True,
            "role": "arn:aws:iam::1:role/vend",
            "secrets": {"access_key_id": "a", "secret_access_key": "b"},
        }

    def container(self, place: str) -> VirtualChunkContainer:
        options = s3_store(
            endpoint_url=self.url, s3_compatible=True, allow_http=True, force_path_style=True
        )
        return VirtualChunkContainer(f"s3://{place}", options)

    def must(self, person: str, method: str, path: str, body: object = None) -> Any:
        response = self.desk.ask(person, method, path, body)
        assert response.is_success, response.text
        return response

    def readable(self, person: str) -> set[str]:
        """Ask for everything in the name of somebody; return the folders they get."""
        folders: set[str] = set()
        for repository in self.desk.ask(person, "GET", "/repos").json()["items"]:
            name = f"{repository['organisation']}/{repository['name']}"
            opened = self.desk.ask(person, "POST", f"/repos/{name}/open")
            if opened.is_success:
                folders.update(granted_folders(opened.json()))
        for organisation in ORGANISATIONS:
            listed = self.desk.ask(person, "GET", f"/orgs/{organisation}/buckets")
            for bucket in listed.json().get("items", ()):
                path = f"/orgs/{organisation}/buckets/{bucket['name']}/credentials"
                made = self.desk.ask(person, "POST", path)
                if made.is_success:
                    folders.update(granted_folders(made.json()))
        return folders

    # What attackers do

    @rule(
        person=st.sampled_from(ATTACKERS),
        organisation=st.sampled_from(ORGANISATIONS),
        name=st.sampled_from(("sst", "own", "new")),
        prefix=st.sampled_from((None, *PREFIXES)),
        imports=st.booleans(),
        visibility=st.sampled_from(("organisation", "everyone")),
    )
    def create_repository(self, person: str, organisation: str, **fields: Any) -> None:
        """Register a repository over data that exists, or elsewhere."""
        body = fields | {"bucket": "main"}
        self.desk.ask(person, "POST", f"/orgs/{organisation}/repos", body)

    @rule(
        person=st.sampled_from(("walt", "ron")),
        places=st.lists(st.sampled_from(sorted(FOLDERS)), max_size=3, unique=True),
    )
    def edit_configuration(self, person: str, places: list[str]) -> None:
        """Declare containers in a repository that one may write."""
        organisation, _ = MEMBERS[person]
        name, bucket = ("sst", LAB) if organisation == "lab" else ("own", ARCHIVE)
        opened = self.desk.ask(person, "POST", f"/repos/{organisation}/{name}/open")
        if opened.status_code in {200, 403}:
            self.store.write(f"{bucket}/{name}/", [self.container(place) for place in places])

    @rule(
        person=st.sampled_from(ATTACKERS),
        organisation=st.sampled_from(ORGANISATIONS),
        prefix=st.sampled_from(PREFIXES),
        scope=st.sampled_from(("organisation", "anyone")),
        bucket=st.sampled_from((LAB, ARCHIVE)),
    )
    def create_policy(
        self, person: str, organisation: str, prefix: str, scope: str, bucket: str
    ) -> None:
        """Allow virtual chunks to be read."""
        body = {"bucket": "main", "prefix": prefix, "scope": scope}
        body["confirm_prefix"] = f"s3://{bucket}/{prefix}"
        self.desk.ask(person, "POST", f"/orgs/{organisation}/policies", body)

    @rule(
        person=st.sampled_from(ATTACKERS),
        index=st.integers(0, 1),
        organisation=st.sampled_from(ORGANISATIONS),
        method=st.sampled_from(("PUT", "DELETE", "UNDO")),
    )
    def change_policy(self, person: str, index: int, organisation: str, method: str) -> None:
        """Widen, delete or undo a policy."""
        path = f"/orgs/{organisation}/policies/{self.policies[index]}"
        if method == "UNDO":
            self.desk.ask(person, "POST", f"{path}/undo", {"number": 1})
        else:
            self.desk.ask(person, method, path, {"bucket": "main", "prefix": ""})

    @rule(
        person=st.sampled_from(ATTACKERS),
        organisation=st.sampled_from(ORGANISATIONS),
        other=st.sampled_from(sorted(MEMBERS)),
        role=st.sampled_from(("admin", "writer", "reader")),
    )
    def set_member(self, person: str, organisation: str, other: str, role: str) -> None:
        """Let somebody into an organisation, or make an account in it."""
        self.desk.ask(person, "PUT", f"/orgs/{organisation}/members/{other}", {"role": role})
        account = {"name": f"{person}-bot", "role": role}
        self.desk.ask(person, "POST", f"/orgs/{organisation}/service-accounts", account)

    @rule(
        person=st.sampled_from(ATTACKERS),
        organisation=st.sampled_from(ORGANISATIONS),
        bucket=st.sampled_from((LAB, ARCHIVE)),
        prefix=st.sampled_from(PREFIXES),
        name=st.sampled_from(("main", "more")),
    )
    def register_bucket(
        self, person: str, organisation: str, bucket: str, prefix: str, name: str
    ) -> None:
        """Register or change a bucket, and let the service probe it."""
        body = self.bucket(name, bucket, prefix)
        path = f"/orgs/{organisation}/buckets"
        self.desk.ask(person, "POST", path, body)
        del body["name"]
        self.desk.ask(person, "PUT", f"{path}/{name}", body)
        self.desk.ask(person, "POST", f"{path}/{name}/resume")

    @rule(
        person=st.sampled_from(ATTACKERS),
        repository=st.sampled_from(("lab/sst", "archive/own", "lab/new")),
        visibility=st.sampled_from(("organisation", "everyone")),
    )
    def publish(self, person: str, repository: str, visibility: str) -> None:
        """Change who may read a repository."""
        body = {"visibility": visibility, "status": "active"}
        self.desk.ask(person, "PATCH", f"/repos/{repository}", body)

    @rule(
        person=st.sampled_from(ATTACKERS),
        organisation=st.sampled_from(ORGANISATIONS),
        provider=st.sampled_from(("lab", "archive")),
    )
    def offer_and_subscribe(self, person: str, organisation: str, provider: str) -> None:
        """List a repository, subscribe to it, and decide about it oneself."""
        name = {"lab": "sst", "archive": "own"}[provider]
        listing = {"name": "offer", "repository": name, "offered_to": ["*"]}
        self.desk.ask(person, "POST", f"/orgs/{provider}/listings", listing)
        wanted = {"provider": provider, "listing": "offer"}
        made = self.desk.ask(person, "POST", f"/orgs/{organisation}/subscriptions", wanted)
        identifier = made.json().get("id", "subscription-0")
        path = f"/orgs/{provider}/subscriptions/{identifier}/decision"
        self.desk.ask(person, "POST", path, {"state": "granted", "granted": True})

    @rule(
        person=st.sampled_from(ATTACKERS),
        repository=st.sampled_from(("lab/sst", "archive/own")),
        organisation=st.sampled_from(ORGANISATIONS),
    )
    def ask_and_decide(self, person: str, repository: str, organisation: str) -> None:
        """Ask for access, and grant it to oneself."""
        made = self.desk.ask(person, "POST", f"/repos/{repository}/requests", {"message": "x"})
        identifier = made.json().get("id", "request-0") if made.is_success else "request-0"
        path = f"/orgs/{organisation}/requests/{identifier}/decision"
        self.desk.ask(person, "POST", path, {"granted": True, "state": "granted"})

    @rule(person=st.sampled_from(ATTACKERS))
    def make_a_wide_token(self, person: str) -> None:
        """Act through a token that claims everything."""
        body = {"name": "wide", "scope": {"actions": ["admin"], "repositories": ["*/*"]}}
        made = self.desk.ask(person, "POST", "/me/tokens", body)
        if made.is_success:
            self.desk.tokens[person] = made.json()["secret"]

    @invariant()
    def nobody_reads_more(self) -> None:
        """Compare what everybody can read with the model."""
        if not self.policies:
            return  # before the beginning
        for person, folders in READABLE.items():
            assert self.readable(person) <= folders, person


TestNonAdmins = NonAdmins.TestCase
TestNonAdmins.settings = settings(max_examples=8, stateful_step_count=6, deadline=None)
