"""Questions about the result: versions, the past, values, and the uses of a file."""

import numpy as np
from rich.console import Console
from rich.table import Table

import icefloe
from examples.demo.reading import opened
from examples.demo.weather import Deliveries, Weather
from icefloe.errors import NotFoundError
from icefloe.pipeline import Presence, coverage_text, read_coverage


def ask(
    console: Console, repository: icefloe.Repository, archive: Weather, deliveries: Deliveries
) -> None:
    """Ask everything, and compare answers with what was written into the files."""
    show_versions(console, repository)
    travel_in_time(console, repository, deliveries)
    select(console, repository, archive)
    find_who_needs(console, repository, archive, deliveries)
    console.rule("Coverage")
    for dataset in read_coverage(repository.readonly_session("main")):
        console.print(coverage_text(dataset, min(72, console.width - 4)), markup=False)
        if not dataset.is_complete:
            raise SystemExit("something is missing")


def show_versions(console: Console, repository: icefloe.Repository) -> None:
    """List which version holds how many files of which dataset."""
    console.rule("Which version holds what")
    table = Table("version", "message", "files of ocean", "files of weather", box=None)
    for version in repository.ancestry(branch="main"):
        session = repository.readonly_session(snapshot_id=version.id)
        try:
            held = {each.group: each.families[0].files for each in read_coverage(session)}
        except NotFoundError:  # the repository was just made
            held = {}
        counts = (str(held.get(group, "-")) for group in ("ocean", "weather"))
        table.add_row(version.id[:8], version.message, *counts)
    console.print(table)


def travel_in_time(
    console: Console, repository: icefloe.Repository, deliveries: Deliveries
) -> None:
    """Compare the first delivery with the present version."""
    console.rule("Back in time")
    before = repository.readonly_session(tag="first-delivery")
    [coverage] = read_coverage(before, "weather")
    console.print(coverage_text(coverage, min(72, console.width - 4)), markup=False)
    if coverage.families[0].steps(Presence.MISSING) != len(deliveries.late):
        raise SystemExit("the days that were late are not known to be missing")


def select(console: Console, repository: icefloe.Repository, archive: Weather) -> None:
    """Read values through xarray: they come from the files of the archives."""
    console.rule("Select with xarray")
    ocean = opened(repository, "ocean")
    months = [str(moment) for moment in ocean.time_centered.values]
    warmest = float(ocean.tos.isel(time_counter=-1).max())
    console.print(f"ocean: {', '.join(months)}; at the warmest place {warmest:.1f} °C")
    weather = opened(repository, "weather")
    day = archive.files * 2 // 3
    found = weather.temperature.sel(time=weather.time[day], lat=slice(0, 60))
    expected = archive.expected_temperature(day)[0, archive.grid[0] // 2 :]
    np.testing.assert_allclose(found.values, expected)
    date = np.datetime_as_string(weather.time.values[day], "D")
    console.print(f"weather: {date}, north of the equator {float(found.mean()):.1f} K, as written")


def find_who_needs(
    console: Console, repository: icefloe.Repository, archive: Weather, deliveries: Deliveries
) -> None:
    """Ask which arrays and versions would suffer if a file were lost."""
    console.rule("Who needs this file?")
    url = archive.path(deliveries.late[0]).as_uri()
    console.print(url, soft_wrap=True)
    for row in repository.virtual_dependencies("array", prefix=url, all_versions=True):
        console.print(
            f"  {row.place}: {row.chunks} chunks in {row.versions} versions,"
            f" since {row.oldest_snapshot[:8]}"
        )
