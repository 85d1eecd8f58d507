"""Icefloe, the reference and its former release expire and collect alike, over and over."""

import icechunk
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.former_reference import former_reference, require_installed
from tests.stateful.machine import runs
from tests.stateful.maintenance import MaintenanceMachine

pytestmark = pytest.mark.interop

icechunk.set_logs_filter("error")


class Spec2(MaintenanceMachine):
    spec = 2


def test_spec_1() -> None:
    require_installed()
    with former_reference() as process:

        class Spec1(MaintenanceMachine):
            spec = 1
            former = process

        run_state_machine_as_test(Spec1, settings=runs(8))


def test_spec_2() -> None:
    run_state_machine_as_test(Spec2, settings=runs(8))
