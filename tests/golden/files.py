"""The repositories that the reference implementation wrote, and what it says is in them.

They live beside the project, as `shared/golden`; their absence is a failure, never a skip.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"


@cache
def expected() -> dict[str, Any]:
    """What the reference recorded, by repository."""
    text = (GOLDEN / "expected.json").read_text()
    repositories: dict[str, Any] = json.loads(text)["repositories"]
    return repositories


def read(repository: str, key: str) -> bytes:
    """One object of a golden repository."""
    return (GOLDEN / repository / key).read_bytes()
