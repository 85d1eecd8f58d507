"""Run notebooks and compare what their cells show with the outputs that they store.

    python -m tools.notebooks NOTEBOOK ...            run notebooks, and report what differs
    python -m tools.notebooks --write NOTEBOOK ...    also store the real outputs in them

Each notebook runs from its first cell to its last one, in a folder of its own. Printed text and the
text of results are compared as on pages: an id or a time stands for any other, and so does a size.
HTML is stored, and only its presence is compared.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from IPython.core.formatters import DisplayFormatter

from tools.snippets import is_shown, tidy

_KINDS: Final = ("text/plain", "text/html", "image/svg+xml")
_SIZE: Final = re.compile(r"\b\d+(?:\.\d+)? (?:[KMGT]i)?B\b|(?<=bytes_deleted: )\d+")
_HOME: Final = "/home/ada/work"
"""Where all notebooks seem to run."""
_FORMAT: Final = {"nbformat": 4, "nbformat_minor": 4}


@dataclass(frozen=True, slots=True)
class CellDifference:
    """A cell that shows something else than the notebook stores."""

    number: int
    stored: str
    shown: str

    def __str__(self) -> str:
        return f"cell {self.number} stores:\n{self.stored}\nbut it shows:\n{self.shown}"


def run_cells(notebook: Mapping[str, Any]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run all cells of code; yield the number of each and its outputs."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            yield number, _outputs("".join(cell["source"]), f"cell {number}", names)


def _outputs(source: str, name: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return what it prints, and its last expression as notebooks show it."""
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    printed, result = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)  # noqa: S102 - its purpose
        if isinstance(last, ast.Expr):
            result = eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if text := tidy(printed.getvalue()):
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
    if result is not None:
        formats, _ = DisplayFormatter().format(result, include=_KINDS)
        data = {kind: _lines(formats[kind]) for kind in _KINDS if formats.get(kind)}
        outputs.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.replace(str(Path.cwd()), _HOME).splitlines(keepends=True)


def _without_sizes(text: str) -> str:
    """Replace sizes, which differ a little between two runs.

    >>> _without_sizes("4 chunks (28.7 KiB)")
    '4 chunks (SIZE)'
    """
    return _SIZE.sub("SIZE", text)


def shown_text(outputs: list[dict[str, Any]]) -> str:
    """Return the text of outputs, and which other kinds there are."""
    parts = []
    for output in outputs:
        data = output.get("data", {})
        parts.append("".join(output.get("text", data.get("text/plain", ()))))
        parts += [f"<{kind}>" for kind in data if kind != "text/plain"]
    return tidy("\n".join(part.rstrip("\n") for part in parts))


def differences(path: Path, *, write: bool = False) -> list[CellDifference]:
    """Run a notebook in the current folder; return the cells that show something else."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    different = []
    for number, outputs in run_cells(notebook):
        stored, shown = shown_text(notebook["cells"][number]["outputs"]), shown_text(outputs)
        if not is_shown(_without_sizes(shown), _without_sizes(stored) or None):
            different.append(CellDifference(number, stored, shown))
        notebook["cells"][number]["outputs"] = outputs
    if write:
        save(path, notebook["cells"])
    return different


def save(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write a notebook; nothing in it depends on who ran it."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    text = json.dumps(
        {"cells": cells, "metadata": metadata, **_FORMAT}, indent=1, ensure_ascii=False
    )
    path.write_text(f"{text}\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run notebooks; return 1 if any of them shows something else than it stores."""
    is_written = arguments[:1] == ["--write"]
    code = 0
    for name in arguments[is_written:]:
        path = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            different = differences(path, write=is_written)
        for difference in different:
            print(f"{name}, {difference}")
        code = 1 if different and not is_written else code
    return code


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main(sys.argv[1:]))
