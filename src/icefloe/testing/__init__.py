"""The test kit, for us and for those who build on us.

Here are storages that are slow or faulty, servers to test against, what must always hold of a
repository, and races in a set order. The conformance suite for storages needs pytest and is
therefore imported by its own name, `icefloe.testing.storage_suite`.
"""

from icefloe.storage import LatencyStorage
from icefloe.testing.clusters import (
    SparkCluster,
    SparkConnectServer,
    SparkWorker,
    spark_cluster,
    spark_connect_server,
)
from icefloe.testing.faulty import (
    Crash,
    Fail,
    FaultyBackend,
    ShortRead,
    SimulatedCrash,
    Step,
    every_crash,
    every_failure,
)
from icefloe.testing.gcs_server import GcsEndpoint, gcs_server
from icefloe.testing.http_server import file_server, redirect_server, scripted_server
from icefloe.testing.invariants import (
    BrokenRepositoryError,
    InvariantChecker,
    check_repository,
    check_repository_blocking,
)
from icefloe.testing.processes import ServerStartError
from icefloe.testing.proxy import (
    ActFirst,
    AnswerInstead,
    CutBody,
    CuttingProxy,
    Delay,
    LoseRequest,
    LoseResponse,
    cutting_proxy,
)
from icefloe.testing.schedules import (
    Outcome,
    ScheduleRun,
    SteppingBackend,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from icefloe.testing.servers import (
    AzureEndpoint,
    S3Endpoint,
    azurite,
    has_node,
    install_npm_project,
    seaweedfs,
)

__all__ = [
    "ActFirst",
    "AnswerInstead",
    "AzureEndpoint",
    "BrokenRepositoryError",
    "Crash",
    "CutBody",
    "CuttingProxy",
    "Delay",
    "Fail",
    "FaultyBackend",
    "GcsEndpoint",
    "InvariantChecker",
    "LatencyStorage",
    "LoseRequest",
    "LoseResponse",
    "Outcome",
    "S3Endpoint",
    "ScheduleRun",
    "ServerStartError",
    "ShortRead",
    "SimulatedCrash",
    "SparkCluster",
    "SparkConnectServer",
    "SparkWorker",
    "Step",
    "SteppingBackend",
    "SteppingStorage",
    "WrappedStorage",
    "all_schedules",
    "azurite",
    "check_repository",
    "check_repository_blocking",
    "cutting_proxy",
    "every_crash",
    "every_failure",
    "file_server",
    "gcs_server",
    "has_node",
    "install_npm_project",
    "redirect_server",
    "run_schedule",
    "scripted_server",
    "seaweedfs",
    "spark_cluster",
    "spark_connect_server",
]
