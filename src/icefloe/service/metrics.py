"""Counters of the service, in the format of Prometheus.

With several worker processes, each of them writes its numbers to a folder that they share
(`PROMETHEUS_MULTIPROC_DIR`), and any of them answers with the sums.
"""

import os
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The numbers of a service."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        self._requests: Final = Counter(
            "icefloe_requests",
            "Requests, by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds: Final = Histogram(
            "icefloe_request_seconds",
            "How long requests took.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._mints: Final = Counter(
            "icefloe_minted_credentials",
            "Credentials that were made.",
            ["delegation"],
            registry=self._registry,
        )

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def count_mint(self, delegation: str) -> None:
        """Count a credential that was made."""
        self._mints.labels(delegation).inc()

    def text(self) -> bytes:
        """Return all numbers in the text format of Prometheus."""
        if FOLDER_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
