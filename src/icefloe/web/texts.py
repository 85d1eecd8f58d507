"""Texts of a repository as pages show them: none of them acts, and none is endless."""

from typing import Final

from icefloe.printable import printable

LONGEST_TEXT: Final = 2_000
"""How many characters of a text a page shows."""
LONGEST_NAME: Final = 200
"""How many characters of a name or of units a page shows, in a table and below a picture."""
LONGEST_ADDRESS: Final = 2_000
"""A path or a name with more characters is no part of an address: no server would read it."""


def shown_text(text: str, most: int = LONGEST_TEXT) -> str:
    r"""Return a text that does nothing on a page, of a length that a page can have.

    >>> print(shown_text("a\u202eb"), shown_text("temperature", 4))
    a\u202eb temp…
    """
    return printable(text if len(text) <= most else f"{text[:most]}…", keep="\n")


def shown_name(text: str) -> str:
    r"""Return a name or units on one line, of a length that a table or a picture can have.

    >>> print(shown_name("m\ns-1"))
    m\ns-1
    """
    return printable(shown_text(text, LONGEST_NAME))


def fits_address(*names: str) -> bool:
    """Return whether an address of a page may contain some paths and names.

    >>> fits_address("/ocean/sst", "main"), fits_address("x" * 1_000_000)
    (True, False)
    """
    return sum(map(len, names)) <= LONGEST_ADDRESS
