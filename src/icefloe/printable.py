"""Text that can be shown: what a terminal would take for a command is written out.

Names, paths, messages and notes in a repository are the words of its authors. Printed as
they are, control characters move the cursor, recolour or rename the window, and marks of writing
direction make a text look like another one.
"""

import re
from typing import Final

_COMMANDS: Final = (
    r"[\x00-\x1f\x7f-\x9f"  # control characters of C0 and C1, and DEL
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks of writing direction
    r"\u2028\u2029"  # ends of lines and paragraphs
    r"\ud800-\udfff]"  # halves of characters, which no terminal can be sent
)


def printable(text: str, *, keep: str = "") -> str:
    r"""Write out, as Python would, all characters of a text that are commands to a terminal.

    Those in `keep` stay as they are: the ends of lines, for text that has some of its own.

    >>> print(printable("a\x1b[31m\u202e"))
    a\x1b[31m\u202e
    """
    if text.isprintable():
        return text
    return re.sub(
        _COMMANDS, lambda match: match[0] if match[0] in keep else _escaped(match[0]), text
    )


def printable_json(document: str) -> str:
    r"""Write out the same characters in a JSON document, which means the same afterwards.

    >>> print(printable_json('"\x7f\u202e"'))
    "\u007f\u202e"
    """
    return re.sub(
        _COMMANDS,
        lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}",
        document,
    )


def _escaped(letter: str) -> str:
    return repr(letter)[1:-1]


_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠")
"""Beginnings that programs for tables take for formulas."""


def harmless_cell(text: str) -> str:
    """Return a text as a cell of a table that no program for tables calculates.

    >>> harmless_cell("=1+1"), harmless_cell("2024-01-01")
    ("'=1+1", '2024-01-01')
    """
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def escaped_html(text: str) -> str:
    """Return a text as HTML that shows it."""
    from html import escape

    return escape(text)
