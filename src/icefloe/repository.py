"""Repositories, and whether they take changes."""

from icefloe.api.repository import Repository
from icefloe.api.status import RepoAvailability, RepoStatus

__all__ = ["RepoAvailability", "RepoStatus", "Repository"]
