"""Refuse what should not enter the history: large files and leftover conflict markers."""

import re
import sys
from pathlib import Path

LARGEST_BYTES = 1_000_000
CONFLICT = re.compile(rb"^(<{7} |>{7} |\|{7} )", re.MULTILINE)


def problems(path: Path) -> list[str]:
    """Return what is wrong with a file."""
    content = path.read_bytes()
    found = []
    if len(content) > LARGEST_BYTES:
        found.append(f"{len(content):,} bytes, at most {LARGEST_BYTES:,} are allowed")
    if CONFLICT.search(content):
        found.append("contains a conflict marker")
    return [f"{path}: {problem}" for problem in found]


if __name__ == "__main__":
    report = [line for name in sys.argv[1:] for line in problems(Path(name))]
    sys.exit("\n".join(report) or 0)
