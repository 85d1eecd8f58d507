"""What is slow to import is imported by those who need it, not by everybody."""

import subprocess
import sys

import pytest

HEAVY = {"pandas", "pyarrow", "cloudpickle", "rich", "typer", "xarray", "dask", "pyspark"}


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not (loaded_after("import icefloe") - loaded_after("import zarr")) & HEAVY


@pytest.mark.slow
def test_small_files_need_no_arrow_and_large_ones_no_pandas() -> None:
    code = """
import numpy as np
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ManifestFile, encode_manifest

def there_and_back(count):
    files = BytesColumn.from_strings([f"s3://bucket/{n:05d}.nc" for n in range(count)])
    numbers = np.arange(count)
    table = ChunkTable.virtual(
        numbers.astype(np.uint32)[:, None], files, numbers.astype(np.uint64),
        numbers.astype(np.uint64),
    )
    node = NodeId.random()
    file = ManifestFile(encode_manifest(ManifestId.random(), {node: table}))
    assert file.table(node).take(numbers[::2]).compacted() == table.take(numbers[::2])

there_and_back(%d)
"""
    before = loaded_after("import zarr")
    assert not (loaded_after(code % 100) - before) & HEAVY
    more = loaded_after(code % 5000) - before
    assert "pyarrow" in more
    assert "pandas" not in more


@pytest.mark.slow
def test_modules_of_the_drop_in_package_need_no_import_of_their_own() -> None:
    names = "config conflicts credentials ops repository session snapshots storage store types"
    code = f"import icefloe; [getattr(icefloe, name) for name in {names.split()!r} + ['virtual']]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_readers_that_configured_nothing_need_no_arrow() -> None:
    code = """
from icefloe.config.conditions import COORDINATE_NAME
from icefloe.config.manifest_sets import DEFAULT_CHUNK_MANIFESTS
from icefloe.manifests.partition import is_found, matches

for pattern in DEFAULT_CHUNK_MANIFESTS.preload.arrays:
    matches(pattern, ["/a/time", "/latitude"])
assert is_found(COORDINATE_NAME, "time")
"""
    assert "pyarrow" not in loaded_after(code)
