"""The parts that all pages for members have: who may see them, and how they use the API.

A page is a client of the API: it calls the functions behind its routes, with a permit for the same
action. So both decide, count, check versions and write to the audit in the same way.
"""

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from icefloe.errors import ErrorKind, InvalidInputError, NotLoggedInError
from icefloe.printable import printable
from icefloe.reports import shown_bytes
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Resource
from icefloe.service.http.access import Permit, admit
from icefloe.service.pages.site import Visit, Visitor, page, quoted, redirect

LONGEST_SHOWN = 2000
"""The most characters of a text that a page repeats."""


def may_visit(action: Action) -> Callable[..., Permit]:
    """Return a dependency that lets a browser pass if its person may do an action."""

    def permit(request: Request, visit: Visitor) -> Permit:
        session = visit.session
        if session is None:
            raise NotLoggedInError("log in to see this page")
        return admit(request, session.caller, action, Resource(request.path_params.get("org")))

    permit.action = action  # type: ignore[attr-defined]
    return permit


class MembersRoute(APIRoute):
    """A page that sends a browser in which nobody is logged in to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def answer_or_log_in(request: Request) -> Response:
            try:
                return await answer(request)
            except NotLoggedInError:
                url = request.url
                path = f"{url.path}?{url.query}" if url.query else url.path
                return redirect(f"/login?next={quoted(path if request.method == 'GET' else '/')}")

        return answer_or_log_in


def show(visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page; its template has functions that show texts, moments and sizes."""
    return page(visit, template, status, shown=shown, moment=moment, size=shown_bytes, **values)


def shown(value: object) -> str:
    r"""Return a text that does nothing on a page, of a length that a page can have.

    >>> print(shown("a\u202eb"))
    a\u202eb
    """
    text = str(value)
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return printable(cut, keep="\n")


def moment(value: datetime | None) -> str:
    """Return a moment as people read it.

    >>> moment(datetime(2026, 1, 1, tzinfo=UTC))
    '2026-01-01 00:00 UTC'
    """
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def field_of(value: datetime | None) -> str:
    """Return a moment as the content of a field for a moment in UTC.

    >>> field_of(datetime(2026, 1, 1, tzinfo=UTC))
    '2026-01-01T00:00:00'
    """
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def moment_of(text: str, label: str) -> datetime | None:
    """Return the moment in a field; in UTC, unless it has a time zone; None for an empty one."""
    if not text.strip():
        return None
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        problem = f"{label}: write a moment like 2026-01-31T12:00, in UTC"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def words_of(text: str) -> list[str]:
    """Return the names in a field, with commas or spaces between them."""
    return text.replace(",", " ").split()


def record_of[T](kind: type[T], value: object) -> T:
    """Make the body of a request of the fields of a form, with the checks of the API."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem = shown(f"not understood: {error}")
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None


def result_of[T](response: Response, kind: type[T]) -> T:
    """Return the record in an answer of the API."""
    return msgspec.json.decode(bytes(response.body), type=kind)


def if_match(fields: Mapping[str, str]) -> str | None:
    """Return the version that a form was made from, as the header `If-Match` has it."""
    version = fields.get("version")
    return f'"{version}"' if version else None
