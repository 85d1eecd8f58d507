"""What was done to a repository."""

from icefloe.api.maintenance import GCSummary
from icefloe.api.updates import Update, UpdateType

__all__ = ["GCSummary", "Update", "UpdateType"]
