"""Secrets are in no text that this library writes, and travel only where that was asked for.

All secrets below are made of one word, so that a look for that word finds any of them, also in
pieces: quoted, in a mapping, or within a longer text.
"""

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    VirtualChunkSpec,
    azure_store,
    gcs_store,
    http_store,
    s3_store,
)
from icefloe.credentials import (
    AnyCredential,
    AzureRefreshableCredential,
    GcsBearerCredential,
    S3StaticCredentials,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import IcefloeError
from icefloe.virtual_chunks.reader import VirtualReader
from tests.conformance.storages import s3_storage_at
from tests.support.servers import S3Endpoint
from tests.virtual.hostile import Forged, Listener, chunk_of, forge, listener, opened
from tests.virtual.sources import config_of, put

WORD = "xyzzy"
SECRETS = [f"{WORD}-{number}-of-the-reader" for number in range(9)]
ACCOUNT_KEY = "eHl6enk="  # the word, as Azure keys are written
SERVICE_ACCOUNT = (
    '{"client_email": "a@b", "private_key_id": "1", "private_key": "' + SECRETS[3] + '"}'
)


def s3_keys() -> S3StaticCredentials:
    return S3StaticCredentials("id", SECRETS[0], SECRETS[1])


def google_token() -> GcsBearerCredential:
    return GcsBearerCredential(SECRETS[2])


def azure_token() -> AzureRefreshableCredential.BearerToken:
    return AzureRefreshableCredential.BearerToken(SECRETS[6])


STATIC: dict[str, Any] = {
    "s3 keys": s3_credentials(
        access_key_id="id", secret_access_key=SECRETS[0], session_token=SECRETS[1]
    ),
    "google token": gcs_credentials(bearer_token=SECRETS[2]),
    "google service account": gcs_credentials(service_account_key=SERVICE_ACCOUNT),
    "azure key": azure_credentials(access_key=ACCOUNT_KEY),
    "azure signature": azure_credentials(sas_token=f"sv=1&sig={SECRETS[5]}"),
    "azure token": azure_credentials(bearer_token=SECRETS[6]),
}
FETCHED: dict[str, Callable[..., Any]] = {
    "s3 function": lambda **how: s3_credentials(get_credentials=s3_keys, **how),
    "google function": lambda **how: gcs_credentials(get_credentials=google_token, **how),
    "azure function": lambda **how: azure_credentials(get_credentials=azure_token, **how),
}
PREFIXES = {"s3": "s3://data/", "google": "gs://data/", "azure": "az://data/"}


def credential(way: str) -> Any:
    return STATIC[way] if way in STATIC else FETCHED[way]()


def prefix_of(way: str) -> str:
    return PREFIXES[way.partition(" ")[0]]


def access_to(way: str, given: Any = None) -> dict[str, AnyCredential | None]:
    return containers_credentials({prefix_of(way): given or credential(way)})


def leaks(text: str) -> bool:
    return WORD in text or ACCOUNT_KEY in text


def all_texts(value: Any) -> Iterator[str]:
    """All that a person or a notebook gets to see of an object."""
    yield repr(value)
    yield str(value)
    yield f"{value}"
    for name in ("_repr_html_", "_repr_markdown_", "_repr_pretty_"):
        if name != "_repr_pretty_" and hasattr(value, name):
            yield str(getattr(value, name)())


def everything_from(way: str) -> list[Any]:
    """All objects that come to hold a credential on its way to a read."""
    given = credential(way)
    access = access_to(way)
    stores = {
        "s3": s3_store(region="us-east-1"),
        "google": gcs_store({"user_agent": "me"}),
        "azure": azure_store(account="mine", config={"sas_key": SECRETS[5]}),
    }
    store = stores[way.partition(" ")[0]]
    container = VirtualChunkContainer(prefix_of(way), store)
    headers = http_store({"user_agent": "me"}, {"Authorization": f"Bearer {SECRETS[7]}"})
    web = VirtualChunkContainer("https://host/", headers)
    config = config_of(container, web)
    storage = icefloe.in_memory_storage()
    repository = Repository.create(storage, config, authorize_virtual_chunk_access=access)
    session = repository.writable_session("main")
    reader = VirtualReader([container, web], access, trusted=[container])
    place = reader.resolver.locate(f"{prefix_of(way)}x")
    grant = reader.resolver.require_grant(place)
    storage = reader.storage_of(place, grant)
    return [
        *(given, access, next(iter(access.values())), store, container, headers, web, config),
        *(repository, repository.config, repository.describe_access(), session, session.store),
        *(session.fork(), repository.readonly_session("main"), repository._context),
        *(reader, reader.resolver, reader.resolver.access, place, grant, storage),
        *([] if "service account" in way else [storage.open()]),  # it is not a usable one
    ]


@pytest.mark.parametrize("way", [*STATIC, *FETCHED])
def test_no_object_shows_a_secret(way: str) -> None:
    for value in everything_from(way):
        for text in all_texts(value):
            assert not leaks(text), f"{type(value).__name__} shows it"


def test_the_look_for_secrets_finds_them() -> None:
    for secret in (*SECRETS, SERVICE_ACCOUNT, f"{{'key': '{ACCOUNT_KEY}'}}"):
        assert leaks(secret)


# -- storages of repositories --------------------------------------------------------------------


def storages() -> list[icefloe.Storage]:
    return [
        icefloe.s3_storage(
            bucket="b",
            prefix="p",
            region="us-east-1",
            access_key_id="id",
            secret_access_key=SECRETS[0],
            session_token=SECRETS[1],
        ),
        icefloe.s3_storage(bucket="b", prefix="p", get_credentials=s3_keys),
        icefloe.gcs_storage(bucket="b", prefix="p", bearer_token=SECRETS[2]),
        icefloe.gcs_storage(bucket="b", prefix="p", service_account_key=SERVICE_ACCOUNT),
        icefloe.azure_storage(account="a", container="c", prefix="p", access_key=ACCOUNT_KEY),
        icefloe.azure_storage(
            account="a", container="c", prefix="p", sas_token=f"sv=1&sig={SECRETS[5]}"
        ),
        icefloe.http_storage("https://host/x", headers={"Authorization": f"Bearer {SECRETS[7]}"}),
    ]


def test_no_storage_shows_a_secret() -> None:
    for storage in storages():
        for text in all_texts(storage):
            assert not leaks(text), text


# -- travelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", FETCHED)
def test_secrets_of_functions_travel_only_if_that_was_asked_for(way: str) -> None:
    """The function travels, and is asked again where it arrives; what it told stays here."""
    for scatters in (False, True):
        given = FETCHED[way](scatter_initial_credentials=scatters)
        if not scatters:
            given.get_credentials()
        repository = Repository.create(
            icefloe.in_memory_storage(),
            config_of(VirtualChunkContainer(prefix_of(way), store_for(way))),
            authorize_virtual_chunk_access=access_to(way, given),
        )
        for value in (given, repository._context.virtual):
            pickled = pickle.dumps(value)
            assert (WORD.encode() in pickled) is scatters
            pickle.loads(pickled)


def store_for(way: str) -> Any:
    return {
        "s3": s3_store(region="us-east-1"),
        "google": gcs_store(),
        "azure": azure_store(account="mine"),
    }[way.partition(" ")[0]]


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("AWS_SECRET_ACCESS_KEY", s3_credentials(from_env=True)),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", gcs_credentials(from_env=True)),
        ("AZURE_STORAGE_ACCOUNT_KEY", azure_credentials(from_env=True)),
    ],
)
def test_secrets_of_the_environment_do_not_travel(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: Any
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv(variable, SECRETS[8])
    for value in (given, containers_credentials({"x://": given})):
        assert WORD.encode() not in pickle.dumps(value)


def test_given_secrets_travel_and_work_where_they_arrive() -> None:
    """Who gives keys to a job wants its workers to have them."""
    for way, given in STATIC.items():
        assert pickle.loads(pickle.dumps(given)) == given
        assert access_to(way) == pickle.loads(pickle.dumps(access_to(way)))


# -- failing -------------------------------------------------------------------------------------


def whole_story(error: BaseException) -> str:
    """Write down an error with all that led to it, and what our functions had in variables.

    Programs that collect errors often send such variables along. Those of a test hold secrets.
    """
    described = traceback.TracebackException.from_exception(error, capture_locals=True)
    texts = [str(error), repr(error), repr(error.args), "".join(traceback.format_exception(error))]
    pending: list[traceback.TracebackException | None] = [described]
    while pending:
        one = pending.pop()
        if one is None:
            continue
        pending += [one.__cause__, None if one.__suppress_context__ else one.__context__]
        for frame in one.stack:
            if "/icefloe/" in frame.filename and "/tests/" not in frame.filename:
                texts += [f"{name}={value}" for name, value in (frame.locals or {}).items()]
    return "\n".join(texts)


def assert_discreet(act: Callable[[], object], caplog: pytest.LogCaptureFixture) -> IcefloeError:
    caplog.clear()
    with caplog.at_level(logging.DEBUG), pytest.raises(IcefloeError) as caught:
        act()
    story = whole_story(caught.value)
    for line in story.splitlines():
        assert not leaks(line), line
    for record in caplog.records:
        assert not leaks(record.getMessage() + str(record.__dict__)), record
    return caught.value


@pytest.fixture
def attacker() -> Iterator[Listener]:
    with listener() as server:
        yield server


@pytest.mark.parametrize("way", [*STATIC, *FETCHED])
def test_a_refused_destination_tells_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attacker: Listener, way: str
) -> None:
    options: dict[str, dict[str, Any]] = {
        "s3": {"s3": {"endpoint_url": attacker.url, "allow_http": True}},
        "google": {"gcs": {"google_base_url": attacker.url}},
        "azure": {"azure": {"account": "mine", "endpoint": attacker.url}},
    }
    forged = Forged(prefix_of(way), options[way.partition(" ")[0]])
    folder = forge(tmp_path / "repo", [forged], [f"{prefix_of(way)}x"], 2)
    repository = opened(folder, access_to(way))
    assert_discreet(lambda: chunk_of(repository), caplog)
    assert attacker.connections == 0


@pytest.mark.parametrize("way", [*STATIC, *FETCHED])
def test_a_server_that_is_not_there_is_told_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    with listener() as gone:
        url = gone.url
    stores = {
        "s3": s3_store(endpoint_url=url, allow_http=True, region="us-east-1"),
        "google": gcs_store({"google_base_url": url, "allow_http": "true"}),
        "azure": azure_store(account="mine", config={"endpoint": url, "allow_http": "true"}),
    }
    container = VirtualChunkContainer(prefix_of(way), stores[way.partition(" ")[0]])
    folder = forge(tmp_path / "repo", [], [f"{prefix_of(way)}x"], 2)
    config = config_of(container)
    config.storage = icefloe.StorageSettings(
        retries=icefloe.StorageRetriesSettings(max_tries=1, initial_backoff_ms=1, max_backoff_ms=1)
    )
    repository = opened(folder, access_to(way), config)
    assert_discreet(lambda: chunk_of(repository), caplog)


@pytest.mark.server
def test_wrong_keys_are_not_repeated_in_the_answer(
    s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(s3_storage_at(s3_endpoint, prefix), "data.bin", b"public")
    url_prefix = f"s3://{s3_endpoint.bucket}/{prefix}/"
    store = s3_store(
        endpoint_url=s3_endpoint.url, allow_http=True, region="us-east-1", force_path_style=True
    )
    folder = forge(tmp_path / "repo", [], [f"{url_prefix}data.bin"], 2)
    for way in ("s3 keys", "s3 function"):
        access = containers_credentials({url_prefix: credential(way)})
        repository = opened(folder, access, config_of(VirtualChunkContainer(url_prefix, store)))
        error = assert_discreet(lambda: chunk_of(repository), caplog)  # noqa: B023
        assert "data.bin" in str(error)


URLS = [
    f"https://me:{SECRETS[0]}@host/x",
    f"https://host/x?X-Amz-Signature={SECRETS[0]}",
    f"https://host/x#{SECRETS[0]}",
    f"s3://id:{SECRETS[0]}@bucket/x",
    f"az://container/x?sig={SECRETS[0]}",
    f"vcc://{SECRETS[0]}@name/x?y={SECRETS[0]}",
]


@pytest.mark.parametrize("location", URLS)
def test_secrets_in_urls_are_left_out_of_what_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    """They have no place there; who puts them there all the same should not find them in a log."""
    folder = forge(tmp_path / "repo", [], [location], 2)
    repository = opened(folder)
    caplog.clear()
    with caplog.at_level(logging.DEBUG), pytest.raises(IcefloeError) as caught:
        chunk_of(repository)
    assert not leaks("".join(traceback.format_exception(caught.value)) + caplog.text)

    store = repository.writable_session("main").store
    told = StringIO()
    for record in (
        partial(store.set_virtual_ref, "a/c/0", location, offset=0, length=6),
        partial(store.set_virtual_refs, "a", [VirtualChunkSpec([0], location, 0, 6)]),
    ):
        try:
            record()
        except IcefloeError:
            traceback.print_exc(file=told)
    assert not leaks(told.getvalue() + caplog.text)
    report = repository.describe_access()
    assert not leaks(repr(report) + report._repr_html_() + str(report.to_dict()))


@pytest.mark.parametrize("prefix", [url.replace("/x", "/") for url in URLS[:5]])
def test_containers_with_secrets_in_their_prefix_are_refused_discreetly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(IcefloeError) as caught:
            RepositoryConfig().set_virtual_chunk_container(
                VirtualChunkContainer(prefix, http_store())
            )
        assert not leaks("".join(traceback.format_exception(caught.value)))
        folder = forge(tmp_path / "repo", [Forged(prefix, {"http": {}})], ["https://host/x"], 2)
        with pytest.warns(DeprecationWarning, match="a prefix") as warned:
            repository = opened(folder, {prefix: None})
        repository.describe_access()
        with pytest.raises(TypeError) as refused:
            opened(folder, {prefix: 3})  # type: ignore[dict-item]
    said = [str(warning.message) for warning in warned]
    assert not leaks(f"{said} {refused.value}" + caplog.text)


def test_a_function_that_fails_does_not_tell_what_it_knew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> S3StaticCredentials:
        raise RuntimeError("the service said no to " + SECRETS[0])

    folder = forge(tmp_path / "repo", [], ["s3://data/x"], 2)
    access = containers_credentials({"s3": s3_credentials(get_credentials=fails)})
    repository = opened(folder, access)
    with caplog.at_level(logging.DEBUG), pytest.raises(IcefloeError) as caught:
        chunk_of(repository)
    assert not leaks(f"{caught.value} {caught.value!r} {caught.value.args}" + caplog.text)


def test_work_is_logged_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attacker: Listener
) -> None:
    """From the first line to the last, at the most talkative level."""
    with caplog.at_level(logging.DEBUG):
        container = VirtualChunkContainer(
            "s3://data/",
            s3_store(
                endpoint_url=attacker.url,
                allow_http=True,
                region="us-east-1",
                force_path_style=True,
            ),
        )
        repository = Repository.create(
            icefloe.local_filesystem_storage(str(tmp_path / "repo")),
            config_of(container),
            authorize_virtual_chunk_access=access_to("s3 keys"),
        )
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="a", shape=6, chunks=6, dtype="u1", compressors=None)
        session.store.set_virtual_ref("a/c/0", "s3://data/x", offset=0, length=6)
        session.commit("virtual")
        assert chunk_of(repository) == attacker.answers
        repository.save_config()
    assert not leaks(caplog.text)
    stored = b"".join(
        each.read_bytes() for each in (tmp_path / "repo").rglob("*") if each.is_file()
    )
    assert WORD.encode() not in stored
