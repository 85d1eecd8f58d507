"""Object keys: which ones are allowed, and how they look in places with fewer characters.

A key is a non-empty sequence of non-empty segments joined by `/`. Segments `.` and `..` are
refused, so no key can name anything outside the root of its storage. Where a storage keeps
keys in percent-encoded form (files; the object stores that the reference reaches the same
way), the characters are those the reference encodes: controls, everything beyond ASCII, and
``"#%*<>?[\\]^`{|}~``. Neither an encoded nor an allowed name can therefore end in `#` and
digits, which is what temporary files are called.
"""

import re
from typing import Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError

# What is left of ASCII, spelled out: a set of all that must be encoded takes long to compile.
_PLAIN: Final = r"[ !$&'()+,\-.0-9:;=@A-Z_a-z]+"
_PLAIN_KEY: Final = re.compile(rf"(?:(?!\.\.?/){_PLAIN}/)*(?!\.\.?\Z){_PLAIN}\Z")
_TO_ENCODE: Final = re.compile(r"[^ !$&'()+,\-./0-9:;=@A-Z_a-z]")
_TEMPORARY: Final = re.compile(r"#[0-9]+\Z")


def encode_key(key: str) -> str:
    """Check a key and percent-encode it.

    >>> encode_key("refs/branch.señal/ref.json")
    'refs/branch.se%C3%B1al/ref.json'
    """
    if _PLAIN_KEY.match(key):
        return key
    check_key(key)
    return _encode(key)


def encode_prefix(prefix: str) -> str:
    """Percent-encode the beginning of a key, which may be empty or end in `/`.

    >>> encode_prefix("refs/tag.ñ")
    'refs/tag.%C3%B1'
    """
    if prefix:
        check_key(prefix.removesuffix("/"))
    return _encode(prefix)


def decode_key(name: str) -> str | None:
    """Turn an encoded name back into its key; None if `encode_key` never makes that name.

    >>> decode_key("refs/branch.se%C3%B1al/ref.json")
    'refs/branch.señal/ref.json'
    >>> decode_key("repo#1") is None
    True
    """
    if _PLAIN_KEY.match(name):
        return name
    key = unquote(name, errors="replace")
    return key if _encode(key) == name and _fault(key) is None else None


def check_key(key: str) -> None:
    """Refuse keys that are empty, absolute, climb upwards or hold a NUL."""
    if not _PLAIN_KEY.match(key) and (fault := _fault(key)) is not None:
        raise InvalidInputError(
            f"{key!r} is not a key: {fault}", ErrorKind.INVALID_KEY, key=repr(key)
        )


def _fault(key: str) -> str | None:
    """Say what is wrong with a key, if anything."""
    segments = key.split("/")
    if "\0" in key or not _is_text(key):
        return "it holds characters that cannot be stored"
    if not all(segments):
        return "a segment is empty; keys never start or end with `/`"
    if "." in segments or ".." in segments:
        return "it would leave the root of the storage"
    return None


def is_temporary(name: str) -> bool:
    """Tell whether a file name belongs to an unfinished write (ours or the reference's).

    >>> is_temporary("repo#0"), is_temporary("repo")
    (True, False)
    """
    return _TEMPORARY.search(name) is not None


def _encode(key: str) -> str:
    return _TO_ENCODE.sub(lambda found: _percent(found.group()), key)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _is_text(key: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in key)
