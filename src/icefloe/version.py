"""The version of this package, for users, servers and the files that it writes."""

from typing import Final

VERSION: Final = "0.1.0"


def user_agent() -> str:
    """Return the name of this client in requests."""
    return f"icefloe/{VERSION}"
