"""The treatment of every request: an id, a limit of its body, a line in the log, plain headers.

A creation with an `Idempotency-Key` is done once. A client that lost the answer sends the same
request again and gets the same answer.
"""

import asyncio
import hashlib
import inspect
import logging
import re
import secrets as random
import time
from datetime import timedelta
from typing import Any, Final

import msgspec
from fastapi import HTTPException, Request, Response
from sqlalchemy import delete, insert, select, update
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icefloe.errors import ConflictError, ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import Record
from icefloe.service.database import tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.vault import decrypt, encrypt
from icefloe.service.http.access import find_caller, service_of
from icefloe.service.runtime import Service

API: Final = "/api/v1"
_log: Final = logging.getLogger("icefloe.service.requests")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Headers of all answers that do not have others."""


class Gate:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        sent_id = request.headers.get("x-request-id", "")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else random.token_hex(8)
        request.state.request_id = request_id
        begin, status = time.perf_counter(), 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = {name.lower() for name, _ in message["headers"]}
                usual = [header for header in _HEADERS if header[0] not in names]
                added = [*usual, (b"x-request-id", request_id.encode())]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            await self._app(scope, _limited(request, receive), send_on)
        except Exception as error:
            if status:  # too late for another answer
                raise
            response = await _answer_of(request, error)
            await response(scope, receive, send_on)
        finally:
            _note(request, status, time.perf_counter() - begin)


async def _answer_of(request: Request, error: Exception) -> Response:
    """Return the answer for an error outside of all routes."""
    handlers = request.app.exception_handlers
    handler = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
    answer = handler(request, error)
    response: Response = await answer if inspect.isawaitable(answer) else answer
    return response


def _limited(request: Request, receive: Receive) -> Receive:
    """Return a channel that refuses a body that is too large, before it is in memory."""
    most = service_of(request).settings.most_body_bytes
    total = 0

    async def receive_some() -> Message:
        nonlocal total
        message = await receive()
        if message["type"] == "http.request":
            total += len(message.get("body", b""))
            if total > most:
                raise HTTPException(413, f"the body of a request has at most {most} bytes")
        return message

    return receive_some


def _note(request: Request, status: int, seconds: float) -> None:
    """Count a request, and write it to the log: by its route, as paths may contain secrets."""
    route: str = getattr(request.scope.get("route"), "path", "none")
    if request.url.path.startswith(API) and not route.startswith(API):
        route = API + route  # a route knows its path below its router only
    service_of(request).metrics.count_request(request.method, route, status, seconds)
    fields = {
        "request_id": request.state.request_id,
        "method": request.method,
        "route": route,
        "status": status,
        "milliseconds": round(seconds * 1000, 1),
        "person": getattr(request.state, "person", None),
        "address": request.client.host if request.client else None,
    }
    text = "%s %s %s in %s ms"
    values = (request.method, route, status, fields["milliseconds"])
    _log.info(text, *values, extra={"fields": fields})


# Idempotency keys

_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
_REMEMBERED: Final = timedelta(days=1)
_RUNNING: Final = timedelta(minutes=1)
"""How long a request may run before another one with its key is tried."""


class _Answer(Record):
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Once:
    """Makes a creation with an idempotency key happen once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        key = request.headers.get("idempotency-key")
        service = service_of(request)
        caller = None
        if key is not None:
            caller = await asyncio.to_thread(_find_caller, service, request)
        if key is None or caller is None:  # who is not logged in creates nothing
            await self._app(scope, receive, send)
            return
        body = await request.body()
        entry = _Entry(service, caller.person.name, key, request, body)
        try:
            stored = await asyncio.to_thread(entry.begin)
        except IcefloeError as error:
            await (await _answer_of(request, error))(scope, receive, send)
            return
        if stored is not None:
            await send({"type": "http.response.start", "status": 201, "headers": stored.headers})
            await send({"type": "http.response.body", "body": stored.body})
            return
        await self._run(entry, scope, body, send)

    async def _run(self, entry: "_Entry", scope: Scope, body: bytes, send: Send) -> None:
        messages: list[Message] = []
        is_read = False

        async def receive_again() -> Message:
            nonlocal is_read
            if is_read:
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Message) -> None:
            messages.append(message)

        answer = None
        try:
            await self._app(scope, receive_again, collect)
            content = b"".join(message.get("body", b"") for message in messages[1:])
            if messages and messages[0]["status"] == 201:
                answer = _Answer(list(messages[0]["headers"]), content)
        finally:
            # An answer that is not kept lets the client try again with the same key.
            await asyncio.to_thread(entry.end, answer)
        for message in messages:
            await send(message)


def _find_caller(service: Service, request: Request) -> Caller | None:
    with service.database.reading() as connection:
        return find_caller(service, connection, request)


class _Entry:
    """A request with a key, in the database."""

    def __init__(
        self, service: Service, person: str, key: str, request: Request, body: bytes
    ) -> None:
        self._service: Final = service
        self._person: Final = person
        self._key: Final = key
        url = f"{request.method} {request.url.path}?{request.url.query}\n"
        self._digest: Final = hashlib.sha256(url.encode() + body).digest()
        self._context: Final = f"answer/{person}/{key}".encode()

    @property
    def _row(self) -> Any:
        table = tables.answers
        return (table.c.person == self._person) & (table.c.key == self._key)

    def begin(self) -> _Answer | None:
        """Return the stored answer; None for a request that is to be done now."""
        if _KEY.fullmatch(self._key) is None:
            problem = "an Idempotency-Key has 1 to 200 visible characters of ASCII"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        table, now = tables.answers, self._service.clock()
        with self._service.database.writing() as connection:
            connection.execute(delete(table).where(table.c.expires_at <= now))
            row = connection.execute(select(table).where(self._row)).first()
            if row is None:
                values = {
                    "person": self._person,
                    "key": self._key,
                    "request": self._digest,
                    "status": 0,
                    "body": b"",
                    "expires_at": now + _RUNNING,
                }
                connection.execute(insert(table).values(values))
                return None
        if bytes(row.request) != self._digest:
            problem = "this Idempotency-Key belongs to another request: use a new one"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        if row.status == 0:
            problem = "a request with this Idempotency-Key is running: ask again"
            raise ConflictError(message=problem, kind=ErrorKind.ENTRY_IN_USE, retry_after=1)
        content = decrypt(self._service.keys.answers, bytes(row.body), self._context)
        return msgspec.msgpack.decode(content, type=_Answer)

    def end(self, answer: _Answer | None) -> None:
        """Store the answer, sealed, as it may contain a secret; or forget the request."""
        table, now = tables.answers, self._service.clock()
        with self._service.database.writing() as connection:
            if answer is None:
                connection.execute(delete(table).where(self._row))
                return
            content = msgspec.msgpack.encode(answer)
            body = encrypt(self._service.keys.answers, content, self._context)
            values = {"status": 201, "body": body, "expires_at": now + _REMEMBERED}
            connection.execute(update(table).where(self._row).values(values))
