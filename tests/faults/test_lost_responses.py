"""Writes to S3 whose answer is lost: recognised, repeated, or honestly unknown."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage import Backend, Storage, Version
from tests.support.proxy import (
    AnswerInstead,
    CuttingProxy,
    Delay,
    LoseRequest,
    LoseResponse,
    ProxyFault,
)

pytestmark = pytest.mark.server


def text_of(backend: Backend, key: str = "object") -> str:
    return bytes(run_blocking(backend.get(key)).data).decode()


def overwrite(witness: Backend) -> None:
    run_blocking(witness.put("object", b"somebody else's"))


def remove(witness: Backend) -> None:
    run_blocking(witness.delete_many(["object"]))


def methods(proxy: CuttingProxy) -> list[str]:
    return [exchange.method for exchange in proxy.exchanges]


class Write:
    """A conditional write, ready to be made: a creation or an update."""

    def __init__(
        self,
        backend: Backend,
        witness: Backend,
        *,
        is_update: bool,
        run: Callable[[Coroutine[Any, Any, Version]], Version] = run_blocking,
    ) -> None:
        self._backend = backend
        self._run = run
        self._version: Version | None = None
        if is_update:
            self._version = run_blocking(witness.put("object", b"before"))
        self.before = "before" if is_update else None

    def __call__(self) -> Version:
        return self._run(
            self._backend.put(
                "object",
                b"ours",
                if_absent=self._version is None,
                if_version=self._version,
                attributes={"icclient": "test"},
            )
        )


def run_on_loop(work: Coroutine[Any, Any, Version]) -> Version:
    return asyncio.run(work)


@pytest.fixture(params=[False, True], ids=["create", "update"])
def is_update(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[run_blocking, run_on_loop], ids=["blocking", "async"])
def write(
    request: pytest.FixtureRequest, backend: Backend, witness: Backend, is_update: bool
) -> Write:
    return Write(backend, witness, is_update=is_update, run=request.param)


def stored(witness: Backend) -> str | None:
    try:
        return text_of(witness)
    except ObjectNotFoundError:
        return None


class TestTheServerWrote:
    def test_lost_response_is_recognised(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        proxy.plan(LoseResponse(method="PUT"))
        version = write()
        assert stored(witness) == "ours"
        assert run_blocking(witness.head("object")).info.version == version
        assert methods(proxy) == ["PUT", "HEAD"]

    @pytest.mark.parametrize("status", [500, 502, 503])
    def test_error_after_the_fact_is_recognised(
        self, write: Write, proxy: CuttingProxy, witness: Backend, status: int
    ) -> None:
        """The server did the work and a gateway said that it failed."""
        proxy.plan(AnswerInstead(method="PUT", status=HTTPStatus(status), after_forwarding=True))
        version = write()
        assert stored(witness) == "ours"
        assert run_blocking(witness.head("object")).info.version == version

    def test_lost_twice(self, write: Write, proxy: CuttingProxy, witness: Backend) -> None:
        """The answer of the write is lost, and so is that of looking after it."""
        proxy.plan(LoseResponse(method="PUT"), LoseResponse(method="HEAD"))
        write()
        assert stored(witness) == "ours"
        assert methods(proxy) == ["PUT", "HEAD", "HEAD"]

    def test_overwritten_meanwhile_is_unknown(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        """Neither a success nor a conflict can be told apart any more."""
        proxy.plan(LoseResponse(method="PUT", meanwhile=functools.partial(overwrite, witness)))
        with pytest.raises(OutcomeUnknownError):
            write()
        assert stored(witness) == "somebody else's"

    def test_nobody_can_look(self, write: Write, proxy: CuttingProxy, witness: Backend) -> None:
        """The write landed, then the network is gone: unknown, not failed."""
        proxy.plan(LoseResponse(method="PUT"), LoseRequest(times=None))
        with pytest.raises(OutcomeUnknownError) as caught:
            write()
        assert not isinstance(caught.value, PreconditionFailedError)
        assert stored(witness) == "ours"


def test_deleted_meanwhile_after_an_update_is_unknown(
    backend: Backend, proxy: CuttingProxy, witness: Backend
) -> None:
    write = Write(backend, witness, is_update=True)
    proxy.plan(LoseResponse(method="PUT", meanwhile=functools.partial(remove, witness)))
    with pytest.raises(OutcomeUnknownError):
        write()
    assert stored(witness) is None


class TestTheServerDidNotWrite:
    def test_lost_request_is_repeated(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        proxy.plan(LoseRequest(method="PUT"))
        write()
        assert stored(witness) == "ours"
        assert methods(proxy).count("PUT") == 2

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_passing_errors_are_repeated(
        self, write: Write, proxy: CuttingProxy, witness: Backend, status: int
    ) -> None:
        proxy.plan(AnswerInstead(method="PUT", status=HTTPStatus(status), times=2))
        write()
        assert stored(witness) == "ours"
        assert methods(proxy).count("PUT") == 3

    def test_denial_is_reported_at_once(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        proxy.plan(AnswerInstead(method="PUT", status=HTTPStatus.FORBIDDEN, times=None))
        with pytest.raises(StorageError) as caught:
            write()
        assert not isinstance(caught.value, OutcomeUnknownError | PreconditionFailedError)
        assert not caught.value.retryable
        assert stored(witness) == write.before
        assert methods(proxy) == ["PUT"]

    def test_all_attempts_turned_away(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        """A server that says "too many" did not look at the request: known not to be written."""
        proxy.plan(AnswerInstead(method="PUT", status=HTTPStatus.TOO_MANY_REQUESTS, times=None))
        with pytest.raises(StorageError) as caught:
            write()
        assert not isinstance(caught.value, OutcomeUnknownError)
        assert caught.value.retryable
        assert stored(witness) == write.before

    def test_conflict_is_a_conflict(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        """Somebody was faster, and no answer was lost."""
        overwrite(witness)
        proxy.plan()
        with pytest.raises(PreconditionFailedError):
            write()
        assert stored(witness) == "somebody else's"

    def test_conflict_after_a_lost_request_is_unknown(
        self, write: Write, proxy: CuttingProxy, witness: Backend
    ) -> None:
        """From here a lost request and a lost response look the same."""
        overwrite(witness)
        proxy.plan(LoseRequest(method="PUT"))
        with pytest.raises(OutcomeUnknownError):
            write()
        assert stored(witness) == "somebody else's"


def test_slow_answer_is_no_lost_answer(write: Write, proxy: CuttingProxy, witness: Backend) -> None:
    proxy.plan(Delay(method="PUT", seconds=0.3))
    write()
    assert stored(witness) == "ours"
    assert methods(proxy) == ["PUT"]


FAULTS: list[ProxyFault] = [
    LoseRequest(),
    LoseResponse(),
    AnswerInstead(status=HTTPStatus.INTERNAL_SERVER_ERROR),
    AnswerInstead(status=HTTPStatus.SERVICE_UNAVAILABLE, times=2),
    AnswerInstead(status=HTTPStatus.TOO_MANY_REQUESTS, times=2),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
class TestOtherRequests:
    """What can be repeated as it is, is repeated and counted."""

    @pytest.fixture(autouse=True)
    def objects(self, witness: Backend) -> None:
        for key in ("object", "other"):
            run_blocking(witness.put(key, b"0123456789"))

    def test_get(self, backend: Backend, proxy: CuttingProxy, fault: ProxyFault) -> None:
        proxy.plan(fault)
        assert text_of(backend) == "0123456789"

    def test_ranges(
        self, backend: Backend, storage: Storage, proxy: CuttingProxy, fault: ProxyFault
    ) -> None:
        proxy.plan(fault)
        before = storage.request_counts()
        found = run_blocking(backend.get_ranges("object", [(0, 2), (8, 10)]))
        assert [bytes(each) for each in found] == [b"01", b"89"]
        assert (storage.request_counts() - before).retries == fault.times

    def test_head(self, backend: Backend, proxy: CuttingProxy, fault: ProxyFault) -> None:
        proxy.plan(fault)
        assert run_blocking(backend.head("object")).info.size_bytes == 10

    def test_list(self, backend: Backend, proxy: CuttingProxy, fault: ProxyFault) -> None:
        async def listed() -> set[str]:
            return {info.key async for batch in backend.list() for info in batch}

        proxy.plan(fault)
        assert run_blocking(listed()) == {"object", "other"}

    def test_plain_put(
        self, backend: Backend, witness: Backend, proxy: CuttingProxy, fault: ProxyFault
    ) -> None:
        proxy.plan(fault)
        run_blocking(backend.put("object", b"new"))
        assert text_of(witness) == "new"

    def test_copy(
        self, backend: Backend, witness: Backend, proxy: CuttingProxy, fault: ProxyFault
    ) -> None:
        proxy.plan(fault)
        run_blocking(backend.copy("object", "copy"))
        assert text_of(witness, "copy") == "0123456789"

    def test_delete(
        self, backend: Backend, witness: Backend, proxy: CuttingProxy, fault: ProxyFault
    ) -> None:
        proxy.plan(fault)
        report = run_blocking(backend.delete_many(["object", "other"]))
        assert (report.deleted, dict(report.failures)) == (2, {})
        assert stored(witness) is None
