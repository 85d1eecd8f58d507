"""The log of a running service: a line for each event, as text or as JSON, without secrets."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from icefloe.printable import printable

_SECRETS: Final = (
    (re.compile(r"(icefloe_[0-9A-Za-z]{16})[0-9A-Za-z]+"), r"\1***"),
    (re.compile(r"(/join/)[\w-]+"), r"\1***"),
    (re.compile(r"(?i)((?:bearer|basic) )[\w.~+/=-]+"), r"\1***"),
    (re.compile(r"(://[^/\s:@]+:)[^/\s@]+@"), r"\1***@"),
)
"""What must not be in a log, although nothing of ours writes it there."""


class LogFormat(StrEnum):
    """The format of the log's lines."""

    TEXT = "text"
    JSON = "json"


class _Formatter(logging.Formatter):
    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._log_format: Final = log_format

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._log_format is LogFormat.JSON:
            return redacted(json.dumps(fields | ({"trace": trace} if trace else {}), default=str))
        line = printable("{at} {level} {logger}: {message}".format_map(fields))
        if "request_id" in fields:
            line += printable(f" [{fields['request_id']} {fields.get('person') or '-'}]")
        return redacted(f"{line}\n{printable(trace, keep='\n')}" if trace else line)


def redacted(text: str) -> str:
    """Return a text without tokens, one-time links and passwords in URLs.

    >>> redacted("GET /join/abc-1 with Bearer xyz")
    'GET /join/*** with Bearer ***'
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def set_up_logs(log_format: LogFormat) -> None:
    """Print the log of the service and of its server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("icefloe.service", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
