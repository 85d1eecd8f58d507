"""Every archive of the matrix is ingested without Spark, by reference and as a copy.

By reference it also comes in two parts, of which the second is appended; some do so as copies.

`tests/spark/test_archives.py` does it with Spark. `docs/explanation/archives.md` has the table.
"""

from pathlib import Path

import pytest

from tests.archives import table
from tests.archives.cases import Case
from tests.archives.checking import (
    check_automatic,
    check_case,
    check_in_parts,
    expected_values,
    written,
)
from tests.archives.matrix import CASES

COPIED_IN_PARTS = {
    "chunks and compression that differ in months",
    "tiles of other chunks",
    "packed differently in each file",
    "missing values marked differently",
    "text of any length",
    "LZF",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_are_those_of_an_independent_reader(case: Case, tmp_path: Path) -> None:
    data = written(case, tmp_path)
    expected = expected_values(case, data)
    check_case(case, data, tmp_path / "virtual", "local", native=False)
    check_case(case, data, tmp_path / "native", "local", native=True)
    if case.virtual is None:
        check_in_parts(case, data, expected, tmp_path / "parts", native=False)
    if case.title in COPIED_IN_PARTS:
        check_in_parts(case, data, expected, tmp_path / "copied_parts", native=True)


ONLY_AS_A_COPY = [
    case
    for case in CASES
    if case.virtual is not None
    and case.virtual.remedy is None
    and (case.native is None or case.native.remedy is not None)
]


@pytest.mark.parametrize("case", ONLY_AS_A_COPY, ids=lambda case: case.name)
def test_what_references_cannot_hold_is_copied_without_being_asked(
    case: Case, tmp_path: Path
) -> None:
    check_automatic(case, written(case, tmp_path), tmp_path)


def test_the_table_in_the_documentation_is_up_to_date() -> None:
    assert table.page() == table.PAGE.read_text(), "python -m tests.archives.table --write"


def test_names_of_cases_differ() -> None:
    assert {case.title for case in CASES} > COPIED_IN_PARTS
    assert len({case.name for case in CASES}) == len(CASES) >= 80
