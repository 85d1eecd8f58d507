"""What is taken for granted of datasets of a usual form is what xarray finds."""

import base64
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, target
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from examples.archives import write_archive
from icefloe.pipeline.writing.openable import surely_opens

NAMES = ("time", "x", "t2m", "bounds")
FILL = base64.b64encode(struct.pack("<d", -999.0)).decode()
VALUES = st.sampled_from(
    [FILL, "junk", "AAAA", -999, 300, 2**40, 1.5, True, None, [1, 2], "nan", "time x", {"a": 1}]
)
UNITS = st.sampled_from(
    [
        "days since 2000-01-01",
        "hours since 1850-01-01 06:00:00",
        "seconds since 1970-01-01",
        "days since 0000-00-00",
        "days since 2001-02-30",
        "months since 2000-01-01",
        "days since yesterday",
        "days",
        "hours",
        "K",
        "Days",
        "ms",
        7,
        ["days"],
    ]
)
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "units": UNITS,
        "calendar": st.sampled_from(["standard", "360_day", "noleap", "lunar", "gregorian"]),
        "_FillValue": VALUES,
        "missing_value": VALUES,
        "scale_factor": VALUES,
        "add_offset": VALUES,
        "coordinates": VALUES,
        "bounds": st.sampled_from(["bounds", "x", 5]),
        "dtype": st.sampled_from(["bool", "i4"]),
        "_Unsigned": st.sampled_from(["true", "false", 1]),
    },
)
ARRAYS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "dtype": st.sampled_from(["i2", "i8", "u1", "f4", "f8", "bool"]),
        "dims": st.lists(st.sampled_from(["time", "x", "", None]), max_size=2),
        "lengths": st.lists(st.sampled_from([0, 2, 2, 2, 3]), min_size=2, max_size=2),
        "values": st.sampled_from([0, 1, 1, 100, 200_000, 10**9, float("nan"), float("inf")]),
        "attributes": ATTRIBUTES,
    }
)


def made(arrays: list[dict[str, Any]]) -> zarr.Group:
    group = zarr.create_group(MemoryStore())
    for made in arrays:
        shape = tuple(made["lengths"][: len(made["dims"])])
        value = made["values"]
        if made["dtype"][0] in "iub" and not np.isfinite(value):
            value = 0
        values = np.full(shape, value).astype(made["dtype"])
        group.create_array(
            made["name"], data=values, dimension_names=made["dims"] or None, overwrite=True
        ).attrs.update(made["attributes"])
    return group


def open_with_xarray(group: zarr.Group, stored: set[str]) -> None:
    decoded = {name: name in stored for name in group.array_keys()}
    dataset = xarray.open_zarr(
        group.store,
        consolidated=False,
        chunks=None,
        decode_times=decoded,
        decode_timedelta=decoded,
        create_default_indexes=False,
    )
    for name in stored & set(dataset.variables):
        dataset.variables[name].load()


@given(st.lists(ARRAYS, min_size=1, max_size=3), st.sets(st.sampled_from(NAMES)))
@pytest.mark.filterwarnings("ignore")
def test_xarray_opens_what_surely_opens(arrays: list[dict[str, Any]], stored: set[str]) -> None:
    group = made(arrays)
    is_sure = surely_opens(group, stored)
    target(float(is_sure), label="sure")
    if is_sure:
        open_with_xarray(group, stored)


def test_a_usual_dataset_surely_opens() -> None:
    group = zarr.create_group(MemoryStore())
    time = group.create_array("time", data=np.array([0, 31]), dimension_names=("time",))
    time.attrs.update({"units": "days since 2000-01-01", "calendar": "standard"})
    t2m = group.create_array("t2m", data=np.zeros((2, 3), "i2"), dimension_names=("time", "x"))
    t2m.attrs.update({"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -1, "units": "K"})
    assert surely_opens(group, {"time"})
    time.attrs["calendar"] = "360_day"
    assert not surely_opens(group, {"time"})
    assert surely_opens(group, set())  # times of files are decoded by those who read them


PROGRAM = """
import json, sys
import icefloe
from icefloe.pipeline import CombineOptions
from icefloe.pipeline.files.containers import container_at, container_prefixes

pattern = sys.argv[1]
config = icefloe.RepositoryConfig.default()
[prefix] = container_prefixes([pattern])
config.set_virtual_chunk_container(container_at(prefix))
repository = icefloe.Repository.create(icefloe.local_filesystem_storage(sys.argv[2]), config)
report = icefloe.ingest(repository, pattern, CombineOptions(("time",)))
print(json.dumps({"files": report.scan.used, "loaded": sorted(sys.modules)}))
"""


def test_a_small_job_of_usual_files_loads_neither_xarray_nor_spark(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", 3)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, archive.pattern, str(tmp_path / "cube")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["files"] == 3
    heavy = {"xarray", "pandas", "dask", "pyspark", "virtualizarr", "jinja2"}
    assert heavy & set(told["loaded"]) == set()
