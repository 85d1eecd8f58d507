"""Find odd phrases, docstrings that do not begin as Python's do, and names without a noun.

    python -m tools.plain_english          all sources and pages; prints file:line: problem

A docstring of a function begins with a verb: "Return ...", "Raise ...", "Delete ...". A name of a
parameter or variable has the noun: `snapshot_id`, not `one`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.bootstrap import ROOT

SOURCES: Final = ("src", "examples", "bench", "tools")
PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs")
ODD_PHRASES: Final = re.compile(
    r"\b(?:for who|who asks|whoever|Whoever|so (?:many|far as)|of no use|of which all|let go|"
    r"of which(?=[.;:])|[Ww]hat (?:is there|there is)|leave to|without a word|"
    r"(?:is|be|are) told|anew)\b"
)
"""Of sources and pages."""
ODD_IN_PAGES: Final = re.compile(
    rf"{ODD_PHRASES.pattern}|\b(?:by (?:itself|themselves)|as far as|told|in vain|for nothing|"
    r"(?:is|are|be|was|were) said|under way|gone|"
    r"[Ww]hat (?:is|was) (?:asked|done|given|left|lost|missing|needed|new|wanted))\b"
)
"""Of pages: these and more."""
ODD_STARTS: Final = frozenset(
    {"Give", "Gives", "Hold", "Let", "Lets", "Say", "Says", "Tell", "Tells", "What"}
)
"""Of docstrings: a function begins with another verb, a class or a module with a noun."""
EMPTY_NAMES: Final = frozenset(
    {"each", "found", "given", "held", "one", "place", "thing", "wanted"}
)
"""Of parameters: they say nothing about the value."""


def main() -> int:
    """Print all problems; return the exit code."""
    count = 0
    for path, line, problem in problems():
        count += 1
        print(f"{path.relative_to(ROOT)}:{line}: {problem}")
    return 1 if count else 0


def problems() -> Iterator[tuple[Path, int, str]]:
    """Yield the problems of all sources and pages: file, line, description."""
    here = Path(__file__).resolve()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != here and "node_modules" not in path.parts:
                text = path.read_text()
                yield from ((path, *problem) for problem in odd_phrases(text))
                yield from ((path, *problem) for problem in odd_code(text))
    for name in PAGES:
        start = ROOT / name
        pages = sorted(start.rglob("*.md")) if start.is_dir() else [start]
        for path in pages:
            yield from ((path, *problem) for problem in odd_page(path.read_text()))


def odd_phrases(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and description of each odd phrase.

    >>> list(odd_phrases("fine\\nfor whoever asks"))
    [(2, "odd phrase 'whoever'")]
    """
    for number, line in enumerate(text.splitlines(), 1):
        for match in ODD_PHRASES.finditer(line):
            yield number, f"odd phrase {match.group()!r}"


def odd_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and description of each odd phrase of a page; code and its output do not count.

    >>> list(odd_page("as far as we know\\n```output\\nas far as\\n```"))
    [(1, "odd phrase 'as far as'")]
    """
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        for match in () if is_code else ODD_IN_PAGES.finditer(line):
            yield number, f"odd phrase {match.group()!r}"


def odd_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and description of each odd docstring and parameter.

    >>> list(odd_code("def tip(one):\\n    '''Give the tip.'''"))
    [(1, "docstring of tip begins with 'Give'"), (1, "parameter 'one' of tip has no noun")]
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        name, line = getattr(node, "name", "the module"), getattr(node, "lineno", 1)
        words = (ast.get_docstring(node) or "").split()
        if words and words[0].rstrip(",.") in ODD_STARTS:
            yield line, f"docstring of {name} begins with {words[0]!r}"
        if isinstance(node, ast.ClassDef | ast.Module):
            continue
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg) and argument.arg in EMPTY_NAMES:
                yield node.lineno, f"parameter {argument.arg!r} of {node.name} has no noun"


if __name__ == "__main__":
    sys.exit(main())
