"""The test kit, for us and for those who build on us.

It has storages that are slow or faulty, a checker of what must always hold of a repository, and
races in a set order. The conformance suite for storages needs pytest and is therefore imported by
its own name, `icefloe.testing.storage_suite`.
"""

from icefloe.storage import LatencyStorage
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
from icefloe.testing.invariants import (
    BrokenRepositoryError,
    InvariantChecker,
    check_repository,
    check_repository_blocking,
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

__all__ = [
    "BrokenRepositoryError",
    "Crash",
    "Fail",
    "FaultyBackend",
    "InvariantChecker",
    "LatencyStorage",
    "Outcome",
    "ScheduleRun",
    "ShortRead",
    "SimulatedCrash",
    "Step",
    "SteppingBackend",
    "SteppingStorage",
    "WrappedStorage",
    "all_schedules",
    "check_repository",
    "check_repository_blocking",
    "every_crash",
    "every_failure",
    "run_schedule",
]
