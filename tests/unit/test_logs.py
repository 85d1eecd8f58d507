"""The log is printed when asked for, in the places asked for, and nowhere else."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from icefloe.logs import initialize_logs, set_logs_filter, shutdown_telemetry


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ICEFLOE_LOG", "ICECHUNK_LOG", "ICECHUNK_LOG_TO_STDOUT", "ICEFLOE_LOG_TO_STDOUT"):
        monkeypatch.delenv(name, raising=False)
    set_logs_filter(None)
    yield
    shutdown_telemetry()


def speak() -> None:
    logging.getLogger("icefloe.storage").debug("low voice")
    logging.getLogger("icefloe.repo").warning("plain voice")


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    initialize_logs()
    speak()
    printed = capfd.readouterr()  # by the whole process: others may have something to say
    assert "voice" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("directive", "printed"),
    [
        ("debug", ["low voice", "plain voice"]),
        ("trace", ["low voice", "plain voice"]),
        ("warn", ["plain voice"]),
        ("off", []),
        ("error,icefloe.storage=debug", ["low voice"]),
        ("icechunk=info", ["plain voice"]),
        ("icechunk::storage=debug", ["low voice"]),
        ("icechunk_storage=trace", ["low voice"]),
    ],
)
def test_a_filter_chooses_by_level_and_place(
    directive: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    set_logs_filter(directive)
    speak()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == printed


@pytest.mark.parametrize("directive", ["icefloes=debug", "loud", "nonsense==x"])
def test_what_means_nothing_is_said(directive: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_logs_filter(f"warn,{directive}")
    assert repr(directive) in capsys.readouterr().err


def test_the_environment_is_read_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ICECHUNK_LOG", "error")
    monkeypatch.setenv("ICEFLOE_LOG", "warn")
    monkeypatch.setenv("ICECHUNK_LOG_TO_STDOUT", "1")
    set_logs_filter(None)
    speak()
    captured = capsys.readouterr()
    assert "plain voice" in captured.out
    assert captured.err == ""


def test_a_later_filter_replaces_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs_filter("debug")
    set_logs_filter("warn")
    speak()
    assert len(capsys.readouterr().err.splitlines()) == 1
    shutdown_telemetry()
    speak()
    assert capsys.readouterr().err == ""


def test_importing_the_package_reads_the_environment() -> None:
    program = "import icefloe, logging; logging.getLogger('icefloe.x').info('hello')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ICECHUNK_LOG": "info"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "INFO icefloe.x: hello" in done.stderr
