"""What a package exports exists, is declared and is documented."""

import importlib
import inspect
import pkgutil

import pytest

import icefloe

PACKAGES = [
    "icefloe",
    *(
        module.name
        for module in pkgutil.walk_packages(icefloe.__path__, "icefloe.")
        if module.ispkg
    ),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_exports_are_complete(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])
    assert len(exported) == len(set(exported))
    assert [missing for missing in exported if not hasattr(package, missing)] == []
    imported = {
        public
        for public, value in vars(package).items()
        if not public.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("icefloe")
    }
    assert imported - set(exported) == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_exports_are_documented(name: str) -> None:
    package = importlib.import_module(name)
    callables = [getattr(package, public) for public in getattr(package, "__all__", [])]
    silent = [
        value.__name__
        for value in callables
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value)
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["icefloe.pipeline", "icefloe.spark"])
def test_names_of_the_pipeline_have_examples(name: str) -> None:
    package = importlib.import_module(name)
    without = [
        public
        for public in package.__all__
        if ">>> " not in (inspect.getdoc(getattr(package, public)) or "")
    ]
    assert without == []
