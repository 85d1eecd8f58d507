"""Made-up archives: the same references for both sides of a comparison."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 100_000
HEADER_BYTES = 4096
BUCKET = "s3://archive/"


@dataclass(frozen=True, slots=True)
class Archive:
    """Virtual references, `per_file` in each file, to an array of one or three dimensions."""

    rows: int
    per_file: int = 10
    dimensions: int = 1
    varying: bool = False
    """Chunks of varying length, as compression makes them, instead of all alike."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.dimensions == 1 else (self.rows // 100, 10, 10)

    def files(self) -> list[str]:
        count = self.rows // self.per_file
        return [f"{BUCKET}model/run-7/year=2020/month=01/file-{n:07d}.nc" for n in range(count)]

    def file_of_row(self) -> NDArray[np.int64]:
        return np.arange(self.rows) // self.per_file

    def lengths(self) -> NDArray[np.uint64]:
        if not self.varying:
            return np.full(self.rows, CHUNK_BYTES, np.uint64)
        return np.random.default_rng(7).integers(90_000, CHUNK_BYTES, self.rows).astype(np.uint64)

    def offsets(self) -> NDArray[np.uint64]:
        ends = np.cumsum(self.lengths())
        starts = ends - self.lengths()
        first = starts[self.file_of_row() * self.per_file]
        offsets: NDArray[np.uint64] = starts - first + np.uint64(HEADER_BYTES)
        return offsets

    def coordinates(self) -> NDArray[np.uint32]:
        grid: Any = np.unravel_index(np.arange(self.rows), self.shape)
        return np.stack(grid, axis=1).astype(np.uint32)
