"""The counter of functions that operations run."""

import pytest

from tools.walk import OPERATIONS, main, walking


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_goes_through_the_storage(name: str) -> None:
    walk = OPERATIONS[name][1]()
    assert any(module.startswith("storage.") for module in walk.modules)
    assert 0 < walk.depth <= len(walk.functions) <= walk.calls.total()


def test_an_ingest_takes_a_file_from_its_header_to_a_commit() -> None:
    functions = OPERATIONS["ingest"][1]().functions
    stations = [
        "pipeline.files.parsing:parse_file",
        "pipeline.combining.combine:combine",
        "pipeline.checking.values:check_file",
        "pipeline.writing.dataset:write_metadata",
        "transactions.commit:commit",
    ]
    assert [function for function in functions if function in stations] == stations


def test_nothing_runs_in_between() -> None:
    with walking() as walk:
        sum(range(10))
    assert walk.functions == []


def test_a_list_of_functions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["walk", "--functions", "read"])
    main()
    assert "transactions.chunks:read_chunk" in capsys.readouterr().out.splitlines()
