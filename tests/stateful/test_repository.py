"""Icefloe agrees with the model, whatever is done in whatever order."""

from typing import Any, ClassVar

from hypothesis.stateful import run_state_machine_as_test

import icefloe
from tests.stateful.machine import RepositoryMachine, runs


def ours() -> Any:
    return icefloe


class Spec1(RepositoryMachine):
    spec = 1
    modules: ClassVar = {"icefloe": ours}


class Spec2(RepositoryMachine):
    spec = 2
    modules: ClassVar = {"icefloe": ours}


def test_spec_1() -> None:
    run_state_machine_as_test(Spec1, settings=runs(25))


def test_spec_2() -> None:
    run_state_machine_as_test(Spec2, settings=runs(30))
