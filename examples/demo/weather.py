"""The archives of the demonstration: made-up weather of many days, real months of the ocean."""

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import iris_sample_data
import numpy as np
from numpy.typing import NDArray

from examples.archives import Archive, Fault

DAYS_IN_A_YEAR = 365.25
AT_ONCE = 100  # files that a process writes before it reports


@dataclass(frozen=True, slots=True)
class Weather(Archive):
    """A file for each day, with seasons that differ north and south, and slow warming."""

    units: str = "days since 2000-01-01"

    def packed_temperature(self, number: int) -> NDArray[np.int16]:
        """Make up the temperature of one day, packed as the files have it."""
        latitude = np.radians(np.linspace(-60, 60, self.grid[0]))[:, None]
        longitude = np.linspace(0, 2 * np.pi, self.grid[1])[None, :]
        years = number / DAYS_IN_A_YEAR
        season = -12 * np.cos(2 * np.pi * years) * np.sin(latitude)
        waves = 2 * np.sin(3 * longitude + number / 3) * np.cos(2 * latitude)
        kelvin = 250 + 45 * np.cos(latitude) + season + waves + 0.3 * years
        packed: NDArray[np.int16] = np.rint((kelvin - 250) * 100).astype(np.int16)[None]
        return packed

    def write_some(self, numbers: Sequence[int]) -> int:
        """Write the files of some days."""
        for number in numbers:
            self.write(number, self.faults.get(number))
        return len(numbers)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """When the files of an archive arrive: most first, some late, and one is broken."""

    days: int

    @property
    def late(self) -> range:
        """Days that are missing in the first delivery."""
        begin = self.days // 3
        return range(begin, begin + max(2, self.days // 60))

    @property
    def broken(self) -> int:
        """The day whose upload was cut off."""
        return self.days // 2

    @property
    def first(self) -> list[int]:
        """Days of the first delivery."""
        return [day for day in range(self.days * 4 // 5) if day not in self.late]

    @property
    def second(self) -> list[int]:
        """Days of the second delivery: what was late, and what is new."""
        return [*self.late, *range(self.days * 4 // 5, self.days)]


def weather(folder: Path, deliveries: Deliveries) -> Weather:
    """Describe the archive, with its broken file."""
    faults = {deliveries.broken: Fault.TRUNCATED}
    return Weather(folder, deliveries.days, faults=faults)


def write_days(archive: Weather, days: Sequence[int], processes: int) -> Iterator[int]:
    """Write files in several processes; tell how many are done now and then."""
    parts = [days[start : start + AT_ONCE] for start in range(0, len(days), AT_ONCE)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for job in as_completed([pool.submit(archive.write_some, part) for part in parts]):
            yield job.result()


def copy_ocean(folder: Path) -> list[Path]:
    """Copy the three months of the ocean, which count in a calendar of 360 days."""
    folder.mkdir(parents=True)
    samples = Path(iris_sample_data.__file__).parent / "sample_data" / "NEMO"
    return [Path(shutil.copy(month, folder)) for month in sorted(samples.glob("*.nc"))]
