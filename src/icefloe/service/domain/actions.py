"""Actions of people, and the role that each action needs: one table.

Every route of the API declares one of these actions.
"""

from enum import StrEnum
from typing import Final

from icefloe.catalog.model import Role


class Action(StrEnum):
    """Something that a person asks the service to do."""

    SEE_SELF = "self:see"
    CHANGE_SELF = "self:change"
    CREATE_ORGANISATION = "organisation:create"
    SEE_ORGANISATION = "organisation:see"
    CHANGE_ORGANISATION = "organisation:change"
    SEE_MEMBERS = "members:see"
    CHANGE_MEMBERS = "members:change"
    SEE_BUCKETS = "buckets:see"
    CHANGE_BUCKETS = "buckets:change"
    USE_BUCKET = "buckets:use"
    """Get a credential for a whole bucket, to list it for example."""
    SEE_REPOSITORY = "repositories:see"
    OPEN_REPOSITORY = "repositories:open"
    WRITE_REPOSITORY = "repositories:write"
    CREATE_REPOSITORY = "repositories:create"
    """Create a repository in a place of a bucket where nothing is."""
    IMPORT_REPOSITORY = "repositories:import"
    """Register a repository that exists already, which lets people read its data."""
    CHANGE_REPOSITORY = "repositories:change"
    PUBLISH_REPOSITORY = "repositories:publish"
    """Change who may read a repository."""
    DELETE_REPOSITORY = "repositories:delete"
    SEE_POLICIES = "policies:see"
    CHANGE_POLICIES = "policies:change"
    SEE_LISTING = "listings:see"
    CHANGE_LISTINGS = "listings:change"
    SEE_SUBSCRIPTIONS = "subscriptions:see"
    CHANGE_SUBSCRIPTIONS = "subscriptions:change"
    UPDATE_SUBSCRIPTION = "subscriptions:update"
    """Let a filtered subscription follow the provider's newest version."""
    RELEASE_EMBARGO = "embargo:release"
    """Make public what a rolling embargo does not hold back any more."""
    SEE_JOBS = "jobs:see"
    """See how far updates and releases are that the service does in the background."""
    ASK_FOR_ACCESS = "requests:create"
    SEE_REQUESTS = "requests:see"
    DECIDE_REQUESTS = "requests:decide"
    SEE_AUDIT = "audit:see"
    RUN_SERVICE = "service:run"


LOWEST_ROLE: Final = {
    Action.SEE_ORGANISATION: Role.READER,
    Action.SEE_MEMBERS: Role.READER,
    Action.SEE_BUCKETS: Role.READER,
    Action.SEE_REPOSITORY: Role.READER,
    Action.OPEN_REPOSITORY: Role.READER,
    Action.SEE_POLICIES: Role.READER,
    Action.SEE_LISTING: Role.READER,
    Action.SEE_SUBSCRIPTIONS: Role.READER,
    Action.SEE_JOBS: Role.READER,
    Action.USE_BUCKET: Role.WRITER,
    Action.WRITE_REPOSITORY: Role.WRITER,
    Action.CREATE_REPOSITORY: Role.WRITER,
    Action.UPDATE_SUBSCRIPTION: Role.WRITER,
    Action.RELEASE_EMBARGO: Role.WRITER,
    Action.CHANGE_REPOSITORY: Role.WRITER,
    Action.CHANGE_ORGANISATION: Role.ADMIN,
    Action.CHANGE_MEMBERS: Role.ADMIN,
    Action.CHANGE_BUCKETS: Role.ADMIN,
    Action.IMPORT_REPOSITORY: Role.ADMIN,
    Action.PUBLISH_REPOSITORY: Role.ADMIN,
    Action.DELETE_REPOSITORY: Role.ADMIN,
    Action.CHANGE_POLICIES: Role.ADMIN,
    Action.CHANGE_LISTINGS: Role.ADMIN,
    Action.CHANGE_SUBSCRIPTIONS: Role.ADMIN,
    Action.SEE_REQUESTS: Role.ADMIN,
    Action.DECIDE_REQUESTS: Role.ADMIN,
    Action.SEE_AUDIT: Role.ADMIN,
}
"""The lowest role in an organisation that may do an action there."""

FOR_EVERYBODY: Final = frozenset({Action.SEE_SELF, Action.CHANGE_SELF, Action.ASK_FOR_ACCESS})
"""Actions of everybody who is logged in."""

FOR_OPERATORS: Final = frozenset({Action.CREATE_ORGANISATION, Action.RUN_SERVICE, Action.SEE_AUDIT})
"""Actions of the people who run the service. They read no data by it."""

RANK: Final = {Role.READER: 1, Role.WRITER: 2, Role.ADMIN: 3}

_FOR_READERS: Final = FOR_EVERYBODY - {Action.CHANGE_SELF}
BUNDLES: Final[dict[str, frozenset[Action]]] = {
    "read": _FOR_READERS | {a for a, role in LOWEST_ROLE.items() if role is Role.READER},
    "write": _FOR_READERS | {a for a, role in LOWEST_ROLE.items() if role is not Role.ADMIN},
    "admin": frozenset(Action),
}
"""Names that the scope of a token may use for many actions."""
