"""Every archive of the matrix is ingested by Spark; see `tests/archives`."""

from pathlib import Path
from typing import Any

import pytest

from tests.archives.cases import Case
from tests.archives.checking import check_case, written
from tests.archives.matrix import CASES, NOT_YET

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_are_those_of_an_independent_reader(case: Case, spark: Any, tmp_path: Path) -> None:
    assert spark is not None  # the session that `ingest` uses
    check_case(case, written(case, tmp_path), tmp_path, "spark", native=False)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in NOT_YET], ids=lambda case: case.name
)
def test_copies_have_these_values(case: Case, spark: Any, tmp_path: Path) -> None:
    assert spark is not None
    check_case(case, written(case, tmp_path), tmp_path, "spark", native=True)
