"""The version of this package, for users, servers and the files that it writes."""

from typing import Final

VERSION: Final = "0.1.0"
