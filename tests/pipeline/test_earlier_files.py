"""Files before and between existing steps, which move: all values are right."""

import random
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pytest
import xarray
import zarr
from numpy.testing import assert_array_equal

import icefloe
from icefloe.pipeline import CombineOptions, CopyOptions, MisfitsError, read_coverage, read_sources
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.running.progress import StageProgress
from tests.pipeline.repositories import opened, repository_for

STEPS, CELLS = 2, 3
"""Of each file."""
TIME = CombineOptions(("time",))
BOTH = ("time", "x")
CHUNKS = {"chunksizes": (STEPS, CELLS), "_FillValue": np.nan}


def values_of(name: str, period: int, tile: int) -> Any:
    """Return values that tell from which file they are."""
    first = 1000 * period + 10 * tile + {"heat": 0, "rain": 5, "height": 7}[name]
    return first + np.arange(STEPS * CELLS, dtype="f8").reshape(STEPS, CELLS) / 100


def write(folder: Path, name: str, period: int, tile: int = 0, shift: float = 0) -> str:
    path = folder / f"{name}_{period}_{tile}.nc"
    dataset = xarray.Dataset(
        {
            name: (BOTH, values_of(name, period, tile) + shift),
            "height": (BOTH, values_of("height", period, tile)),
        },
        {
            "time": ("time", np.arange(STEPS) + STEPS * period, {"units": "days since 2000-01-01"}),
            "x": np.arange(CELLS, dtype="f8") + CELLS * tile,
        },
    )
    encoding: Any = dict.fromkeys((name, "height"), CHUNKS)
    dataset.set_coords("height").to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return str(path)


def expected(files: set[tuple[str, int, int]], names: list[str]) -> dict[str, Any]:
    """Return the whole dataset, with NaN where there is no file; all files have heights."""
    periods = sorted({period for _, period, _ in files})
    tiles = sorted({tile for _, _, tile in files})
    empty = np.full((STEPS, CELLS), np.nan)
    files = files | {("height", period, tile) for _, period, tile in files}
    whole: dict[str, Any] = {
        name: np.block(
            [
                [
                    values_of(name, period, tile) if (name, period, tile) in files else empty
                    for tile in tiles
                ]
                for period in periods
            ]
        )
        for name in (*names, "height")
    }
    whole["time"] = np.concatenate([np.arange(STEPS) + STEPS * period for period in periods])
    whole["x"] = np.concatenate([np.arange(CELLS) + CELLS * tile for tile in tiles])
    return whole


def compare(session: icefloe.Session, whole: dict[str, Any]) -> None:
    found = opened(session, decode_times=False)
    assert set(found.variables) == set(whole)
    for name, values in whole.items():
        assert_array_equal(found[name].values, values, err_msg=name)


COPY = CopyOptions.of({"time": 3, "x": 4})


@pytest.mark.parametrize(
    ("seed", "gaps", "copy"),
    [
        *((seed, gaps, None) for seed in range(3) for gaps in ("close", "leave")),
        (4, "leave", COPY),
    ],
)
def test_an_archive_that_grows_on_all_sides(
    tmp_path: Path, seed: int, gaps: Literal["close", "leave"], copy: Any
) -> None:
    choose = random.Random(seed)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = repository_for(tmp_path, storage=storage if copy else None)
    options = CombineOptions(BOTH, gaps=gaps)
    periods, tiles = {3}, {2}
    there: set[tuple[str, int, int]] = set()
    notes: list[str] = []
    for step in range(5):
        if step and gaps == "close":  # at any place
            periods |= set(choose.sample(range(8), choose.randint(1, 2)))
            tiles |= set(choose.sample(range(5), choose.randint(0, 1)))
        elif step:
            before, behind = choose.randint(0, 1), choose.randint(0, 2)
            periods = set(range(min(periods) - before, max(periods) + 1 + behind))
            before, behind = choose.choice([(0, 0), (0, 1), (1, 0)])
            tiles = set(range(max(0, min(tiles) - before), max(tiles) + 1 + behind))
        window = {(name, p, t) for name in ("heat", "rain") for p in periods for t in tiles}
        # All of one variable; of the other one, some come later.
        new = {f for f in window - there if f[0] == "heat" or choose.random() < 0.6}
        urls = [write(tmp_path, *file) for file in sorted(new)]
        choose.shuffle(urls)
        if not step:
            icefloe.ingest(repository, urls, options, copy=copy, engine="local")
        else:
            notes += icefloe.append(repository, urls, engine="local").scan.notes
        there |= new
        session = repository.readonly_session("main")
        names = sorted({name for name, _, _ in there})
        compare(session, expected(there, names))
        assert icefloe.append(repository, urls, engine="local").snapshot is None
        for source in read_sources(session):
            day = STEPS * int(Path(source.url).stem.split("_")[1])
            dates = np.datetime64("2000-01-01") + np.arange(day, day + STEPS).astype("m8[D]")
            assert [source.first, source.last] == [str(dates[0]), str(dates[-1])]
    assert any("moved" in note for note in notes)
    used = {
        file.id
        for version in repository.ancestry(branch="main")
        for file in repository.list_manifest_files(version.id)
    }
    assert {key for key, _ in repository.storage.list_objects(prefix="manifests")} == used
    assert not repository.storage.list_objects(prefix="icefloe")


def test_all_files_at_once_and_one_by_one_backwards_are_the_same(tmp_path: Path) -> None:
    urls = [write(tmp_path, "heat", period) for period in range(5)]
    at_once = repository_for(tmp_path)
    icefloe.ingest(at_once, urls, TIME, engine="local")
    backwards = repository_for(tmp_path)
    icefloe.ingest(backwards, urls[-1], TIME, engine="local")
    for count, url in enumerate(reversed(urls[:-1]), 1):
        report = icefloe.append(backwards, url, engine="local")
        text = f"2 steps along 'time' came before existing ones: {2 * count} steps moved"
        assert report.scan.notes == (text,)
    found, whole = (opened(each.readonly_session("main")) for each in (backwards, at_once))
    assert found.identical(whole)
    [coverage] = read_coverage(backwards.readonly_session("main"))
    assert coverage.is_complete


def test_files_before_between_and_behind_others_in_waves(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", period, tile) for period in range(5) for tile in range(2)]
    icefloe.ingest(repository, [*urls[2:4], *urls[6:8]], CombineOptions(BOTH), engine="local")
    report = icefloe.append(repository, urls, engine="local", references_per_commit=2)
    assert report.commits == 3
    there = {("heat", period, tile) for period in range(5) for tile in range(2)}
    whole = expected(there, ["heat"])
    compare(repository.readonly_session("main"), whole)
    first = list(repository.ancestry(branch="main"))[2]
    began = opened(repository.readonly_session(snapshot_id=first.id), decode_times=False)
    whole["heat"][2 * STEPS : 3 * STEPS] = np.nan  # there is room already
    assert_array_equal(began.heat.values, whole["heat"][: 4 * STEPS])
    assert_array_equal(began.time.values, whole["time"][: 4 * STEPS])


@pytest.mark.parametrize("name", ["heat", "rain"])
def test_a_file_between_others_whose_manifests_are_split(tmp_path: Path, name: str) -> None:
    by_twos = {icefloe.ManifestSplitDimCondition.Axis(0): 2}
    splitting = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): by_twos}
    )
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=splitting))
    repository = repository_for(tmp_path).reopen(config)
    urls = [write(tmp_path, "heat", period) for period in (0, 1, 2, 4, 5, 6, 7)]
    icefloe.ingest(repository, urls, TIME, engine="local")
    report = icefloe.append(repository, write(tmp_path, name, 3), engine="local")
    assert report.scan.notes == ("2 steps along 'time' came before existing ones: 8 steps moved",)
    there = {("heat", period, 0) for period in (0, 1, 2, 4, 5, 6, 7)} | {(name, 3, 0)}
    session = repository.readonly_session("main")
    compare(session, expected(there, sorted({"heat", name})))
    [coverage] = read_coverage(session)
    assert coverage.is_complete == (name == "heat")
    assert [source.url for source in read_sources(session) if source.is_late] == (
        [report.scan.coverage.late[0]] if name == "heat" else []
    )
    assert len(repository.list_manifest_files(session.snapshot_id)) > 4


def test_others_may_commit_elsewhere_meanwhile(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", period) for period in range(4)]
    icefloe.ingest(repository, urls[2:3], TIME, engine="local")

    def interfere(path: str, mode: str) -> Any:
        def on_progress(each: StageProgress) -> None:
            if each.stage == "write" and path not in done:
                done.add(path)
                with repository.transaction("main", message="in between") as store:
                    root = zarr.open_group(store, mode="a")
                    if mode == "new":
                        root.create_group(path)
                    else:
                        zarr.open_array(store, path=path)[:1] = 7

        done: set[str] = set()
        return on_progress

    icefloe.append(repository, urls[1], engine="local", on_progress=interfere("others", "new"))
    there = {("heat", period, 0) for period in (1, 2)}
    compare(repository.readonly_session("main"), expected(there, ["heat"]))
    assert "others" in zarr.open_group(repository.readonly_session("main").store, mode="r")
    with pytest.raises(icefloe.IcefloeError):
        icefloe.append(
            repository,
            [urls[0], urls[3]],
            engine="local",
            on_progress=interfere("time", "changed"),
        )
    assert opened(repository.readonly_session("main"), decode_times=False).time[0] == 7
    manifests = {key for key, _ in repository.storage.list_objects(prefix="manifests")}
    used = {
        file.id
        for version in repository.ancestry(branch="main")
        for file in repository.list_manifest_files(version.id)
    }
    assert manifests == used


def test_a_file_that_changed_and_an_earlier_one(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", period) for period in range(3)]
    icefloe.ingest(repository, urls[1:], TIME, engine="local")
    write(tmp_path, "heat", 1, shift=0.5)
    icefloe.append(repository, urls, on_changed="replace", engine="local")
    whole = expected({("heat", period, 0) for period in range(3)}, ["heat"])
    whole["heat"][STEPS : 2 * STEPS] += 0.5
    compare(repository.readonly_session("main"), whole)


def test_an_earlier_file_whose_chunks_are_not_stored(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", period) for period in range(3)]
    icefloe.ingest(repository, urls[1:], TIME, engine="local")
    with h5py.File(urls[0], "r+") as file:
        del file["heat"]
        empty = file.create_dataset("heat", (STEPS, CELLS), "f8", chunks=True, fillvalue=np.nan)
        empty.attrs["_FillValue"] = np.array([np.nan])
        for axis, name in enumerate(BOTH):
            empty.dims[axis].attach_scale(file[name])
    icefloe.append(repository, urls[0], engine="local")
    whole = expected({("heat", period, 0) for period in range(3)}, ["heat"])
    whole["heat"][:STEPS] = np.nan
    compare(repository.readonly_session("main"), whole)


def test_a_part_of_a_chunk_cannot_move(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    later = write(tmp_path, "heat", 5)
    icefloe.ingest(repository, later, TIME, engine="local")
    with xarray.open_dataset(write(tmp_path, "heat", 4), decode_times=False) as whole:
        half = str(tmp_path / "half.nc")
        encoding: Any = dict.fromkeys(("heat", "height"), CHUNKS)
        long = xarray.concat([whole, whole.assign_coords(time=whole.time - 2)], "time")
        long.sortby("time").isel(time=slice(1, 4)).to_netcdf(
            half, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"]
        )
    before = repository.lookup_branch("main")
    with pytest.raises(MisfitsError, match="3 steps along 'time' before step 0") as caught:
        icefloe.append(repository, half, engine="local")
    assert caught.value.report.counts() == {"unaligned": 1}
    assert repository.lookup_branch("main") == before


def days(
    folder: Path, name: str, numbers: list[int], chunk: int, compression: str | None = "gzip"
) -> str:
    dataset = xarray.Dataset({name: (BOTH, np.array(numbers)[:, None] / 10)}, {"time": numbers})
    encoding: Any = {name: {"chunksizes": (chunk, 1), "compression": compression}}
    path = folder / f"{name}{numbers[0]}.nc"
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
    return str(path)


@pytest.mark.parametrize(
    ("existing", "late", "message"),
    [
        ([("a", [0, 1], 2), ("a", [5], 2)], [3, 4], ""),  # the last chunk is not full
        ([("a", [0, 1], 2), ("a", [5, 6], 2)], [3], "the 1 step along 'time' before step 2 do"),
        ([("b", [*range(6)], 4), ("a", [8, 9], 2)], [6, 7], "step 6 .* existing chunk of 4 steps"),
        ([("a", [0, 1, 8, 9], 2)], [5, 6], "it lies between steps of file:.*a0.nc: leave it out"),
        ([("a", [0, 1], 2), ("a", [5, 6], 2)], [4, 5], "it overlaps existing steps"),
    ],
)
def test_what_cannot_go_between_existing_steps(
    tmp_path: Path, existing: list[tuple[str, list[int], int]], late: list[int], message: str
) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = repository_for(tmp_path, storage=storage)
    first, *others = (days(tmp_path, *file) for file in existing)
    icefloe.ingest(repository, first, TIME, engine="local")
    for url in others:
        icefloe.append(repository, url, engine="local")
    before = repository.lookup_branch("main")
    url = days(tmp_path, "a", late, 2)
    if not message:
        icefloe.append(repository, url, engine="local")
        found = opened(repository.readonly_session("main"), decode_times=False)
        assert found.time.values.tolist() == [0, 1, 3, 4, 5]
        assert_array_equal(found.a.values[:, 0], found.time.values / 10)
        return
    with pytest.raises(MisfitsError, match=message) as caught:
        icefloe.append(repository, url, engine="local")
    assert repository.lookup_branch("main") == before
    if message.startswith("it "):  # other files are in its place, also in a copy
        assert not caught.value.report.remedy
        return
    assert "icefloe.rechunk(repository, repository" in caught.value.report.remedy
    icefloe.rechunk(repository, repository, CopyOptions.of(overwrite=True), engine="local")
    icefloe.append(repository, url, engine="local")
    found = opened(repository.readonly_session("main"), decode_times=False)
    assert_array_equal(found.a.sel(time=late).values[:, 0], np.array(late) / 10)


def test_a_later_file_that_is_shorter_than_a_chunk_without_codecs(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    icefloe.ingest(repository, days(tmp_path, "a", [0, 1], 2, None), TIME, engine="local")
    with pytest.raises(MisfitsError, match="a: 1 steps along 'time' cannot be cut into chunks of"):
        icefloe.append(repository, days(tmp_path, "a", [2], 2, None), engine="local")


def test_a_later_file_of_another_length_is_a_misfit(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    icefloe.ingest(repository, write(tmp_path, "heat", 1), TIME, engine="local")
    urls = [write(tmp_path, "heat", period) for period in (2, 3)]
    with xarray.open_dataset(urls[0], decode_times=False) as dataset:
        short = dataset.load().isel(time=slice(1))
    encoding: Any = dict.fromkeys(("heat", "height"), CHUNKS)
    short.to_netcdf(urls[0], engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
    with pytest.raises(MisfitsError) as caught:
        icefloe.append(repository, urls, engine="local")
    assert caught.value.report.counts() == {"unaligned": 1}


def test_earlier_files_in_a_session(tmp_path: Path) -> None:
    urls = [write(tmp_path, name, p) for p in range(4) for name in ("heat", "rain")]
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, urls[4:], TIME)
    report = virtualize_locally(session, urls[1:4], TIME, append=True)
    assert "2 steps" in " ".join(report.notes) or "4 steps" in " ".join(report.notes)
    there = {(name, p, 0) for p in range(4) for name in ("heat", "rain")} - {("heat", 0, 0)}
    compare(session, expected(there, ["heat", "rain"]))


def test_coordinates_that_fall(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", period) for period in range(4)]
    for url in urls:
        with xarray.open_dataset(url, decode_times=False) as dataset:
            falling = dataset.load().isel(time=slice(None, None, -1))
        encoding: Any = dict.fromkeys(("heat", "height"), CHUNKS)
        falling.set_coords("height").to_netcdf(url, engine="h5netcdf", encoding=encoding)
    icefloe.ingest(repository, urls[1:3], TIME, engine="local")
    icefloe.append(repository, [urls[0], urls[3]], engine="local")
    whole = expected({("heat", period, 0) for period in range(4)}, ["heat"])
    turned = {name: values if name == "x" else values[::-1] for name, values in whole.items()}
    compare(repository.readonly_session("main"), turned)


def test_variables_in_files_of_their_own_with_other_steps(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", 1), write(tmp_path, "rain", 2)]
    icefloe.ingest(repository, urls, TIME, engine="local")
    there = {("heat", 1, 0), ("rain", 2, 0)}
    compare(repository.readonly_session("main"), expected(there, ["heat", "rain"]))
    icefloe.append(repository, write(tmp_path, "rain", 3), engine="local")
    there.add(("rain", 3, 0))
    compare(repository.readonly_session("main"), expected(there, ["heat", "rain"]))
    icefloe.append(repository, write(tmp_path, "heat", 3), engine="local")
    there.add(("heat", 3, 0))
    compare(repository.readonly_session("main"), expected(there, ["heat", "rain"]))


def test_attributes_of_later_and_earlier_files_become_values(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = []
    for number in range(5):
        dataset = xarray.Dataset(
            {"t": ("time", [float(number)])},
            {"time": [number]},
            {"orbit": 100 + number, "station": f"s{number}"},
        )
        urls.append(str(tmp_path / f"{number}.nc"))
        dataset.to_netcdf(urls[-1], engine="h5netcdf")
    promoting = CombineOptions(("time",), attributes="promote")
    icefloe.ingest(repository, [urls[1], urls[3]], promoting, engine="local")
    there = [1, 3]
    for number in (4, 2, 0):
        icefloe.append(repository, urls[number], engine="local")
        there = sorted([*there, number])
        found = opened(repository.readonly_session("main"))
        assert found.orbit.values.tolist() == [100 + number for number in there]
        assert found.station.values.tolist() == [f"s{number}" for number in there]


def test_attributes_do_not_become_values_when_there_are_steps_without(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = []
    for number in range(3):
        dataset = xarray.Dataset({"t": ("time", [0.0])}, {"time": [number]}, {"orbit": number})
        urls.append(str(tmp_path / f"{number}.nc"))
        dataset.to_netcdf(urls[-1], engine="h5netcdf")
    promoting = CombineOptions(("time",), attributes="promote")
    icefloe.ingest(repository, urls[0], promoting, engine="local")
    report = icefloe.append(repository, urls, engine="local")
    assert "were left out, as earlier files had none: orbit" in " ".join(report.scan.notes)
    assert set(opened(repository.readonly_session("main")).variables) == {"t", "time"}


def test_files_in_order_are_not_lengthened(tmp_path: Path) -> None:
    """Their places count from the end, so that a variable must not get steps without files."""
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, name, 1) for name in ("heat", "rain")]
    in_order = CombineOptions(("time",), by="order")
    icefloe.ingest(repository, urls, in_order, engine="local")
    before = repository.lookup_branch("main")
    with pytest.raises(icefloe.IcefloeError, match="conflicting sizes"):
        icefloe.append(repository, write(tmp_path, "heat", 2), engine="local")
    assert repository.lookup_branch("main") == before
