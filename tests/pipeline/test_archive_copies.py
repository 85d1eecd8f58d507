"""Files that are made as copies hold what files that are written hold."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from examples.archives import Archive, Fault, write_archive


def content(path: Path) -> dict[str, object]:
    """Give all values and attributes of a file, in a form that can be compared."""
    found: dict[str, object] = {}
    with h5py.File(path) as file:
        found["history"] = file.attrs["history"]
        for name in ("time", "lat", "lon", "temperature", "pressure"):
            data = file[name]
            plain = {key: data.attrs[key] for key in data.attrs if key.isidentifier()}
            described = (data.dtype, data.chunks, data.compression, data.compression_opts)
            found[name] = (np.asarray(data).tobytes(), described, str(sorted(plain.items())[:3]))
    return found


@pytest.mark.parametrize("steps", [1, 3, 700])
def test_copies_are_like_files_that_were_written(steps: int, tmp_path: Path) -> None:
    faults = {0: Fault.DTYPE, 2: Fault.TRUNCATED}
    copied = write_archive(tmp_path / "copied", 12, steps=steps, grid=(3, 2), faults=faults)
    written = Archive(tmp_path / "written", 12, steps, (3, 2))
    for number in (1, 3, 11):
        written.write(number)
        assert content(copied.path(number)) == content(written.path(number))
