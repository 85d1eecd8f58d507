"""The drop-in names exist, with the signatures that code written for the reference calls.

`NOT_YET` lists what is still to come; whoever adds such a name takes it out.
"""

import enum
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icefloe

SURFACE: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "shared" / "api_surface.json").read_text()
)

NOT_YET: set[str] = set()
"""Names, at the top or of methods, that are absent so far."""

MODULES = [
    "config",
    "conflicts",
    "credentials",
    "ops",
    "repository",
    "session",
    "snapshots",
    "storage",
    "store",
    "types",
    "virtual",
]
PLACES: dict[str, list[str]] = {
    "icefloe": sorted(SURFACE["modules"][""]["names"].keys() - NOT_YET),
    **{
        f"icefloe.{module}": sorted(SURFACE["modules"][module]["names"].keys() - NOT_YET)
        for module in MODULES
    },
}
UNEXPORTED = {
    "AsyncCloseableIterator": "icefloe.effects",
    "ChunkStorageStats": "icefloe",
    "RepoUpdateRetryConfig": "icefloe.config",
    "StorageObjectInfo": "icefloe.storage",
}
"""Classes that users meet without naming them."""
NAMES = [(place, name) for place, names in PLACES.items() for name in names]
NAMES += [(place, name) for name, place in UNEXPORTED.items()]
MADE_BY_SESSIONS = {"IcechunkStore"}
OPERATORS = {"__lt__", "__le__", "__gt__", "__ge__"}
"""Ordering methods that every object of the reference has, mostly to refuse."""
SELF_BY_ANOTHER_NAME = ["config", "POSITIONAL_OR_KEYWORD", None]


def described(name: str) -> dict[str, Any]:
    """Find the description of a name, at the top or in the submodule that has it alone."""
    candidates = [
        names[name]
        for names in (
            SURFACE["modules"][""]["names"],
            SURFACE["unexported"],
            *(module["names"] for module in SURFACE["modules"].values()),
        )
        if name in names and names[name]["kind"] != "same-as-top"
    ]
    assert candidates, f"{name} is not a drop-in name"
    found: dict[str, Any] = candidates[0]
    return found


def parameters(target: Any) -> list[list[str | None]]:
    return [
        [
            each.name,
            each.kind.name,
            None if each.default is each.empty else str(each.default),
        ]
        for each in inspect.signature(target).parameters.values()
    ]


def assert_accepts(target: Any, wanted: list[list[str | None]], where: str) -> None:
    """Check that the wanted parameters come first, in order, and that all others are optional."""
    assert_extends(parameters(target), wanted, where)


def assert_extends(
    ours: list[list[str | None]], wanted: list[list[str | None]], where: str
) -> None:
    # Some texts are listed with quotes; "..." stands for a default that has no literal.
    wanted = [[*each[:2], each[2] and each[2].strip("'")] for each in wanted]
    shown = [
        [*each[:2], "..."] if each[2] is not None and theirs[2] == "..." else each
        for each, theirs in zip(ours, wanted, strict=False)
    ]
    assert shown == wanted, where
    assert all(
        default is not None or str(kind).startswith("VAR_")
        for _, kind, default in ours[len(wanted) :]
    ), where


def assert_methods(kind: type, methods: dict[str, Any], where: str) -> None:
    for name, method in methods.items():
        if name in OPERATORS or name in {"__eq__", "__int__"}:
            continue
        if name.removesuffix("_async") in NOT_YET:
            assert not hasattr(kind, name), f"{where}.{name} exists: take it out of NOT_YET"
            continue
        if name in {"__setstate__", "__getstate__", "__reduce__"}:
            continue  # how values travel is their own affair
        found = inspect.getattr_static(kind, name, None)
        assert found is not None, f"{where}.{name}"
        if method["binding"] == "static":
            # Calls of a class method look the same.
            assert isinstance(found, staticmethod | classmethod), f"{where}.{name}"
        if method["parameters"] is not None and not name.startswith("__"):
            bound = getattr(kind, name)
            ours = parameters(bound)[1 if method["binding"] == "instance" else 0 :]
            wanted = [
                each
                for each in method["parameters"]
                if method["binding"] == "class" or each != SELF_BY_ANOTHER_NAME
            ]
            assert_extends(ours, wanted, f"{where}.{name}")


def variants(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from description.get("variants", {}).items()


@pytest.mark.parametrize(("place", "name"), NAMES)
def test_name_and_signature(place: str, name: str) -> None:
    wanted = described(name)
    found = getattr(importlib.import_module(place), name)
    match wanted["kind"]:
        case "function":
            assert_accepts(found, wanted["parameters"], name)
        case "exception":
            bases = {base.__name__ for base in found.__mro__} | {"IcechunkError"}
            assert bases >= set(wanted["bases"])
            assert_accepts(found, wanted["parameters"], name)
        case "enum":
            assert issubclass(found, enum.IntEnum | enum.StrEnum)
            members = {each.name: each.value for each in found}
            if name in {"ErrorKind", "RepoAvailability"}:  # ours have a few members more
                members = {each: members[each] for each in wanted["members"]}
            assert members == wanted["members"]
            assert_methods(found, wanted["methods"], name)
        case "class":
            is_made_by_users = wanted["parameters"] is not None and not wanted["variants"]
            if is_made_by_users and name not in MADE_BY_SESSIONS:
                assert_accepts(found, wanted["parameters"], name)
            assert_methods(found, wanted["methods"], name)
        case kind:
            assert kind in {"alias", "constant", "value"}, kind


@pytest.mark.parametrize(("place", "name"), NAMES)
def test_variants(place: str, name: str) -> None:
    union = getattr(importlib.import_module(place), name)
    for variant_name, wanted in variants(described(name)):
        where = f"{name}.{variant_name}"
        variant = getattr(union, variant_name)
        assert issubclass(variant, union), where
        ours = parameters(variant)
        if wanted["parameters"] is not None:
            # What we add is by name only and optional: calls for the reference stay the same.
            count = len(wanted["parameters"])
            added = ours[count:]
            assert len(ours[:count]) == count, where
            assert all(each[1] == "KEYWORD_ONLY" and each[2] is not None for each in added), where
            ours = ours[:count]
        for attribute in wanted["properties"]:
            assert has_attribute(variant, attribute), f"{where}.{attribute}"
        # Positional parameters have no names in the reference; ours carry those of its stubs.
        if names := re.findall(r"(\w+): ", wanted.get("typed", "")):
            assert [each[0] for each in ours] == names, where


@pytest.mark.parametrize(("place", "name"), NAMES)
def test_attributes(place: str, name: str) -> None:
    kind = getattr(importlib.import_module(place), name)
    is_error = described(name)["kind"] == "exception"
    for attribute, wanted in described(name).get("properties", {}).items():
        target = kind(**_least(kind)) if is_error else kind
        assert has_attribute(target, attribute), f"{name}.{attribute}"
        if wanted["settable"]:
            made = kind()
            setattr(made, attribute, getattr(made, attribute))


def has_attribute(target: object, attribute: str) -> bool:
    """Return whether objects have an attribute, be it a property or a field of a dataclass."""
    return hasattr(target, attribute) or attribute in getattr(target, "__dataclass_fields__", ())


def _least(kind: type) -> dict[str, object]:
    """Give just enough to make an error."""
    if "conflicts" in inspect.signature(kind).parameters:
        return {"snapshot": "x", "conflicts": []}
    return {"message": "x"}


def test_names_to_come_are_absent() -> None:
    assert [name for name in NOT_YET if hasattr(icefloe, name)] == []


@pytest.mark.parametrize("name", sorted(SURFACE["defaults"].keys() & set(vars(icefloe.config))))
def test_unset_attributes(name: str) -> None:
    made = getattr(importlib.import_module("icefloe.config"), name)()
    defaults = SURFACE["defaults"][name]
    assert {attribute: getattr(made, attribute) for attribute in defaults} == defaults


DELIBERATE = {"num_updates_per_repo_info_file": "100"}
"""Defaults that differ from the reference's, for reasons given in the decision records."""


@pytest.mark.parametrize("name", sorted(SURFACE["effective_defaults"]))
def test_effective_values_are_shown(name: str) -> None:
    made = getattr(importlib.import_module("icefloe.config"), name)()
    lines = [line.strip() for line in str(made).splitlines()]
    for path, wanted in SURFACE["effective_defaults"][name].items():
        key = path.rpartition(".")[2]
        wanted = DELIBERATE.get(key, wanted)  # noqa: PLW2901
        shown = [line for line in lines if line.partition(":")[0] == key]
        assert shown, path
        if key != "split_sizes":
            assert any(line.removesuffix(" (default)") == f"{key}: {wanted}" for line in shown), (
                path
            )
