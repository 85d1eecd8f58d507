"""Who is asking, as the operator of a storage sees it in the requests."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icefloe import Repository
from icefloe.config import Attribution, RepositoryConfig, VirtualChunkContainer, http_store
from icefloe.credentials import HttpAccess
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import VirtualChunk
from icefloe.storage import redirect_storage, user_agent
from icefloe.virtual_chunks.reader import VirtualReader
from tests.conformance.storages import s3_storage_at
from tests.support.http_server import file_server, redirect_server
from tests.support.proxy import CuttingProxy, cutting_proxy
from tests.support.servers import S3Endpoint

NIGHTLY = Attribution(client="ingest/2", workload="nightly run", principal="ada")
NIGHTLY_AGENT = f"ingest/2 {user_agent()} (workload=nightly run; principal=ada)"
MANUAL = Attribution(principal="bob")
MANUAL_AGENT = f"{user_agent()} (principal=bob)"


@pytest.fixture
def proxy(s3_endpoint: S3Endpoint) -> Iterator[CuttingProxy]:
    with cutting_proxy(s3_endpoint.url) as proxy:
        yield proxy


def agents_during(proxy: CuttingProxy, work: Callable[[], object]) -> set[str]:
    proxy.plan()
    work()
    return {exchange.agent for exchange in proxy.exchanges}


@pytest.mark.server
class TestRepositories:
    def test_every_request_says_who_asks(
        self, proxy: CuttingProxy, s3_endpoint: S3Endpoint, prefix: str
    ) -> None:
        storage = s3_storage_at(s3_endpoint, prefix, proxy.url)

        def life() -> None:
            repository = Repository.create(storage, attribution=NIGHTLY)
            repository.writable_session("main").commit("second", allow_empty=True)
            reopened = repository.reopen(RepositoryConfig(inline_chunk_threshold_bytes=1))
            reopened.create_tag("t", reopened.lookup_branch("main"))
            pickle.loads(pickle.dumps(repository)).list_branches()

        assert agents_during(proxy, life) == {NIGHTLY_AGENT}

    def test_repositories_on_one_storage_do_not_mix(
        self, proxy: CuttingProxy, s3_endpoint: S3Endpoint, prefix: str
    ) -> None:
        storage = s3_storage_at(s3_endpoint, prefix, proxy.url)
        nightly = Repository.open_or_create(storage, attribution=NIGHTLY)
        manual = Repository.open(storage, attribution=MANUAL)
        plain = Repository.open(storage)
        empty = Repository.open(storage, attribution=Attribution())
        assert agents_during(proxy, nightly.list_branches) == {NIGHTLY_AGENT}
        assert agents_during(proxy, manual.list_branches) == {MANUAL_AGENT}
        assert agents_during(proxy, plain.list_branches) == {user_agent()}
        assert agents_during(proxy, empty.list_branches) == {user_agent()}
        assert agents_during(proxy, nightly.list_branches) == {NIGHTLY_AGENT}


def test_a_redirection_is_asked_for_with_attribution(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"content")
    with file_server(tmp_path) as files, cutting_proxy(files.url) as last:
        target = last.url.replace("http://", "http+icechunk://")
        with redirect_server(target) as server, cutting_proxy(server.url) as first:
            backend = redirect_storage(first.url).open(attribution=NIGHTLY)
            assert bytes(run_blocking(backend.get("object")).data) == b"content"
            assert {each.agent for each in first.exchanges} == {NIGHTLY_AGENT}
        assert {each.agent for each in last.exchanges} == {NIGHTLY_AGENT}


def test_virtual_chunks_are_asked_for_with_attribution(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"0123456789")
    with file_server(tmp_path) as server, cutting_proxy(server.url) as proxy:
        prefix = f"{proxy.url}/"
        container = VirtualChunkContainer(prefix, http_store())
        reader = VirtualReader([container], {prefix: HttpAccess}, attribution=MANUAL)
        for each in (reader, pickle.loads(pickle.dumps(reader))):
            ref = VirtualChunk(f"{prefix}data", 2, 3)
            assert bytes(run_blocking(each.read(ref, 0, 3))) == b"234"
        assert {exchange.agent for exchange in proxy.exchanges} == {MANUAL_AGENT}
