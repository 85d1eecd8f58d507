"""Reports about a million virtual references."""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from bench.archive import Archive
from bench.engine_location import Location, seconds_of
from bench.engine_rows import Group, Row, Run, Scale
from bench.virtual_writing import PER_FILE, locations_of, session_with


def _session(lib: ModuleType, location: Location) -> Any:
    """Open everything again, so that nothing is remembered."""
    return location.open(lib).readonly_session("main")


async def _count_coordinates(session: Any) -> int:
    count = 0
    async for _ in session.chunk_coordinates("/a"):
        count += 1
    return count


def _streamed(session: Any) -> int:
    """Walk all locations; the reference gives them as one list."""
    if not hasattr(session, "virtual_chunk_locations"):
        return len(session.all_virtual_chunk_locations())
    return sum(map(len, session.virtual_chunk_locations(distinct=False)))


def _summed(lib: ModuleType, location: Location, by: str) -> None:
    location.open(lib).virtual_dependencies(by=by)


def _telling(per_file: int) -> Run:
    def run(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
        archive = Archive(scale.of(1_000_000, 50_000), per_file)
        session = session_with(lib, location, archive.rows)
        session.store.set_virtual_refs_arr(
            "/a",
            archive.shape,
            locations_of(archive),
            archive.offsets(),
            archive.lengths(),
            validate_containers=False,
        )
        session.commit("set")
        del session
        figures = dict[str, float]()

        def streamed() -> None:
            assert _streamed(_session(lib, location)) == archive.rows

        def listed() -> None:
            assert len(_session(lib, location).all_virtual_chunk_locations()) == archive.rows

        def coordinates() -> None:
            assert asyncio.run(_count_coordinates(_session(lib, location))) == archive.rows

        figures["streamed"] = seconds_of(streamed)
        figures["listed"] = seconds_of(listed)
        figures["coordinates"] = seconds_of(coordinates)
        if hasattr(lib.Repository, "virtual_dependencies"):
            for by in ("bucket", "file"):
                summed = partial(_summed, lib, location, by)
                figures[f"by {by}"] = seconds_of(summed)
        return figures

    return run


def _rows(what: str) -> tuple[Row, ...]:
    listing = ("listed",)
    return (
        Row("streamed", f"{what}: all locations, streamed", 0.4),
        Row("listed", f"{what}: all locations, as a list"),
        Row("coordinates", f"{what}: chunk coordinates", 0.2),
        Row("by bucket", f"{what}: dependencies by bucket", 1.0, theirs=listing),
        Row("by file", f"{what}: dependencies by file", 1.0, theirs=listing),
    )


GROUPS: Final = {
    "tell-ten-per-file": Group(
        _telling(PER_FILE["ten"]), _rows("1M references, ten a file"), rounds=2
    ),
    "tell-distinct-files": Group(
        _telling(PER_FILE["distinct"]), _rows("1M references, 1M files"), rounds=2
    ),
}
