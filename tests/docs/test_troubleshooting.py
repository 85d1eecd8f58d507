"""The page about errors lists every code once, and marks those that are never raised."""

import re
from collections import Counter
from pathlib import Path

from icefloe import errors
from icefloe.errors import ErrorKind, IcefloeError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| (\S.*?) \| (\S.*?) \|$", re.MULTILINE)


def test_every_code_has_one_row_with_cause_and_remedy() -> None:
    listed = Counter(code for code, _, _ in ROW.findall(PAGE.read_text()))
    assert listed == Counter(kind.value for kind in ErrorKind)


def test_reserved_codes_are_those_that_no_code_raises() -> None:
    reserved = {
        code for code, cause, _ in ROW.findall(PAGE.read_text()) if cause.startswith("Reserved")
    }
    assert reserved == {kind.value for kind in ErrorKind} - _raised()


def _raised() -> set[str]:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path != Path(errors.__file__)]
    names = {
        name for path in sources for name in re.findall(r"ErrorKind\.([A-Z_]+)", path.read_text())
    }
    defaults = {
        str(value.default_kind)
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, IcefloeError)
    }
    return {ErrorKind[name].value for name in names} | defaults
