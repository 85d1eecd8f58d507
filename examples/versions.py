"""Two years of weather in a repository: versions, time travel, a conflict, many writers."""

import argparse
import shutil
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

import icefloe

MONTHS, LATITUDES, LONGITUDES = 24, 24, 72
TOO_COLD = 6  # the month that needs a correction

type Field = npt.NDArray[np.float32]


def main() -> None:
    """Run all steps, and check each of them."""
    options = parse_options()
    console = Console(highlight=False)
    shutil.rmtree(options.folder, ignore_errors=True)
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(options.folder)))
    first_version(console, repository)
    travel_in_time(console, repository)
    branch_off(console, repository)
    settle_a_conflict(console, repository)
    write_from_many_processes(console, repository, options.processes, options.commits)
    show_history(console, repository, options.folder)


def parse_options() -> argparse.Namespace:
    """Read sizes, for those who want others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/versions"))
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--commits", type=int, default=12)
    return parser.parse_args()


def temperature(month: int) -> Field:
    """Make up the temperature of a month: warm at the equator, and seasons north and south."""
    latitude = np.linspace(75, -75, LATITUDES)[:, None]
    longitude = np.linspace(0, 2 * np.pi, LONGITUDES)[None, :]
    season = -np.cos(2 * np.pi * month / 12) * np.sin(np.radians(latitude))
    waves = 4 * np.sin(3 * longitude + month) * np.cos(np.radians(2 * latitude))
    field = 250 + 50 * np.cos(np.radians(latitude)) + 15 * season + waves
    return np.asarray(field, np.float32)


def first_version(console: Console, repository: icefloe.Repository) -> None:
    """Write all months with zarr, commit them, and give the version a name."""
    console.rule("A first version")
    session = repository.writable_session("main")
    cube = zarr.create_array(
        session.store,
        name="t2m",
        shape=(MONTHS, LATITUDES, LONGITUDES),
        chunks=(1, LATITUDES, LONGITUDES),  # one chunk for each month
        dtype="f4",
        dimension_names=["month", "lat", "lon"],
        attributes={"units": "K", "long_name": "temperature at 2 m"},
    )
    for month in range(MONTHS):
        cube[month] = temperature(month)
    cube[TOO_COLD] = temperature(TOO_COLD) - 20  # an error, which nobody has noticed yet
    session.commit(f"{MONTHS} months of temperature")
    repository.create_tag("v1", session.snapshot_id)
    console.print(f"{MONTHS} maps of {LATITUDES} x {LONGITUDES}, committed and tagged [bold]v1[/].")
    if console.is_terminal:
        console.print(drawn(temperature(TOO_COLD)))


def drawn(field: Field) -> Text:
    """Draw a map in coloured blocks, two rows in each line."""
    warmth = (field - field.min()) / (field.max() - field.min())
    red, blue = (255 * warmth).astype(int), (255 * (1 - warmth)).astype(int)
    text = Text()
    for row in range(0, len(field) - 1, 2):
        for x in range(field.shape[1]):
            upper, lower = (f"rgb({red[y, x]},90,{blue[y, x]})" for y in (row, row + 1))
            text.append("▀", f"{upper} on {lower}")
        text.append("\n")
    return text


def travel_in_time(console: Console, repository: icefloe.Repository) -> None:
    """Correct an error in a second commit, and look at both versions."""
    console.rule("A correction, and the way back")
    with repository.transaction("main", message="correct a month that was too cold") as store:
        zarr.open_array(store, path="t2m")[TOO_COLD] = temperature(TOO_COLD)
    means = Table("version", f"mean of month {TOO_COLD}", box=None)
    versions = {
        "tag v1": repository.readonly_session(tag="v1"),
        "branch main": repository.readonly_session("main"),
    }
    for name, session in versions.items():
        month = zarr.open_array(session.store, path="t2m", mode="r")[TOO_COLD]
        means.add_row(name, f"{np.mean(np.asarray(month)):.2f} K")
    console.print(means)
    console.print("From v1 to main:")
    console.print(str(repository.diff(from_tag="v1", to_branch="main")), markup=False)


def branch_off(console: Console, repository: icefloe.Repository) -> None:
    """Try something out that does not touch `main`."""
    console.rule("A branch")
    repository.create_branch("warmer", repository.lookup_branch("main"))
    with repository.transaction("warmer", message="what if it were two degrees warmer?") as store:
        cube = zarr.open_array(store, path="t2m")
        cube[:] = np.asarray(cube[:]) + 2
    console.print("The branch [bold]warmer[/] has an experiment of its own; main is as before.")


def settle_a_conflict(console: Console, repository: icefloe.Repository) -> None:
    """Change the same month in two sessions, and resolve the conflict."""
    console.rule("Two people, one chunk")
    ana, ben = repository.writable_session("main"), repository.writable_session("main")
    zarr.open_array(ana.store, path="t2m")[0] = temperature(0) + 0.1
    for month in (0, 1):
        zarr.open_array(ben.store, path="t2m")[month] = temperature(month) + 0.2
    ana.commit("Ana calibrates month 0")
    try:
        ben.commit("Ben calibrates months 0 and 1", rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError as error:
        console.print("Ben is second, and gets the exact conflicts:")
        for conflict in error.conflicts:
            console.print(f"  {conflict}", markup=False)
    else:
        raise SystemExit("nobody noticed the conflict")
    theirs = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)
    ben.commit("Ben calibrates month 1, and keeps Ana's month 0", rebase_with=theirs)
    console.print("He keeps Ana's month 0, adds his month 1, and commits on top of hers.")


def write_from_many_processes(
    console: Console, repository: icefloe.Repository, processes: int, commits: int
) -> None:
    """Commit to one branch in a plain folder from several processes; nothing may be lost."""
    console.rule(f"{processes} processes at once")
    before = count(repository.ancestry(branch="main"))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(commit_month, repository, 2 + n % (MONTHS - 2)) for n in range(commits)]
        for job in track(as_completed(jobs), "Committing", total=commits, console=console):
            job.result()
    made = count(repository.ancestry(branch="main")) - before
    console.print(f"{made} of {commits} commits are in the history; none was lost.")
    if made != commits:
        raise SystemExit("commits were lost")


def commit_month(repository: icefloe.Repository, month: int) -> str:
    """Write one month, as one of many workers; put it on top of what others committed."""
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[month] = temperature(month)
    # Two workers may have the same month and write the same values: either's will do.
    return session.commit(f"month {month} again", rebase_with=icefloe.BasicConflictSolver())


def count(things: Iterable[object]) -> int:
    """Count what can be walked through once."""
    return sum(1 for _ in things)


def show_history(console: Console, repository: icefloe.Repository, folder: Path) -> None:
    """Draw the history, and say where to go from here."""
    console.rule("The history")
    graph = repository.ancestry_graph()
    console.print(Text.from_ansi(str(graph)), soft_wrap=True)
    picture = folder.with_name(f"{folder.name}-history.svg")
    picture.write_text(graph.to_svg(), encoding="utf-8")
    console.print("\n[bold]Next[/bold]")
    hints = {
        "see it as a picture": f"open {picture}",
        "look inside": f".venv/bin/icefloe inspect {folder}",
        "open with xarray": f"xr.open_dataset('{folder}', engine='icefloe', tag='v1')",
        "paste along": "docs/tutorial/first-repository.md",
        "run every test": "make test",
    }
    for what, how in hints.items():
        console.print(f"  {what:20} {how}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
