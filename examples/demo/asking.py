"""Questions about the result: versions, the past, values, and the uses of a file."""

import numpy as np
from rich.console import Console

from examples.demo.ingesting import Ingest, late_file
from examples.demo.reading import opened
from examples.demo.weather import Deliveries, Weather
from icefloe.pipeline import Presence, read_coverage

SELECT = """
import xarray as xr
ocean = xr.open_dataset({cube!r}, engine="icefloe", group="ocean", authorize=True)
print([str(moment)[:10] for moment in ocean.time_centered.values])
print(f"{{float(ocean.tos.isel(time_counter=-1).max()):.1f}} °C at the warmest place")
weather = xr.open_dataset({cube!r}, engine="icefloe", group="weather", authorize=True)
print(f"{{float(weather.temperature.sel(time={date!r}, lat=slice(0, 60)).mean()):.1f}} K, {date}")
"""


def ask(console: Console, job: Ingest, archive: Weather, deliveries: Deliveries) -> None:
    """Ask everything, and compare answers with what was written into the files."""
    cube, run = job.repo[1], job.shell.run
    repository = job.opened()
    console.rule("Which version holds what")
    run("log", cube)

    console.rule("Back in time")
    run("coverage", cube, "--group", "weather", "--tag", "first-delivery")
    [coverage] = read_coverage(repository.readonly_session(tag="first-delivery"), "weather")
    if coverage.families[0].steps(Presence.MISSING) != len(deliveries.late):
        raise SystemExit("the days that were late are not known to be missing")

    console.rule("Select with xarray")
    day = archive.files * 2 // 3
    weather = opened(repository, "weather")
    date = str(np.datetime_as_string(weather.time.values[day], "D"))
    job.shell.evaluate(SELECT.format(cube=cube, date=date), {})
    selected = weather.temperature.sel(time=weather.time[day], lat=slice(0, 60))
    expected = archive.expected_temperature(day)[0, archive.grid[0] // 2 :]
    np.testing.assert_allclose(selected.values, expected)

    console.rule("Who needs this file?")
    url = late_file(archive, deliveries).as_uri()
    run("dependencies", cube, "--by", "array", "--all-versions", "--prefix", url)

    console.rule("Coverage")
    run("coverage", cube)
    if not all(
        dataset.is_complete for dataset in read_coverage(repository.readonly_session("main"))
    ):
        raise SystemExit("something is missing")
