"""Which release this is, for users, servers and the files we write."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("icefloe")
