"""Leases: what a service answered last, renewed in time by whatever clock."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import msgspec
import pytest

from icefloe.catalog.handles import Handle
from icefloe.catalog.leases import Lease
from icefloe.catalog.logins import TokenSource
from icefloe.catalog.model import Platform, Repository
from icefloe.catalog.tokens import new_token
from icefloe.catalog.transport import Transport
from icefloe.catalog.wire import CredentialAnswer, OpenAnswer, OpenRequest, Refresh, StoreAnswer
from icefloe.credentials import refresh
from tests.support.http_server import ScriptedHandler, scripted_server

TRUTH = datetime(2026, 1, 1, tzinfo=UTC)


class Clocks:
    """The clock on the wall of the client, and the one that nobody sets."""

    def __init__(self, error: timedelta) -> None:
        self.error, self.seconds = error, 0.0

    def now(self) -> datetime:
        return TRUTH + self.error + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class Counter:
    """A service that numbers its credentials, each of which lives for an hour."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.asked: list[OpenRequest] = []

    def __call__(self, handler: ScriptedHandler) -> None:
        self.asked.append(msgspec.json.decode(handler.read_body(), type=OpenRequest))
        end = TRUTH + timedelta(seconds=self.clocks.seconds, hours=1)
        credential = CredentialAnswer("s3", {"access_key_id": str(len(self.asked))}, end)
        answer = OpenAnswer(
            Repository("lab", "sst", "main", "sst/"),
            "1",
            StoreAnswer(Platform.S3, "lab", "sst/"),
            credential,
            (),
            Refresh("", None, 3600.0),
        )
        handler.answer(HTTPStatus.OK, msgspec.json.encode(answer))


@pytest.mark.parametrize("error", [-timedelta(hours=5), timedelta(0), timedelta(hours=5)], ids=str)
def test_credentials_are_renewed_in_time_by_a_wrong_clock(
    error: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(error)
    monkeypatch.setattr(refresh, "time", clocks)
    service = Counter(clocks)
    with scripted_server(service) as server:
        transport = Transport(server.url, TokenSource(server.url, new_token()))
        lease = Lease(Handle(server.url, "lab/sst"), transport, clocks.now)
        first = lease.credential(None)
        assert first.expires_at == clocks.now() + timedelta(hours=1)
        clocks.seconds = 58 * 60
        assert lease.credential(None) == first
        clocks.error -= timedelta(hours=7)  # somebody sets the clock back
        assert lease.credential(None) == first
        clocks.seconds = 59 * 60
        assert lease.credential(None).values == {"access_key_id": "2"}


def test_a_refused_credential_is_named_by_its_fingerprint() -> None:
    service = Counter(Clocks(timedelta(0)))
    with scripted_server(service) as server:
        transport = Transport(server.url, TokenSource(server.url, new_token()))
        lease = Lease(Handle(server.url, "lab/sst"), transport)
        first = lease.credential(None)

        def is_first(credential: CredentialAnswer) -> bool:
            return credential.values == first.values

        second = lease.replace(None, is_first)
        assert lease.replace(None, is_first) == second
    assert [request.refused for request in service.asked] == [{}, {"": first.fingerprint}]
