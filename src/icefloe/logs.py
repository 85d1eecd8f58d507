"""The log of the library: levels and destinations.

Everything is logged with Python's `logging`, below the logger `icefloe`. Programs that set up
logging themselves need nothing here. For all others, the variable `ICEFLOE_LOG` (or
`ICECHUNK_LOG`) of the environment, read on import, prints the log to standard error, or to
standard output when `ICECHUNK_LOG_TO_STDOUT` is set.

A filter is a level (`off`, `error`, `warn`, `info`, `debug`, `trace`), or several directives
with commas between: `info,icefloe.storage=debug`. Names of the reference's parts, such as
`icechunk::storage`, stand for ours.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from icefloe.printable import printable

LOGGER_NAME: Final = "icefloe"
FILTER_VARIABLES: Final = ("ICEFLOE_LOG", "ICECHUNK_LOG")
"""Variables that hold a filter; the first that is set counts."""
STDOUT_VARIABLES: Final = ("ICEFLOE_LOG_TO_STDOUT", "ICECHUNK_LOG_TO_STDOUT")

_LEVELS: Final = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": 1,  # below DEBUG there is no name in `logging`: everything
}
_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Lines(logging.Formatter):
    """Writes a line for each record, whatever a repository says in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - so it is called
        record.message = printable(record.message)
        return super().formatMessage(record)


class _Output(logging.Handler):
    """Prints to whatever the standard streams are at that moment; notebooks exchange them."""

    def __init__(self, *, is_stdout: bool) -> None:
        super().__init__()
        self.setFormatter(_Lines(_LINE))
        self._is_stdout = is_stdout

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        stream = sys.stdout if self._is_stdout else sys.stderr
        try:
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except (OSError, ValueError):
            self.handleError(record)


def initialize_logs() -> None:
    """Print the log as the environment says; without a filter there, leave logging alone.

    Called when the package is imported.
    """
    logger = logging.getLogger(LOGGER_NAME)
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Print the log from a level on; `None` reads the environment again.

    >>> set_logs_filter("warn,icefloe.storage=debug")
    >>> set_logs_filter(None)
    """
    directive = log_filter_directive
    if directive is None:
        directive = _first_set(FILTER_VARIABLES, os.environ)
    _forget()
    if directive is None:
        return
    logger = logging.getLogger(LOGGER_NAME)
    is_stdout = _first_set(STDOUT_VARIABLES, os.environ) is not None
    logger.addHandler(_Output(is_stdout=is_stdout))
    levels, unknown = _parse(directive)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        _filtered.add(name)
    for unknown_name in unknown:
        logger.warning(
            "ignoring %r in the log filter: a directive is a level (%s) or a part of icefloe "
            "with one, such as icefloe.storage=debug",
            unknown_name,
            ", ".join(_LEVELS),
        )


def shutdown_telemetry() -> None:
    """Detach what `set_logs_filter` and the environment attached."""
    _forget()


_filtered: Final[set[str]] = set()
"""Loggers whose level was set here."""


def _forget() -> None:
    logger = logging.getLogger(LOGGER_NAME)
    for handler in [handler_ for handler_ in logger.handlers if isinstance(handler_, _Output)]:
        logger.removeHandler(handler)
    while _filtered:
        logging.getLogger(_filtered.pop()).setLevel(logging.NOTSET)


def _first_set(names: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _parse(directive: str) -> tuple[dict[str, int], list[str]]:
    """Split a filter into levels by logger, and the parts that mean nothing."""
    levels, unknown = dict[str, int](), list[str]()
    for part in filter(None, (piece.strip() for piece in directive.split(","))):
        logger, _, word = part.rpartition("=")
        level = _LEVELS.get(word.strip().lower())
        name = _logger_of(logger.strip())
        if level is None or name is None:
            unknown.append(part)
        else:
            levels[name] = level
    if LOGGER_NAME not in levels:
        levels[LOGGER_NAME] = logging.ERROR  # what nothing is said about
    return levels, unknown


def _logger_of(name: str) -> str | None:
    """Find our logger for a place of a directive; no place means all."""
    package, _, below = name.replace("::", ".").partition(".")
    if package.startswith("icechunk_"):  # its parts are packages of their own
        package, below = "icechunk", package.removeprefix("icechunk_")
    if package not in {"", "icechunk", LOGGER_NAME}:
        return None
    return f"{LOGGER_NAME}.{below}" if below else LOGGER_NAME
