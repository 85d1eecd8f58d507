"""What is read of HDF5 files directly is what VirtualiZarr's parser finds in them."""

import io
import warnings
from pathlib import Path
from typing import Any

import h5py
import iris_sample_data
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from virtualizarr.parsers.hdf.hdf import _construct_manifest_group

from examples.archives import write_archive
from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.files.describing import FileContent, ParsedFile, RawArray
from icefloe.pipeline.files.facts import canonical_json
from icefloe.pipeline.files.hdf5 import UnusualError, describe_hdf5, read_hdf5
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.parsing import parse_file, references_of
from icefloe.pipeline.files.references import read_values
from icefloe.pipeline.files.sources import SourceAccess

SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"
URL = "s3://bucket/some file.nc"


def through_virtualizarr(source: Any, group: str | None = None) -> FileContent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = _construct_manifest_group(URL, source, group=group)
    arrays, attributes, todo = {}, {}, [("", root)]
    while todo:
        path, found = todo.pop()
        attributes[path] = dict(found.metadata.attributes)
        below = f"{path}/" if path else ""
        todo += [(f"{below}{name}", each) for name, each in found.groups.items()]
        for name, array in found.arrays.items():
            references = references_of(array.manifest, len(array.shape))
            arrays[f"{below}{name}"] = RawArray(array.metadata.to_dict(), references)
    return FileContent(arrays, attributes)


def assert_same(found: FileContent, expected: FileContent) -> None:
    assert canonical_json(found.attributes) == canonical_json(expected.attributes)
    assert found.arrays.keys() == expected.arrays.keys()
    for path, array in expected.arrays.items():
        mine = found.arrays[path]
        assert canonical_json(mine.metadata) == canonical_json(array.metadata), path
        for column in ("coordinates", "offsets", "lengths", "location_rows"):
            ours, theirs = (getattr(each.references, column) for each in (mine, array))
            assert_array_equal(ours, theirs, err_msg=f"{path}: {column}")
            assert ours.dtype == theirs.dtype
        assert mine.references.locations == array.references.locations


SAMPLE_FILES = [
    path
    for path in sorted(SAMPLES.rglob("*.nc"))
    if path.read_bytes()[:4] == b"\x89HDF" and path.name != "vlstr_type.nc"
]


@pytest.mark.parametrize("path", SAMPLE_FILES, ids=lambda path: path.name)
def test_real_files(path: Path) -> None:
    with path.open("rb") as file:
        assert_same(read_hdf5(str(path), URL), through_virtualizarr(file))


KINDS = ["i1", "u1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8", "?"]
TEXTS = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=4)
VALUES = st.one_of(
    TEXTS,
    TEXTS.map(lambda text: np.bytes_(text.encode())),
    st.integers(-9, 9),
    st.floats(width=32),
    st.booleans(),
    st.lists(st.integers(-9, 9), max_size=3).map(lambda some: np.array(some, np.int16)),
    st.lists(TEXTS, min_size=1, max_size=2).map(lambda some: np.array(some, h5py.string_dtype())),
    st.just(h5py.Empty("f4")),
)
NAMES = st.sampled_from(["units", "scale_factor", "valid_range", "long_name"])


@st.composite
def datasets(draw: st.DrawFn) -> dict[str, Any]:
    kind = np.dtype(draw(st.sampled_from(KINDS)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    options: dict[str, Any] = {"dtype": kind, "shape": shape}
    is_chunked = draw(st.booleans())
    if shape and is_chunked:
        options["chunks"] = tuple(draw(st.integers(1, 7)) for _ in shape)
        options["maxshape"] = (None,) * len(shape)
        options["shuffle"] = draw(st.booleans())
        options["fletcher32"] = draw(st.booleans())
        options["compression"] = draw(st.sampled_from([None, 1, 6]))
    if draw(st.booleans()):
        fills = [0, 1] if kind.kind in "?u" else [-1, 3] if kind.kind == "i" else [-1.5, np.nan]
        options["fillvalue"] = kind.type(draw(st.sampled_from(fills)))
    return {
        "options": options,
        "attributes": draw(st.dictionaries(NAMES, VALUES, max_size=3)),
        "has_fill_attribute": draw(st.booleans()),
        "filled": draw(st.sampled_from(["none", "some", "all"])),
        "part": draw(st.sampled_from(["data", "scale", "dimension"])),
    }


def write(group: h5py.Group, name: str, given: dict[str, Any]) -> None:
    dataset = group.create_dataset(name, **given["options"])
    kind = dataset.dtype
    if given["filled"] != "none" and dataset.size:
        step = (slice(0, 1),) * dataset.ndim if given["filled"] == "some" else ...
        dataset[step] = kind.type(1)
    dataset.attrs.update(given["attributes"])
    if given["has_fill_attribute"]:
        dataset.attrs["_FillValue"] = np.array([1], kind)
    if dataset.ndim == 1 and given["part"] != "data":
        dataset.make_scale(name)
        if given["part"] == "dimension":
            dataset.attrs["_Netcdf4Dimid"] = np.int32(0)


def attach(group: h5py.Group) -> None:
    """Attach each scale to all axes of its length that have none yet."""
    found = [each for each in group.values() if isinstance(each, h5py.Dataset)]
    scales = [each for each in found if each.is_scale]
    for each in found:
        for axis, length in enumerate(each.shape if not each.is_scale else ()):
            for scale in scales:
                if scale.shape == (length,) and not len(each.dims[axis]):
                    each.dims[axis].attach_scale(scale)


@settings(max_examples=150)
@given(
    st.lists(datasets(), max_size=4),
    st.lists(datasets(), max_size=2),
    st.dictionaries(NAMES, VALUES, max_size=2),
    st.booleans(),
)
def test_generated_files(
    tops: list[dict[str, Any]],
    inner: list[dict[str, Any]],
    attributes: dict[str, Any],
    tracked: bool,
) -> None:
    with h5py.File("-", "w", driver="core", backing_store=False, track_order=tracked) as file:
        file.attrs.update(attributes)
        for group, some in ((file, tops), (file.create_group("in/side"), inner)):
            for number, each in enumerate(some):
                write(group, f"a{number}", each)
            attach(group)
        file.flush()
        content = io.BytesIO(file.id.get_file_image())
    assert_same(read_hdf5(content, URL), through_virtualizarr(content))
    inside = read_hdf5(content, URL, group="in"), through_virtualizarr(content, "in")
    assert_same(*inside)


def test_scales_of_groups_above(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("time", data=np.arange(3.0)).make_scale("time")
        file["again"] = file["time"]  # a second name for the same
        inner = file.create_dataset("model/run/t", data=np.arange(3.0), chunks=(1,))
        inner.dims[0].attach_scale(file["time"])
    with path.open("rb") as opened:
        assert_same(read_hdf5(str(path), URL), through_virtualizarr(opened))
        assert_same(read_hdf5(str(path), URL, group="model"), through_virtualizarr(opened, "model"))


def test_dropped_variables_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=np.arange(3.0))
        file.create_dataset("odd", (2,), h5py.vlen_dtype(np.int32))
        file.create_dataset("in/odd", (2,), h5py.vlen_dtype(np.int32))
    with pytest.raises(UnusualError):
        read_hdf5(str(path), URL)
    assert list(read_hdf5(str(path), URL, drop=("odd",)).arrays) == ["t"]


@pytest.mark.parametrize(
    "option",
    [{"compression": "lzf"}, {"scaleoffset": 2}, {"dtype": "S3"}, {"dtype": h5py.string_dtype()}],
)
def test_what_is_unusual_is_left_to_others(tmp_path: Path, option: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", (4,), **{"dtype": "i4", "chunks": (2,), **option})
    with pytest.raises(UnusualError):
        read_hdf5(str(tmp_path / "a.h5"), URL)


def refused(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        parse_file(path.as_uri(), ParseOptions(("time",)))
    assert caught.value.kind == ErrorKind.SOURCE_UNSUPPORTED
    return str(caught.value)


def test_data_in_other_files_is_refused_and_not_looked_for(tmp_path: Path) -> None:
    """A reference could name this file only, and values would be wrong."""
    write_archive(tmp_path / "data", 1)
    other = next((tmp_path / "data").rglob("*.nc"))
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["t"] = h5py.ExternalLink(str(other), "/pressure")
    assert "in another file" in refused(tmp_path / "linked.h5")
    with h5py.File(tmp_path / "twice.h5", "w") as file:
        file["away"] = h5py.ExternalLink(str(other), "/")
        file["first"] = h5py.SoftLink("/away/pressure")
    assert "in another file" in refused(tmp_path / "twice.h5")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_dataset("t", (4,), "i1", external=[(str(other), 0, 4)])
    assert "in other files" in refused(tmp_path / "raw.h5")
    layout = h5py.VirtualLayout((1, 12, 16), "f4")
    layout[...] = h5py.VirtualSource(str(other), "pressure", (1, 12, 16))
    with h5py.File(tmp_path / "joined.h5", "w") as file:
        file.create_virtual_dataset("t", layout)
    assert "in other files" in refused(tmp_path / "joined.h5")


def test_chunks_that_a_filter_left_as_they_were_are_not_referred_to(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("t", (4,), "i4", chunks=(4,), compression=1)
        made.id.write_direct_chunk((0,), np.arange(4, dtype="<i4").tobytes(), filter_mask=1)
    content = describe_hdf5(str(tmp_path / "a.h5"), URL)
    assert "without some filter" in content.unreferenced["t"]
    assert not len(content.arrays["t"].references)
    parsed = parse_file((tmp_path / "a.h5").as_uri(), ParseOptions(("phony_dim_0",)))
    assert set(parsed.facts.unreferenced) == {"t"}


def test_a_group_within_itself_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("in")["again"] = file["/"]
    assert "within itself" in refused(tmp_path / "a.h5")


@pytest.mark.parametrize("block", [0, 512])
def test_references_lead_to_the_values(tmp_path: Path, block: int) -> None:
    """Also behind a block that the user put before everything, and for data among metadata."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=block) as file:
        file.create_dataset("time", data=np.arange(5.0), chunks=(2,))
        file.create_dataset("plain", data=np.arange(7, dtype=">i2"))
        packed = {"chunks": (3,), "compression": 1, "shuffle": True, "fletcher32": True}
        file.create_dataset("packed", data=np.arange(5, dtype="f4"), **packed)
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32BE, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype="i4"))
    parsed = parse_file(path.as_uri(), ParseOptions(("x",), drop=()))
    assert isinstance(parsed, ParsedFile)
    with h5py.File(path) as file:
        # Iterating keeps the lock of HDF5, which other threads need to free objects of HDF5.
        for name, dataset in list(file.items()):
            found = read_values(parsed.metadata[name], parsed.references[name], SourceAccess())
            assert_array_equal(found.ravel(), dataset[...], err_msg=name)
