"""Exceptions, grouped by how a handler reacts to them.

    IcefloeError (also known as IcechunkError)
    ├── ConflictError            reload, rebase, try again
    │   └── RebaseFailedError    (carries the conflicts)
    ├── NotFoundError (KeyError)
    │   └── NodeNotFoundError, SnapshotNotFoundError, RefNotFoundError, RepositoryNotFoundError
    ├── AlreadyExistsError       choose another name
    ├── ReadOnlyError            open writable
    │   └── RepositoryOfflineError      wait until the repository is online again
    ├── SessionStateError        wrong moment
    │   └── RepositoryMigratedError (RuntimeError)   open the repository again
    ├── InvalidInputError (ValueError)   fix the call
    │   └── WrongTypeError (TypeError)
    ├── AccessDeniedError (PermissionError)   ask the people it names (carries what is missing)
    │   └── NotLoggedInError     log in again
    ├── ServiceError             the repository service failed; see `retryable`
    ├── StorageError             the environment failed; see `retryable`
    │   ├── ObjectNotFoundError (also a NotFoundError)
    │   ├── PreconditionFailedError     somebody else changed the object first
    │   └── OutcomeUnknownError         a write may or may not have landed
    ├── FormatError              stored bytes are wrong, or newer than we read
    │   └── SourceError          a file to be ingested cannot be used (names it)
    └── InternalError            our bug

Each error carries a stable, append-only `kind` code, and its context as data.
All of them survive pickling, so they travel from Spark executors.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, Final

from icefloe.printable import printable


class ErrorKind(StrEnum):
    """Stable codes for failures; members are plain strings as well."""

    COMMIT_CONFLICT = "commit-conflict"
    BRANCH_UPDATE_CONFLICT = "branch-update-conflict"
    REBASE_FAILED = "rebase-failed"
    CONFIG_UPDATED = "config-updated"
    REPO_INFO_UPDATED = "repo-info-updated"
    UPDATE_ATTEMPTS_EXHAUSTED = "update-attempts-exhausted"
    GC_DELETES_FAILING = "gc-deletes-failing"
    NODE_NOT_FOUND = "node-not-found"
    ANCESTOR_NODE_NOT_FOUND = "ancestor-node-not-found"
    CHUNK_NOT_FOUND = "chunk-not-found"
    KEY_NOT_FOUND = "key-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    NO_SNAPSHOT_AT_TIME = "no-snapshot-at-time"
    REF_NOT_FOUND = "ref-not-found"
    BRANCH_NOT_FOUND = "branch-not-found"
    TAG_NOT_FOUND = "tag-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    MANIFEST_INFO_NOT_FOUND = "manifest-info-not-found"
    NODE_ALREADY_EXISTS = "node-already-exists"
    BRANCH_ALREADY_EXISTS = "branch-already-exists"
    TAG_ALREADY_EXISTS = "tag-already-exists"
    TAG_PREVIOUSLY_DELETED = "tag-previously-deleted"
    MOVE_WONT_OVERWRITE = "move-wont-overwrite"
    READ_ONLY_SESSION = "read-only-session"
    READ_ONLY_STORE = "read-only-store"
    READ_ONLY_STORAGE = "read-only-storage"
    READ_ONLY_REPOSITORY = "read-only-repository"
    INVALID_KEY = "invalid-key"
    INVALID_CHUNK_INDEX = "invalid-chunk-index"
    ZERO_LENGTH_CHUNK = "zero-length-chunk"
    INVALID_MANIFEST_SPLIT_INDEX = "invalid-manifest-split-index"
    INVALID_REF_TYPE = "invalid-ref-type"
    INVALID_REF_NAME = "invalid-ref-name"
    INVALID_SNAPSHOT_ID = "invalid-snapshot-id"
    INVALID_PATH = "invalid-path"
    BAD_KEY_PREFIX = "bad-key-prefix"
    BAD_METADATA = "bad-metadata"
    BAD_PREFIX = "bad-prefix"
    NOT_AN_ARRAY = "not-an-array"
    NOT_A_GROUP = "not-a-group"
    INVALID_BYTE_RANGE = "invalid-byte-range"
    INVALID_COMMIT_CONFIGURATION = "invalid-commit-configuration"
    INVALID_ARRAY_METADATA = "invalid-array-metadata"
    INVALID_FEATURE_FLAG = "invalid-feature-flag"
    INVALID_VIRTUAL_REF = "invalid-virtual-ref"
    INVALID_CREDENTIALS = "invalid-credentials"
    NO_CONTAINER_FOR_VIRTUAL_CHUNK = "no-container-for-virtual-chunk"
    UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER = "unauthorized-virtual-chunk-container"
    EMPTY_PREFIX_CREATION = "empty-prefix-creation"
    PARENT_DIRECTORY_NOT_CLEAN = "parent-directory-not-clean"
    BAD_SNAPSHOT_CHAIN_FOR_DIFF = "bad-snapshot-chain-for-diff"
    COMMIT_NOT_ALLOWED = "commit-not-allowed"
    MERGE_NOT_ALLOWED = "merge-not-allowed"
    CANNOT_FORK_READ_ONLY_SESSION = "cannot-fork-read-only-session"
    REARRANGE_SESSION_ONLY = "rearrange-session-only"
    NON_REARRANGE_SESSION = "non-rearrange-session"
    MOVE_INTO_SELF_OR_DESCENDANT = "move-into-self-or-descendant"
    MOVE_DESTINATION_PARENT_MISSING = "move-destination-parent-missing"
    MOVE_DESTINATION_PARENT_NOT_GROUP = "move-destination-parent-not-group"
    NO_CHANGES_TO_COMMIT = "no-changes-to-commit"
    NO_AMEND_FOR_INITIAL_COMMIT = "no-amend-for-initial-commit"
    NOT_ON_BRANCH = "not-on-branch"
    NO_SNAPSHOT = "no-snapshot"
    CANNOT_DELETE_MAIN = "cannot-delete-main"
    UNCOMMITTED_CHANGES = "uncommitted-changes"
    MERGE_FAILED = "merge-failed"
    NOT_ALLOWED = "not-allowed"
    UNIMPLEMENTED = "unimplemented"
    REBASE_TX_LOG_PRUNED = "rebase-tx-log-pruned"
    FEATURE_FLAG_DISABLED = "feature-flag-disabled"
    TAG_ERROR = "tag-error"
    INVALID_REPOSITORY_MIGRATION = "invalid-repository-migration"
    OBJECT_NOT_FOUND = "object-not-found"
    OBJECT_STORE = "object-store"
    IO = "io"
    STORAGE_CONFIG = "storage-config"
    CANNOT_PARSE_URL = "cannot-parse-url"
    BAD_REDIRECT = "bad-redirect"
    SEMAPHORE_ACQUIRE = "semaphore-acquire"
    THROTTLED = "throttled"
    STORAGE_OTHER = "storage-other"
    VIRTUAL_CHUNK_FETCH = "virtual-chunk-fetch"
    VIRTUAL_CHUNK_MODIFIED = "virtual-chunk-modified"
    INVALID_OBJECT_SIZE = "invalid-object-size"
    SERIALIZATION = "serialization"
    DESERIALIZATION = "deserialization"
    CONFIG_DESERIALIZATION = "config-deserialization"
    INVALID_FILE_FORMAT = "invalid-file-format"
    UNSUPPORTED_SPEC_VERSION = "unsupported-spec-version"
    UNSUPPORTED_OPERATION_FOR_VERSION = "unsupported-operation-for-version"
    SNAPSHOT_TIMESTAMP = "snapshot-timestamp"
    DUPLICATE_SNAPSHOT_ID = "duplicate-snapshot-id"
    CONCURRENCY = "concurrency"
    FLUSH = "flush"
    PARTIAL_VALUES_PANIC = "partial-values-panic"
    CONFLICTING_PATH_NOT_FOUND = "conflicting-path-not-found"
    INCONSISTENT_MANIFESTS = "inconsistent-manifests"
    POISON_LOCK = "poison-lock"
    PICKLE = "pickle"
    UNKNOWN = "unknown"
    # ours, beyond the drop-in list
    OUTCOME_UNKNOWN = "outcome-unknown"
    PRECONDITION_FAILED = "precondition-failed"
    LIMIT_EXCEEDED = "limit-exceeded"
    INVALID_CONFIG = "invalid-config"
    SOURCE_TRUNCATED = "source-truncated"
    SOURCE_WRONG_FORMAT = "source-wrong-format"
    SOURCE_UNSUPPORTED = "source-unsupported"
    SOURCE_DAMAGED = "source-damaged"
    SOURCE_CHANGED = "source-changed"
    SOURCE_MISFIT = "source-misfit"
    SOURCE_VALUES = "source-values"
    SOURCE_UNOPENABLE = "source-unopenable"
    SPARK_NOT_AVAILABLE = "spark-not-available"
    REPOSITORY_MIGRATED = "repository-migrated"
    STORAGE_FULL = "storage-full"
    OBJECTS_COLLECTED = "objects-collected"
    ACCESS_DENIED = "access-denied"
    VIRTUAL_ACCESS_REQUIRED = "virtual-access-required"
    NOT_LOGGED_IN = "not-logged-in"
    ENTRY_NOT_FOUND = "entry-not-found"
    ENTRY_ALREADY_EXISTS = "entry-already-exists"
    ENTRY_CHANGED = "entry-changed"
    ENTRY_IN_USE = "entry-in-use"
    TOO_MANY_REQUESTS = "too-many-requests"
    SERVICE_UNAVAILABLE = "service-unavailable"
    SECRET_UNREADABLE = "secret-unreadable"  # noqa: S105 - a code
    AUDIT_TAMPERED = "audit-tampered"
    INVALID_REQUEST = "invalid-request"
    AMBIGUOUS_VERSION = "ambiguous-version"


class IcefloeError(Exception):
    """Base of every error raised on purpose by this package.

    `str()` is the message; `kind` a stable code; `context` says what and where. `__notes__`, which
    Python prints below a traceback, has both.
    """

    default_kind: ClassVar[ErrorKind] = ErrorKind.UNKNOWN

    def __init__(self, message: str, kind: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.kind: str = kind if kind is not None else self.default_kind
        self.context = context
        self.add_note(f"kind: {self.kind}")
        for name, value in context.items():
            self.add_note(f"{name}: {value}")

    def __str__(self) -> str:
        # KeyError would quote the message.
        return printable(self.message, keep="\n\t")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(
    kind: type[IcefloeError], args: tuple[object, ...], state: dict[str, object]
) -> IcefloeError:
    """Restore a pickled error without running its constructor again."""
    error = kind.__new__(kind, *args)
    error.args = args  # an `OSError` leaves this to its constructor
    error.__dict__.update(state)
    return error


IcechunkError = IcefloeError


class ConflictError(IcefloeError):
    """A commit or branch update lost a race; reload, rebase and try again."""

    default_kind = ErrorKind.COMMIT_CONFLICT

    def __init__(
        self,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        message: str | None = None,
        kind: str | None = None,
        **context: object,
    ) -> None:
        text = message or (
            f"the branch moved: expected parent {expected_parent}, found {actual_parent}"
        )
        if message is None and (kind or self.default_kind) == ErrorKind.COMMIT_CONFLICT:
            text += (
                ". The session keeps its changes: commit with rebase_with=ConflictDetector(), or "
                "another solver, to put them on top of what others committed"
            )
        super().__init__(text, kind, **context)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent


_MOST_CONFLICTS_SHOWN: Final = 10


class RebaseFailedError(ConflictError):
    """Changes contradict those of another commit, and the solver could not settle that.

    `snapshot` is the commit where it stopped, `conflicts` says what contradicts what.
    """

    default_kind = ErrorKind.REBASE_FAILED

    def __init__(self, snapshot: str, conflicts: Sequence[Any]) -> None:
        shown = [f"  {conflict}" for conflict in conflicts[:_MOST_CONFLICTS_SHOWN]]
        if len(conflicts) > len(shown):
            shown.append(f"  … and {len(conflicts) - len(shown)} more: see `.conflicts`")
        count = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
        text = "\n".join(
            [
                f"cannot rebase over the commit {snapshot}: {count}",
                *shown,
                "The session keeps its changes, on the last commit that agrees with them. Chunk "
                "conflicts and deletions can be settled with rebase(BasicConflictSolver(...)); "
                "for all others, open a new session and apply the change to the present state.",
            ]
        )
        super().__init__(message=text)
        self.snapshot = snapshot
        self.conflicts = list(conflicts)


class NotFoundError(IcefloeError, KeyError):
    """Something that was asked for by name does not exist."""

    default_kind = ErrorKind.KEY_NOT_FOUND


class NodeNotFoundError(NotFoundError):
    """No group or array at that path."""

    default_kind = ErrorKind.NODE_NOT_FOUND


class SnapshotNotFoundError(NotFoundError):
    """No snapshot with that id, or none at that time."""

    default_kind = ErrorKind.SNAPSHOT_NOT_FOUND


class RefNotFoundError(NotFoundError):
    """No branch or tag with that name."""

    default_kind = ErrorKind.REF_NOT_FOUND


class RepositoryNotFoundError(NotFoundError):
    """No repository in that storage."""

    default_kind = ErrorKind.REPOSITORY_NOT_FOUND


class AlreadyExistsError(IcefloeError):
    """The name is taken; a deleted tag's name stays taken."""

    default_kind = ErrorKind.NODE_ALREADY_EXISTS


class ReadOnlyError(IcefloeError):
    """A write through something that may only be read."""

    default_kind = ErrorKind.READ_ONLY_SESSION


class RepositoryOfflineError(ReadOnlyError):
    """The repository was taken offline: it can neither be read nor changed."""

    default_kind = ErrorKind.READ_ONLY_REPOSITORY


class SessionStateError(IcefloeError):
    """Not allowed in the session's present state."""

    default_kind = ErrorKind.NOT_ALLOWED


class RepositoryMigratedError(SessionStateError, RuntimeError):
    """The repository was opened in spec 1 and migrated to spec 2 since: open it again.

    The refused operation changed nothing.
    """

    default_kind = ErrorKind.REPOSITORY_MIGRATED


class InvalidInputError(IcefloeError, ValueError):
    """The call itself is wrong; the message says how to mend it."""

    default_kind = ErrorKind.INVALID_KEY


class WrongTypeError(InvalidInputError, TypeError):
    """A value has a type that the call does not accept."""


class AccessDeniedError(IcefloeError, PermissionError):
    """Somebody may not do this; `missing` names each grant that is missing, and who can give it."""

    default_kind = ErrorKind.ACCESS_DENIED

    def __init__(
        self,
        message: str,
        kind: str | None = None,
        *,
        missing: Sequence[Any] = (),
        **context: object,
    ) -> None:
        super().__init__(message, kind, **context)
        self.args = (message,)  # which `PermissionError` sets in a way of its own
        self.missing = tuple(missing)


class NotLoggedInError(AccessDeniedError):
    """The service does not know the caller: log in, or renew the token."""

    default_kind = ErrorKind.NOT_LOGGED_IN


class ServiceError(IcefloeError):
    """The repository service, or its database, failed; `retryable` if it may work later."""

    default_kind = ErrorKind.SERVICE_UNAVAILABLE

    def __init__(
        self, message: str, kind: str | None = None, *, retryable: bool = False, **context: object
    ) -> None:
        super().__init__(message, kind, **context)
        self.retryable = retryable


class StorageError(IcefloeError):
    """The storage failed; `retryable` says whether trying again may help."""

    default_kind = ErrorKind.STORAGE_OTHER

    def __init__(
        self,
        message: str,
        kind: str | None = None,
        *,
        retryable: bool = False,
        **context: object,
    ) -> None:
        super().__init__(message, kind, **context)
        self.retryable = retryable


class ObjectNotFoundError(StorageError, NotFoundError):
    """No object under that key."""

    default_kind = ErrorKind.OBJECT_NOT_FOUND


class PreconditionFailedError(StorageError):
    """A conditional write was refused: the object is not in the expected state."""

    default_kind = ErrorKind.PRECONDITION_FAILED


class OutcomeUnknownError(StorageError):
    """A write got no answer, and reading back could not tell whether it landed."""

    default_kind = ErrorKind.OUTCOME_UNKNOWN


class FormatError(IcefloeError):
    """Stored bytes are damaged, hostile, or of a newer format."""

    default_kind = ErrorKind.INVALID_FILE_FORMAT


class SourceError(FormatError):
    """A file that was to be ingested cannot be used; `url` names it, `kind` says why."""

    default_kind = ErrorKind.SOURCE_DAMAGED

    def __init__(
        self, message: str, kind: str | None = None, *, url: str = "", **context: object
    ) -> None:
        super().__init__(message, kind, **({"url": url} if url else {}), **context)
        self.url = url


class InternalError(IcefloeError):
    """A bug of ours: please report it."""

    default_kind = ErrorKind.UNKNOWN
