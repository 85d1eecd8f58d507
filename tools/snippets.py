"""Run the snippets of a page and compare what they print with the output that the page shows.

    python -m tools.snippets PAGE ...            run pages, and report what differs
    python -m tools.snippets --write PAGE ...    also write the real output into the pages

A page has three kinds of blocks. They run in their order and share their names:

    ```python          code that readers see
    ```output          directly after code: everything that this code prints
    <!-- test          code up to `-->` that readers do not see: the checks of the page

In an output, `...` stands for any text, and an id or a time of day for any other.
"""

import contextlib
import doctest
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_BLOCK: Final = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n^```output\n(?P<output>.*?)^```$)?"
    r"|^<!-- test\n(?P<check>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_ID: Final = re.compile(
    r"\b(?:[0-9A-HJKMNP-TV-Z]{8}|[0-9A-HJKMNP-TV-Z]{13}|[0-9A-HJKMNP-TV-Z]{20}|[0-9a-f]{16})\b"
)
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:\d\d|Z)?")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of code of a page, with the output that the page shows for it."""

    code: str
    line: int
    """The line of the page on which the code begins, counted from zero."""
    output: str | None
    is_hidden: bool

    @property
    def padded(self) -> str:
        """The code behind as many empty lines as make its tracebacks point into the page."""
        return "\n" * self.line + self.code


@dataclass(frozen=True, slots=True)
class Difference:
    """A snippet whose printed text is not the output that the page shows."""

    snippet: Snippet
    printed: str

    def __str__(self) -> str:
        shown = self.snippet.output
        expected = "the page shows no output" if shown is None else f"the page shows:\n{shown}"
        return f"line {self.snippet.line}: {expected}\nbut the code prints:\n{self.printed}"


def snippets(text: str) -> Iterator[Snippet]:
    """Yield the snippets of a page.

    >>> page = "```python\\nprint(1)\\n```\\n\\n```output\\n1\\n```\\n\\n<!-- test\\n1 / 1\\n-->"
    >>> [(snippet.code, snippet.output, snippet.is_hidden) for snippet in snippets(page)]
    [('print(1)\\n', '1\\n', False), ('1 / 1\\n', None, True)]
    """
    for block in _BLOCK.finditer(text):
        group = "code" if block["check"] is None else "check"
        line = text.count("\n", 0, block.start(group))
        yield Snippet(block[group], line, block["output"], group == "check")


def differences(page: Path) -> list[Difference]:
    """Run all snippets of a page in the current folder; return those that print something else."""
    names: dict[str, Any] = {"__name__": "snippet"}
    different = []
    for snippet in snippets(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.padded, str(page), "exec"), names)  # noqa: S102 - its purpose
        text = tidy(printed.getvalue())
        if not snippet.is_hidden and not is_shown(text, snippet.output):
            different.append(Difference(snippet, text))
    return different


def is_shown(printed: str, output: str | None) -> bool:
    """Return whether the output of a page stands for what was printed.

    >>> is_shown("made at 12:03\\n", "made at ...\\n"), is_shown("1\\n", None), is_shown("", None)
    (True, False, True)
    >>> is_shown("VS8R6RKT at 2026-11-18 02:07\\n", "1CECHNKR at 2025-01-01 00:00\\n")
    True
    """
    if output is None:
        return printed == ""
    return doctest.OutputChecker().check_output(
        _without_chance(tidy(output)), _without_chance(printed), doctest.ELLIPSIS
    )


def _without_chance(text: str) -> str:
    """Replace ids and times, which differ between two runs.

    >>> _without_chance("VS8R6RKTS30030P4RJY0 at 2026-11-18 02:07:04.991223+00:00 on 2000-01-21")
    'ID at TIME on 2000-01-21'
    """
    return _TIME.sub("TIME", _ID.sub("ID", text))


def tidy(text: str) -> str:
    """Remove colours, blanks at the ends of lines, and empty lines around the text."""
    plain = _COLOUR.sub("", text)
    lines = "\n".join(line.rstrip() for line in plain.splitlines()).strip("\n")
    return f"{lines}\n" if lines else ""


def rewrite(page: Path, different: list[Difference]) -> None:
    """Show in a page what its code really prints."""
    printed = {difference.snippet.line: difference.printed for difference in different}
    text = page.read_text()

    def replaced(block: re.Match[str]) -> str:
        line = text.count("\n", 0, block.start("code")) if block["code"] is not None else -1
        if line not in printed:
            return block[0]
        output = f"\n\n```output\n{printed[line]}```" if printed[line] else ""
        return f"```python\n{block['code']}```{output}"

    page.write_text(_BLOCK.sub(replaced, text))


def main(arguments: list[str]) -> int:
    """Run pages; return 1 if any of them shows something else than its code prints."""
    is_written = arguments[:1] == ["--write"]
    code = 0
    for name in arguments[is_written:]:
        page = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder:
            here = Path.cwd()
            os.chdir(folder)
            try:
                different = differences(page)
            finally:
                os.chdir(here)
        for difference in different:
            print(f"{name}, {difference}")
        if is_written:
            rewrite(page, different)
        code = 1 if different and not is_written else code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
