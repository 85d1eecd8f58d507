"""No way of writing a location leads out of what the reader authorised.

What the manifests of a repository say is not trusted: any text may stand there.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icefloe.config import (
    VirtualChunkContainer,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3Credentials,
)
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import BytesColumn
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.virtual_chunks.resolve import ResolvedLocation, normalise
from tests.support.http_server import FileServer, file_server, redirect_server

PUBLIC, SECRET = b"public", b"secret"
REFUSALS = {
    ErrorKind.INVALID_VIRTUAL_REF,
    ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
    ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
}
"""Said before anything is asked of a storage."""

UPWARDS = [
    "../closed/secret",
    "./../closed/secret",
    "x/../../closed/secret",
    "%2e%2e/closed/secret",
    "%2E./closed/secret",
    "..%2fclosed/secret",
    "..%2Fclosed%2Fsecret",
    "%2e%2e%2fclosed%2fsecret",
    "%252e%252e/closed/secret",
    "%252e%252e%252fclosed%252fsecret",
    "%25252e%25252e%25252fclosed%25252fsecret",
    "..%252fclosed/secret",
    "..\\closed\\secret",
    "..\\..\\closed/secret",
    "..%5cclosed%5csecret",
    "%2e%2e%5cclosed/secret",
    "..%255cclosed/secret",
    "/../closed/secret",
    "//../../closed/secret",
    "public\x00/../closed/secret",
    "public%00/../../closed/secret",
    "public%00",
    "public%0a",
    "public%250a",
    "public\n",
    "..;/closed/secret",
    "..%ff/closed/secret",
    "?/../closed/secret",
    "#/../closed/secret",
    "\u2025/closed/secret",
    "\uff0e\uff0e/closed/secret",
    "..\u2215closed\u2215secret",
    "..%c0%afclosed/secret",
    "%c0%ae%c0%ae/closed/secret",
    "%u002e%u002e/closed/secret",
    "%" + "25" * 40 + "2e%2e/closed/secret",
    "",
    "/",
    "//",
    ".",
    "..",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    (root / "open").mkdir()
    (root / "open" / "public").write_bytes(PUBLIC)
    (root / "closed").mkdir()
    (root / "closed" / "secret").write_bytes(SECRET)
    (root / "open-evil").mkdir()
    (root / "open-evil" / "secret").write_bytes(SECRET)
    (root / "secret").write_bytes(SECRET)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[FileServer]:
    with file_server(root) as server:
        yield server


def file_reader(root: Path) -> VirtualReader:
    """The repository declares far more than the reader authorised."""
    store = local_filesystem_store("/")
    containers = [
        VirtualChunkContainer(f"file://{root}/", store, "root"),
        VirtualChunkContainer(f"file://{root}/open/", store, "open"),
    ]
    return VirtualReader(containers, {f"file://{root}/open": LocalFileSystemAccess})


def web_reader(url: str) -> VirtualReader:
    containers = [
        VirtualChunkContainer(f"{url}/", http_store(), "root"),
        VirtualChunkContainer(f"{url}/open/", http_store(), "open"),
    ]
    return VirtualReader(containers, {f"{url}/open": HttpAccess})


def attempt(reader: VirtualReader, location: str) -> bytes | IcefloeError:
    try:
        return bytes(run_blocking(reader.read(VirtualChunk(location, 0, 6), 0, 6)))
    except IcefloeError as error:
        return error


def refused(outcome: bytes | IcefloeError) -> bool:
    return isinstance(outcome, InvalidInputError) and outcome.kind in REFUSALS


def test_what_is_authorised_can_be_read(root: Path, server: FileServer) -> None:
    for way in (f"file://{root}/open/", "vcc://open/", "vcc://root/open/"):
        assert attempt(file_reader(root), f"{way}public") == PUBLIC
    for way in (f"{server.url}/open/", "vcc://open/", "vcc://root/open/"):
        assert attempt(web_reader(server.url), f"{way}public") == PUBLIC


@pytest.mark.parametrize("path", UPWARDS)
def test_no_path_leads_out_of_an_authorised_folder(root: Path, path: str) -> None:
    reader = file_reader(root)
    for start in (f"file://{root}/open/", "vcc://open/", "vcc://root/open/", "vcc://root/"):
        outcome = attempt(reader, start + path)
        assert outcome != SECRET
        assert isinstance(outcome, IcefloeError)


@pytest.mark.parametrize("path", UPWARDS)
def test_no_path_leads_out_of_an_authorised_part_of_a_web_server(
    server: FileServer, path: str
) -> None:
    reader = web_reader(server.url)
    asked = len(server.requests)
    for start in (f"{server.url}/open/", "vcc://open/", "vcc://root/open/", "vcc://root/"):
        assert isinstance(attempt(reader, start + path), IcefloeError)
    for request in server.requests[asked:]:
        assert lies_below("open", request.split()[1].removeprefix("/"))


@pytest.mark.parametrize("path", [each for each in UPWARDS if "closed" in each])
def test_steps_upwards_are_refused_before_any_request(server: FileServer, path: str) -> None:
    asked = len(server.requests)
    outcome = attempt(web_reader(server.url), f"{server.url}/open/{path}")
    if not lies_below("open", f"open/{path}"):
        assert refused(outcome)
        assert len(server.requests) == asked


@pytest.mark.parametrize(
    "location",
    [
        "s3://open-evil/k",
        "s3://open.evil/k",
        "s3://OPEN/k",
        "s3://open@evil/k",
        "s3://evil@open/k",
        "s3://user:word@open/k",
        "s3://open:80/k",
        "s3://open%2fevil/k",
        "s3://evil%2f..%2fopen/k",
        "s3://%6fpen/k",
        "s3://open\\evil/k",
        "s3://open\u200b/k",
        "s3://\u043epen/k",
        "s3://o\uff50en/k",
        "s3://open\x00/k",
        "\u04553://open/k",
        "s\u00b3://open/k",
        "s3:\\\\open\\k",
        "s3:/open/k",
        "s3:open/k",
        "//open/k",
        " s3://open/k",
        "s3 ://open/k",
        "s3://open /k",
        "s3://?open/k",
        "s3://#open/k",
        "s3://open?/k",
        "s3://open#/k",
        "https://allowed@evil.example/k",
        "https://allowed:443@evil.example/k",
        "https://allowed.evil.example/k",
        "https://allowed:8443/k",
        "https://allowed\\@evil.example/k",
        "https://\u0430llowed/k",
        "https://allowed\u3002evil.example/k",
        "https://allowed%2eevil.example/k",
        "http://allowed/k",
        "https:allowed/k",
        "https:///allowed/k",
        "file://open/k",
        "file:///open/k",
        "vcc://open/k",
        "vcc://s3%3a%2f%2fopen/k",
        "data:text/plain,k",
        "s3://xn--pen-7nd/k",
    ],
)
def test_look_alikes_of_what_is_authorised_are_refused(location: str) -> None:
    containers = [
        VirtualChunkContainer("s3", s3_store()),
        VirtualChunkContainer("https", http_store()),
    ]
    access: dict[str, AnyCredential | None] = {
        "s3://open": Credentials.S3(S3Credentials.Anonymous()),
        "https://allowed": HttpAccess,
    }
    reader = VirtualReader(containers, access)
    assert refused(attempt(reader, location))
    assert reader.clients_opened == 0


# -- any text ----------------------------------------------------------------------------------


def thoroughly_decoded(text: str) -> str:
    while (decoded := unquote(text)) != text:
        text = decoded
    return text


def lies_below(folder: str, path: str) -> bool:
    """Say whether even the worst of servers takes a path for one below a folder."""
    decoded = thoroughly_decoded(path)
    simplified = normalize("NFKC", decoded).replace("\\", "/")
    without_parameters = re.sub(r";[^/]*", "", simplified)
    understood = (path, decoded, simplified, without_parameters)
    resolved = (posixpath.normpath(f"/{each}") + "/" for each in understood)
    return all(each.startswith(f"/{folder}/") for each in resolved)


_fragments = st.sampled_from(
    [
        *("open", "closed", "secret", "public", "a", " ", "ñ", "\u2025", "\uff0e", "\u2215"),
        *("/", "//", "\\", "%2f", "%2F", "%5c", "%252f", "%255c", "%25252f"),
        *(".", "..", "%2e", "%2e%2e", "%252e", "%25252e%2e", "%", "%25", "%zz", "%ff", "%c0%af"),
        *("?", "#", "@", ":", ";", "\x00", "%00", "%2500", "\n", "\r", "\t", "*", "~"),
    ]
)
_texts = st.lists(_fragments, max_size=12).map("".join) | st.text(max_size=20)
_starts = st.sampled_from(
    ["s3://open/", "s3://open/open/", "S3://open/open/", "s3:", "s3://", "vcc://any/", "vcc://in/"]
)


def found(reader: VirtualReader, location: str) -> ResolvedLocation | None:
    """Go as far as a read goes before it asks a storage."""
    try:
        place = reader.resolver.locate(location)
        reader.resolver.require_key(place)
        reader.resolver.require_grant(place)
    except InvalidInputError as error:
        if error.kind not in REFUSALS:
            raise
        return None
    return place


@given(_starts, _texts)
@example("s3://open/open/", "%25252e%2e/closed")
@example("s3://open/open/", "a\\..\\..\\closed")
def test_whatever_the_text_an_object_below_an_authorised_prefix_is_read(
    start: str, text: str
) -> None:
    containers = [
        VirtualChunkContainer("s3", s3_store(), "any"),
        VirtualChunkContainer("s3://open/open", s3_store(), "in"),
    ]
    anonymous = Credentials.S3(S3Credentials.Anonymous())
    reader = VirtualReader(containers, {"s3://open/open/": anonymous})
    place = found(reader, start + text)
    if place is not None:
        assert place.bucket == "open"
        assert lies_below("open", place.key)


@given(_texts)
def test_whatever_the_text_nothing_secret_is_read_of_local_files(root: Path, text: str) -> None:
    reader = file_reader(root)
    for start in (f"file://{root}/open/", f"file://{root}", "vcc://open/", "vcc://root/", "file:"):
        assert attempt(reader, start + text) != SECRET


@given(_texts)
def test_whatever_the_text_recording_and_reading_fail_cleanly(text: str) -> None:
    reader = VirtualReader([VirtualChunkContainer("s3", s3_store(), "any")])
    for location in (text, f"s3://open/{text}", f"vcc://any/{text}", f"https://{text}"):
        if (stored := unless_invalid(normalise, location)) is None:
            continue
        assert normalise(stored) == stored
        column = BytesColumn.from_strings([stored])
        recorded = unless_invalid(partial(reader.recorded, validate=True), column)
        if recorded is not None and recorded[1] is not None and not recorded[1][0]:
            place = reader.resolver.locate(stored, for_recording=True)
            expected = "https://" if stored.startswith("https:") else "s3"
            assert place.container.url_prefix == expected


def unless_invalid[A, R](act: Callable[[A], R], argument: A) -> R | None:
    try:
        return act(argument)
    except InvalidInputError as error:
        if error.kind != ErrorKind.INVALID_VIRTUAL_REF:
            raise
        return None


# -- what only the storage can see -------------------------------------------------------------


def test_links_lead_nowhere_that_was_not_authorised(root: Path) -> None:
    for name, target in {
        "to-file": root / "closed" / "secret",
        "to-folder": root / "closed",
        "inside": root / "open" / "public",
    }.items():
        (root / "open" / name).symlink_to(target)
    reader = file_reader(root)
    start = f"file://{root}/open"
    assert attempt(reader, f"{start}/inside") == PUBLIC
    for location in (f"{start}/to-file", f"{start}/to-folder/secret", "vcc://open/to-file"):
        outcome = attempt(reader, location)
        assert isinstance(outcome, InvalidInputError)
        assert outcome.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
        assert f"file://{root}/closed/" in outcome.message
    both = VirtualReader(
        reader.resolver.containers,
        {start: LocalFileSystemAccess, f"file://{root}/closed": LocalFileSystemAccess},
    )
    assert attempt(both, f"{start}/to-file") == SECRET


def test_a_private_web_server_is_not_asked_unless_authorised_as_such(server: FileServer) -> None:
    container = VirtualChunkContainer("http", http_store())
    location = f"{server.url}/open/public"
    asked = len(server.requests)
    wide = attempt(VirtualReader([container], {"http": HttpAccess}), location)
    assert isinstance(wide, IcefloeError)
    assert "127.0.0.1" in wide.message
    undeclared = attempt(VirtualReader([], {"http://": HttpAccess}), location)
    assert isinstance(undeclared, IcefloeError)
    assert len(server.requests) == asked
    allowed = Credentials.HttpAccess(allow_private=True)
    assert attempt(VirtualReader([container], {"http": allowed}), location) == PUBLIC
    assert attempt(VirtualReader([], {server.url: HttpAccess}), location) == PUBLIC


def test_a_web_server_cannot_send_readers_to_another_host(root: Path) -> None:
    with (
        file_server(root) as target,
        redirect_server(f"{target.url}/closed/secret") as hostile,
    ):
        container = VirtualChunkContainer(hostile.url, http_store())
        reader = VirtualReader([container], {hostile.url: HttpAccess})
        outcome = attempt(reader, f"{hostile.url}/x")
        assert isinstance(outcome, IcefloeError)
        assert target.requests == []
