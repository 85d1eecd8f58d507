"""The keeping of credentials: made once for all who wait, used until shortly before their end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from icefloe.catalog.model import Delegation
from icefloe.catalog.wire import CredentialAnswer
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.vending.grants import Grant, Secret, Vendor, check_grant

MARGIN: Final = timedelta(minutes=5)
"""How long before its end a credential is not handed out any more."""
_FORGETTING_STEP: Final = timedelta(minutes=1)


class Minted(Record):
    """A credential, and whether it was made for this request."""

    credential: CredentialAnswer
    is_new: bool


class Broker:
    """Hands out credentials for grants."""

    def __init__(
        self,
        vendors: Mapping[Delegation, Vendor],
        clock: Callable[[], datetime],
        before_mint: Callable[[Grant], None] = lambda _: None,
    ) -> None:
        self._before_mint: Final = before_mint
        """Called before a credential is made, which an error of it prevents."""
        self._vendors: Final = vendors
        self._clock: Final = clock
        self._kept: Final[dict[Grant, CredentialAnswer]] = {}
        self._waiting: Final[dict[Grant, asyncio.Task[CredentialAnswer]]] = {}
        self._forgot_at: datetime | None = None
        self.mints = 0
        """How many credentials were made."""

    def kept(self, grant: Grant) -> Minted | None:
        """Return the credential that was made for a grant before; None if there is no good one."""
        check_grant(grant)
        credential = self._kept.get(grant)
        if credential is None or not self._is_good(credential):
            return None
        return Minted(credential, is_new=False)

    async def get(
        self, grant: Grant, load_secret: Callable[[], Awaitable[Secret]], external_id: str
    ) -> Minted:
        """Return a credential for a grant; `load_secret` is called only if a new one is made."""
        if (kept := self.kept(grant)) is not None:
            return kept
        task = self._waiting.get(grant)
        is_first = task is None
        if task is None:
            task = asyncio.create_task(self._mint(grant, load_secret, external_id))
            self._waiting[grant] = task
            task.add_done_callback(lambda _: self._waiting.pop(grant, None))
        # Who gives up waiting must not take the credential from the others.
        return Minted(await asyncio.shield(task), is_new=is_first)

    async def _mint(
        self, grant: Grant, load_secret: Callable[[], Awaitable[Secret]], external_id: str
    ) -> CredentialAnswer:
        vendor = self._vendors.get(grant.bucket.delegation)
        if vendor is None:
            problem = f"this service makes no credentials by {grant.bucket.delegation.value!r}"
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
        self._before_mint(grant)
        secret = await load_secret()
        credential = await vendor.vend(grant, secret, external_id)
        self.mints += 1
        self._forget_ended()
        self._kept[grant] = credential
        return credential

    def _is_good(self, credential: CredentialAnswer) -> bool:
        end = credential.expires_at
        return end is None or self._clock() < end - MARGIN

    def _forget_ended(self) -> None:
        """Forget the credentials that nobody gets any more, once in a while."""
        now = self._clock()
        if self._forgot_at is not None and now - self._forgot_at < _FORGETTING_STEP:
            return
        self._forgot_at = now
        for grant in [g for g, credential in self._kept.items() if not self._is_good(credential)]:
            del self._kept[grant]
