"""In what two schemas differ."""

import pickle
from typing import Any

import pytest

from icefloe.pipeline.files.facts import ArraySchema, DatasetSchema, Kind, misfits
from icefloe.records import replace
from tests.pipeline.made_up import PLAIN, ZLIB

ARRAY = ArraySchema(
    path="g/t",
    data_type="int16",
    dimensions=("time", "x"),
    shape=(-1, 4),
    chunks=(1, 4),
    codecs=ZLIB,
    fill_value=0,
    encoding={"scale_factor": 0.1, "units": "K"},
)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"data_type": "int32"}, [Kind.DTYPE]),
        ({"codecs": PLAIN}, [Kind.CODECS]),
        ({"codecs": PLAIN, "chunks": (0, 4)}, [Kind.CODECS]),
        ({"chunks": (2, 4)}, [Kind.CHUNK_SHAPE]),
        ({"shape": (-1, 8), "chunks": (1, 8)}, [Kind.SHAPE]),
        ({"dimensions": ("time", "y")}, [Kind.DIMENSIONS]),
        ({"fill_value": 1}, [Kind.FILL_VALUE]),
        ({"encoding": {"scale_factor": 0.2, "units": "K"}}, [Kind.SCALE_OFFSET]),
        ({"encoding": {"units": "K"}}, [Kind.SCALE_OFFSET]),
        ({"encoding": {"scale_factor": 0.1, "units": "degC"}}, [Kind.UNITS]),
        (
            {"encoding": {"scale_factor": 0.1, "units": "K", "missing_value": 3}},
            [Kind.FILL_VALUE],
        ),
        ({"path": "g/other"}, [Kind.EXTRA_VARIABLE, Kind.MISSING_VARIABLE]),
        ({}, []),
    ],
)
def test_each_difference_has_its_kind(change: dict[str, Any], kinds: list[Kind]) -> None:
    expected = DatasetSchema.of([ARRAY])
    found = DatasetSchema.of([replace(ARRAY, **change)])
    assert [each.kind for each in misfits(expected, found)] == kinds
    assert (expected.digest == found.digest) == (not kinds)


def test_a_schema_survives_a_journey() -> None:
    schema = DatasetSchema.of([ARRAY, replace(ARRAY, path="a", fill_value="NaN")])
    again = pickle.loads(pickle.dumps(schema))
    assert (again, again.digest) == (schema, schema.digest)
    assert [each.path for each in again.arrays] == ["a", "g/t"]
