"""A tree of plain values, as YAML and FlexBuffers hold it."""

from typing import NamedTuple

type Tree = (
    bool | int | float | str | list["Tree"] | dict[str, "Tree"] | "Tagged" | "Unquoted" | None
)


class Tagged(NamedTuple):
    """An alternative that carries data: `!name content`."""

    name: str
    content: "Tree"


class Unquoted(NamedTuple):
    """A number or truth value that stood without quotes: text, where text is expected."""

    text: str
    value: bool | int | float
