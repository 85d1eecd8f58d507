"""The whole application: the API, and pages for people with a browser.

Pages come from templates with escaping, load nothing but a style sheet, and contain no script. A
form carries a token that only our own page could have: see `login.csrf_token`.
"""

import hmac
import secrets as random
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, cast
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.staticfiles import StaticFiles

from icefloe.errors import AccessDeniedError, IcefloeError
from icefloe.records import Record
from icefloe.service import login
from icefloe.service.http.access import cookie_name, service_of
from icefloe.service.http.app import create_app
from icefloe.service.http.codec import form_fields
from icefloe.service.http.gate import API
from icefloe.service.http.problems import status_of
from icefloe.service.login import Session
from icefloe.service.runtime import Service

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": _POLICY, "referrer-policy": "same-origin"}


class Visit(Record):
    """A request of a browser."""

    service: Service
    request_id: str
    secret: str
    """The content of the cookie: that of a session, or a random one."""
    session: Session | None
    fields: dict[str, str]
    """The form that was sent."""
    next: str
    """The page to show after a login."""


def visit_of(request: Request, fields: Annotated[dict[str, str], Depends(form_fields)]) -> Visit:
    """Return the visit that a request is; raise `AccessDeniedError` for a form of another site."""
    service = service_of(request)
    cookie = request.cookies.get(cookie_name(service), "")
    with service.database.reading() as connection:
        session = login.find_session(service, connection, cookie) if cookie else None
    if request.method == "POST":
        expected = login.csrf_token(service, cookie)
        if not cookie or not hmac.compare_digest(
            fields.get("csrf", "").encode(), expected.encode()
        ):
            problem = "the form was too old, or came from another site: go back and reload it"
            raise AccessDeniedError(problem)
    secret = cookie or random.token_urlsafe(32)
    target = fields.get("next") or request.query_params.get("next", "")
    return Visit(service, request.state.request_id, secret, session, fields, local_path(target))


Visitor = Annotated[Visit, Depends(visit_of)]


def local_path(target: str) -> str:
    """Return a path on this site to go to; `/` for everything else.

    >>> local_path("/device?user_code=BCDF-GHJK"), local_path("//evil.example/")
    ('/device?user_code=BCDF-GHJK', '/')
    """
    allowed = frozenset("/?=&-_.%")
    is_plain = target.isascii() and all(c.isalnum() or c in allowed for c in target)
    return target if is_plain and target.startswith("/") and target[1:2] != "/" else "/"


def quoted(path: str) -> str:
    """Return a path as a part of a query."""
    return quote(path, safe="/")


def page(visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    person = visit.session.caller.person if visit.session else None
    csrf = login.csrf_token(visit.service, visit.secret)
    text = (
        _templates()
        .get_template(template)
        .render(person=person, csrf=csrf, provider=visit.service.settings.oidc, **values)
    )
    response = HTMLResponse(text, status, _HEADERS)
    set_cookie(visit.service, response, visit.secret)
    return response


def redirect(target: str) -> Response:
    """Send a browser to another page, with GET."""
    return RedirectResponse(target, 303, _HEADERS)


def set_cookie(service: Service, response: Response, secret: str) -> None:
    """Set the cookie with the secret of a session."""
    response.set_cookie(
        cookie_name(service),
        secret,
        max_age=int(login.SESSION_LIFETIME.total_seconds()),
        path="/",
        secure=service.settings.is_https,
        httponly=True,
        samesite="lax",
    )


@cache
def _templates() -> Environment:
    loader = PackageLoader("icefloe.service.pages")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def create_site(service: Service) -> FastAPI:
    """Return the application of a service with its pages."""
    from icefloe.service.pages import accounts, requests
    from icefloe.service.pages.administration import ROUTERS

    app = create_app(service)
    for router in (accounts.router, requests.router, *ROUTERS):
        app.include_router(router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _as_page(cast("_Handler", handler)))
    return app


type _Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


def _as_page(handler: _Handler) -> _Handler:
    """Return a handler that shows errors of pages as pages, and leaves those of the API alone."""

    async def show(request: Request, error: Exception) -> Response:
        answer = handler(request, error)
        response = answer if isinstance(answer, Response) else await answer
        if request.url.path.startswith((f"{API}/", "/metrics")):
            return response
        is_ours = isinstance(error, IcefloeError) and status_of(error) < 500
        text = str(error) if is_ours else "This page does not exist, or it failed."
        content = _templates().get_template("error.html").render(person=None, csrf="", text=text)
        return HTMLResponse(content, response.status_code, _HEADERS)

    return show
