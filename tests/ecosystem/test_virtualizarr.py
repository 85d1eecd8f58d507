"""VirtualiZarr writes into fresh repositories: the default containers are there for it to see."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.interop

PROGRAM = """
import json, sys, warnings
import icefloe

icefloe.install_as_icechunk()
warnings.simplefilter("default")  # what VirtualiZarr warns of is its own affair
import virtualizarr
import xarray as xr
from virtualizarr.manifests import ChunkManifest, ManifestArray
from zarr.core.metadata.v3 import ArrayV3Metadata

metadata = ArrayV3Metadata.from_dict({
    "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
    "codecs": [{"name": "bytes"}], "attributes": {}, "dimension_names": ["x"],
})
outcomes = {}
config = icefloe.RepositoryConfig()
if sys.argv[1] == "declared":
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://mine/", icefloe.s3_store())
    )
for url in sys.argv[2:]:
    manifest = ChunkManifest({"0": {"path": url, "offset": 0, "length": 4}})
    virtual = xr.Dataset({"a": ("x", ManifestArray(metadata=metadata, chunkmanifest=manifest))})
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repository.writable_session("main")
    try:
        virtual.vz.to_icechunk(session.store)
    except ValueError as error:
        outcomes[url] = str(error)
        continue
    session.commit("virtual")
    reader = repository.readonly_session("main")
    assert reader.all_virtual_chunk_locations() == [url]
    assert not repository.config.virtual_chunk_containers or sys.argv[1] == "declared"
    try:
        outcomes[url] = xr.open_zarr(reader.store, consolidated=False)["a"].values.tolist()
    except icefloe.IcefloeError as error:
        outcomes[url] = str(error.kind)
print(json.dumps(outcomes))
"""


def outcomes(*arguments: str) -> dict[str, str]:
    """Let VirtualiZarr write references, and say what comes of each.

    In a process of its own: VirtualiZarr imports `icechunk`, for which Icefloe stands there.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_references_to_every_platform_are_written_and_not_read_without_consent() -> None:
    urls = [
        f"{scheme}://bucket/file.nc"
        for scheme in ("s3", "gs", "gcs", "az", "abfs", "tigris", "https")
    ]
    assert outcomes("fresh", *urls) == dict.fromkeys(urls, "no-container-for-virtual-chunk")


def test_a_declared_place_still_tells_which_references_are_elsewhere() -> None:
    told = outcomes("declared", "s3://mine/file.nc", "s3://other/file.nc", "gcs://bucket/file.nc")
    assert told == {
        "s3://mine/file.nc": "unauthorized-virtual-chunk-container",
        "s3://other/file.nc": (
            "No Virtual Chunk Container set which supports prefix of path s3://other/file.nc"
        ),
        "gcs://bucket/file.nc": "no-container-for-virtual-chunk",
    }
