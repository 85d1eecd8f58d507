"""The repository service on this machine: `python -m bench service`.

An object store with an STS, the service with SQLite in a process of its own, and this process as
all of its clients. Every figure is of real requests over the loopback interface.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import msgspec
from rich.console import Console
from rich.table import Table

import icefloe
from bench.measure import scratch
from icefloe.catalog.model import (
    Bucket,
    BucketState,
    DeclaredContainer,
    Member,
    Person,
    Platform,
    Policy,
    PolicyScope,
    Repository,
    Role,
)
from icefloe.catalog.wire import OpenAnswer
from icefloe.service.domain.world import World
from icefloe.service.following import side_of
from tests.support.proxy import Delay, cutting_proxy
from tests.support.servers import S3Endpoint, seaweedfs

CONTAINERS: Final = 10
PEOPLE: Final = 60
NEW_REPOSITORIES: Final = 40
"""Repositories that the service has never looked at."""
REPETITIONS: Final = 50
FAR_SECONDS: Final = 0.02
FAR_OPENS: Final = 20


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench service")
    parser.add_argument("--opens", type=int, default=1000, help="opens at the same time")
    options = parser.parse_args(arguments)
    with scratch() as folder, seaweedfs(has_sts=True) as store:
        figures = asyncio.run(_measure(folder, store, options.opens))
    figures["decide"] = (_decide_seconds(), "s", 1.0)
    table = Table("figure", "measured", "asked", title="The service on loopback, with SQLite")
    for name, (value, unit, limit) in figures.items():
        is_met = value >= limit if unit == "opens/s" else value <= limit
        colour = "green" if is_met else "red"
        sign = "≥" if unit == "opens/s" else "≤"
        table.add_row(name, f"[{colour}]{value:.3g} {unit}[/]", f"{sign} {limit:g}")
    Console().print(table)


type Figures = dict[str, tuple[float, str, float]]
"""By name: what was measured, its unit, and what is asked."""


async def _measure(folder: Path, store: S3Endpoint, opens: int) -> Figures:
    async with _served(folder / "near", store) as served:
        figures = await _ask(served, opens)
        url, token = served.url, served.tokens[0]
        ratio = await asyncio.to_thread(_client_ratio, url, token)
    figures["open by the client, ratio to a known place: median"] = (ratio, "x", 1.5)
    with cutting_proxy(store.url) as proxy:
        far = replace(store, url=proxy.url)
        async with _served(folder / "far", far) as served:
            await served.open_as(served.tokens[0])
            proxy.plan(Delay(seconds=FAR_SECONDS, times=None))
            cold = await _open_cold(served, served.tokens[1 : FAR_OPENS + 1])
    name = f"open, a store {1e3 * FAR_SECONDS:.0f} ms away, ratio to its slowest step: median"
    figures[name] = (statistics.median(cold.ratios), "x", 1.3)
    return figures


@dataclass
class _Served:
    """A service in another process."""

    client: httpx.AsyncClient
    url: str
    tokens: list[str]
    probe_seconds: float
    made: set[str] = field(default_factory=set)
    """The credentials that were handed out."""

    async def open_as(self, token: str, name: str = "sst") -> float:
        """Open a repository, and return how long that takes."""
        headers = {"authorization": f"Bearer {token}"}
        begun = time.perf_counter()
        response = await self.client.post(f"/api/v1/repos/lab/{name}/open", headers=headers)
        seconds = time.perf_counter() - begun
        assert response.status_code == 200, response.text
        answer = response.json()
        assert len(answer["containers"]) == CONTAINERS
        parts = (answer, *answer["containers"])
        self.made.update(str(part["credential"]["values"]) for part in parts)
        return seconds

    async def tell(self, path: str) -> Any:
        """Ask the service about itself."""
        return (await self.client.get(f"/bench/{path}")).json()


@asynccontextmanager
async def _served(folder: Path, store: S3Endpoint) -> AsyncIterator[_Served]:
    address = {"url": store.url, "bucket": store.bucket, "region": store.region}
    keys = {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
    settings = json.dumps({"folder": str(folder), "store": address | keys})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.service_worker", settings, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        started = json.loads(await process.stdout.readline())
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        async with httpx.AsyncClient(
            base_url=started["url"], limits=limits, timeout=120, trust_env=False
        ) as client:
            yield _Served(client, started["url"], started["tokens"], started["probe_seconds"])
    finally:
        process.terminate()
        await process.wait()


@dataclass
class _Cold:
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """How often the slowest step would fit in."""


async def _open_cold(served: _Served, people: list[str]) -> _Cold:
    """Open a repository as people who have not: everything is made for each of them."""
    cold = _Cold()
    for token in people:
        await served.tell("steps")
        cold.seconds.append(await served.open_as(token))
        steps = await served.tell("steps")
        cold.ratios.append(cold.seconds[-1] / max(steps.values()))
    return cold


async def _ask(served: _Served, opens: int) -> Figures:
    crowd, *people = served.tokens
    await served.open_as(people[0])
    # Nobody has opened these, and the service has never read their configuration.
    names = [f"new-{number}" for number in range(NEW_REPOSITORIES)]
    first = [await served.open_as(people[0], name) for name in names]
    cold = await _open_cold(served, people[1:])
    warm = [await served.open_as(people[1]) for _ in range(200)]
    served.made.clear()
    before, cpu_before = await served.tell("mints"), await served.tell("cpu")
    seconds, errors = await _all_at_once([lambda: served.open_as(crowd)] * opens)
    mints, cpu = await served.tell("mints") - before, await served.tell("cpu") - cpu_before
    return {
        "open of a new repository: p95": (1e3 * _p95(first), "ms", 50),
        "open, all credentials made: p95": (1e3 * _p95(cold.seconds), "ms", 50),
        "open, credentials kept: p95": (1e3 * _p95(warm), "ms", 50),
        "open, ratio to its slowest step: median": (statistics.median(cold.ratios), "x", 1.3),
        f"mints for each grant, {opens} opens at once": (mints / len(served.made), "", 1),
        f"{opens} opens at once: errors": (errors, "", 0),
        f"{opens} opens at once": ((opens - errors) / seconds, "opens/s", 200),
        "processor time of the service for an open": (1e3 * cpu / opens, "ms", 4),
        "probe of a bucket": (served.probe_seconds, "s", 2),
    }


def _client_ratio(url: str, token: str) -> float:
    """Return how long a warm open takes by name, compared with one whose credentials are known.

    They take turns.
    """
    client = icefloe.Client(url, token=token)
    headers = {"authorization": f"Bearer {token}"}
    body = httpx.post(f"{url}/api/v1/repos/lab/sst/open", headers=headers, trust_env=False).content
    answer = msgspec.json.decode(body, type=OpenAnswer)
    by_name, by_place = [], []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        client.get_repo("lab/sst")
        by_name.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        side_of(answer).open()
        by_place.append(time.perf_counter() - begun)
    return statistics.median(by_name) / statistics.median(by_place)


async def _all_at_once(attempts: list[Callable[[], Awaitable[float]]]) -> tuple[float, int]:
    begun = time.perf_counter()
    results = await asyncio.gather(*(attempt() for attempt in attempts), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors[:3]:
        print(f"failed: {error!r}", file=sys.stderr)
    return time.perf_counter() - begun, len(errors)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _decide_seconds() -> float:
    """Decide for a thousand people and a thousand repositories."""
    organisations = [f"org-{number}" for number in range(20)]
    place = "s3://data-{}/daily/"
    world = World(
        now=datetime.now(UTC),
        people=[Person(f"p{number}") for number in range(1000)],
        members=[
            Member(organisations[(number * k) % 20], f"p{number}", Role.READER)
            for number in range(1000)
            for k in (1, 3)
        ],
        buckets=[
            Bucket(name, "main", Platform.S3, f"data-{name}", state=BucketState.PROVEN)
            for name in organisations
        ],
        repositories=[
            Repository(organisations[number % 20], f"r{number}", "main", f"r{number}/")
            for number in range(1000)
        ],
        containers={
            f"{organisations[number % 20]}/r{number}": tuple(
                DeclaredContainer(prefix, prefix)
                for prefix in (place.format(organisations[(number + k) % 20]) for k in range(2))
            )
            for number in range(1000)
        },
        policies=[
            Policy(f"policy-{name}", name, "main", "daily/", PolicyScope.ANYONE)
            for name in organisations
        ],
    )
    begun = time.perf_counter()
    assert world.readers().shape == (1000, 1000)
    return time.perf_counter() - begun
