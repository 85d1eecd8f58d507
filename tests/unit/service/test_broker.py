"""Credentials that a broker keeps, under clocks that jump and stores that refuse."""

import asyncio
from datetime import UTC, datetime, timedelta

from icefloe.catalog.model import Bucket, Delegation, Platform
from icefloe.catalog.wire import CredentialAnswer
from icefloe.service.vending.broker import Broker, Minted
from icefloe.service.vending.grants import Grant, Secret

GRANT = Grant(Bucket("lab", "main", Platform.S3, "data"), ("sst/",), "ada")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Bench:
    """A broker with a token service of its own, and two clocks."""

    def __init__(self) -> None:
        self.now, self.seconds, self.made = START, 0.0, 0
        self.true_time = START
        self.broker = Broker(
            {Delegation.ROLE: self}, lambda: self.now, monotonic=lambda: self.seconds
        )

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        del secret, external_id
        self.made += 1
        await asyncio.sleep(0)
        end = self.true_time + timedelta(seconds=grant.seconds)
        return CredentialAnswer("s3", {"access_key_id": str(self.made)}, end)

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        return (grant,)

    def pass_by(self, span: timedelta) -> None:
        self.now += span
        self.true_time += span
        self.seconds += span.total_seconds()

    async def get(self, refused: Minted | None = None) -> Minted:
        fingerprints = () if refused is None else ("other", refused.credential.fingerprint)

        async def load_secret() -> Secret:
            return Secret({})

        return await self.broker.get(GRANT, load_secret, "id", refused=fingerprints)


def number_of(minted: Minted) -> str:
    return minted.credential.values["access_key_id"]


def test_a_credential_is_kept_until_five_minutes_before_its_end() -> None:
    bench = Bench()
    assert asyncio.run(bench.get()).seconds_left == 3600
    bench.pass_by(timedelta(minutes=54))
    kept = asyncio.run(bench.get())
    assert (number_of(kept), kept.is_new, kept.seconds_left) == ("1", False, 360)
    bench.pass_by(timedelta(minutes=1))
    assert number_of(asyncio.run(bench.get())) == "2"


def test_a_clock_that_is_set_back_keeps_no_ended_credential() -> None:
    bench = Bench()
    asyncio.run(bench.get())
    bench.pass_by(timedelta(minutes=50))
    bench.now -= timedelta(hours=2)
    assert asyncio.run(bench.get()).seconds_left == 600
    bench.pass_by(timedelta(minutes=10))
    assert number_of(asyncio.run(bench.get())) == "2"


def test_a_clock_that_is_late_promises_no_longer_life() -> None:
    bench = Bench()
    bench.now -= timedelta(hours=1)
    assert asyncio.run(bench.get()).seconds_left == 3600


def test_a_refused_credential_is_not_handed_out_again() -> None:
    bench = Bench()
    first = asyncio.run(bench.get())

    async def refuse() -> list[Minted]:
        return await asyncio.gather(*(bench.get(first) for _ in range(10)))

    assert {number_of(minted) for minted in asyncio.run(refuse())} == {"2"}
    assert number_of(asyncio.run(bench.get())) == "2"
    # Who comes a little later gets the same.
    bench.pass_by(timedelta(seconds=5))
    assert number_of(asyncio.run(bench.get(first))) == "2"


def test_an_older_credential_is_suspected_with_the_refused_one() -> None:
    """Another server process may have made the refused one."""
    bench, elsewhere = Bench(), Bench()
    elsewhere.made = 10
    refused = asyncio.run(elsewhere.get())
    asyncio.run(bench.get())
    bench.pass_by(timedelta(minutes=1))
    assert number_of(asyncio.run(bench.get(refused))) == "2"
