"""Real Spark clusters on the loopback interface, from the Spark that comes with `pyspark`.

    with spark_cluster(workers=2) as cluster:
        session_for(cluster.url)  # spark://127.0.0.1:…
        cluster.workers[0].kill()  # a machine is lost
        cluster.add_worker()  # and another one comes

    with spark_connect_server() as server:
        session_for(server.url)  # sc://127.0.0.1:…

Every worker has an address of its own (127.0.0.1, 127.0.0.2, …), so that Spark takes them for
different machines: it runs no speculative copy of a task on the machine of the first. Linux has
all these addresses; on macOS one worker works.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.support.processes import LOOPBACK, Launch, ServerStartError, free_ports, running

QUICK_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of Java with which processes that live for seconds start with less work."""

_DAEMON_MEMORY: Final = "256m"
_MASTER_OPTIONS: Final = "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false"
"""If its port is taken, a master must not choose another one, which nobody would know of."""
_SERVER_MEMORY: Final = "768m"


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """A machine of a cluster: the process that starts executors, and these."""

    folder: Path
    host: str

    @property
    def pid(self) -> int:
        """Give the number of the process whose children are the executors."""
        return int((self.folder / "pid").read_text())

    @property
    def log(self) -> str:
        """Give what it has told so far."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def executor_logs(self) -> str:
        """Give what its executors have told so far, of all applications."""
        found = sorted((self.folder / "data").glob("app-*/*/stderr"))
        return "\n".join(path.read_text(errors="replace") for path in found)

    def kill(self) -> None:
        """End it at once with all its executors, as if the machine were gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # Python processes end when their executor does


class SparkCluster:
    """A master and its workers."""

    def __init__(self, url: str, start_worker: Callable[[int], SparkWorker]) -> None:
        self.url = url
        """What sessions are started with."""
        self.workers: list[SparkWorker] = []
        """All that were started, in their order, those that were killed among them."""
        self._start_worker = start_worker

    def add_worker(self) -> SparkWorker:
        """Start one more, and wait until the master knows it."""
        worker = self._start_worker(len(self.workers) + 1)
        self.workers.append(worker)
        return worker


@dataclass(frozen=True, slots=True)
class SparkConnectServer:
    """A server to which sessions connect from elsewhere."""

    url: str
    folder: Path

    @property
    def log(self) -> str:
        """Give what it has told so far."""
        return (self.folder / "log.txt").read_text(errors="replace")


@contextmanager
def spark_cluster(
    *,
    workers: int = 2,
    cores: int = 2,
    memory: str = "2g",
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkCluster]:
    """Run a master and workers, each of which offers this many cores and so much memory.

    Neither is taken before an application asks for it. `environment` is for all processes:
    JAVA_HOME, if it is not set.
    """
    home = _spark_home()
    with ExitStack() as held:
        plan_master = partial(_plan_master, home, environment or {})
        url = held.enter_context(running("spark-master", plan_master))["url"]

        def start_worker(number: int) -> SparkWorker:
            offer = ["--cores", str(cores), "--memory", memory]
            plan = partial(_plan_worker, home, environment or {}, url, offer, number)
            address = held.enter_context(running(f"spark-worker-{number}", plan))
            return SparkWorker(Path(address["folder"]), address["host"])

        cluster = SparkCluster(url, start_worker)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


@contextmanager
def spark_connect_server(
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkConnectServer]:
    """Run a Spark Connect server, which does the work itself unless a master is named.

    Its Python workers are those of PYSPARK_PYTHON.
    """
    plan = partial(_plan_connect, _spark_home(), environment or {}, master, settings or {})
    with running("spark-connect", plan) as address:
        yield SparkConnectServer(address["url"], Path(address["folder"]))


def _spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerStartError("Spark is not installed: pip install 'icefloe[spark]'")
    return Path(found.origin).parent


def _environment(
    home: Path, given: Mapping[str, str], folder: Path, host: str = LOOPBACK
) -> dict[str, str]:
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder),  # nothing of the user's own settings
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder / "data"),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        **given,
    }


def _plan_master(home: Path, given: Mapping[str, str], folder: Path) -> Launch:
    (port,) = free_ports(1)
    command = [
        str(home / "bin" / "spark-class"),
        "org.apache.spark.deploy.master.Master",
        *("--host", LOOPBACK, "--port", str(port), "--webui-port", "0"),
    ]
    return Launch(
        command,
        {"url": f"spark://{LOOPBACK}:{port}"},
        partial(_has_told, folder, "New state: ALIVE"),
        {
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_MASTER_OPTS": _MASTER_OPTIONS,
            **_environment(home, given, folder),
        },
    )


def _plan_worker(
    home: Path, given: Mapping[str, str], master: str, offer: list[str], number: int, folder: Path
) -> Launch:
    host = f"127.0.0.{number}"
    command = [
        str(home / "bin" / "spark-class"),
        "org.apache.spark.deploy.worker.Worker",
        *("--host", host, "--port", "0", "--webui-port", "0"),
        *("--work-dir", str(folder / "data"), *offer, master),
    ]
    return Launch(
        command,
        {"folder": str(folder), "host": host},
        partial(_has_told, folder, "Successfully registered with master"),
        {"SPARK_DAEMON_MEMORY": _DAEMON_MEMORY, **_environment(home, given, folder, host)},
    )


def _plan_connect(
    home: Path, given: Mapping[str, str], master: str, settings: Mapping[str, str], folder: Path
) -> Launch:
    (port,) = free_ports(1)
    chosen = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.ui.enabled": "false",
        **settings,
    }
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", master),
        *(part for key, value in chosen.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    return Launch(
        command,
        {"url": f"sc://{LOOPBACK}:{port}", "folder": str(folder)},
        partial(_accepts, port),
        {"SPARK_DAEMON_MEMORY": _SERVER_MEMORY, **_environment(home, given, folder)},
    )


def _has_told(folder: Path, words: str) -> bool:
    log = folder / "log.txt"
    return log.exists() and words in log.read_text(errors="replace")


def _accepts(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex((LOOPBACK, port)) == 0
