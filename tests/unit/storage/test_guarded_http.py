"""Reading from web servers that mean no good, and from such as do."""

import ipaddress
import os
import pickle
import random
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import cast

import pytest

from icefloe.config import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    effective_storage_settings,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.storage import Backend, Storage, local_filesystem_storage, web_client
from icefloe.storage.addresses import AddressGuard, is_metadata, is_public
from icefloe.storage.guarded_http import GuardedHttpReader, guarded_http_spec
from icefloe.storage.web_client import Origin
from icefloe.testing.storage_suite import ODD_KEYS, StorageConformance, driven
from tests.support.http_server import (
    FileServer,
    ScriptedHandler,
    ScriptedServer,
    file_server,
    redirect_server,
    scripted_server,
)
from tests.support.loopback import LoopbackServer, serving
from tests.support.processes import LOOPBACK

pytestmark = pytest.mark.slow

DATA = random.Random(1).randbytes(3_000_000)
SMALL = bytes(range(100))
ONCE = StorageSettings(retries=StorageRetriesSettings(1, 0, 0))
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"

type Script = Callable[[ScriptedHandler], None]


def reading(server: LoopbackServer, settings: StorageSettings = ONCE) -> Backend:
    """Read from a server of the suite, whose address is private, with leave to do so."""
    return Storage(guarded_http_spec(server.url, private_hosts=[LOOPBACK])).open(settings)


def ranged(script: Script, byte_range: tuple[int, int] = (10, 20)) -> bytes:
    with scripted_server(script) as server:
        return bytes(run_blocking(reading(server).get("object", byte_range)).data)


def partial(handler: ScriptedHandler, content_range: str, body: bytes, **headers: str) -> None:
    handler.answer(
        HTTPStatus.PARTIAL_CONTENT,
        body,
        {"Content-Range": content_range}
        | {name.replace("_", "-"): value for name, value in headers.items()},
    )


def plain(handler: ScriptedHandler) -> None:
    partial(handler, "bytes 10-19/100", SMALL[10:20])


class TestReading:
    """Beyond what all web storages are tested for in `tests/conformance/test_http.py`."""

    drive = StorageConformance.drive

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[FileServer]:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "object").write_bytes(DATA)
        (tmp_path / "empty").write_bytes(b"")
        with file_server(tmp_path) as server:
            yield server

    @pytest.fixture
    def backend(self, server: FileServer) -> Backend:
        return reading(server)

    @driven
    async def test_head(self, backend: Backend, server: FileServer) -> None:
        looked = await backend.head("folder/object")
        assert bytes(looked.data) == b""
        assert looked.info == (await backend.get("folder/object", (0, 1))).info
        modified = (server.root / "folder" / "object").stat().st_mtime
        assert looked.info.last_modified.timestamp() == int(modified)

    @driven
    async def test_ranges(self, backend: Backend, server: FileServer) -> None:
        for start, stop in ((10, 20), (0, 3_000_000), (2_999_999, 3_000_000), (5, 5)):
            fetched = await backend.get("folder/object", (start, stop))
            assert bytes(fetched.data) == DATA[start:stop]
            assert fetched.info.size_bytes == len(DATA)
        asked = [(2_999_990, 3_000_000), (0, 5), (7, 9), (100, 100), (0, 2_000_000)]
        found = await backend.get_ranges("folder/object", asked)
        assert [bytes(each) for each in found] == [DATA[start:stop] for start, stop in asked]
        assert await backend.get_ranges("folder/object", []) == []
        assert all("bytes=" in each for each in server.requests if each.startswith("GET"))

    @pytest.mark.parametrize(
        "wrong", [(2_999_990, 3_000_001), (3_000_000, 3_000_001), (9**10, 9**11), (5, 4), (-1, 3)]
    )
    @driven
    async def test_wrong_ranges(self, backend: Backend, wrong: tuple[int, int]) -> None:
        with pytest.raises(InvalidInputError) as caught:
            await backend.get("folder/object", wrong)
        assert caught.value.kind == ErrorKind.INVALID_BYTE_RANGE
        with pytest.raises(InvalidInputError):
            await backend.get_ranges("folder/object", [(0, 1), wrong])

    @driven
    async def test_empty_range_past_the_end(self, backend: Backend) -> None:
        past = (3_000_001, 3_000_001)
        with pytest.raises(InvalidInputError):
            await backend.get("folder/object", past)
        with pytest.raises(InvalidInputError):
            await backend.get_ranges("folder/object", [(0, 1), past])

    @driven
    async def test_near_ranges_come_in_one_request(
        self, backend: Backend, server: FileServer
    ) -> None:
        before = len(server.requests)
        await backend.get_ranges("folder/object", [(0, 10), (20, 30), (1000, 2000)])
        assert server.requests[before:] == ["GET /folder/object bytes=0-1999"]

    @pytest.mark.parametrize("key", ["", "/", "/absolute", "a//b", "a/", "../up", "a/../b", "./a"])
    @driven
    async def test_impossible_keys(self, backend: Backend, server: FileServer, key: str) -> None:
        with pytest.raises(InvalidInputError):
            await backend.get(key, (0, 1))
        with pytest.raises(InvalidInputError):
            await backend.get_ranges(key, [(0, 1)])
        with pytest.raises(InvalidInputError):
            await backend.head(key)
        assert server.requests == []

    def test_odd_keys(self, backend: Backend, server: FileServer) -> None:
        for number, key in enumerate((*ODD_KEYS, "line\r\nbreak: x", "tab\t", "%2e%2e/x")):
            file = server.root / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes([number]))
            assert bytes(run_blocking(backend.get(key, (0, 1))).data) == bytes([number])

    def test_root_below_a_path(self, server: FileServer) -> None:
        spec = guarded_http_spec(f"{server.url}/folder/", private_hosts=[LOOPBACK])
        assert bytes(run_blocking(Storage(spec).open().get("object", (0, 4))).data) == DATA[:4]


# -- addresses


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),  # private
        *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::"),  # this machine
        *("169.254.169.254", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"),  # this link
        *("100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16"),  # of providers
        *("fc00::1", "fec0::1", "198.18.0.1", "192.0.2.1", "2001:db8::1"),
        *("224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255"),  # not of one machine
        *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),  # in another coat
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["9.9.9.9", "93.184.215.14", "2606:4700::1111", "::ffff:9.9.9.9", "64:ff9b::909:909"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


SERVICES = [
    "169.254.169.254",
    "169.254.170.2",  # containers on AWS
    "169.254.170.23",  # pods on AWS
    "100.100.100.200",  # Alibaba
    "192.0.0.192",  # Oracle
    "168.63.129.16",  # Azure
]


def forms_of(service: str) -> list[str]:
    """Write an IPv4 address in all ways in which IPv6 addresses embed one."""
    number = int(ipaddress.IPv4Address(service))
    embedded = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "NAT64": 0x64FF9B << 96 | number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "Teredo client": 0x20010000 << 96 | 0x09090909 << 64 | number ^ 0xFFFFFFFF,
        "Teredo server": 0x20010000 << 96 | number << 64 | 0xF6F6F6F6,
        "local NAT64 /96": 0x64FF9B0001 << 80 | number,
        "local NAT64 /64": 0x64FF9B0001 << 80 | number << 24,
        "local NAT64 /56": 0x64FF9B0001 << 80 | number >> 24 << 64 | (number & 0xFFFFFF) << 32,
        "local NAT64 /48": 0x64FF9B0001 << 80 | number >> 16 << 64 | (number & 0xFFFF) << 40,
    }
    return [str(ipaddress.IPv6Address(address)) for address in embedded.values()]


METADATA = [
    *SERVICES,
    *(form for service in SERVICES for form in forms_of(service)),
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe", "fe80::1%eth0"),
]


@pytest.mark.parametrize("address", METADATA)
def test_metadata_services_are_known_in_every_form(address: str) -> None:
    assert is_metadata(address)
    assert not is_public(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "::", "9.9.9.9", "fd00::1"])
def test_other_addresses_are_no_metadata_services(address: str) -> None:
    assert not is_metadata(address)
    assert not any(map(is_metadata, forms_of("10.0.0.1")))


@pytest.mark.parametrize("address", METADATA)
def test_nobody_can_authorise_a_metadata_service(address: str) -> None:
    """Not even whoever allows private addresses: a name may lead there."""
    guard = AddressGuard(
        allow_private=True, private_hosts=["data.example"], resolver=NameServer(address)
    )
    with pytest.raises(InvalidInputError, match="credentials") as caught:
        guard.connect("data.example", 80, seconds=0.001)
    assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER


LOOPBACK_NAMES = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"]


def port_of(server: LoopbackServer) -> int:
    port = server.server_port
    assert isinstance(port, int)
    return port


@pytest.mark.parametrize("host", LOOPBACK_NAMES)
def test_private_server_is_not_reached(tmp_path: Path, host: str) -> None:
    with file_server(tmp_path) as server:
        backend = Storage(guarded_http_spec(f"http://{host}:{port_of(server)}")).open(ONCE)
        for attempt in (
            lambda: backend.get("object", (0, 1)),
            lambda: backend.get("object"),
            lambda: backend.get_ranges("object", [(0, 1)]),
            lambda: backend.head("object"),
        ):
            with pytest.raises(InvalidInputError, match="allow_private=True") as caught:
                run_blocking(attempt())
            assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
        assert server.requests == []


@pytest.mark.parametrize("host", LOOPBACK_NAMES)
def test_private_server_is_reached_with_leave(tmp_path: Path, host: str) -> None:
    (tmp_path / "object").write_bytes(SMALL)
    with file_server(tmp_path) as server:
        spec = guarded_http_spec(f"http://{host}:{port_of(server)}", allow_private=True)
        assert bytes(run_blocking(Storage(spec).open(ONCE).get("object", (1, 3))).data) == b"\1\2"


def test_leave_is_for_the_host_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(SMALL)
    with file_server(tmp_path) as server:

        def read(host: str, *allowed: str) -> bytes:
            url = f"http://{host}:{port_of(server)}"
            backend = Storage(guarded_http_spec(url, private_hosts=allowed)).open(ONCE)
            return bytes(run_blocking(backend.get("object", (1, 3))).data)

        assert read("127.0.0.1", "10.0.0.1", "127.0.0.1") == b"\1\2"
        assert read("LOCALHOST", "localhost") == b"\1\2"
        for host, allowed in (
            ("localhost", "127.0.0.1"),
            ("127.0.0.1", "localhost"),
            ("127.0.0.1", "127.0.0.2"),
        ):
            with pytest.raises(InvalidInputError, match="allow_private"):
                read(host, allowed)


def reader_with(guard: AddressGuard, port: int) -> GuardedHttpReader:
    spec = guarded_http_spec(f"http://data.example:{port}")
    return GuardedHttpReader(spec, effective_storage_settings(ONCE), "test", guard)


class NameServer:
    """Answers with one address after the other, as an attacker's does; the last one stays."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: str, port: int) -> list[tuple[str, int]]:
        assert host == "data.example"
        self.asked += 1
        return [(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0], port)]


def test_name_that_leads_to_a_private_address() -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 0-0/1", b"x")

    with scripted_server(script) as server:
        guard = AddressGuard(resolver=NameServer("127.0.0.1"))
        with pytest.raises(InvalidInputError, match=r"'data\.example' is at 127\.0\.0\.1"):
            run_blocking(reader_with(guard, port_of(server)).get("object", (0, 1)))
        assert server.requests == []


def test_name_server_that_changes_its_mind() -> None:
    """The address that was checked is the one that is connected to; a new one is checked again.

    Of the two addresses of this machine one plays the public one.
    """

    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 0-0/1", b"x", Connection="close")
        handler.close_connection = True

    with scripted_server(script) as server:
        names = NameServer("127.0.0.1", "127.0.0.2")
        guard = AddressGuard(resolver=names, allows="127.0.0.1".__eq__)
        reader = reader_with(guard, port_of(server))
        assert bytes(run_blocking(reader.get("object", (0, 1))).data) == b"x"
        assert names.asked == 1
        with pytest.raises(InvalidInputError, match=r"127\.0\.0\.2"):
            run_blocking(reader.get("object", (0, 1)))
        assert len(server.requests) == 1


def test_only_the_allowed_ones_of_several_addresses_are_tried() -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 0-0/1", b"x")

    def resolver(_: str, port: int) -> list[tuple[str, int]]:
        return [("127.0.0.1", port), ("127.0.0.2", port)]

    with scripted_server(script) as server:  # listens at the first one only
        guard = AddressGuard(resolver=resolver, allows="127.0.0.2".__eq__)
        with pytest.raises(StorageError):
            run_blocking(reader_with(guard, port_of(server)).get("object", (0, 1)))
        assert server.requests == []


# -- redirections


def redirecting(location: str, status: int = 302) -> Script:
    def script(handler: ScriptedHandler) -> None:
        if handler.path == "/object":
            handler.answer(status, b"", {"Location": location})
        else:
            partial(handler, "bytes 10-19/100", SMALL[10:20])

    return script


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirections_within_a_server_are_followed(status: int) -> None:
    assert ranged(redirecting("/elsewhere?a=b", status)) == SMALL[10:20]
    with scripted_server(redirecting("elsewhere", status)) as server:
        run_blocking(reading(server).get("object", (10, 20)))
        asked = ["GET /object bytes=10-19", "GET /elsewhere bytes=10-19"]
        assert server.requests == asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirections_to_another_server_are_not_followed(tmp_path: Path, status: int) -> None:
    (tmp_path / "object").write_bytes(SMALL)
    with file_server(tmp_path) as other:
        for target in (
            f"{other.url}/object?token=s3cret",
            f"//{LOOPBACK}:{port_of(other)}/object",
            f"http://localhost:{port_of(other)}/object",
        ):
            with redirect_server(target, status=HTTPStatus(status)) as server:
                backend = reading(server)
                for read in (
                    backend.get("object", (0, 1)),
                    backend.get("object"),
                    backend.head("object"),
                ):
                    with pytest.raises(StorageError, match="another server") as caught:
                        run_blocking(read)
                    assert caught.value.kind == ErrorKind.BAD_REDIRECT
                    assert not caught.value.retryable
                    assert "s3cret" not in str(caught.value)
        assert other.requests == []


@pytest.mark.parametrize(
    "location",
    [
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "https:///x",
        "http://[broken",
        "http://127.0.0.1:99999/",
        "/with space",
        "",
    ],
)
def test_redirections_to_nowhere(location: str) -> None:
    with pytest.raises(StorageError) as caught:
        ranged(redirecting(location))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT


def test_redirection_with_a_user() -> None:
    def script(handler: ScriptedHandler) -> None:
        port = port_of(cast("LoopbackServer", handler.server))
        target = f"http://user:word@{LOOPBACK}:{port}/elsewhere"
        redirecting(target)(handler)

    with pytest.raises(StorageError) as caught:
        ranged(script)
    assert caught.value.kind == ErrorKind.BAD_REDIRECT
    assert "word" not in str(caught.value)


def test_redirections_in_circles_end() -> None:
    with scripted_server(redirecting("/object")) as server:
        with pytest.raises(StorageError) as caught:
            run_blocking(reading(server).get("object", (10, 20)))
        assert caught.value.kind == ErrorKind.BAD_REDIRECT
        assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("source", "target", "is_followed"),
    [
        ("http://a.example", "http://a.example/x", True),
        ("http://a.example", "http://A.EXAMPLE.:80/x", True),
        ("http://a.example", "https://a.example/x", True),
        ("http://a.example:8000", "https://a.example:8000/x", True),
        ("https://a.example", "http://a.example/x", False),  # no longer encrypted
        ("https://a.example:8000", "http://a.example:8000/x", False),
        ("http://a.example", "http://a.example:8000/x", False),
        ("http://a.example:8000", "https://a.example/x", False),
        ("http://a.example", "https://b.example/x", False),
        ("http://a.example", "http://a.example.evil.example/x", False),
        ("http://[::1]:8000", "http://[0:0::1]:8000/x", True),
    ],
)
def test_which_servers_are_the_same(source: str, target: str, is_followed: bool) -> None:
    assert Origin.of(source).leads_to(Origin.of(target)) == is_followed


# -- certificates


def make_certificate(folder: Path, host: str) -> Path:
    """Make a certificate that vouches for itself, with its key in the same file."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    file = folder / f"{host}.pem"
    subject = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    places = ["-keyout", str(file), "-out", str(folder / "certificate"), "-days", "2"]
    subprocess.run([openssl, "req", *kind, *subject, *places], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (folder / "certificate").read_bytes())
    return file


def read_encrypted(
    certificate: Path, trusted: Path | None, monkeypatch: pytest.MonkeyPatch
) -> bytes:
    """Read from `data.example`, played by a server of the suite."""
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    web_client._tls.cache_clear()  # the authorities are looked up once
    try:
        with scripted_server(plain) as server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            guard = AddressGuard(allow_private=True, resolver=NameServer("127.0.0.1"))
            spec = guarded_http_spec(f"https://data.example:{port_of(server)}")
            reader = GuardedHttpReader(spec, effective_storage_settings(ONCE), "test", guard)
            return bytes(run_blocking(reader.get("object", (10, 20))).data)
    finally:
        web_client._tls.cache_clear()


def test_encrypted_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is checked against the name, though the address is connected to."""
    certificate = make_certificate(tmp_path, "data.example")
    assert read_encrypted(certificate, certificate, monkeypatch) == SMALL[10:20]


@pytest.mark.parametrize(("host", "is_trusted"), [("other.example", True), ("data.example", False)])
def test_certificate_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_trusted: bool
) -> None:
    certificate = make_certificate(tmp_path, host)
    with pytest.raises(StorageError, match="certificate") as caught:
        read_encrypted(certificate, certificate if is_trusted else None, monkeypatch)
    assert not caught.value.retryable


# -- answers that are not what was asked for


def test_server_that_does_not_know_ranges() -> None:
    def script(handler: ScriptedHandler) -> None:
        handler.answer(HTTPStatus.OK, SMALL, {"ETag": '"a"', "Last-Modified": MODIFIED})

    assert ranged(script) == SMALL[10:20]
    with pytest.raises(InvalidInputError) as caught:
        ranged(script, (90, 101))
    assert caught.value.kind == ErrorKind.INVALID_BYTE_RANGE


def test_server_that_sends_everything_is_not_read_for_long() -> None:
    """Whatever it promises, no more than a little beyond the range is taken from it."""
    sent = 0
    is_over = threading.Event()

    def script(handler: ScriptedHandler) -> None:
        nonlocal sent
        handler.begin(HTTPStatus.OK, {"Content-Length": str(1 << 40)})
        handler.wfile.write(SMALL)
        try:
            while sent < 1 << 28:
                sent += handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass
        handler.close_connection = True
        is_over.set()

    assert ranged(script) == SMALL[10:20]
    assert is_over.wait(60)
    assert sent < 1 << 26  # what the system had buffered


def test_range_too_far_away_in_a_server_that_does_not_know_ranges() -> None:
    sent = 0

    def script(handler: ScriptedHandler) -> None:
        nonlocal sent
        handler.begin(HTTPStatus.OK, {"Content-Length": str(1 << 40)})
        handler.close_connection = True
        while sent < 1 << 28:
            sent += handler.wfile.write(bytes(1 << 16))

    with pytest.raises(StorageError, match="too far away"):
        ranged(script, (1 << 39, (1 << 39) + 10))
    assert sent < 1 << 26


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 0-9/100",  # another part
        "bytes 11-20/100",
        "bytes 10-18/100",  # less
        "bytes 10-20/100",  # more
        "bytes 10-19/15",  # impossible
        "bytes 10-19/*",
        "bytes 19-10/100",
        "items 10-19/100",
        "bytes 10-19",
        "10-19/100",
        f"bytes 10-19/{10**30}",
        "",
    ],
)
def test_wrong_content_range(content_range: str) -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, content_range, SMALL[10:20])

    with pytest.raises(StorageError) as caught:
        ranged(script)
    assert not caught.value.retryable


def test_missing_content_range() -> None:
    with pytest.raises(StorageError):
        ranged(lambda handler: handler.answer(HTTPStatus.PARTIAL_CONTENT, SMALL[10:20]))


def test_range_that_the_object_is_too_short_for() -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 10-14/15", SMALL[10:15])

    with pytest.raises(InvalidInputError) as caught:
        ranged(script)
    assert caught.value.kind == ErrorKind.INVALID_BYTE_RANGE


@pytest.mark.parametrize("length", [5, 11, 1 << 40])
def test_part_of_another_length(length: int) -> None:
    def script(handler: ScriptedHandler) -> None:
        headers = {"Content-Range": "bytes 10-19/100", "Content-Length": str(length)}
        handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
        handler.wfile.write(SMALL[10:20])
        handler.close_connection = True

    with pytest.raises(StorageError):
        ranged(script)


def test_body_in_chunks() -> None:
    def script(handler: ScriptedHandler) -> None:
        headers = {"Content-Range": "bytes 10-19/100", "Transfer-Encoding": "chunked"}
        handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
        handler.wfile.write(b"4\r\n" + SMALL[10:14] + b"\r\nff\r\n" + SMALL[14:])
        handler.wfile.write(bytes(1000))  # more than it should, which stays unread
        handler.close_connection = True

    assert ranged(script) == SMALL[10:20]


def test_body_that_ends_early() -> None:
    tries = 0

    def script(handler: ScriptedHandler) -> None:
        nonlocal tries
        tries += 1
        headers = {"Content-Range": "bytes 10-19/100", "Content-Length": "10"}
        handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
        handler.wfile.write(SMALL[10:20] if tries == 3 else SMALL[10:15])
        handler.close_connection = True

    with pytest.raises(StorageError) as caught:
        ranged(script)
    assert caught.value.retryable
    tries = 0
    thrice = StorageSettings(retries=StorageRetriesSettings(3, 1, 1))
    with scripted_server(script) as server:
        storage = Storage(guarded_http_spec(server.url, private_hosts=[LOOPBACK]))
        fetched = run_blocking(storage.open(thrice).get("object", (10, 20)))
    assert bytes(fetched.data) == SMALL[10:20]
    assert storage.request_counts().retries == 2


def test_absurd_promise_takes_no_memory() -> None:
    """A server that says it has an exabyte must send it before room is made for it."""
    size = 1 << 60

    def script(handler: ScriptedHandler) -> None:
        headers = {"Content-Range": f"bytes 0-{size - 1}/{size}", "Content-Length": str(size)}
        handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
        handler.wfile.write(SMALL)
        handler.close_connection = True

    with pytest.raises(StorageError):
        ranged(script, (0, size))


@pytest.mark.parametrize("encoding", ["gzip", "br", "Deflate"])
def test_compressed_body(encoding: str) -> None:
    def script(handler: ScriptedHandler) -> None:
        assert handler.headers["Accept-Encoding"] == "identity"
        partial(handler, "bytes 10-19/100", SMALL[10:20], Content_Encoding=encoding)

    with pytest.raises(StorageError, match="compressed"):
        ranged(script)


@pytest.mark.parametrize("method", ["head", "get"])
def test_unknown_length(method: str) -> None:
    def script(handler: ScriptedHandler) -> None:
        handler.begin(HTTPStatus.OK)
        handler.close_connection = True

    with scripted_server(script) as server, pytest.raises(StorageError, match="how long"):
        run_blocking(getattr(reading(server), method)("object"))


def test_several_lengths() -> None:
    """Which of them is true is a matter of taste, and so none is."""

    def script(handler: ScriptedHandler) -> None:
        handler.send_response(HTTPStatus.OK)
        for length in ("100", "50"):
            handler.send_header("Content-Length", length)
        handler.end_headers()
        handler.wfile.write(SMALL)
        handler.close_connection = True

    with pytest.raises(StorageError, match="how long"):
        ranged(script)


def test_missing_etag_and_time() -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 10-19/100", SMALL[10:20], Last_Modified="some day")

    with scripted_server(script) as server:
        info = run_blocking(reading(server).get("object", (10, 20))).info
    assert info.version.etag is None
    assert info.last_modified.timestamp() == 0
    assert not info.is_time_known


def test_etag_and_time() -> None:
    def script(handler: ScriptedHandler) -> None:
        partial(handler, "bytes 10-19/100", SMALL[10:20], ETag='W/"x"', Last_Modified=MODIFIED)

    with scripted_server(script) as server:
        info = run_blocking(reading(server).get("object", (10, 20))).info
    assert info.version.etag == 'W/"x"'
    assert info.last_modified.isoformat() == "2015-10-21T07:28:00+00:00"
    assert info.is_time_known


def test_object_that_changes_between_ranges() -> None:
    etags = iter("abcdefgh")

    def script(handler: ScriptedHandler) -> None:
        first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
        body = bytes(int(last) + 1 - int(first))
        partial(handler, f"bytes {first}-{last}/9999999", body, ETag=f'"{next(etags)}"')

    with scripted_server(script) as server, pytest.raises(StorageError, match="replaced"):
        run_blocking(reading(server).get_ranges("object", [(0, 10), (5_000_000, 5_000_010)]))


@pytest.mark.parametrize(
    ("status", "is_passing", "kind"),
    [
        (400, False, ErrorKind.OBJECT_STORE),
        (401, False, ErrorKind.OBJECT_STORE),
        (403, False, ErrorKind.OBJECT_STORE),
        (429, True, ErrorKind.THROTTLED),
        (500, True, ErrorKind.OBJECT_STORE),
        (501, False, ErrorKind.OBJECT_STORE),
        (503, True, ErrorKind.THROTTLED),
        (304, False, ErrorKind.OBJECT_STORE),
        (204, False, ErrorKind.OBJECT_STORE),
    ],
)
def test_refusals(status: int, is_passing: bool, kind: ErrorKind) -> None:
    with pytest.raises(StorageError) as caught:
        ranged(
            lambda handler: handler.answer(status, b"" if status in {204, 304} else b"tell-tale")
        )
    assert caught.value.retryable == is_passing
    assert caught.value.kind == kind
    assert "tell-tale" not in str(caught.value)


def test_gone_is_gone() -> None:
    with pytest.raises(ObjectNotFoundError):
        ranged(lambda handler: handler.answer(HTTPStatus.GONE))


# -- servers that take their time


def hold(handler: ScriptedHandler) -> None:
    """Wait until the other side has gone; if it is patient, go on after all."""
    handler.wfile.flush()
    handler.connection.settimeout(30)
    with suppress(TimeoutError):
        handler.connection.recv(1)
    handler.close_connection = True


def impatient(**milliseconds: int) -> StorageSettings:
    return StorageSettings(
        retries=StorageRetriesSettings(1, 0, 0), timeouts=StorageTimeoutSettings(**milliseconds)
    )


def stalled_before_head(handler: ScriptedHandler) -> None:
    hold(handler)
    plain(handler)


def stalled_in_head(handler: ScriptedHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range:")
    hold(handler)
    handler.wfile.write(b" bytes 10-19/100\r\n\r\n" + SMALL[10:20])


def stalled_in_body(handler: ScriptedHandler) -> None:
    headers = {"Content-Range": "bytes 10-19/100", "Content-Length": "10"}
    handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
    handler.wfile.write(SMALL[10:15])
    hold(handler)
    handler.wfile.write(SMALL[15:20])


@pytest.mark.parametrize("script", [stalled_before_head, stalled_in_head, stalled_in_body])
def test_server_that_stalls(script: Script) -> None:
    with scripted_server(script) as server:
        backend = reading(server, impatient(read_timeout_ms=50))
        with pytest.raises(StorageError, match="too long") as caught:
            run_blocking(backend.get("object", (10, 20)))
        assert caught.value.retryable


def drop_by_drop(handler: ScriptedHandler, data: bytes) -> None:
    pause = threading.Event()
    for position in range(len(data)):
        handler.wfile.write(data[position : position + 1])
        handler.wfile.flush()
        pause.wait(0.02)


def slow_body(handler: ScriptedHandler) -> None:
    headers = {"Content-Range": "bytes 10-99/100", "Content-Length": "90"}
    handler.begin(HTTPStatus.PARTIAL_CONTENT, headers)
    drop_by_drop(handler, SMALL[10:])


def slow_head(handler: ScriptedHandler) -> None:
    head = (
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 90\r\nContent-Range: bytes 10-99/100\r\n"
    )
    drop_by_drop(handler, head.encode() + b"\r\n")
    handler.wfile.write(SMALL[10:])


def endless_preliminaries(handler: ScriptedHandler) -> None:
    for _ in range(90):
        drop_by_drop(handler, b"H")
        handler.wfile.write(b"TTP/1.1 100 Continue\r\n\r\n")
    slow_body(handler)


@pytest.mark.slow
@pytest.mark.parametrize("script", [slow_body, slow_head, endless_preliminaries])
def test_server_that_never_stalls_but_takes_for_ever(script: Script) -> None:
    """Each byte comes in time, all of them together do not; without a limit they would do."""
    with scripted_server(script) as server:
        for limited in (
            reading(server, impatient(operation_attempt_timeout_ms=400)),
            Storage(
                guarded_http_spec(server.url, {"timeout": "400ms"}, private_hosts=[LOOPBACK])
            ).open(ONCE),
        ):
            with pytest.raises(StorageError, match="too long"):
                run_blocking(limited.get("object", (10, 100)))
        assert bytes(run_blocking(reading(server).get("object", (10, 100))).data) == SMALL[10:]


def test_options_cannot_lengthen_times() -> None:
    with scripted_server(stalled_before_head) as server:
        spec = guarded_http_spec(server.url, {"timeout": "9 days"}, private_hosts=[LOOPBACK])
        backend = Storage(spec).open(impatient(operation_attempt_timeout_ms=50))
        with pytest.raises(StorageError, match="too long"):
            run_blocking(backend.get("object", (10, 20)))


# -- connections


class CountedServer(ScriptedServer):
    """Counts connections."""

    connections = 0

    def process_request(self, request: object, client_address: object) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@pytest.fixture
def counted() -> Iterator[CountedServer]:
    with serving(CountedServer(plain)) as server:
        yield server


def test_connections_are_used_again(counted: CountedServer) -> None:
    backend = reading(counted)
    for _ in range(5):
        assert bytes(run_blocking(backend.get("object", (10, 20))).data) == SMALL[10:20]
    assert counted.connections == 1


def test_connection_that_was_closed_meanwhile_is_replaced(counted: CountedServer) -> None:
    backend = reading(counted)
    for _ in range(3):
        assert bytes(run_blocking(backend.get("object", (10, 20))).data) == SMALL[10:20]
        counted.hang_up()
    assert counted.connections == 3


def test_unread_bodies_do_not_spill_into_the_next_answer() -> None:
    answers = iter([b"x" * 10_000, SMALL])

    def script(handler: ScriptedHandler) -> None:
        handler.answer(HTTPStatus.OK, next(answers))

    with scripted_server(script) as server:
        backend = reading(server)
        assert bytes(run_blocking(backend.get("object", (0, 5))).data) == b"xxxxx"
        assert bytes(run_blocking(backend.get("object", (0, 5))).data) == SMALL[:5]


def test_many_threads_at_once(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(DATA)
    with file_server(tmp_path) as server:
        backend = reading(
            server, StorageSettings(concurrency=StorageConcurrencySettings(8, 50_000))
        )
        asked = [(start, start + 1000) for start in range(0, 3_000_000, 100_000)]
        found = run_blocking(backend.get_ranges("object", asked))
        assert [bytes(each) for each in found] == [DATA[start:stop] for start, stop in asked]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_process_does_not_use_connections_of_its_parent(counted: CountedServer) -> None:
    reader = GuardedHttpReader(
        guarded_http_spec(counted.url, private_hosts=[LOOPBACK]),
        effective_storage_settings(ONCE),
        "test",
    )
    run_blocking(reader.get("object", (10, 20)))
    if (child := os.fork()) == 0:  # pragma: no cover - another process
        try:
            found = bytes(run_blocking(reader.get("object", (10, 20))).data)
            os._exit(0 if found == SMALL[10:20] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    run_blocking(reader.get("object", (10, 20)))
    assert counted.connections == 2


def test_unreachable_server(tmp_path: Path) -> None:
    with file_server(tmp_path) as server:
        backend = reading(server)
    with pytest.raises(StorageError) as caught:
        run_blocking(backend.get("object"))
    assert caught.value.retryable


# -- options and headers


def test_what_is_sent() -> None:
    seen: dict[str, str] = {}

    def script(handler: ScriptedHandler) -> None:
        seen.update({name.lower(): value for name, value in handler.headers.items()})
        plain(handler)

    with scripted_server(script) as server:
        spec = guarded_http_spec(
            server.url,
            {"user_agent": "mine", "allow_http": "true", "http1_only": "true"},
            {"X-Token": "abc"},
            private_hosts=[LOOPBACK],
        )
        run_blocking(Storage(spec).open(ONCE).get("object", (10, 20)))
        assert seen == {
            "host": f"{LOOPBACK}:{port_of(server)}",
            "user-agent": "mine",
            "x-token": "abc",
            "accept-encoding": "identity",
            "range": "bytes=10-19",
        }
        run_blocking(reading(server).get("object", (10, 20)))
        assert seen["user-agent"].startswith("icefloe/")


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "hOST", "Content-Length", "Transfer-Encoding", "Connection", "Range", "Expect"),
        *("Proxy-Authorization", "If-None-Match", "X-Forwarded-Host", "User-Agent", "Upgrade"),
    ],
)
def test_headers_of_the_protocol_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="part of the protocol"):
        guarded_http_spec("https://data.example", headers={name: "x"})


@pytest.mark.parametrize("value", ["a\r\nHost: b", "a\0", "é"])
def test_header_values_that_are_none(value: str) -> None:
    with pytest.raises(InvalidInputError):
        guarded_http_spec("https://data.example", headers={"X-A": value})
    with pytest.raises(InvalidInputError):
        guarded_http_spec("https://data.example", {"user_agent": value})


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "9" * 400},
        {"connect_timeout": f"{'9' * 400}s"},
        {"proxy_url": "http://10.0.0.1:3128"},
        {"allow_invalid_certificates": "true"},
        {"unknown": "x"},
        {"timeout": "soon"},
        {"timeout": "0s"},
        {"connect_timeout": "5 fortnights"},
    ],
)
def test_options_that_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        guarded_http_spec("https://data.example", options)


def test_unencrypted_address_that_the_options_forbid() -> None:
    with pytest.raises(InvalidInputError):
        guarded_http_spec("http://data.example", {"allow_http": "false"})


@pytest.mark.parametrize(
    "url",
    [
        "ftp://data.example/",
        "https:///path",
        "https://user:hush@data.example",
        "https://dаta.example",  # the second letter is Cyrillic
        "https://data.example\\@evil.example",
        "https://data.example?x",
        "https://data.example#x",
        "https://data.example/a b",
        "https://data.example:99999",
        "https://-data.example",
        "https://da%74a.example",
        "https://data example",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(IcefloeError) as caught:
        guarded_http_spec(url)
    assert "hush" not in str(caught.value)


def test_times_are_read() -> None:
    spec = guarded_http_spec("https://data.example", {"timeout": "1m 30s", "connect_timeout": "5"})
    assert (spec.whole_seconds, spec.connect_seconds) == (90, 5)


def test_description_travels_and_tells_no_secrets() -> None:
    spec = guarded_http_spec(
        "https://data.example:8443/x",
        headers={"Authorization": "s3cret"},
        private_hosts=["10.0.0.1"],
    )
    storage = Storage(spec)
    assert pickle.loads(pickle.dumps(storage)) == storage
    for text in (repr(storage), str(storage), repr(spec), storage._repr_html_()):
        assert "s3cret" not in text
    assert "https://data.example:8443/x" in str(storage)


def test_files_of_a_local_storage_are_found_by_name(tmp_path: Path) -> None:
    run_blocking(local_filesystem_storage(str(tmp_path)).open().put("a/b", SMALL))
    with file_server(tmp_path) as server:
        assert bytes(run_blocking(reading(server).get("a/b", (3, 5))).data) == SMALL[3:5]
