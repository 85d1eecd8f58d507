"""Icefloe agrees with the model, whatever is done in whatever order."""

from typing import Any, ClassVar

from hypothesis import settings

import icefloe
from tests.stateful.machine import RepositoryMachine


def ours() -> Any:
    return icefloe


class Spec1(RepositoryMachine):
    spec = 1
    modules: ClassVar = {"icefloe": ours}


class Spec2(RepositoryMachine):
    spec = 2
    modules: ClassVar = {"icefloe": ours}


class TestSpec1(Spec1.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


class TestSpec2(Spec2.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
