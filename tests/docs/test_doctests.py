"""Every example in a docstring gives what it shows."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe
from tests.service.client_world import bucket_at, world
from tests.support.servers import seaweedfs

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
JAVA_HOME = ROOT / ".cache" / "java_home"
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


SPARK = ["icefloe.spark.session"]
"""Modules whose examples start and stop Spark, which there is only once in a process."""
SERVED = "icefloe.catalog.administration"
"""The module whose examples ask a service."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PROGRAM = """
import doctest, importlib, sys
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
sys.exit(doctest.testmod(importlib.import_module(sys.argv[1]), optionflags=flags).failed)
"""


@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK)
def test_examples_with_spark(name: str, tmp_path: Path) -> None:
    environment = dict(os.environ)
    if JAVA_HOME.exists():
        environment["JAVA_HOME"] = JAVA_HOME.read_text().strip()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.server
def test_examples_with_a_service(
    tmp_path: Path, servers_folder: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with (
        seaweedfs(shared=servers_folder, name="sts-lab", bucket="lab", has_sts=True) as store,
        world(tmp_path / "service", store, store, prefix) as here,
    ):
        client = here.client("ada")
        client.register_bucket("lab", "spare", bucket_at(store, f"{prefix}/spare/"))
        client.create_repo("lab/sst", bucket="main")
        names = {"client": client, "operator": here.client("root"), "icefloe": icefloe}
        module = importlib.import_module(SERVED)
        results = doctest.testmod(module, extraglobs=names, optionflags=FLAGS)
    assert results.failed == 0
    assert results.attempted > 20


@pytest.mark.parametrize("name", [name for name in MODULES if name not in {*SPARK, SERVED}])
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=FLAGS)
    assert results.failed == 0


def test_modules_are_found() -> None:
    assert {"icefloe.errors", "icefloe.storage.port"} <= set(MODULES)
