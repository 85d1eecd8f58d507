"""The client of a service: real requests, real stores, real credentials."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import httpx2 as httpx
import numpy as np
import obstore.exceptions
import pytest
import xarray
import zarr
from obstore.store import S3Store
from typer.testing import CliRunner

import icefloe
from icefloe.catalog.leases import delegating
from icefloe.catalog.wire import (
    ListingSettings,
    NewSubscription,
    PolicySettings,
    RequestDecision,
    SubscriptionDecision,
)
from icefloe.cli.main import app
from icefloe.service import device, login
from icefloe.storage.metering import RequestCounts
from icefloe.xarray import to_icechunk
from tests.service.client_world import CHUNK, LENGTH, World, bucket_at, check_cube, make_cube, world
from tests.support.desk import root_of
from tests.support.proxy import LoseResponse, cutting_proxy
from tests.support.servers import VENDOR, S3Endpoint
from tests.support.viewing import address_in, viewing

pytestmark = pytest.mark.server


@pytest.fixture
def here(
    tmp_path: Path,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with world(tmp_path / "service", lab_store, archive_store, prefix) as here:
        yield here


def opens(here: World) -> list[str]:
    """Return the requests for credentials so far."""
    return [
        path for _, path in here.desk.requests if path.rpartition("/")[2] in {"open", "credentials"}
    ]


# Opening


def test_a_reader_who_knows_a_name_reads_everything_with_one_request(here: World) -> None:
    here.share_everything()
    values = make_cube(here)
    here.desk.forget_requests()
    repository = here.client("cid").get_repo("lab/sst")
    check_cube(repository, values)
    assert here.desk.requests == [("POST", "/api/v1/repos/lab/sst/open")]


def test_opening_again_sends_one_request_and_sees_what_is_new(here: World) -> None:
    policies = here.share_everything()
    values = make_cube(here)
    client = here.client("cid")
    repository = client.get_repo("lab/sst")
    storage, tip = repository.storage, repository.lookup_branch("main")
    here.desk.forget_requests()
    storage.reset_request_counts()
    again = client.get_repo("lab/sst")
    assert again.storage is storage  # with its connections
    assert storage.request_counts() == RequestCounts()  # the service looked, and nothing is new
    assert here.desk.requests == [("POST", "/api/v1/repos/lab/sst/open")]
    check_cube(again, values)

    writer = here.client("bob").get_repo("lab/sst", access="write")
    session = writer.writable_session("main")
    zarr.open_group(session.store).attrs["title"] = "new"
    newer = session.commit("a title")
    config = icefloe.RepositoryConfig.default()
    config.manifest = icefloe.ManifestConfig(max_concurrent_manifest_fetches_during_commit=3)
    writer.reopen(config).save_config()
    storage.reset_request_counts()
    third = client.get_repo("lab/sst")
    assert storage.request_counts().get == 1
    assert third.lookup_branch("main") == newer != tip
    manifest = third.config.manifest
    assert manifest is not None
    assert manifest.max_concurrent_manifest_fetches_during_commit == 3

    # What was taken away is refused, however much is known.
    here.client("eve").delete_policy("archive", policies["archive"])
    with pytest.raises(icefloe.AccessDeniedError):
        client.get_repo("lab/sst")


def test_the_reference_reads_the_same_values(here: World) -> None:
    import icechunk

    here.share_everything()
    values = make_cube(here)
    repository = here.client("cid").get_repo("lab/sst")
    spec: Any = repository.storage.spec
    keys = spec.credentials.get_credentials()
    reference = icechunk.Repository.open(
        icechunk.s3_storage(
            bucket=spec.bucket,
            prefix=spec.prefix,
            region=here.lab_store.region,
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            session_token=keys.session_token,
            endpoint_url=here.lab_store.url,
            allow_http=True,
            force_path_style=True,
        )
    )
    store = reference.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="native")[:], values + 1)


def test_a_refusal_names_each_grant_why_and_who(here: World) -> None:
    policies = here.share_everything()
    values = make_cube(here)
    here.client("eve").delete_policy("archive", policies["archive"])
    here.client("mia").change_policy("museum", policies["museum"], PolicySettings("main"))
    with pytest.raises(icefloe.AccessDeniedError) as refused:
        here.client("cid").get_repo("lab/sst")
    missing = {grant.owner: grant for grant in refused.value.missing}
    reasons = {owner: grant.reason for owner, grant in missing.items()}
    assert reasons == {"archive": "no_policy", "museum": "wrong_scope"}
    text = str(refused.value)
    folder = f"s3://{here.archive_store.bucket}/{here.prefix}"
    assert f"{folder}/tapes/: no policy shares it. Admins of archive can change that" in text
    assert f"{folder}/scans/: a policy shares it with others only. Admins of museum" in text
    assert refused.value.kind == "virtual-access-required"
    # Each of them puts back what was, and the same call works.
    here.client("eve").undo_policy("archive", policies["archive"])
    here.client("mia").undo_policy("museum", policies["museum"])
    check_cube(here.client("cid").get_repo("lab/sst"), values)


def test_opening_works_when_awaited(here: World) -> None:
    here.share_everything()
    values = make_cube(here)

    async def read() -> Any:
        client = here.client("cid")
        opened = await asyncio.gather(*(client.get_repo_async("lab/sst") for _ in range(5)))
        session = await opened[0].readonly_session_async("main")
        array: Any = await zarr.api.asynchronous.open_array(store=session.store, path="scans")
        return await array.getitem(slice(None))

    np.testing.assert_array_equal(asyncio.run(read()), values * 3)


def test_a_blocking_call_needs_no_loop_of_its_own_and_works_inside_one(here: World) -> None:
    async def ask() -> str:
        return here.client("cid").whoami().person

    assert asyncio.run(ask()) == "cid"


def test_writers_write_and_readers_do_not(here: World) -> None:
    here.share_everything()
    make_cube(here)
    repository = here.client("bob").get_repo("lab/sst", access="write")
    with repository.transaction("main", message="more") as store:
        zarr.create_array(store, name="more", shape=3, dtype="i4")[:] = 7
    reader = here.client("cid")
    with pytest.raises(icefloe.AccessDeniedError):
        reader.get_repo("lab/sst", access="write")
    session = reader.get_repo("lab/sst").readonly_session("main")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="more")[:], [7, 7, 7])
    read_only = reader.get_repo("lab/sst").writable_session("main")
    zarr.create_group(read_only.store, path="x")
    with pytest.raises(icefloe.StorageError):
        read_only.commit("not mine")


def test_an_absent_repository_and_a_hidden_one_look_the_same(here: World) -> None:
    here.client("bob").create_repo("lab/sst", bucket="main")
    texts = []
    for name in ("lab/sst", "lab/nothing"):
        with pytest.raises(icefloe.NotFoundError) as missing:
            here.client("mia").get_repo(name)
        texts.append(str(missing.value).replace(name, ""))
    assert texts[0] == texts[1]


def test_a_repository_that_was_registered_only_is_created_by_the_next_attempt(here: World) -> None:
    with here.desk.client:
        body = {"name": "late", "bucket": "main"}
        assert here.desk.ask("bob", "POST", "/orgs/lab/repos", body).status_code == 201
        client = here.client("bob")
        with pytest.raises(icefloe.RepositoryNotFoundError, match="no repository was created yet"):
            client.get_repo("lab/late", access="write")
        client.create_repo("lab/late", bucket="main")
        with pytest.raises(icefloe.AlreadyExistsError):
            client.create_repo("lab/late", bucket="main")


# Only what the service answers with


def test_stored_containers_are_not_used(here: World, tmp_path: Path) -> None:
    """A stored container of files is refused whole; nothing of it is read by the client."""
    (tmp_path / "secret.bin").write_bytes(bytes(4 * CHUNK))
    here.share_everything()
    make_cube(here)
    repository = here.client("bob").get_repo("lab/sst", access="write")
    assert set(repository.config.virtual_chunk_containers or {}) == {
        f"s3://{here.archive_store.bucket}/{here.prefix}/{folder}/" for folder in ("tapes", "scans")
    }
    config = repository.config
    local = icefloe.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{tmp_path}/", local))
    repository.reopen(config).save_config()
    with pytest.raises(icefloe.AccessDeniedError) as refused:
        here.client("cid").get_repo("lab/sst")
    assert [grant.reason for grant in refused.value.missing] == ["forbidden_scheme"]
    # Who opened it before keeps what the service pinned.
    session = repository.writable_session("main")
    session.store.set_virtual_ref(
        "native/c/0",
        f"file://{tmp_path}/secret.bin",
        offset=0,
        length=4 * CHUNK,
        validate_container=False,
    )
    with pytest.raises(icefloe.IcefloeError):
        zarr.open_array(session.store, path="native", mode="r")[:CHUNK]


# Credentials that end


def wait_for_end(here: World, repository: icefloe.Repository) -> None:
    """Wait until the store refuses the credential that a repository has now."""
    spec: Any = repository.storage.spec
    keys = spec.credentials.get_credentials()
    store = S3Store(
        spec.bucket,
        prefix=spec.prefix,
        endpoint=here.lab_store.url,
        access_key_id=keys.access_key_id,
        secret_access_key=keys.secret_access_key,
        session_token=keys.session_token,
        region=here.lab_store.region,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    while True:
        try:
            store.head("repo")
        except obstore.exceptions.BaseError:
            return
        time.sleep(0.05)


def test_all_credentials_are_renewed_by_one_request(here: World) -> None:
    here.share_everything()
    values = make_cube(here)
    here.desk.make_brief()
    repository = here.client("cid").get_repo("lab/sst")
    group: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    names = {"native": values + 1, "tapes": values * 2, "scans": values * 3}

    def read(part: slice) -> None:
        with ThreadPoolExecutor(8) as pool:
            reads = {name: [pool.submit(group[name].__getitem__, part)] * 3 for name in names}
            for name, futures in reads.items():
                for future in futures:
                    np.testing.assert_array_equal(future.result(), names[name][part])

    read(slice(0, 3 * CHUNK))
    here.desk.forget_requests()
    wait_for_end(here, repository)
    read(slice(3 * CHUNK, LENGTH))
    assert opens(here) == ["/api/v1/repos/lab/sst/credentials"]


def test_what_is_taken_away_is_refused_at_the_next_renewal(here: World) -> None:
    policies = here.share_everything()
    values = make_cube(here)
    here.desk.make_brief()
    repository = here.client("cid").get_repo("lab/sst")
    array = zarr.open_array(repository.readonly_session("main").store, path="tapes", mode="r")
    np.testing.assert_array_equal(array[:CHUNK], values[:CHUNK] * 2)
    here.client("eve").delete_policy("archive", policies["archive"])
    wait_for_end(here, repository)
    with pytest.raises(icefloe.AccessDeniedError, match="Admins of archive can change that"):
        array[CHUNK:]


# Handles


def secrets_of(here: World, repository: icefloe.Repository) -> dict[str, str]:
    """Return everything that must not travel."""
    spec: Any = repository.storage.spec
    access: Any = repository._context.access
    vended = [spec.credentials, *(granted.credentials for granted in access.values())]
    secrets = {}
    for number, credentials in enumerate(vended):
        keys = credentials.get_credentials()
        secrets[f"secret {number}"] = keys.secret_access_key
        secrets[f"session {number}"] = keys.session_token
    return {
        **secrets,
        "login": here.desk.tokens["cid"],
        "vendor": VENDOR["secret_access_key"],
        "root": here.lab_store.secret_access_key,
    }


READ = """
import pickle, sys, zarr
store = pickle.load(sys.stdin.buffer)
group = zarr.open_group(store, mode="r")
print(*(int(group[name][:].sum()) for name in ("native", "tapes", "scans")))
"""


def read_elsewhere(payload: bytes, environment: dict[str, str]) -> Any:
    return subprocess.run(
        [sys.executable, "-c", READ],
        input=payload,
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_pickles_have_a_handle_and_no_secret(here: World, tmp_path: Path) -> None:
    here.share_everything()
    values = make_cube(here)
    repository = here.client("cid").get_repo("lab/sst")
    session = repository.readonly_session("main")
    check_cube(repository, values)
    secrets = secrets_of(here, repository)
    assert len(secrets) == 3 + 2 * 3
    for thing in (repository, session, session.store, repository.storage, here.client("cid")):
        for payload in (pickle.dumps(thing), cloudpickle.dumps(thing), repr(thing).encode()):
            for name, secret in secrets.items():
                assert secret.encode() not in payload, (name, thing)
    # A copy in this process shares the credentials.
    here.desk.forget_requests()
    check_cube(pickle.loads(pickle.dumps(repository)), values)
    assert here.desk.requests == []
    # Another process looks up a token of its own.
    payload = pickle.dumps(session.store)
    nobody = read_elsewhere(payload, {"XDG_CONFIG_HOME": str(tmp_path / "empty")})
    assert nobody.returncode != 0
    assert b"NotLoggedInError" in nobody.stderr
    assert f"icefloe login {here.desk.url}".encode() in nobody.stderr
    expected = f"{values.sum() + LENGTH} {values.sum() * 2} {values.sum() * 3}"
    token = here.desk.tokens["cid"]
    by_variable = {"ICEFLOE_TOKEN": token, "ICEFLOE_SERVICE": here.desk.url}
    done = read_elsewhere(payload, by_variable)
    assert done.stdout.decode().strip() == expected, done.stderr.decode()
    assert opens(here)[-1:] == ["/api/v1/repos/lab/sst/credentials"]


def test_a_token_command_travels_with_a_handle(here: World, tmp_path: Path) -> None:
    here.share_everything()
    values = make_cube(here)
    file = tmp_path / "token"
    file.write_text(here.desk.tokens["cid"])
    command = [sys.executable, "-c", f"print(open({str(file)!r}).read())"]
    client = icefloe.Client(here.desk.url, token_command=command)
    assert client.whoami().person == "cid"
    session = client.get_repo("lab/sst").readonly_session("main")
    payload = pickle.dumps(session.store)
    assert here.desk.tokens["cid"].encode() not in payload
    done = read_elsewhere(payload, {})
    assert done.stdout.split()[2] == str(values.sum() * 3).encode(), done.stderr.decode()


def test_a_worker_of_dask_reads_and_renews(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask.array
    from distributed import Client, LocalCluster

    here.share_everything()
    values = make_cube(here)
    here.desk.make_brief()
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["cid"])
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0"
    )
    with cluster, Client(cluster):
        repository = icefloe.Client().get_repo("lab/sst")
        store = repository.readonly_session("main").store
        arrays = [dask.array.from_zarr(store, component=name) for name in ("tapes", "native")]
        here.desk.forget_requests()
        # The worker opens the repository itself, and renews when its own credentials end.
        while len(opens(here)) < 2:
            tapes, native = (array.compute() for array in arrays)
            np.testing.assert_array_equal(tapes, values * 2)
            np.testing.assert_array_equal(native, values + 1)
    assert set(opens(here)) == {"/api/v1/repos/lab/sst/credentials"}


# By URL


def test_a_dataset_is_opened_by_url(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here.share_everything()
    client = here.client("bob")
    repository = client.create_repo("lab/wind", bucket="main")
    for number, message in enumerate(["first", "second"]):
        session = repository.writable_session("main")
        data = np.full(3, number)
        to_icechunk(xarray.Dataset({"u": ("x", data)}), session, mode="w")
        snapshot = session.commit(message)
        repository.create_tag(message, snapshot)
    url = f"icefloe://{here.desk.url.removeprefix('http://')}/lab/wind"
    with pytest.raises(icefloe.NotLoggedInError, match="icefloe login"):
        xarray.open_dataset(url, engine="icefloe")
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["cid"])
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    assert xarray.open_dataset(url, engine="icefloe").u.values.tolist() == [1, 1, 1]
    assert xarray.open_dataset(url, engine="icefloe", tag="first").u.values.tolist() == [0, 0, 0]
    with pytest.raises(icefloe.InvalidInputError, match="the service decides"):
        xarray.open_dataset(url, engine="icefloe", authorize_virtual_chunk_access={})
    with pytest.raises(icefloe.InvalidInputError, match="get_repo"):
        icefloe.storage_from_url(url)


def test_a_repository_is_viewed_by_its_name(here: World) -> None:
    here.share_everything()
    values = make_cube(here)
    variables = {"ICEFLOE_TOKEN": here.desk.tokens["cid"], "ICEFLOE_SERVICE": here.desk.url}
    with viewing("lab/sst", "--no-browser", environment=variables) as line:
        address = address_in(line)
        page = httpx.get(address, trust_env=False, timeout=60).text
        assert "client.get_repo(&#34;lab/sst&#34;)" in page
        assert here.desk.tokens["cid"] not in page
        for name, expected in (("native", values + 1), ("tapes", values * 2)):
            data = httpx.get(f"{address}api/v1/data/{name}", trust_env=False, timeout=60).json()
            np.testing.assert_array_equal(data["variables"][name]["values"], expected)


# Logging in


def test_a_program_logs_in_after_an_approval_in_the_browser(here: World) -> None:
    client = icefloe.Client(here.desk.url)
    links = []

    def approve(link: str, code: str) -> None:
        links.append(link)
        device.decide(here.desk.service, "cid", code, "test", approved=True)

    assert client.login(show=approve).whoami().person == "cid"
    assert links[0].startswith(f"{here.desk.url}/device?user_code=")
    # A second login finds the token of the first, and so do other programs.
    icefloe.Client(here.desk.url).login(show=approve)
    icefloe.Client(here.desk.url).login(show=approve, scope="write")
    assert len(links) == 1
    # Another scope takes another approval.
    with pytest.raises(icefloe.AccessDeniedError, match="log in with a wider one"):
        client.create_token("laptop")
    client.login(show=approve, scope="admin")
    client.revoke_token(client.create_token("laptop").id)
    assert len(links) == 2
    assert icefloe.Client().whoami().person == "cid"
    client.logout()
    with pytest.raises(icefloe.NotLoggedInError):
        client.whoami()
    with pytest.raises(icefloe.InvalidInputError):
        icefloe.Client()


# Managing


def test_everything_of_the_model_can_be_managed(here: World) -> None:
    root, ada = here.client("root"), here.client("ada")
    assert root.create_org("zoo", display_name="Zoo").name == "zoo"
    assert root.change_org("zoo", display_name="The zoo").display_name == "The zoo"
    assert [org.name for org in root.list_orgs()] == ["zoo"]
    assert root.set_member("zoo", "cid", role="reader").role == "reader"
    assert {member.person for member in root.list_members("zoo")} == {"root", "cid"}
    root.remove_member("zoo", "cid")
    with pytest.raises(icefloe.InvalidInputError, match="there are reader, writer, admin"):
        root.set_member("zoo", "cid", role="king")
    root.create_service_account("zoo", "zoo-bot", role="writer")
    assert [account.name for account in root.list_service_accounts("zoo")] == ["zoo-bot"]
    made = root.create_token("nightly", service_account=("zoo", "zoo-bot"), days=3)
    assert icefloe.Client(here.desk.url, token=made.secret).whoami().person == "zoo-bot"
    assert made.secret not in repr(made)
    root.disable_service_account("zoo", "zoo-bot")
    root.delete_org("zoo", confirm="zoo")
    with pytest.raises(icefloe.NotFoundError):
        root.show_org("zoo")

    token = ada.create_token("laptop", actions=["read"], repositories=["lab/*"])
    assert "laptop" in {entry.name for entry in ada.list_tokens()}
    ada.revoke_token(token.id)
    bucket = ada.show_bucket("lab", "main")
    assert [entry.name for entry in ada.list_buckets("lab")] == ["main"]
    settings = bucket_at(here.lab_store, bucket.prefix)
    with pytest.raises(icefloe.ConflictError):
        ada.change_bucket("lab", "main", settings, if_version=bucket.version + 1)

    repository = ada.create_repo("lab/sst", bucket="main", description="a")
    changed = ada.change_repo("lab/sst", description="b", visibility="everyone")
    assert (changed.description, changed.visibility) == ("b", "everyone")
    assert [entry.name for entry in here.client("mia").list_repos()] == ["sst"]
    here.client("mia").get_repo("lab/sst")
    prefix = ada.show_repo("lab/sst").prefix
    ada.delete_repo("lab/sst")
    ada.import_repo("lab/again", bucket="main", prefix=prefix)
    snapshot = ada.get_repo("lab/again").lookup_branch("main")
    assert snapshot == repository.lookup_branch("main")

    policy = ada.create_policy("lab", bucket="main", prefix="x/", shared_with=["museum"])
    assert [entry.id for entry in ada.list_policies("lab")] == [policy.id]
    assert ada.show_policy("lab", policy.id).shared_with == ("museum",)
    trial = ada.simulate_policy("lab", policy_id=policy.id)
    assert (trial.gains, trial.losses) == ((), ())
    ada.delete_policy("lab", policy.id)
    history = ada.policy_history("lab", policy.id)
    assert [version.policy is None for version in history] == [False, True]
    ada.undo_policy("lab", policy.id)

    actions = [entry.action for entry in ada.audit("lab")]
    assert actions[0] == "policies:change"
    assert {entry.organisation for entry in root.audit()} >= {"lab", "zoo"}
    assert root.verify_audit().number == next(iter(root.audit())).number


def test_people_without_an_account_are_invited(here: World) -> None:
    root, ada, cid = here.client("root"), here.client("ada"), here.client("cid")
    made = ada.invite_member("lab", role="writer", person="dora")
    secret = made.link.removeprefix(f"{here.desk.url}/join/")
    assert secret not in repr(made)
    service = here.desk.service
    login.accept_by_password(service, secret, "", "a long enough password", "test")
    roles = {member.person: member.role for member in ada.list_members("lab")}
    assert roles["dora"] == "writer"
    with pytest.raises(icefloe.AlreadyExistsError):
        ada.invite_member("lab", person="dora")
    with pytest.raises(icefloe.AccessDeniedError):
        cid.invite_member("lab")
    link = root.invite_person(operator=True).link
    secret = link.removeprefix(f"{here.desk.url}/join/")
    login.accept_by_password(service, secret, "emil", "a long enough password", "test")
    here.desk.tokens["emil"] = here.desk.add_token("emil")
    assert here.client("emil").whoami().operator
    with pytest.raises(icefloe.AccessDeniedError):
        ada.invite_person()


def test_a_bucket_is_cut_off_and_comes_back(here: World) -> None:
    ada, cid = here.client("ada"), here.client("cid")
    ada.create_repo("lab/sst", bucket="main")
    suspension = ada.suspend_bucket("lab", "main")
    assert suspension.bucket.state == "suspended"
    assert suspension.issued_until > here.desk.now
    with pytest.raises(icefloe.IcefloeError, match="suspended"):
        cid.get_repo("lab/sst")
    with pytest.raises(icefloe.InvalidInputError, match="resume it"):
        ada.probe_bucket("lab", "main")
    assert ada.resume_bucket("lab", "main").state == "unproven"
    assert ada.probe_bucket("lab", "main").state == "proven"
    cid.get_repo("lab/sst")
    proof = ada.bucket_ownership("lab", "main")
    assert proof.challenge_key == f"{here.prefix}/lab/.icefloe-challenge"
    assert proof.external_id != here.client("eve").bucket_ownership("archive", "main").external_id


def test_credentials_of_a_bucket_reach_a_folder(here: World) -> None:
    root_of(here.lab_store).put(f"{here.prefix}/lab/raw/a.txt", b"a")
    made = here.client("bob").bucket_credentials("lab", "main", prefix="raw/")
    assert made.is_scoped
    assert made.credential.values["secret_access_key"] not in repr(made)
    values: dict[str, Any] = dict(made.credential.values)
    store = S3Store(
        made.store.bucket,
        prefix=made.store.prefix,
        endpoint=made.store.endpoint,
        region=made.store.region,
        client_options={"allow_http": True},
        **values,
    )
    assert [entry["path"] for page in store.list() for entry in page] == ["a.txt"]
    with pytest.raises(obstore.exceptions.BaseError):
        store.put("b.txt", b"b")
    with pytest.raises(icefloe.AccessDeniedError):
        here.client("bob").bucket_credentials("lab", "main", access="write")
    with pytest.raises(icefloe.AccessDeniedError):
        here.client("cid").bucket_credentials("lab", "main")


def test_commands_cut_a_bucket_off_prove_it_and_print_credentials(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["ada"])

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["bucket", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = run("credentials", "lab", "main", "--prefix", "raw/")
    assert f"{here.prefix}/lab/raw/" in shown
    assert "session_token" in shown.replace(" ", "_")
    assert json.loads(run("credentials", "lab", "main", "--json"))["is_scoped"] is True
    assert ".icefloe-challenge" in run("prove", "lab", "main")
    assert "main is suspended; credentials made before live until" in run(
        "suspend", "lab", "main", "--yes"
    )
    assert here.client("ada").show_bucket("lab", "main").state == "suspended"
    assert "main is proven" in run("resume", "lab", "main")


def test_commands_about_versions_take_names_of_the_service(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.share_everything()
    make_cube(here)
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["bob"])

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    name = "lab/sst"
    run("config", "add", "mine", name)
    head = run("log", "mine")["versions"][0]["id"]
    assert run("tag", "create", "mine", "v1")["snapshot_id"] == head
    assert run("branch", "create", name, "new", head[:8])["snapshot_id"] == head
    assert run("tree", name, "v1")["nodes"]
    before = run("container", "list", name)
    run("config", "set", "mine", "compression.level=9")
    assert run("status", "mine")["settings"] == {"compression.level": 9}
    assert run("container", "list", name) == before
    repository = here.client("bob").get_repo(name)
    assert repository.lookup_tag("v1") == head
    assert repository.lookup_branch("new") == head
    refused = CliRunner().invoke(app, ["create", name])
    assert refused.exit_code == 5
    assert "icefloe repo create" in " ".join(refused.stderr.split())


def test_a_token_of_a_job_opens_one_repository(here: World) -> None:
    ada = here.client("ada")
    for name in ("sst", "wind"):
        ada.create_repo(f"lab/{name}", bucket="main")
    made = here.client("bob").create_job_token("lab/sst", "means", access="write", hours=2)
    job = icefloe.Client(here.desk.url, token=made.secret)
    job.get_repo("lab/sst", access="write")
    with pytest.raises(icefloe.AccessDeniedError):
        job.get_repo("lab/wind")
    with pytest.raises(icefloe.InvalidInputError, match="there are read, write"):
        ada.create_job_token("lab/sst", "means", access="all")


def test_a_creation_whose_answer_is_lost_happens_once(here: World) -> None:
    with cutting_proxy(here.desk.url) as proxy:
        client = icefloe.Client(proxy.url, token=here.desk.tokens["ada"])
        proxy.plan(LoseResponse(method="POST", path="/me/tokens"))
        made = client.create_token("laptop")
        proxy.plan(LoseResponse(method="POST", path="/policies"))
        policy = client.create_policy("lab", bucket="main", prefix="x/")
        payload = pickle.dumps(client.create_repo("lab/wind", bucket="main"))
        proxy.plan(LoseResponse(method="POST", path="/lab/wind/tokens"))
        with delegating(payload, "means"):
            tokens = here.client("ada").list_tokens()
            assert [token.name for token in tokens].count("means") == 1
    assert icefloe.Client(here.desk.url, token=made.secret).whoami().person == "ada"
    ada = here.client("ada")
    assert [token.id for token in ada.list_tokens() if token.name == "laptop"] == [made.id]
    assert [entry.id for entry in ada.list_policies("lab")] == [policy.id]


def test_a_listing_is_offered_subscribed_and_asked_for(here: World) -> None:
    ada, mia = here.client("ada"), here.client("mia")
    ada.create_repo("lab/sst", bucket="main")
    settings = ListingSettings("sst", licence="CC0", needs_approval=True)
    listing = ada.create_listing("lab", "sst-daily", settings)
    assert [entry.name for entry in mia.list_listings(search="daily")] == ["sst-daily"]
    new = NewSubscription("lab", "sst-daily", accepts_version=listing.version)
    subscription = mia.subscribe("museum", new)
    assert subscription.state == "pending"
    with pytest.raises(icefloe.NotFoundError):
        mia.get_repo("lab/sst")
    (waiting,) = ada.list_subscriptions("lab", state="pending")
    decision = SubscriptionDecision(grants=True)
    with pytest.raises(icefloe.ConflictError):
        ada.decide_subscription("lab", waiting.id, decision, if_version=waiting.version + 1)
    ada.decide_subscription("lab", waiting.id, decision, if_version=waiting.version)
    mia.get_repo("lab/sst")
    assert mia.show_subscription("museum", waiting.id).state == "granted"
    mia.end_subscription("museum", waiting.id)
    with pytest.raises(icefloe.NotFoundError):
        mia.get_repo("lab/sst")
    ada.delete_listing("lab", "sst-daily")
    assert ada.list_listings("lab") == []


def test_who_is_refused_asks_and_is_granted(here: World) -> None:
    policies = here.share_everything()
    values = make_cube(here)
    eve, cid = here.client("eve"), here.client("cid")
    eve.delete_policy("archive", policies["archive"])
    with pytest.raises(icefloe.AccessDeniedError):
        cid.get_repo("lab/sst")
    (request,) = cid.ask_for_access("lab/sst", message="please")
    assert [entry.id for entry in eve.list_requests("archive")] == [request.id]
    proposal = eve.show_request("archive", request.id)
    assert proposal.policy is not None
    decision = RequestDecision(grants=True, policy=proposal.policy, answer="of course")
    assert eve.decide_request("archive", request.id, decision).state == "granted"
    assert [entry.answer for entry in cid.list_requests()] == ["of course"]
    check_cube(cid.get_repo("lab/sst"), values)
