"""Numbers and dates beyond what machines count with are refused by name, or do no harm."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import icefloe
from icefloe import effects
from icefloe.cli.main import app
from icefloe.config import (
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.errors import IcefloeError
from icefloe.storage import Storage
from icefloe.storage.guarded_http import guarded_http_spec

EDGES = [2**bits + step for bits in (8, 16, 31, 32, 53, 63, 64, 128) for step in (-1, 0, 1)]
integers = st.sampled_from([*EDGES, *(-edge for edge in EDGES), 10**400]) | st.integers()
odd_numbers = integers | st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e308])
zones = st.none() | st.sampled_from([UTC, *(timezone(timedelta(hours=h)) for h in (-23, 23))])
moments = st.builds(
    lambda moment, zone: moment.replace(tzinfo=zone),
    st.sampled_from([datetime.min, datetime.max, datetime(1969, 12, 31), datetime(2107, 1, 1)])
    | st.datetimes(),
    zones,
)
u32 = st.sampled_from([1, 2**31, 2**32 - 1])


def accepted(act: Callable[[], object]) -> bool:
    """Tell whether something works; what does not must say so in an error of ours."""
    try:
        act()
    except (IcefloeError, TypeError):
        return False
    return True


@pytest.fixture(scope="module")
def repository() -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    session.commit("an array")
    return repository


@given(offset=odd_numbers, length=odd_numbers, checksum=odd_numbers | moments)
def test_virtual_references(
    repository: icefloe.Repository, offset: Any, length: Any, checksum: Any
) -> None:
    store: Any = repository.writable_session("main").store
    location = "s3://bucket/key"
    for start, size, check in ((offset, 1, None), (0, length, None), (0, 1, checksum)):
        accepted(
            lambda s=start, n=size, c=check: store.set_virtual_ref(  # type: ignore[misc]
                "a/c/0", location, offset=s, length=n, checksum=c
            )
        )
        accepted(
            lambda s=start, n=size, c=check: store.set_virtual_refs_arr(  # type: ignore[misc]
                "a", [1], [location], [s], [n], checksum=c
            )
        )
        accepted(
            lambda s=start, n=size, c=check: icefloe.VirtualChunkSpec(  # type: ignore[misc]
                [0], location, s, n, None, c
            )
        )


@given(step=odd_numbers)
def test_places_of_chunks(repository: icefloe.Repository, step: Any) -> None:
    session = repository.writable_session("main")
    store: Any = session.store
    accepted(lambda: session.shift_array("/a", (step,)))
    accepted(
        lambda: store.set_virtual_refs_arr(
            "a", [1], ["s3://bucket/key"], [0], [1], arr_offset=[step]
        )
    )
    accepted(lambda: session.store.set_virtual_ref(f"a/c/{step}", "s3://b/k", offset=0, length=1))


@given(moment=moments)
def test_moments(repository: icefloe.Repository, moment: datetime) -> None:
    accepted(lambda: repository.readonly_session("main", as_of=moment))
    accepted(lambda: repository.garbage_collect(moment, dry_run=True))
    accepted(
        lambda: icefloe.s3_credentials(
            access_key_id="a", secret_access_key="b", expires_after=moment
        )
    )


@given(number=u32)
def test_the_longest_times_can_be_waited_for(number: int) -> None:
    settings = StorageSettings(
        timeouts=StorageTimeoutSettings(number, number, number, number),
        retries=StorageRetriesSettings(1, number, number),
    )
    icefloe.s3_storage(bucket="b", prefix="p", region="us-east-1", anonymous=True).open(settings)
    spec = guarded_http_spec("http://127.0.0.1:9", private_hosts=["127.0.0.1"])
    with pytest.raises(IcefloeError):
        effects.run_blocking(Storage(spec).open(settings).get("key", (0, 1)))


VALUES = (
    "9" * 40,
    f"-{'9' * 40}",
    f"{'9' * 400}d",
    "9999-12-31T23:59:59-23:00",
    "0001-01-01T00:00+23:00",
)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "REPO", "--max-rows"],
        ["dependencies", "REPO", "--max-rows"],
        ["dependencies", "REPO", "--depth"],
        ["stats", "REPO", "--max-rows"],
        ["verify", "REPO", "--max-rows"],
        ["expire", "REPO", "--dry-run", "--older-than"],
        ["gc", "REPO", "--dry-run", "--older-than"],
        ["export", "REPO", "OUT", "--as-of"],
    ],
    ids=" ".join,
)
def test_commands(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str], value: str
) -> None:
    folder = tmp_path_factory.mktemp("extreme")
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    places = {"REPO": str(folder / "repo"), "OUT": str(folder / "out")}
    result = CliRunner().invoke(app, [*(places.get(each, each) for each in arguments), value])
    assert result.exception is None or isinstance(result.exception, SystemExit)
