"""Sessions: where the data of a repository is read and changed."""

from icefloe.api.session import ForkSession, Session
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode

__all__ = ["ForkSession", "PackingOptions", "Session", "SessionMode"]
