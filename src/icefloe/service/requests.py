"""Access requests: from a refusal to a grant.

Somebody who was refused asks. The admins of the organisation that owns the data see what exactly
is missing, as a policy or a subscription, before they grant it. A grant that would not let the
asker in is refused, so that nobody shares something for nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, func, select

from icefloe.catalog.model import (
    AccessRequest,
    Bucket,
    Decision,
    PolicyScope,
    Repository,
    Subscription,
    SubscriptionKind,
)
from icefloe.catalog.wire import PolicySettings
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, ServiceError
from icefloe.service.database import accounts, rows, tables
from icefloe.service.database.assets import last_containers, new_id
from icefloe.service.database.facts import load_entry, load_facts, load_offers
from icefloe.service.domain.decide import (
    PROVIDER_CONTAINER,
    Facts,
    Missing,
    match_containers,
)
from icefloe.service.domain.locations import (
    Location,
    Reason,
    bucket_location,
    screen,
)

MOST_PENDING: Final = 20
"""How many requests of one person may wait for an answer."""
MOST_A_DAY: Final = 50
"""How many requests one person may send within a day."""
_GRANTABLE: Final = frozenset({Reason.NO_POLICY, Reason.WRONG_SCOPE, Reason.EMBARGOED})


def missing_grants(facts: Facts, container: str | None = None) -> list[Missing]:
    """Return the containers of a repository that somebody may not read, or the one that is asked.

    Raise `InvalidInputError` if nothing is missing, or if nobody on the service can grant it.
    """
    missing = [m for m in match_containers(facts) if isinstance(m, Missing)]
    if container is not None:
        missing = [m for m in missing if m.container == container]
    if not missing:
        problem = "nothing that you asked for was missing when the repository was last opened"
        raise InvalidInputError(f"{problem}: open it again", ErrorKind.INVALID_REQUEST)
    if not any(m.owner for m in missing):
        names = ", ".join(f"{m.container} ({m.what_to_do})" for m in missing)
        problem = f"nobody on this service can grant {names}"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return [m for m in missing if m.owner]


def ask(
    connection: Connection,
    person: str,
    repository: Repository,
    missing: Sequence[Missing],
    message: str,
    now: datetime,
) -> list[AccessRequest]:
    """Add a request for each container; one that waits for an answer already is kept."""
    # Two requests of one person at once must not each see the other's place free.
    people, table = tables.people, tables.access_requests
    connection.execute(select(people.c.name).where(people.c.name == person).with_for_update())
    requests: list[AccessRequest] = []
    for grant in missing:
        key = {"person": person, "repository": repository.full_name, "container": grant.container}
        waiting = rows.find(connection, table, AccessRequest, state=Decision.PENDING, **key)
        if waiting is None:
            _check_number(connection, person, now)
            waiting = AccessRequest(
                new_id("request"),
                person,
                repository.full_name,
                grant.owner or "",
                grant.container,
                grant.reason,
                message,
                created_at=now,
            )
            rows.add(connection, table, waiting)
        requests.append(waiting)
    return requests


def _check_number(connection: Connection, person: str, now: datetime) -> None:
    table = tables.access_requests
    of_person = select(func.count()).select_from(table).where(table.c.person == person)
    is_pending, is_new = table.c.state == Decision.PENDING, table.c.created_at > now - _DAY
    pending = connection.execute(of_person.where(is_pending)).scalar_one()
    new = connection.execute(of_person.where(is_new)).scalar_one()
    if pending >= MOST_PENDING or new >= MOST_A_DAY:
        problem = f"{pending} of your requests wait for an answer, {new} are of the last day"
        limits = f"at most {MOST_PENDING} and {MOST_A_DAY} are accepted"
        raise ServiceError(f"{problem}; {limits}: try it later", ErrorKind.TOO_MANY_REQUESTS)


_DAY: Final = timedelta(days=1)


class Case:
    """A request with everything that its decision depends on, as things are now."""

    def __init__(
        self,
        connection: Connection,
        request: AccessRequest,
        now: datetime,
        *,
        allows_anonymous: bool,
    ) -> None:
        self._connection = connection
        self._now = now
        self._allows_anonymous = allows_anonymous
        self.request = request
        organisation, _, name = request.repository.partition("/")
        entry = load_entry(connection, organisation, name)
        if entry is None:
            problem = f"the repository {request.repository} does not exist any more: decline"
            raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
        self._entry = entry
        self.roles = accounts.roles_of(connection, request.person)
        self.missing = self._missing()

    def _missing(self) -> Missing | None:
        facts = self._facts()
        for answer in match_containers(facts):
            if isinstance(answer, Missing) and answer.container == self.request.container:
                return answer
        return None

    def _facts(self) -> Facts:
        repository = self._entry.repository
        return load_facts(
            self._connection,
            self._entry,
            last_containers(self._connection, repository),
            load_offers(self._connection, repository, self.roles, self._now),
            allows_anonymous=self._allows_anonymous,
        )

    def obstacle(self) -> str | None:
        """Return why no policy or subscription could help; None if one could."""
        if self.missing is None:
            return "nothing is missing any more: the asker can open the repository"
        if self.missing.reason not in _GRANTABLE:
            return f"{self.missing.reason}: {self.missing.what_to_do}"
        if self.subscription() is None and self.policy() is None:
            return "no bucket of this organisation covers the container any more"
        return None

    def subscription(self) -> Subscription | None:
        """Return the subscription that would have to begin again, if that is what is missing."""
        facts = self._facts()
        names = {c.name for c in facts.containers if c.url_prefix == self.request.container}
        if PROVIDER_CONTAINER not in names:
            return None
        kind = SubscriptionKind.FILTERED
        return next((s for s in facts.subscriptions if s.kind is kind), None)

    def policy(self) -> PolicySettings | None:
        """Return the narrowest policy that would let the asker in, if a policy is missing."""
        bucket, location = self._bucket()
        if bucket is None or location is None:
            return None
        depth = len(bucket_location(bucket).segments)
        prefix = "".join(f"{segment}/" for segment in location.segments[depth:])
        owner, home = self.request.organisation, self._entry.repository.organisation
        if owner in self.roles:
            return PolicySettings(bucket.name, prefix)
        if home in self.roles:
            return PolicySettings(bucket.name, prefix, shared_with=(home,))
        if self.roles:
            return PolicySettings(bucket.name, prefix, shared_with=tuple(sorted(self.roles)))
        return PolicySettings(bucket.name, prefix, PolicyScope.ANYONE)

    def _bucket(self) -> tuple[Bucket | None, Location | None]:
        facts = self._facts()
        for container in facts.containers:
            location = screen(container)
            if container.url_prefix != self.request.container or not isinstance(location, Location):
                continue
            for bucket in facts.buckets:
                stored = bucket_location(bucket)
                here = Location(stored.platform, stored.store, location.bucket, location.segments)
                if bucket.organisation == self.request.organisation and stored.covers(here):
                    return bucket, here
        return None, None

    def require_granted(self) -> None:
        """Raise an error unless the asker may read the container, after what was changed now."""
        missing = self._missing()
        if missing is not None:
            problem = f"this would not let {self.request.person} read {self.request.container}"
            raise InvalidInputError(f"{problem}: {missing.reason}", ErrorKind.INVALID_REQUEST)
