"""Options that commands share, as records: a command takes a record, the shell its fields."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from icefloe.records import Record


class OptionSet(Record, kw_only=True):
    """Base of records whose fields are options of the shell."""


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the fields of option sets in place of the sets.

    >>> class Size(OptionSet, kw_only=True):
    ...     width: int = 1
    >>> def draw(*, size: Size, name: str) -> None:
    ...     print(name, size.width)
    >>> spread(draw)(width=3, name="box")
    box 3
    """
    signature = inspect.signature(command, eval_str=True)
    sets: dict[str, type[OptionSet]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if inspect.isclass(kind) and issubclass(kind, OptionSet):
            sets[name] = kind
            parameters += inspect.signature(kind, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)
    if not sets:
        return command

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in sets.items():
            fields = {field: values.pop(field) for field in kind.__struct_fields__}
            values[name] = kind(**fields)
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
