"""Records: what msgspec does not do by itself."""

import pickle
from dataclasses import dataclass
from typing import Any, override

import pytest

from icefloe.records import MutableRecord, Record, asdict, field, replace


class Rounded(Record):
    value: float

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounded) and round(self.value) == round(other.value)

    __hash__ = None  # type: ignore[assignment]


class Box(Record):
    first: int
    names: list[str] = field(default_factory=list)


class Tally(MutableRecord):
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Report:
    boxes: dict[str, Box]


def test_a_class_with_its_own_equality_is_unequal_by_it() -> None:
    assert Rounded(1.1) == Rounded(0.9)
    assert not Rounded(1.1) != Rounded(0.9)  # noqa: SIM202 - the operator is what is tested
    assert Rounded(1.1) != Rounded(2.1)


def test_records_are_compared_by_their_fields() -> None:
    assert Box(1) == Box(1)
    assert Box(1) != Box(2)


def test_a_record_is_frozen() -> None:
    box: Any = Box(1)
    with pytest.raises(AttributeError):
        box.first = 2


def test_defaults_are_not_shared() -> None:
    Box(1).names.append("a")
    assert Box(1).names == []


def test_records_travel() -> None:
    assert pickle.loads(pickle.dumps(Tally((Box(1, ["a"]),)))) == Tally((Box(1, ["a"]),))


def test_replace_takes_records_and_dataclasses() -> None:
    assert replace(Box(1), first=2) == Box(2)
    assert replace(Report({}), boxes={"a": Box(1)}) == Report({"a": Box(1)})


def test_asdict_goes_into_all_that_it_meets() -> None:
    assert asdict(Tally((Box(1, ["a"]),))) == {"boxes": ({"first": 1, "names": ["a"]},)}
    assert asdict(Report({"a": Box(1)})) == {"boxes": {"a": {"first": 1, "names": []}}}
