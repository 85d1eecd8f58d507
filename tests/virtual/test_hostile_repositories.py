"""Repositories of an attacker, opened as a careful but unsuspecting user would open them.

Each attack is real: the repository is on disk with the attacker's bytes in it, the attacker's
server listens, and what is read is read through zarr. Where an attack could succeed at all, a
test beside it shows that the bait is real: with consent it is taken.
"""

import ipaddress
import os
import pickle
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.config import (
    ObjectStoreConfig,
    S3Options,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    s3_store,
)
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3StaticCredentials,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, StorageError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.json_value import JsonValue
from tests.support.http_server import (
    ScriptedHandler,
    file_server,
    redirect_server,
    scripted_server,
)
from tests.virtual.hostile import (
    Forged,
    Listener,
    chunk_of,
    forge,
    listener,
    opened,
)
from tests.virtual.sources import config_of

SPECS = pytest.mark.parametrize("spec_version", [1, 2])
PUBLIC, SECRET, BAIT = b"public", b"secret", b"BAIT!!"
KEY = "wJalrXUtnFEMI-the-secret-key-of-the-reader"
LOCAL: dict[str, JsonValue] = {"local_file_system": "/"}
HTTP: dict[str, JsonValue] = {"http": {}}


@pytest.fixture
def attacker() -> Iterator[Listener]:
    with listener() as server:
        yield server


def refusal(repository: icefloe.Repository, number: int = 0) -> IcefloeError:
    with pytest.raises(IcefloeError) as caught:
        chunk_of(repository, number)
    return caught.value


def assert_refused(error: IcefloeError, *kinds: ErrorKind) -> None:
    """It was this library that said no, before it asked anybody."""
    expected = kinds or (ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,)
    assert isinstance(error, InvalidInputError), error
    assert error.kind in expected, error


# -- a stored endpoint asks for credentials ------------------------------------------------------


def fetched_keys() -> S3StaticCredentials:
    return S3StaticCredentials("id", KEY)


def s3_ways() -> dict[str, AnyCredential]:
    """All ways in which a reader can have keys."""
    return {
        "static": Credentials.S3(s3_credentials(access_key_id="id", secret_access_key=KEY)),
        "refreshable": Credentials.S3(s3_credentials(get_credentials=fetched_keys)),
        "environment": Credentials.S3(s3_credentials(from_env=True)),
    }


ENDPOINTS: dict[str, tuple[str, str]] = {
    "S3": ("s3", "s3://data/"),
    "S3-compatible": ("s3_compatible", "s3://data/"),
    "Tigris": ("tigris", "s3://data/"),
    "a scheme of its own": ("s3_compatible", "models://data/"),
    "every bucket": ("s3", "s3://"),
}


@SPECS
@pytest.mark.parametrize("way", ["static", "refreshable", "environment"])
@pytest.mark.parametrize("form", ENDPOINTS)
def test_a_stored_endpoint_never_hears_of_the_reader(
    tmp_path: Path,
    attacker: Listener,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    way: str,
    spec_version: int,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    kind, prefix = ENDPOINTS[form]
    options: JsonValue = {
        "region": "us-east-1",
        "endpoint_url": attacker.url,
        "allow_http": True,
        "force_path_style": True,
    }
    scheme = prefix.partition("://")[0]
    forged = Forged(prefix, {kind: options})
    folder = forge(tmp_path / "repo", [forged], [f"{scheme}://data/x"], spec_version)
    for authorised in (f"{scheme}://data", scheme, f"{scheme}://data/x"):
        repository = opened(folder, {authorised: s3_ways()[way]})
        error = refusal(repository)
        assert_refused(error)
        assert attacker.url in error.message
        assert "set_virtual_chunk_container" in error.message
    assert attacker.connections == 0


@pytest.mark.parametrize("kind", ["s3", "s3_compatible", "tigris"])
def test_with_consent_the_endpoint_is_asked_with_credentials(
    tmp_path: Path, attacker: Listener, kind: str
) -> None:
    """The bait is real: only the guard stood between the keys and the listener."""
    options = S3Options(
        region="us-east-1", endpoint_url=attacker.url, allow_http=True, force_path_style=True
    )
    stored: JsonValue = {
        "region": "us-east-1",
        "endpoint_url": attacker.url,
        "allow_http": True,
        "force_path_style": True,
    }
    folder = forge(tmp_path / "repo", [Forged("s3://data/", {kind: stored})], ["s3://data/x"], 2)
    stores: dict[str, Callable[[S3Options], Any]] = {
        "s3": ObjectStoreConfig.S3,
        "s3_compatible": ObjectStoreConfig.S3Compatible,
        "tigris": ObjectStoreConfig.Tigris,
    }
    consent = config_of(VirtualChunkContainer("s3://data/", stores[kind](options)))
    repository = opened(folder, {"s3://data": s3_ways()["static"]}, consent)
    assert chunk_of(repository) == BAIT
    assert "id/" in attacker.heard[0].headers["authorization"]
    assert KEY not in str(attacker.heard[0].headers)


ANONYMOUS: dict[str, tuple[str, Callable[[str], dict[str, JsonValue]], AnyCredential]] = {
    "s3": (
        "s3://data/",
        lambda url: {"s3": {"endpoint_url": url, "allow_http": True, "force_path_style": True}},
        Credentials.S3(s3_credentials(anonymous=True)),
    ),
    "gcs": (
        "gs://data/",
        lambda url: {"gcs": {"google_base_url": url, "allow_http": "true"}},
        Credentials.Gcs(gcs_credentials(anonymous=True)),
    ),
    "azure": (
        "az://data/",
        lambda url: {"azure": {"account": "mine", "endpoint": url, "allow_http": "true"}},
        Credentials.Azure(azure_credentials(anonymous=True)),
    ),
}
PLATFORMS = pytest.mark.parametrize("platform", ANONYMOUS)


def anonymous_repository(
    folder: Path, platform: str, url: str, spec_version: int = 2
) -> icefloe.Repository:
    """Let a repository name a server that is to be read without credentials."""
    prefix, store, credential = ANONYMOUS[platform]
    forge(folder, [Forged(prefix, store(url))], [f"{prefix}x"], spec_version)
    return opened(folder, {prefix: credential})


@SPECS
@PLATFORMS
@pytest.mark.usefixtures("public_loopback")
def test_without_credentials_an_endpoint_is_asked_for_what_anybody_may_have(
    tmp_path: Path,
    attacker: Listener,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    spec_version: int,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    repository = anonymous_repository(tmp_path / "repo", platform, attacker.url, spec_version)
    assert chunk_of(repository) == BAIT
    (heard,) = attacker.heard
    assert heard.line == "GET /data/x"
    names = {name.lower() for name in heard.headers}
    assert not names & {"authorization", "x-amz-security-token", "cookie"}
    assert "token" not in str(heard.headers)


@SPECS
@PLATFORMS
def test_without_credentials_no_name_leads_into_the_readers_own_network(
    tmp_path: Path, attacker: Listener, platform: str, spec_version: int
) -> None:
    """An address that is written as such shows where it leads; a name does not."""
    name = f"http://0x7f000001:{attacker.server_port}"
    repository = anonymous_repository(tmp_path / "repo", platform, name, spec_version)
    error = refusal(repository)
    assert_refused(error)
    assert "pass its container yourself" in error.message
    assert attacker.connections == 0

    written = anonymous_repository(tmp_path / "written", platform, attacker.url, spec_version)
    assert chunk_of(written) == BAIT


@PLATFORMS
@pytest.mark.usefixtures("public_loopback")
def test_without_credentials_no_redirection_of_an_endpoint_is_followed(
    tmp_path: Path, attacker: Listener, platform: str
) -> None:
    with redirect_server(f"{attacker.url}/latest/meta-data") as server:
        repository = anonymous_repository(tmp_path / "repo", platform, server.url)
        error = refusal(repository)
    assert isinstance(error, StorageError)
    assert "redirect" in str(error)
    assert attacker.connections == 0


@PLATFORMS
@pytest.mark.usefixtures("public_loopback")
def test_without_credentials_an_endpoint_that_never_stops_is_not_listened_to(
    tmp_path: Path, platform: str
) -> None:
    """It says that it sends six bytes, and sends on."""
    block, sent = bytes(1 << 20), 0

    def flood(handler: ScriptedHandler) -> None:
        nonlocal sent
        length, now = 1 << 30, "Wed, 21 Oct 2015 07:28:00 GMT"
        headers = {"Content-Range": "bytes 0-5/6", "ETag": '"x"', "Last-Modified": now}
        handler.begin(206, {**headers, "Content-Length": str(length)})
        with suppress(OSError):
            while sent < length:
                handler.wfile.write(block)
                handler.wfile.flush()
                sent += len(block)

    with scripted_server(flood) as server:
        repository = anonymous_repository(tmp_path / "repo", platform, server.url)
        assert refusal(repository).kind == ErrorKind.VIRTUAL_CHUNK_FETCH
    assert sent < 64 << 20


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ({"s3": {"endpoint_url": "https://minio.example"}}, "https://data.minio.example"),
        (
            {"s3_compatible": {"endpoint_url": "https://e.example:9", "force_path_style": True}},
            "https://e.example:9/data",
        ),
        ({"s3": {"region": "x@evil.example/"}}, None),
        ({"s3": {"endpoint_url": "http://minio.example"}}, None),
    ],
)
def test_where_a_bucket_is_read_without_credentials(
    tmp_path: Path, store: dict[str, JsonValue], url: str | None
) -> None:
    folder = forge(tmp_path / "repo", [Forged("s3://data/", store)], ["s3://data/x"], 2)
    reader = opened(folder, {"s3://data/": ANONYMOUS["s3"][2]})._context.virtual
    place = reader.resolver.locate("s3://data/x")
    if url is None:
        with pytest.raises(IcefloeError):
            reader.storage_of(place, reader.resolver.require_grant(place))
    else:
        assert url in repr(reader.storage_of(place, reader.resolver.require_grant(place)))


OTHER_CLOUDS: dict[str, tuple[str, str, dict[str, str], AnyCredential]] = {
    name: (scheme, kind, options, credential)
    for name, scheme, kind, options, credential in (
        (
            "google base url",
            "gs",
            "gcs",
            {"google_base_url": "URL", "allow_http": "true"},
            Credentials.Gcs(gcs_credentials(bearer_token=KEY)),
        ),
        (
            "google base url in a service account",
            "gs",
            "gcs",
            {"google_service_account_key": '{"gcs_base_url": "URL"}', "allow_http": "true"},
            Credentials.Gcs(gcs_credentials(bearer_token=KEY)),
        ),
        (
            "google proxy",
            "gs",
            "gcs",
            {"proxy_url": "URL"},
            Credentials.Gcs(gcs_credentials(bearer_token=KEY)),
        ),
        (
            "azure endpoint",
            "az",
            "azure",
            {"account": "mine", "azure_storage_endpoint": "URL", "allow_http": "true"},
            Credentials.Azure(azure_credentials(access_key="c2VjcmV0")),
        ),
        (
            "azure endpoint with a shared access signature",
            "az",
            "azure",
            {"account": "mine", "endpoint": "URL", "allow_http": "true"},
            Credentials.Azure(azure_credentials(sas_token=f"sv=1&sig={KEY}")),
        ),
        (
            "azure emulator",
            "az",
            "azure",
            {"account": "mine", "use_emulator": "true"},
            Credentials.Azure(azure_credentials(access_key="c2VjcmV0")),
        ),
        (
            "azure account",
            "az",
            "azure",
            {"account": "AUTHORITY/"},
            Credentials.Azure(azure_credentials(bearer_token=KEY)),
        ),
        (
            "azure proxy",
            "az",
            "azure",
            {"account": "mine", "proxy_url": "URL"},
            Credentials.Azure(azure_credentials(bearer_token=KEY)),
        ),
    )
}


@SPECS
@pytest.mark.parametrize("trick", OTHER_CLOUDS)
def test_stored_options_of_other_clouds_lead_no_credentials_away(
    tmp_path: Path, attacker: Listener, trick: str, spec_version: int
) -> None:
    scheme, kind, given, credential = OTHER_CLOUDS[trick]
    options: dict[str, JsonValue] = {
        name: text.replace("URL", attacker.url).replace("AUTHORITY", attacker.authority)
        for name, text in given.items()
    }
    forged = Forged(f"{scheme}://data/", {kind: options})
    folder = forge(tmp_path / "repo", [forged], [f"{scheme}://data/x"], spec_version)
    for authorised in (f"{scheme}://data", scheme):
        assert_refused(refusal(opened(folder, {authorised: credential})))
    assert attacker.connections == 0


@pytest.mark.parametrize("trick", ["google base url", "azure endpoint"])
def test_with_consent_other_clouds_are_asked_with_credentials(
    tmp_path: Path, attacker: Listener, trick: str
) -> None:
    scheme, kind, given, credential = OTHER_CLOUDS[trick]
    options = {name: text.replace("URL", attacker.url) for name, text in given.items()}
    stored: dict[str, JsonValue] = dict(options)
    folder = forge(
        tmp_path / "repo", [Forged(f"{scheme}://data/", {kind: stored})], [f"{scheme}://data/x"], 2
    )
    account = options.pop("account", "")
    store = gcs_store(options) if kind == "gcs" else azure_store(account=account, config=options)
    consent = config_of(VirtualChunkContainer(f"{scheme}://data/", store))
    repository = opened(folder, {f"{scheme}://data": credential}, consent)
    with suppress(StorageError):  # it takes more to look like this cloud; but it was asked
        assert chunk_of(repository) == BAIT
    assert any("authorization" in map(str.lower, each.headers) for each in attacker.heard)


@SPECS
def test_a_region_cannot_be_an_address(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    for number, region in enumerate(
        (
            f"x@{attacker.authority}/",
            f"{attacker.authority}/#",
            f"{attacker.authority}?",
            "us-east-1.evil.example/",
            "../../evil",
            "us-east-1\\@evil.example",
            "",
        )
    ):
        options: JsonValue = {"region": region, "allow_http": True}
        forged = Forged("s3://data/", {"s3": options})
        folder = forge(tmp_path / str(number), [forged], ["s3://data/x"], spec_version)
        assert_refused(refusal(opened(folder, {"s3://data": s3_ways()["static"]})))
    assert attacker.connections == 0


@SPECS
def test_encryption_cannot_be_turned_off_on_the_way_to_a_cloud(
    tmp_path: Path, spec_version: int
) -> None:
    for number, endpoint in enumerate(
        ("http://s3.us-east-1.amazonaws.com", "http://storage.googleapis.com")
    ):
        options: JsonValue = {"endpoint_url": endpoint, "allow_http": True}
        forged = Forged("s3://data/", {"s3": options})
        folder = forge(tmp_path / str(number), [forged], ["s3://data/x"], spec_version)
        error = refusal(opened(folder, {"s3://data": s3_ways()["static"]}))
        assert_refused(error)
        assert endpoint in error.message


@SPECS
def test_consent_is_for_what_was_shown_and_not_for_what_replaces_it(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    """The reader trusts one server for a prefix; the repository adds a longer prefix to it."""
    with listener() as friend:
        given = s3_store(
            endpoint_url=friend.url, allow_http=True, region="us-east-1", force_path_style=True
        )
        hostile: JsonValue = {
            "endpoint_url": attacker.url,
            "allow_http": True,
            "region": "us-east-1",
        }
        forged = [Forged("s3://data/deep/", {"s3": hostile})]
        locations = ["s3://data/x", "s3://data/deep/x"]
        folder = forge(tmp_path / "repo", forged, locations, spec_version)
        consent = config_of(VirtualChunkContainer("s3://data/", given))
        repository = opened(folder, {"s3://data": s3_ways()["static"]}, consent)
        assert chunk_of(repository, 0) == chunk_of(repository, 1) == BAIT
        assert len(friend.heard) == 2  # containers given at open stand for all that are stored
    assert attacker.connections == 0


@SPECS
def test_neither_reopening_nor_another_process_is_consent(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    options: JsonValue = {"endpoint_url": attacker.url, "allow_http": True, "region": "us-east-1"}
    forged = Forged("s3://data/", {"s3": options})
    folder = forge(tmp_path / "repo", [forged], ["s3://data/x"], spec_version)
    repository = opened(folder, {"s3://data": s3_ways()["static"]})
    for other in (
        repository.reopen(),
        repository.reopen(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7)),
        pickle.loads(pickle.dumps(repository)),
        pickle.loads(pickle.dumps(repository.reopen())),
    ):
        assert_refused(refusal(other))
    assert attacker.connections == 0


# -- two prefixes for one container --------------------------------------------------------------


@SPECS
def test_a_container_listed_under_another_prefix_is_refused(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    """What a user sees listed and what would be matched must be the same."""
    options: JsonValue = {"endpoint_url": attacker.url, "allow_http": True}
    forged = [
        Forged("s3://meant/", {"s3": options}, key="s3://shown/"),
        Forged("s3://", {"s3": {"region": "us-east-1"}}),
    ]
    folder = forge(
        tmp_path / "repo", forged, ["s3://shown/x", "s3://meant/x", "s3://meant/y/z"], spec_version
    )
    access = containers_credentials(
        {
            "s3://shown": s3_credentials(anonymous=True),
            "s3://meant": s3_credentials(anonymous=True),
        }
    )
    for number in range(3):
        error = refusal(opened(folder, access), number)
        assert_refused(error, ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK)
        assert "contradicts itself" in error.message
    assert attacker.connections == 0
    report = opened(folder, access).describe_access()
    assert set(report.disputed) == {"s3://shown/", "s3://meant/"}


# -- locations that lead out of what was authorised ----------------------------------------------

UPWARDS = [
    "../closed/secret",
    "x/../../closed/secret",
    "%2e%2e/closed/secret",
    "..%2fclosed%2fsecret",
    "%2e%2e%2fclosed%2fsecret",
    "%252e%252e%252fclosed%252fsecret",
    "%25252e%25252e%25252fclosed%25252fsecret",
    "..\\closed\\secret",
    "..%5cclosed%5csecret",
    "..%255cclosed%255csecret",
    "/../closed/secret",
    "//../../closed/secret",
    "./../closed/secret",
    "public/../../closed/secret",
    "public%00/../../closed/secret",
    "public\x00/../../closed/secret",
    "..;/closed/secret",
    "..%c0%afclosed/secret",
    "%c0%ae%c0%ae/closed/secret",
    "\uff0e\uff0e/closed/secret",
    "\u2025/closed/secret",
    "?/../../closed/secret",
    "#/../../closed/secret",
    "link-to-file",
    "link-to-folder/secret",
    "link-to-link",
    "relative-link",
    "link-to-root/etc/hostname",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that the reader authorised, beside one that they did not; and links between."""
    root = tmp_path / "tree"
    for name in ("open", "closed", "open-evil"):
        (root / name).mkdir(parents=True)
    (root / "open" / "public").write_bytes(PUBLIC)
    (root / "closed" / "secret").write_bytes(SECRET)
    (root / "open-evil" / "secret").write_bytes(SECRET)
    (root / "open" / "link-to-file").symlink_to(root / "closed" / "secret")
    (root / "open" / "link-to-folder").symlink_to(root / "closed")
    (root / "open" / "link-to-link").symlink_to(root / "open" / "link-to-file")
    (root / "open" / "relative-link").symlink_to("../closed/secret")
    (root / "open" / "link-to-root").symlink_to("/")
    (root / "open" / "link-inside").symlink_to("public")
    return root


@SPECS
def test_no_location_leads_out_of_an_authorised_folder(
    tree: Path, tmp_path: Path, spec_version: int
) -> None:
    starts = [f"file://{tree}/open/", f"file://localhost{tree}/open/", "vcc://data/open/"]
    tricks = [start + path for start in starts for path in UPWARDS]
    tricks += [
        f"file://{tree}/open-evil/secret",
        f"file://{tree}/closed/secret",
        f"FILE://{tree}/closed/secret",
        f"file:{tree}/closed/secret",
        f"file://evil.example{tree}/closed/secret",
        f"file://user@localhost{tree}/closed/secret",
        "vcc://data/closed/secret",
        "vcc://nobody/secret",
        "file:///proc/self/environ",
        "file:///etc/hostname",
    ]
    fine = [
        f"file://{tree}/open/public",
        "vcc://data/open/public",
        f"file://{tree}/open/link-inside",
    ]
    containers = [Forged(f"file://{tree}/", LOCAL, name="data")]
    folder = forge(tmp_path / "repo", containers, [*fine, *tricks], spec_version)
    repository = opened(folder, {f"file://{tree}/open": LocalFileSystemAccess})
    for number in range(len(fine)):
        assert chunk_of(repository, number) == PUBLIC
    for number, location in enumerate(tricks, start=len(fine)):
        assert refusal(repository, number).kind in {
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            ErrorKind.INVALID_VIRTUAL_REF,
            ErrorKind.VIRTUAL_CHUNK_FETCH,  # a file of that very name, which is not there
        }, location


@SPECS
def test_files_need_an_authorisation_of_their_own(
    tree: Path, tmp_path: Path, spec_version: int
) -> None:
    """Whatever else was authorised, and whatever the repository says about files."""
    location = f"file://{tree}/open/public"
    containers = [
        Forged(f"file://{tree}/", LOCAL),
        Forged("s3://data/", {"s3": {}}),
        Forged("https://data/", HTTP),
    ]
    folder = forge(tmp_path / "repo", containers, [location], spec_version)
    everything_else = containers_credentials(
        {
            "s3": s3_credentials(anonymous=True),
            "gs": gcs_credentials(anonymous=True),
            "http": HttpAccess,
            "https": HttpAccess,
        }
    )
    error = refusal(opened(folder, everything_else))
    assert_refused(error)
    assert f"file://{tree}/" in error.message
    assert "LocalFileSystemAccess" in error.message
    assert chunk_of(opened(folder, {f"file://{tree}": LocalFileSystemAccess})) == PUBLIC


def test_a_pipe_does_not_hold_up_its_reader(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "open" / "pipe")
    folder = forge(
        tmp_path / "repo", [Forged(f"file://{tree}/", LOCAL)], [f"file://{tree}/open/pipe"], 2
    )
    repository = opened(folder, {f"file://{tree}/open": LocalFileSystemAccess})
    assert refusal(repository).kind == ErrorKind.VIRTUAL_CHUNK_FETCH


@SPECS
def test_no_location_leads_out_of_an_authorised_part_of_a_server(
    tree: Path, tmp_path: Path, spec_version: int
) -> None:
    with file_server(tree) as server:
        tricks = [f"{server.url}/open/{path}" for path in UPWARDS if "link" not in path]
        authority = server.url.removeprefix("http://")
        tricks += [
            f"{server.url}/closed/secret",
            f"{server.url}/open-evil/secret",
            f"http://user:word@{authority}/open/public",
            f"http://{authority}@{authority}/closed/secret",
        ]
        fine = f"{server.url}/open/public"
        folder = forge(
            tmp_path / "repo", [Forged(f"{server.url}/", HTTP)], [fine, *tricks], spec_version
        )
        repository = opened(folder, {f"{server.url}/open": HttpAccess})
        assert chunk_of(repository) == PUBLIC
        for number in range(1, len(tricks) + 1):
            assert isinstance(refusal(repository, number), IcefloeError)
        asked = {request.split()[1] for request in server.requests}
        assert all(path.startswith("/open/") for path in asked), asked
        assert not any("closed" in path and "%2e" in path.lower() for path in asked), asked


LOOK_ALIKES = [
    "s3://data-evil/x",
    "s3://data.evil/x",
    "s3://DATA/x",
    "s3://evil@data/x",
    "s3://data@evil/x",
    "s3://data:80/x",
    "s3://d\u0430ta/x",
    "s3://data\u200b/x",
    "s3://data%2fevil/x",
    "s\u00b3://data/x",
    "\u04553://data/x",
    "s3:\\\\data\\x",
    "s3:/data/x",
    "s3://?data/x",
    "s3://#data/x",
]


@SPECS
def test_look_alikes_of_an_authorised_bucket_are_refused(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    """Even where the repository declares every bucket to be on a server that it may ask."""
    options: JsonValue = {"endpoint_url": attacker.url, "allow_http": True}
    folder = forge(tmp_path / "repo", [Forged("s3", {"s3": options})], LOOK_ALIKES, spec_version)
    access = containers_credentials({"s3://data": s3_credentials(anonymous=True)})
    repository = opened(folder, access)
    for number in range(len(LOOK_ALIKES)):
        assert_refused(
            refusal(repository, number),
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    assert attacker.connections == 0


@SPECS
def test_malformed_hosts_are_refused_also_where_every_host_is_authorised(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    authority = attacker.authority
    locations = [
        "s3://evil@data/x",
        "s3://data:80/x",
        "s3://d\u0430ta/x",
        "s3://data%2f..%2fevil/x",
        "s3://data\\evil/x",
        f"http://user:word@{authority}/x",
        f"http://{authority}\\@evil.example/x",
        f"http://{authority}%2f@evil.example/x",
        f"http://l\u043ecalhost:{attacker.server_port}/x",
    ]
    containers = [Forged("s3", {"s3": {}}), Forged("http", HTTP)]
    folder = forge(tmp_path / "repo", containers, locations, spec_version)
    access: dict[str, AnyCredential | None] = {
        "s3": Credentials.S3(s3_credentials(anonymous=True)),
        "http": Credentials.HttpAccess(allow_private=True),
    }
    for number in range(len(locations)):
        error = refusal(opened(folder, access), number)
        assert_refused(error, ErrorKind.INVALID_VIRTUAL_REF)
    assert attacker.connections == 0


# -- web servers ---------------------------------------------------------------------------------


@SPECS
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirection_leads_to_another_server(
    tmp_path: Path, attacker: Listener, status: int, spec_version: int
) -> None:
    targets = [f"{attacker.url}/x", "file:///etc/hostname", f"//{attacker.authority}/x"]
    for number, target in enumerate(targets):
        with redirect_server(target, status=HTTPStatus(status)) as server:
            folder = forge(
                tmp_path / str(number),
                [Forged(f"{server.url}/", HTTP)],
                [f"{server.url}/x"],
                spec_version,
            )
            error = refusal(opened(folder, {f"{server.url}/": HttpAccess}))
            assert isinstance(error, StorageError)
            assert "redirect" in str(error)
    assert attacker.connections == 0


METADATA_HOSTS = [
    "169.254.169.254",
    "[fd00:ec2::254]",
    "[fd00:ec2::23]",
    "[::ffff:169.254.170.23]",
    "[64:ff9b::a9fe:aa02]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[::a9fe:a9fe]",
    "100.100.100.200",
    "192.0.0.192",
]


def stored_endpoints(host: str) -> dict[str, tuple[Forged, str, AnyCredential]]:
    """Have a repository say that buckets of each platform are at a host."""
    url = f"http://{host}"
    s3: JsonValue = {"endpoint_url": url, "allow_http": True, "force_path_style": True}
    google: JsonValue = {"google_base_url": url, "allow_http": "true"}
    azure: JsonValue = {"account": "fine", "endpoint": url, "allow_http": "true"}
    return {
        "s3": (
            Forged("s3://data/", {"s3": s3}),
            "s3://data/x",
            Credentials.S3(s3_credentials(anonymous=True)),
        ),
        "gs": (
            Forged("gs://data/", {"gcs": google}),
            "gs://data/x",
            Credentials.Gcs(gcs_credentials(anonymous=True)),
        ),
        "az": (
            Forged("az://data/", {"azure": azure}),
            "az://data/x",
            Credentials.Azure(azure_credentials(anonymous=True)),
        ),
    }


@SPECS
@pytest.mark.parametrize("platform", ["s3", "gs", "az"])
@pytest.mark.parametrize("host", METADATA_HOSTS)
def test_no_stored_endpoint_leads_to_a_metadata_service(
    tmp_path: Path, host: str, platform: str, spec_version: int
) -> None:
    forged, location, credential = stored_endpoints(host)[platform]
    folder = forge(tmp_path / "repo", [forged], [location], spec_version)
    assert_refused(refusal(opened(folder, {forged.url_prefix: credential})))


TIMES_THAT_ARE_NONE = {
    "missing": None,
    "empty": "",
    "words": "some day",
    "the beginning of 1970": "Thu, 01 Jan 1970 00:00:00 GMT",
    "before 1970": "Mon, 01 Jan 1900 00:00:00 GMT",
    "out of range": f"Wed, 21 Oct 2015 {10**20}:28:00 GMT",
    "without a year": "Wed, 21 Oct 07:28:00 GMT",
}


def forged_with_time(folder: Path, platform: str, url: str, recorded: int) -> icefloe.Repository:
    """Forge a chunk with a recorded time at a server, and open that with all that it takes."""
    location = f"{url}/data/x" if platform == "http" else "s3://data/x"
    chunk = VirtualChunk(location, 0, 6, last_modified=recorded)
    if platform == "http":
        forge(folder, [Forged(f"{url}/", HTTP)], [chunk], 2)
        return opened(folder, {f"{url}/": HttpAccess})
    forge(folder, [], [chunk], 2)
    store = s3_store(endpoint_url=url, allow_http=True, force_path_style=True, region="us-east-1")
    config = config_of(VirtualChunkContainer("s3://data/", store))
    config.storage = StorageSettings(retries=StorageRetriesSettings(2, 1, 1))
    return opened(folder, {"s3://data/": Credentials.S3(s3_credentials(anonymous=True))}, config)


@pytest.mark.parametrize("platform", ["http", "s3"])
@pytest.mark.parametrize("form", TIMES_THAT_ARE_NONE)
def test_a_server_that_tells_no_time_does_not_pass_for_unchanged(
    tmp_path: Path, form: str, platform: str
) -> None:
    told = TIMES_THAT_ARE_NONE[form]

    def script(handler: ScriptedHandler) -> None:
        headers = {"Content-Range": "bytes 0-5/6", "ETag": '"x"', "Content-Length": "6"}
        handler.begin(206, headers if told is None else {**headers, "Last-Modified": told})
        handler.wfile.write(BAIT)

    with scripted_server(script) as server:
        repository = forged_with_time(tmp_path / "repo", platform, server.url, 2**31)
        error = refusal(repository)
    assert isinstance(error, StorageError)
    assert error.kind in {ErrorKind.VIRTUAL_CHUNK_MODIFIED, ErrorKind.VIRTUAL_CHUNK_FETCH}


@pytest.mark.parametrize("platform", ["http", "s3"])
def test_a_server_that_tells_an_earlier_time_is_read(tmp_path: Path, platform: str) -> None:
    def script(handler: ScriptedHandler) -> None:
        headers = {"Content-Range": "bytes 0-5/6", "ETag": '"x"', "Content-Length": "6"}
        handler.begin(206, {**headers, "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"})
        handler.wfile.write(BAIT)

    with scripted_server(script) as server:
        repository = forged_with_time(tmp_path / "repo", platform, server.url, 2**31)
        assert chunk_of(repository) == BAIT


def test_a_local_file_from_the_beginning_of_1970_has_a_time(tmp_path: Path) -> None:
    """As files of reproducible archives have it."""
    (tmp_path / "x").write_bytes(PUBLIC)
    os.utime(tmp_path / "x", (0, 0))
    chunk = VirtualChunk(f"file://{tmp_path}/x", 0, 6, last_modified=1)
    folder = forge(tmp_path / "repo", [Forged(f"file://{tmp_path}/", LOCAL)], [chunk], 2)
    access = {f"file://{tmp_path}/": LocalFileSystemAccess}
    assert chunk_of(opened(folder, access)) == PUBLIC


def private_names(port: int) -> list[str]:
    names = [
        f"127.0.0.1:{port}",
        f"127.1:{port}",
        f"2130706433:{port}",
        f"0x7f000001:{port}",
        f"0177.0.0.1:{port}",
        f"0.0.0.0:{port}",
        f"localhost:{port}",
        f"LOCALHOST.:{port}",
        f"[::ffff:127.0.0.1]:{port}",
        *METADATA_HOSTS,
        "10.0.0.1",
        "192.168.0.1",
        "[::1]",
    ]
    if socket.gethostname().isascii() and is_nowhere_public(socket.gethostname()):
        names.append(f"{socket.gethostname()}:{port}")
    return names


def is_nowhere_public(host: str) -> bool:
    """Some machines know themselves by their address on the internet."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return True
    addresses = [str(address[0]).partition("%")[0] for *_, address in found]
    return not any(ipaddress.ip_address(each).is_global for each in addresses)


@SPECS
def test_the_readers_own_network_is_not_reached_through_a_repository(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    """Whoever authorises the web does not authorise what only they can reach."""
    names = private_names(attacker.server_port)
    locations = [f"http://{name}/x" for name in names]
    folder = forge(tmp_path / "repo", [Forged("http", HTTP)], locations, spec_version)
    repository = opened(folder, {"http": HttpAccess})
    for number, name in enumerate(names):
        error = refusal(repository, number)
        unreachable = isinstance(error, StorageError) and "name is not known" in str(error)
        if not unreachable:  # some systems do not know all ways to write an address
            assert_refused(error)
            assert "allow_private=True" in str(error) or name in METADATA_HOSTS, (name, error)
    assert attacker.connections == 0

    # The bait is real, for those who authorise it by address or altogether.
    for access in (
        {f"http://127.0.0.1:{attacker.server_port}": HttpAccess},
        {"http": Credentials.HttpAccess(allow_private=True)},
    ):
        assert chunk_of(opened(folder, access)) == BAIT


@SPECS
def test_stored_headers_and_options_do_not_turn_the_reader_against_others(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    tricks: list[JsonValue] = [
        {"headers": {"Host": "internal.example"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"X": "a\r\nGET /admin HTTP/1.1"}},
        {"proxy_url": attacker.url},
        {"allow_invalid_certificates": "true"},
    ]
    with file_server(tmp_path) as server:
        for number, trick in enumerate(tricks):
            folder = forge(
                tmp_path / str(number),
                [Forged(f"{server.url}/", {"http": trick})],
                [f"{server.url}/x"],
                spec_version,
            )
            assert isinstance(refusal(opened(folder, {f"{server.url}/": HttpAccess})), IcefloeError)
        assert server.requests == []
    assert attacker.connections == 0


# -- ranges that cannot be ------------------------------------------------------------------------

ABSURD = [
    (0, 2**63),
    (0, 2**64 - 1),
    (2**63, 2**63),
    (2**64 - 1, 1),
    (2**64 - 7, 6),
    (2**63 - 3, 6),
    (2**62, 6),
    (0, 2**40),
    (7, 6),
    (1, 6),
    (6, 1),
    (0, 7),
]


@SPECS
def test_absurd_ranges_fail_cleanly(tree: Path, tmp_path: Path, spec_version: int) -> None:
    with file_server(tree) as server:
        starts: dict[str, dict[str, AnyCredential | None]] = {
            f"file://{tree}/open/public": {f"file://{tree}": LocalFileSystemAccess},
            f"{server.url}/open/public": {f"{server.url}/": HttpAccess},
        }
        for number, (location, access) in enumerate(starts.items()):
            chunks = [VirtualChunk(location, *each) for each in ABSURD]
            containers = [Forged(f"file://{tree}/", LOCAL), Forged(f"{server.url}/", HTTP)]
            folder = forge(tmp_path / str(number), containers, chunks, spec_version)
            repository = opened(folder, access)
            for row in range(len(ABSURD)):
                tracemalloc.start()
                with pytest.raises(IcefloeError):
                    chunk_of(repository, row)
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < 64 << 20, ABSURD[row]
        assert len(server.requests) <= 3 * len(ABSURD)


# -- and the reader is told beforehand -----------------------------------------------------------


@SPECS
def test_what_is_asked_for_is_told_before_anything_is_opened(
    tmp_path: Path, attacker: Listener, spec_version: int
) -> None:
    options: JsonValue = {"endpoint_url": attacker.url, "allow_http": True}
    forged = [Forged("s3://data/", {"s3": options}), Forged("file:///etc/", LOCAL)]
    locations = ["s3://data/x", "s3://data/y", "file:///etc/passwd", "gs://elsewhere/x"]
    folder = forge(tmp_path / "repo", forged, locations, spec_version)
    report = opened(folder).describe_access()
    rows = {each.url_prefix: each for each in report.containers}
    assert rows["s3://data/"].references == 2
    assert attacker.url in str(rows["s3://data/"].needs_consent)
    assert rows["file:///etc/"].references == 1
    assert rows["gs://elsewhere/"].references == 1
    assert not any(each.is_authorized for each in report.containers)
    assert attacker.connections == 0
    assert "file:///etc/" in repr(report)


def test_the_folder_of_the_whole_machine_is_still_only_what_the_reader_says(
    tree: Path, tmp_path: Path
) -> None:
    folder = forge(
        tmp_path / "repo", [Forged("file:///", LOCAL)], [f"file://{tree}/closed/secret"], 2
    )
    error = refusal(opened(folder, {f"file://{tree}/open": LocalFileSystemAccess}))
    assert_refused(
        error,
        ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
    )
