"""The keeping of credentials: made once for all who wait, used until shortly before their end."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from icefloe.catalog.model import Delegation
from icefloe.catalog.wire import CredentialAnswer
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.vending.grants import Grant, Secret, Vendor, check_grant

MARGIN: Final = timedelta(minutes=5)
"""How long before its end a credential is not handed out any more."""
_FORGETTING_SECONDS: Final = 60.0
_FRESH_SECONDS: Final = 10.0
"""The age up to which another credential than a refused one is not suspected, too."""


class Minted(Record):
    """A credential, and whether it was made for this request."""

    credential: CredentialAnswer
    is_new: bool
    seconds_left: float | None = None
    """How long it lives yet, whatever became of the clock; None if it does not end."""


class _Kept(Record):
    """A credential with the reading of a clock that nobody sets."""

    credential: CredentialAnswer
    made_at: float
    life: float | None
    """In seconds; None for a credential without end."""


class Broker:
    """Hands out credentials for grants."""

    def __init__(
        self,
        vendors: Mapping[Delegation, Vendor],
        clock: Callable[[], datetime],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vendors: Final = vendors
        self._clock: Final = clock
        self._monotonic: Final = monotonic
        self._kept: Final[dict[Grant, _Kept]] = {}
        self._waiting: Final[dict[Grant, asyncio.Task[_Kept]]] = {}
        self._forgot_at: float | None = None
        self.mints = 0
        """How many credentials were made."""

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return grants that a credential can be made for, which together say what a grant says."""
        return self._vendor(grant).divide(grant)

    def kept(self, grant: Grant, refused: Collection[str] = ()) -> Minted | None:
        """Return the credential that was made for a grant before; None if there is no good one.

        `refused` has the fingerprints of credentials that the store refused: see `get`.
        """
        check_grant(grant)
        minted = self._kept.get(grant)
        if minted is None or not self._is_good(minted) or self._is_suspect(minted, refused):
            return None
        return self._minted(minted, is_new=False)

    async def get(
        self,
        grant: Grant,
        load_secret: Callable[[], Awaitable[Secret]],
        external_id: str,
        *,
        refused: Collection[str] = (),
    ) -> Minted:
        """Return a credential for a grant; `load_secret` is called only if a new one is made.

        `refused` has the fingerprints of credentials that the store refused before their end. They
        are not handed out again, nor is any other that may have ended with them.
        """
        if (minted := self.kept(grant, refused)) is not None:
            return minted
        task = self._waiting.get(grant)
        is_first = task is None
        if task is None:
            task = asyncio.create_task(self._mint(grant, load_secret, external_id))
            self._waiting[grant] = task
            task.add_done_callback(lambda _: self._waiting.pop(grant, None))
        # Who gives up waiting must not take the credential from the others.
        return self._minted(await asyncio.shield(task), is_new=is_first)

    async def _mint(
        self, grant: Grant, load_secret: Callable[[], Awaitable[Secret]], external_id: str
    ) -> _Kept:
        vendor = self._vendor(grant)
        secret = await load_secret()
        asked_at = self._monotonic()
        credential = await vendor.vend(grant, secret, external_id)
        self.mints += 1
        self._forget_ended()
        life, end = None, credential.expires_at
        if end is not None:
            life = max(0.0, min((end - self._clock()).total_seconds(), grant.seconds))
        minted = self._kept[grant] = _Kept(credential, asked_at, life)
        return minted

    def _vendor(self, grant: Grant) -> Vendor:
        vendor = self._vendors.get(grant.bucket.delegation)
        if vendor is None:
            problem = f"this service makes no credentials by {grant.bucket.delegation.value!r}"
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
        return vendor

    def _minted(self, minted: _Kept, *, is_new: bool) -> Minted:
        return Minted(minted.credential, is_new, self._seconds_left(minted))

    def _seconds_left(self, minted: _Kept) -> float | None:
        if minted.life is None:
            return None
        return max(0.0, minted.made_at + minted.life - self._monotonic())

    def _is_good(self, minted: _Kept) -> bool:
        """Return whether a credential lives a while yet, by the clock and since it was made."""
        end, left = minted.credential.expires_at, self._seconds_left(minted)
        if end is None or left is None:
            return True
        return self._clock() < end - MARGIN and left > MARGIN.total_seconds()

    def _is_suspect(self, minted: _Kept, refused: Collection[str]) -> bool:
        if not refused:
            return False
        is_fresh = self._monotonic() < minted.made_at + _FRESH_SECONDS
        return not is_fresh or minted.credential.fingerprint in refused

    def _forget_ended(self) -> None:
        """Forget the credentials that nobody gets any more, once in a while."""
        now = self._monotonic()
        if self._forgot_at is not None and now - self._forgot_at < _FORGETTING_SECONDS:
            return
        self._forgot_at = now
        for grant in [grant for grant, minted in self._kept.items() if not self._is_good(minted)]:
            del self._kept[grant]
