"""Whether a repository takes writes."""

from datetime import UTC, datetime
from typing import Self, cast

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.update_table import Status
from icefloe.values import Moment, NamedNumber, Value, value_class
from icefloe.values.times import to_datetime, to_microseconds


class RepoAvailability(NamedNumber):
    """The state of a repository: online, read-only or offline.

    A `read_only` one refuses commits and every change of branches and tags until it is set
    `online` again. An `offline` one refuses to be read as well: no version of it can be looked
    up or opened. Sessions that were opened before go on reading.

    >>> RepoAvailability.read_only
    icefloe.RepoAvailability.read_only
    """

    online = 0
    read_only = 1
    offline = 2


@value_class
class RepoStatus(Value):
    """Whether a repository takes writes, since when, and why not.

    >>> status = RepoStatus(
    ...     RepoAvailability.read_only, limited_availability_reason="moving to a new bucket"
    ... )
    >>> status.limited_availability_reason
    'moving to a new bucket'
    """

    availability: RepoAvailability
    set_at: Moment = cast("datetime", None)
    limited_availability_reason: str | None = None

    def __post_init__(self) -> None:
        if self.set_at is None:
            object.__setattr__(self, "set_at", datetime.now(UTC))
        Value.__post_init__(self)

    @classmethod
    def of(cls, status: Status) -> Self:
        """Show a stored status to users."""
        try:
            availability = RepoAvailability(status.availability)
        except ValueError as error:
            raise FormatError(
                f"the repository has the unknown availability {status.availability}: "
                "upgrade icefloe",
                ErrorKind.UNSUPPORTED_SPEC_VERSION,
            ) from error
        return cls(availability, to_datetime(status.set_at), status.reason)

    def stored(self) -> Status:
        """Return the form that is written."""
        return Status(
            int(self.availability),
            to_microseconds(self.set_at, "RepoStatus.set_at"),
            self.limited_availability_reason,
        )
