"""The model is right about the reference, which no machine of ours could tell by itself."""

from typing import Any, ClassVar

import icechunk
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import RepositoryMachine, runs

pytestmark = pytest.mark.interop

icechunk.set_logs_filter("error")


def reference() -> Any:
    return icechunk


class ReferenceSpec2(RepositoryMachine):
    spec = 2
    modules: ClassVar = {"icechunk": reference}


class ReferenceSpec1(RepositoryMachine):
    spec = 1
    modules: ClassVar = {"icechunk": reference}


def test_spec_1() -> None:
    run_state_machine_as_test(ReferenceSpec1, settings=runs(10))


def test_spec_2() -> None:
    run_state_machine_as_test(ReferenceSpec2, settings=runs(15))
