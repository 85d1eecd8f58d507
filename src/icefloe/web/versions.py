"""The repository that pages show, and its versions by name."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.transactions.session import SessionState

_MAIN: Final = "main"
_MOST_SESSIONS: Final = 8
_SNAPSHOT_ID: Final = r"[0-9A-HJKMNP-TV-Z]{20}"


class Version(Record, eq=False):
    """A version of the data, as a page shows it."""

    name: str
    """A branch, a tag, a snapshot id or a moment: what the user chose."""
    kind: str
    session: Session
    dimensions: dict[str, Any]
    """Dimensions whose coordinates were read before, by the path of the coordinate."""

    @property
    def state(self) -> SessionState:
        """The state that the session reads."""
        return state_of(self.session)

    @property
    def is_fixed(self) -> bool:
        """Whether the name always means this version."""
        return self.kind in ("tag", "snapshot")


class Viewed:
    """A repository that pages show; it keeps the sessions of the versions that were read last."""

    def __init__(self, repository: Repository, name: str, url: str) -> None:
        self.repository: Final = repository
        self.name: Final = name
        self.url: Final = url
        """How a user opens it elsewhere."""
        self._sessions: dict[str, tuple[Session, dict[str, Any]]] = {}
        self._lock: Final = Lock()

    def version(self, name: str | None) -> Version:
        """Return the version with a name; the branch `main`, or the first one, for None.

        A name is a branch, a tag, the id of a snapshot, or a moment of `main`, in ISO 8601.
        Raise `InvalidInputError` for other names.
        """
        repository = self.repository
        branches = repository.list_branches()
        if name is None:
            name = _MAIN if _MAIN in branches else min(branches)
        if name in branches:
            return Version(name, "branch", *self._session(repository.lookup_branch(name)))
        if name in repository.list_tags():
            return Version(name, "tag", *self._session(repository.lookup_tag(name)))
        if re.fullmatch(_SNAPSHOT_ID, name):
            return Version(name, "snapshot", *self._session(name))
        moment = _moment(name)
        session = repository.readonly_session(_MAIN, as_of=moment)
        return Version(name, "moment", *self._session(session.snapshot_id))

    def _session(self, snapshot_id: str) -> tuple[Session, dict[str, Any]]:
        """Return the session of a snapshot, and the dimensions that were read through it."""
        with self._lock:
            kept = self._sessions.pop(snapshot_id, None)
        if kept is None:
            kept = self.repository.readonly_session(snapshot_id=snapshot_id), {}
        with self._lock:
            self._sessions[snapshot_id] = kept
            while len(self._sessions) > _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return kept

    def version_names(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the kinds of names, with the names of each kind in order."""
        yield "Branches", sorted(self.repository.list_branches())
        yield "Tags", sorted(self.repository.list_tags())


def _moment(name: str) -> datetime:
    """Return the moment that a text is; without a time zone it is in UTC.

    >>> _moment("2024-05-01T12:00").isoformat()
    '2024-05-01T12:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(name)
    except ValueError:
        problem = f"there is no branch, tag or snapshot {name!r}, and it is no moment"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
