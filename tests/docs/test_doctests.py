"""Every example in a docstring gives what it shows."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import icefloe

TOOLS = Path(__file__).parents[2] / "tools"
MODULES = sorted(
    [
        *(
            module.name
            for module in pkgutil.walk_packages(icefloe.__path__, "icefloe.")
            if not module.name.endswith("__main__")
        ),
        *(f"tools.{path.stem}" for path in TOOLS.glob("*.py")),
    ]
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def test_modules_are_found() -> None:
    assert {"icefloe.errors", "icefloe.storage.port"} <= set(MODULES)
