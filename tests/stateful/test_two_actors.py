"""Icefloe and the reference take turns on one repository, and always agree.

Each has its own repository object open all the time, with whatever it remembers; each rule is
carried out by one of them, and after each change both must see the same branches, tags,
histories, contents and differences, and the files must be sound.
"""

from typing import Any, ClassVar

import icechunk
import pytest
from hypothesis.stateful import run_state_machine_as_test

import icefloe
from tests.stateful.machine import RepositoryMachine, runs

pytestmark = pytest.mark.interop

icechunk.set_logs_filter("error")


def ours() -> Any:
    return icefloe


def reference() -> Any:
    return icechunk


class TwoActorsSpec1(RepositoryMachine):
    spec = 1
    modules: ClassVar = {"icefloe": ours, "icechunk": reference}


class TwoActorsSpec2(RepositoryMachine):
    spec = 2
    modules: ClassVar = {"icefloe": ours, "icechunk": reference}


def test_spec_1() -> None:
    run_state_machine_as_test(TwoActorsSpec1, settings=runs(25))


def test_spec_2() -> None:
    run_state_machine_as_test(TwoActorsSpec2, settings=runs(30))
