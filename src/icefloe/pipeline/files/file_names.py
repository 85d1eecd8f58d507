"""Coordinates in the names of files: a pattern such as `sst_%Y%m%d_{member:d}.nc`.

A pattern describes the end of a URL: as many of its parts between slashes as the pattern has. `*`
stands for any text within a part, `?` for any character. Codes of `strptime` are pieces of the
coordinate `time`. `{name}` is a text, `{name:d}` a whole number, `{name:f}` any number, and
`{name:%Y%m}` a time with a name of its own.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record

type Scalar = int | float | str | datetime
"""A single value of a coordinate."""

TIME: Final = "time"
"""The coordinate of codes that are not within braces."""

_CODES: Final = {
    "Y": r"\d{4}",
    "y": r"\d\d",
    "m": r"\d\d",
    "d": r"\d\d",
    "j": r"\d{3}",
    "H": r"\d\d",
    "I": r"\d\d",
    "p": r"[AaPp][Mm]",
    "M": r"\d\d",
    "S": r"\d\d",
    "f": r"\d{1,6}",
    "b": r"[A-Za-z]{3}",
    "B": r"[A-Za-z]{3,9}",
}
"""Codes of `strptime`, and the texts that they match; of a fixed length where it is possible."""

_OF_DAY: Final = frozenset("HIpMSf")
_NUMBERS: Final = {"d": r"[+-]?\d+", "f": r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", "s": r"[^/]+?"}
_TOKEN: Final = re.compile(r"%(?P<code>.)|\{(?P<name>[^{}:]*)(?::(?P<kind>[^{}]*))?\}|(?P<other>.)")


class NamePattern(Record):
    """A pattern that was understood.

    >>> pattern = name_pattern("*_{member:d}_%Y%m%d.nc")
    >>> pattern.names
    ('member', 'time')
    >>> pattern.values("s3://bucket/run_7_20240229.nc")["member"]
    7
    """

    text: str
    regex: re.Pattern[str]
    fields: tuple[tuple[str, str], ...]
    """For each group of the expression, the coordinate, and how its text is understood: `d`, `f`,
    `s`, or a code of `strptime`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name the coordinates."""
        return tuple(dict.fromkeys(name for name, _ in self.fields))

    def is_date(self, name: str) -> bool:
        """Return whether a coordinate is a time in whole days."""
        kinds = {kind for field_name, kind in self.fields if field_name == name}
        return all(kind[0] == "%" and kind[1] not in _OF_DAY for kind in kinds)

    def values(self, url: str) -> Mapping[str, Scalar] | None:
        """Read the coordinates from the name of a file; None if it does not match.

        Raise `ValueError` if a text is no such number or time.
        """
        parts = unquote(url).rstrip("/").split("/")
        match = self.regex.fullmatch("/".join(parts[-1 - self.text.count("/") :]))
        if match is None:
            return None
        texts: dict[str, list[tuple[str, str]]] = {}
        for (name, kind), text in zip(self.fields, match.groups(), strict=True):
            texts.setdefault(name, []).append((kind, text))
        return {name: _value(pieces) for name, pieces in texts.items()}


def _value(pieces: list[tuple[str, str]]) -> Scalar:
    [(kind, text), *_] = pieces
    match kind:
        case "d":
            return int(text)
        case "f":
            return float(text)
        case "s":
            return text
    codes, texts = " ".join(code for code, _ in pieces), " ".join(text for _, text in pieces)
    return datetime.strptime(texts, codes).replace(tzinfo=UTC)


@cache
def name_pattern(text: str) -> NamePattern:
    """Understand a pattern; raise `InvalidInputError` if that is impossible."""
    regex: list[str] = []
    fields: list[tuple[str, str]] = []
    for token in _TOKEN.finditer(text):
        if token["code"] is not None:
            regex.append("%" if token["code"] == "%" else _code(text, token["code"], TIME, fields))
        elif token["name"] is not None:
            regex += _field(text, token["name"], token["kind"] or "s", fields)
        else:
            other = token["other"]
            regex.append({"*": "[^/]*", "?": "[^/]"}.get(other, re.escape(other)))
    if not fields:
        raise _unclear(text, "it has neither a code such as %Y nor a field such as {member:d}")
    for name in dict(fields):
        kinds = [kind for field_name, kind in fields if field_name == name]
        if len(set(kinds)) < len(kinds) or (len(kinds) > 1 and {*kinds} & {*_NUMBERS}):
            raise _unclear(text, f"{name!r} occurs twice")
    pattern = NamePattern(text, re.compile("".join(regex)), tuple(fields))
    for name in pattern.names:
        codes = {kind[1] for field_name, kind in fields if field_name == name and kind[0] == "%"}
        if codes and not codes & {"Y", "y"}:
            raise _unclear(text, f"the codes of {name!r} do not tell the year (%Y)")
    return pattern


def _field(text: str, name: str, kind: str, fields: list[tuple[str, str]]) -> list[str]:
    if not re.fullmatch(r"\w+", name):
        raise _unclear(text, f"{name!r} is no name of a coordinate")
    if kind in _NUMBERS:
        fields.append((name, kind))
        return [f"({_NUMBERS[kind]})"]
    if "%" not in kind:
        raise _unclear(text, f"{{{name}:{kind}}} is neither d, f, s nor codes such as %Y%m%d")
    pieces = re.findall(r"%(.)|([^%]+)", kind)
    return [_code(text, code, name, fields) if code else re.escape(other) for code, other in pieces]


def _code(text: str, code: str, name: str, fields: list[tuple[str, str]]) -> str:
    if code not in _CODES:
        raise _unclear(text, f"%{code} is not among %{', %'.join(_CODES)}")
    fields.append((name, f"%{code}"))
    return f"({_CODES[code]})"


def _unclear(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"from_name={text!r} is not clear: {why}", ErrorKind.BAD_METADATA)
