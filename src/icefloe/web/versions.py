"""The repository that pages show, and its versions by name."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info import RepoInfo
from icefloe.records import Record, replace
from icefloe.repo.snapshot_info import SnapshotInfo
from icefloe.transactions.session import SessionState
from icefloe.web.recent import Recent
from icefloe.web.texts import fits_address

MAIN: Final = "main"
_MOST_SESSIONS: Final = 8
_SHORT_ID: Final = 8
_SNAPSHOT_ID: Final = r"[0-9A-HJKMNP-TV-Z]{20}"
_PLAIN_NAME: Final = r"[A-Za-z0-9._-]+"


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

    @property
    def title(self) -> str:
        """The kind and the name, in few characters."""
        name = self.name[:_SHORT_ID] if self.kind == "snapshot" else self.name
        return f"{self.kind} {name}"

    @property
    def argument(self) -> str:
        """The argument of `readonly_session` and of xarray that names the version."""
        if self.kind in ("branch", "tag"):
            return f"{self.kind}={literal(self.name)}"
        return f"snapshot_id={literal(self.session.snapshot_id)}"

    @property
    def path_name(self) -> str:
        """The name of the version as a part of a path: other names than plain ones are ids."""
        is_plain = re.fullmatch(_PLAIN_NAME, self.name) is not None
        return self.name if is_plain else self.session.snapshot_id


class Ref(Record):
    """A branch or a tag."""

    name: str
    kind: str
    commit: SnapshotInfo | None = None
    """The commit that it names; None if nobody looked."""

    @property
    def address_name(self) -> str:
        """The name in an address: that of the commit, if its own is too long."""
        if self.commit is None or fits_address(self.name):
            return self.name
        return self.commit.id


class Viewed:
    """A repository that pages show; it keeps the sessions of the versions that were read last."""

    def __init__(self, repository: Repository, name: str, url: str, description: str = "") -> None:
        self.repository: Final = repository
        self.name: Final = name
        self.url: Final = url
        """How a user opens it elsewhere."""
        self.description: Final = description
        """What others say of the repository as a whole."""
        self._sessions: Final = Recent[str, tuple[Session, dict[str, Any]]](_MOST_SESSIONS)
        self._refs: tuple[RepoInfo, list[Ref]] | None = None

    def version(self, name: str | None) -> Version:
        """Return the version with a name; the branch `main`, or the first one, for None.

        A name is a branch, a tag, the id of a snapshot, or a moment in ISO 8601: of `main`, or of
        another branch as in `tests@2024-05-01`. Raise `InvalidInputError` for other names.
        """
        repository = self.repository
        branches = repository.list_branches()
        if name is None:
            name = MAIN if MAIN in branches else min(branches)
        if name in branches:
            return Version(name, "branch", *self._session(repository.lookup_branch(name)))
        if name in repository.list_tags():
            return Version(name, "tag", *self._session(repository.lookup_tag(name)))
        if re.fullmatch(_SNAPSHOT_ID, name):
            return Version(name, "snapshot", *self._session(name))
        branch, _, text = name.rpartition("@")
        is_named = branch in branches
        moment = _moment(text if is_named else name)
        session = repository.readonly_session(branch if is_named else MAIN, as_of=moment)
        return Version(name, "moment", *self._session(session.snapshot_id))

    def _session(self, snapshot_id: str) -> tuple[Session, dict[str, Any]]:
        """Return the session of a snapshot, and the dimensions that were read through it."""
        return self._sessions.get(
            snapshot_id, lambda: (self.repository.readonly_session(snapshot_id=snapshot_id), {})
        )

    def zarr_url(self, version_name: str, origin: str) -> str:
        """Return the address of a version as Zarr over HTTP."""
        return f"{origin}/zarr/{quote(self.name, safe='')}@{version_name}"

    def zarr_code(self, version: Version, origin: str) -> tuple[str, str]:
        """Return a title, and the lines that open a version as Zarr over HTTP."""
        url = literal(self.zarr_url(version.path_name, origin))
        lines = (
            "import zarr",
            "from obstore.store import HTTPStore",
            "from zarr.storage import ObjectStore\n",
            f'store = HTTPStore({url}, client_options={{"allow_http": True}})',
            'group = zarr.open_group(ObjectStore(store, read_only=True), mode="r")',
        )
        return "Zarr over HTTP, while this page is served", "\n".join(lines)

    def refs(self, version: Version) -> list[Ref]:
        """List all branches and tags: `main`, then those with the newest commits.

        In spec 1, where every commit takes a request, they are without commits and in order.
        """
        repository = self.repository
        state = run_blocking(version.state.context.ledger.repo())
        if state is None:
            names = {"branch": repository.list_branches(), "tag": repository.list_tags()}
            refs = [Ref(name, kind) for kind in names for name in sorted(names[kind])]
            return sorted(refs, key=lambda ref: ref != Ref(MAIN, "branch"))
        if (
            self._refs is None or self._refs[0] is not state
        ):  # an unchanged state is the same object
            commits = {"branch": repository.branch_versions(), "tag": repository.tag_versions()}
            self._refs = state, _newest_first(commits)
        return self._refs[1]

    def with_commit(self, ref: Ref) -> Ref:
        """Return a branch or a tag with the commit that it names."""
        if ref.commit is not None:
            return ref
        look = self.repository.lookup_tag if ref.kind == "tag" else self.repository.lookup_branch
        return replace(ref, commit=self.repository.lookup_snapshot(look(ref.name)))


def _newest_first(commits: Mapping[str, Mapping[str, SnapshotInfo]]) -> list[Ref]:
    refs = [
        Ref(name, kind, commit) for kind, named in commits.items() for name, commit in named.items()
    ]

    def order(ref: Ref) -> tuple[bool, float, str]:
        assert ref.commit is not None
        is_main = (ref.name, ref.kind) == (MAIN, "branch")
        return not is_main, -ref.commit.written_at.timestamp(), ref.name

    return sorted(refs, key=order)


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


def literal(text: str) -> str:
    r"""Return a text as Python code, in which no character acts on a terminal or on its reader.

    >>> print(literal('a "b"'), literal("\u202e"))
    "a \"b\"" '\u202e'
    """
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else ascii(text)
