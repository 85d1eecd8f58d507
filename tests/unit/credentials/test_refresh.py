"""Credentials that a function renews."""

import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from icefloe.credentials import (
    S3Credentials,
    S3StaticCredentials,
    refresh,
    s3_refreshable_credentials,
)
from icefloe.errors import InvalidInputError, StorageError

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def counting(log: Path, life: timedelta | None) -> S3Credentials.Refreshable:
    """Give credentials that are numbered by the calls, which a file counts across pickling."""

    def fetch() -> S3StaticCredentials:
        with log.open("a") as calls:
            calls.write("x")
        number = len(log.read_text())
        end = None if life is None else START + life * number
        return S3StaticCredentials(str(number), "secret", expires_after=end)

    return s3_refreshable_credentials(fetch)


def test_the_function_is_called_once_while_credentials_last(tmp_path: Path) -> None:
    clock = Clock()
    refreshable = counting(tmp_path / "log", timedelta(hours=1))
    assert [refreshable.get_credentials(clock).access_key_id for _ in range(3)] == ["1"] * 3
    clock.now = START + timedelta(minutes=58)
    assert refreshable.get_credentials(clock).access_key_id == "1"
    clock.now = START + timedelta(minutes=59)  # a minute before their end
    assert refreshable.get_credentials(clock).access_key_id == "2"


def test_short_lives_have_a_short_margin(tmp_path: Path) -> None:
    clock = Clock()
    refreshable = counting(tmp_path / "log", timedelta(seconds=10))
    refreshable.get_credentials(clock)
    clock.now = START + timedelta(seconds=8)
    assert refreshable.get_credentials(clock).access_key_id == "1"
    clock.now = START + timedelta(seconds=9)
    assert refreshable.get_credentials(clock).access_key_id == "2"


def test_credentials_without_end_are_never_renewed(tmp_path: Path) -> None:
    clock = Clock()
    refreshable = counting(tmp_path / "log", None)
    refreshable.get_credentials(clock)
    clock.now = START + timedelta(days=10_000)
    assert refreshable.get_credentials(clock).access_key_id == "1"


def test_a_herd_makes_one_call(tmp_path: Path) -> None:
    refreshable = counting(tmp_path / "log", timedelta(hours=1))
    gate = threading.Barrier(16)

    def ask(_: int) -> S3StaticCredentials:
        gate.wait()
        return refreshable.get_credentials(Clock())

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert {each.access_key_id for each in answers} == {"1"}
    assert (tmp_path / "log").read_text() == "x"


def test_fetched_credentials_do_not_travel_unless_asked(tmp_path: Path) -> None:
    clock = Clock()
    log = tmp_path / "log"
    refreshable = counting(log, timedelta(hours=1))
    refreshable.get_credentials(clock)
    traveller = pickle.loads(pickle.dumps(refreshable))
    assert traveller == refreshable
    assert traveller.current is None
    assert traveller.get_credentials(clock).access_key_id == "2"


def test_scattered_credentials_travel(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def fetch() -> S3StaticCredentials:
        with log.open("a") as calls:
            calls.write("x")
        return S3StaticCredentials("a", "b", expires_after=START + timedelta(hours=1))

    scattered = s3_refreshable_credentials(fetch, scatter_initial_credentials=True)
    assert scattered.current == S3StaticCredentials("a", "b", None, START + timedelta(hours=1))
    clock = Clock()
    traveller = pickle.loads(pickle.dumps(scattered))
    assert traveller.get_credentials(clock) == scattered.current
    assert log.read_text() == "x"
    clock.now = START + timedelta(hours=2)
    traveller.get_credentials(clock)
    assert log.read_text() == "xx"


def test_failures_of_the_function_are_told_without_their_text() -> None:
    def fail() -> S3StaticCredentials:
        raise RuntimeError("the token is hush")

    refreshable = s3_refreshable_credentials(fail)
    with pytest.raises(StorageError, match="failed with RuntimeError") as caught:
        refreshable.get_credentials()
    assert "hush" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_wrong_results_are_refused_without_showing_them() -> None:
    refreshable = s3_refreshable_credentials(lambda: "hush")  # type: ignore[arg-type,return-value]
    with pytest.raises(
        InvalidInputError, match="must return S3StaticCredentials, it returned str"
    ) as caught:
        refreshable.get_credentials()
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("pickled", [b"", b"nonsense", pickle.dumps(3)])
def test_functions_that_cannot_be_unpickled(pickled: bytes) -> None:
    with pytest.raises(InvalidInputError, match="pickled_function"):
        S3Credentials.Refreshable(pickled).get_credentials()


def test_functions_that_cannot_travel() -> None:
    lock = threading.Lock()

    def fetch() -> S3StaticCredentials:
        with lock:
            return S3StaticCredentials("a", "b")

    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        s3_refreshable_credentials(fetch)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_a_call_blocks_nobody(tmp_path: Path) -> None:
    started, release = tmp_path / "started", tmp_path / "release"

    def fetch() -> S3StaticCredentials:
        if not release.exists():
            started.touch()
            while not release.exists():
                pass
        return S3StaticCredentials("a", "b")

    refreshable = s3_refreshable_credentials(fetch)
    caller = threading.Thread(target=refreshable.get_credentials)
    caller.start()
    while not started.exists():
        pass
    child = os.fork()  # while the other thread holds the lock
    release.touch()
    if child == 0:
        signal.alarm(60)  # a child that waits for ever is killed, and so noticed
        os._exit(0 if refreshable.get_credentials().access_key_id == "a" else 1)
    caller.join()
    assert os.waitpid(child, 0)[1] == 0


class Seconds:
    """A clock that nobody sets, for `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr(refresh, "time", seconds)
    return seconds


def test_a_clock_that_is_set_back_lengthens_no_life(tmp_path: Path, seconds: Seconds) -> None:
    clock = Clock()
    refreshable = counting(tmp_path / "log", timedelta(hours=1))
    refreshable.get_credentials(clock)
    clock.now -= timedelta(hours=5)
    seconds.now += 58 * 60
    assert refreshable.get_credentials(clock).access_key_id == "1"
    seconds.now += 60
    assert refreshable.get_credentials(clock).access_key_id == "2"


def test_refused_credentials_are_replaced_once_a_minute(tmp_path: Path, seconds: Seconds) -> None:
    clock = Clock()
    refreshable = counting(tmp_path / "log", timedelta(hours=1))
    first = refreshable.get_credentials(clock)
    assert refreshable.replace_refused(first, clock)
    second = refreshable.get_credentials(clock)
    assert second.access_key_id == "2"
    assert refreshable.replace_refused(first, clock)  # by somebody else, before
    assert not refreshable.replace_refused(second, clock)  # the rights are missing
    assert (tmp_path / "log").read_text() == "xx"
    seconds.now += 60
    assert refreshable.replace_refused(second, clock)
    assert refreshable.get_credentials(clock).access_key_id == "3"


def test_credentials_that_stay_the_same_are_no_replacement() -> None:
    keys = S3StaticCredentials("a", "b")
    refreshable = s3_refreshable_credentials(lambda: keys)
    assert not refreshable.replace_refused(refreshable.get_credentials())


def test_a_herd_that_is_refused_makes_one_call(tmp_path: Path) -> None:
    refreshable = counting(tmp_path / "log", timedelta(hours=1))
    refused = refreshable.get_credentials(Clock())
    gate = threading.Barrier(16)

    def replace(_: int) -> bool:
        gate.wait()
        return refreshable.replace_refused(refused, Clock())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(replace, range(16)))
    assert (tmp_path / "log").read_text() == "xx"


class Exchange:
    """A function that is told which credentials were refused."""

    def __call__(self) -> S3StaticCredentials:
        return S3StaticCredentials("first", "secret")

    def replace_refused(self, refused: S3StaticCredentials) -> S3StaticCredentials:
        return S3StaticCredentials(f"instead of {refused.access_key_id}", "secret")


def test_a_function_may_be_told_what_was_refused() -> None:
    refreshable = pickle.loads(pickle.dumps(s3_refreshable_credentials(Exchange())))
    assert refreshable.replace_refused(refreshable.get_credentials())
    assert refreshable.get_credentials().access_key_id == "instead of first"
