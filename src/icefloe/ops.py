"""What was done to a repository."""

from icefloe.api.updates import Update, UpdateType

__all__ = ["Update", "UpdateType"]
