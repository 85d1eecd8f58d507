"""The labels of an attribution stand where the reference puts them."""

from collections.abc import Callable
from pathlib import Path

import icechunk as ic
import pytest

import icefloe
from tests.support.http_server import file_server
from tests.support.proxy import cutting_proxy

type Labels = dict[str, str]


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"client": "ingest"},
        {"client": "ingest/2.1"},
        {"workload": "nightly run"},
        {"principal": "ada"},
        {"workload": ""},
        {"client": "c", "workload": "w", "principal": "ada, [x] <a@b.c>"},
    ],
)
def test_user_agent(labels: Labels, tmp_path: Path) -> None:
    def ours(url: str) -> None:
        storage = icefloe.http_storage(url)
        icefloe.Repository.open(storage, attribution=icefloe.Attribution(**labels))

    def theirs(url: str) -> None:
        ic.Repository.open(ic.http_storage(url), attribution=ic.Attribution(**labels))

    sent = agent_of(ours, tmp_path).replace(icefloe.user_agent(), "agent")
    assert sent == agent_of(theirs, tmp_path).replace(f"icechunk/{ic.__version__}", "agent")


def agent_of(visit: Callable[[str], None], folder: Path) -> str:
    """Say how a visitor who finds no repository introduces itself."""
    with file_server(folder) as server, cutting_proxy(server.url) as proxy:
        with pytest.raises((icefloe.IcechunkError, ic.IcechunkError)):
            visit(proxy.url)
        [agent] = {exchange.agent for exchange in proxy.exchanges}
        return agent
