"""The model is right about the reference, which no machine of ours could tell by itself."""

from typing import Any, ClassVar

import icechunk
import pytest
from hypothesis import settings

from tests.stateful.machine import RepositoryMachine

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


class TestReferenceSpec1(ReferenceSpec1.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


class TestReferenceSpec2(ReferenceSpec2.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
