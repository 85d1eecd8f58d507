"""The log of operations on a repository."""

from icefloe.api.updates import Update, UpdateType
from icefloe.maintenance.sweeping import GCSummary

__all__ = ["GCSummary", "Update", "UpdateType"]
