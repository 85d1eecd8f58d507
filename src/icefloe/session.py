"""Sessions: where the data of a repository is read and changed."""

from icefloe.api.session import ForkSession, Session
from icefloe.engine.packing import PackingOptions
from icefloe.engine.session import SessionMode

__all__ = ["ForkSession", "PackingOptions", "Session", "SessionMode"]
