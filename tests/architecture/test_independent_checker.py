"""The checker of the tests stays independent of the product that it checks."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARIES = {"flatbuffers", "msgpack", "zstandard"}
"""Codecs of others: of FlexBuffers, of MessagePack and of compressed bytes."""


def imported_modules(file: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), level=0, names=names):
                modules |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case ast.ImportFrom():
                modules.add("a relative import")
    return modules


def test_the_checker_imports_nothing_of_the_product() -> None:
    unread, read = [ROOT / "tests" / "support" / "invariants.py"], set[Path]()
    foreign: set[str] = set()
    while unread:
        file = unread.pop()
        read.add(file)
        for module in imported_modules(file):
            ours = (ROOT / module.replace(".", "/")).with_suffix(".py")
            if ours.exists():
                unread += [] if ours in read else [ours]
            elif module.partition(".")[0] not in {"tests", *sys.stdlib_module_names}:
                foreign.add(module.partition(".")[0])
    assert foreign <= LIBRARIES
    assert {file.name for file in read} >= {"invariants.py", "file_rules.py", "oracle.py"}


def test_fault_stateful_and_property_tests_use_both_checkers() -> None:
    """`icefloe.testing.invariants` alone has the blind spots of `verify`."""
    alone = {
        str(file.relative_to(ROOT))
        for folder in ("faults", "stateful", "property", "interop", "conformance")
        for file in (ROOT / "tests" / folder).rglob("*.py")
        if "icefloe.testing.invariants" in (modules := imported_modules(file))
        and "tests.support.checking" not in modules
    }
    assert alone == set()
