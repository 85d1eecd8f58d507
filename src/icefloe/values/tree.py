"""Trees of plain values, as YAML and FlexBuffers hold them: how values are stored."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icefloe.errors import ErrorKind, FormatError
from icefloe.records import Record

if TYPE_CHECKING:
    from icefloe.values.stored import TreeReader

type Tree = (
    bool | int | float | str | list["Tree"] | dict[str, "Tree"] | "Tagged" | "Unquoted" | None
)


class Tagged(Record):
    """An alternative that carries data: `!name content`."""

    name: str
    content: "Tree"


class Unquoted(Record):
    """A number or truth value that stood without quotes: text, where text is expected."""

    text: str
    value: bool | int | float


class StoredForm(Record):
    """The stored form of a class or field, where fields and type do not determine it."""

    write: Callable[[Any], Tree]
    read: Callable[["TreeReader", Any, Tree, str], Any]
    """Takes the reader, the class to make, the tree and its path."""


class Stored(Record):
    """The stored form of a field, where its name, position and type do not determine it."""

    key: str | None = None
    other_key: str | None = None
    """Another key under which the field is accepted."""
    after: str | None = None
    """The field that it is stored behind."""
    form: StoredForm | None = None
    only_ours: bool = False
    """Whether other programs do not know it: it is left out where it has its default value."""
    null_counts: bool = False
    """Whether null is a value, and not the same as no entry."""
    instead: object = ...
    """Stands in for a wrong value where the rest is still to be judged; Ellipsis: nothing."""


def malformed(problem: str, **context: object) -> FormatError:
    """Make the error for a stored configuration that cannot be understood."""
    return FormatError(
        f"the stored configuration is damaged: {problem}",
        ErrorKind.CONFIG_DESERIALIZATION,
        **context,
    )
