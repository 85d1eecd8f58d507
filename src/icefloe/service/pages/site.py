"""The whole application: the API, and pages for people with a browser.

Pages come from templates with escaping. Their styles and scripts are those of `icefloe.web`, and
so is the policy that forbids all others. A form carries a token that only our own page could have:
see `login.csrf_token`.
"""

import hmac
import secrets as random
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, cast
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from icefloe.errors import AccessDeniedError, IcefloeError, NotLoggedInError, StorageError
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.service import login
from icefloe.service.http.access import cookie_name, service_of
from icefloe.service.http.app import create_app
from icefloe.service.http.codec import form_fields
from icefloe.service.http.gate import API
from icefloe.service.http.opened import ZARR
from icefloe.service.http.problems import status_of
from icefloe.service.login import Session
from icefloe.service.runtime import Service
from icefloe.web.site import HEADERS, is_document, problem_part, static_files, templates_of

PER_PAGE: Final = 50
"""How many entries of a list a page shows."""


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
    area: str
    """The link of the navigation that the page belongs to."""


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
    area = area_of(request.url.path)
    return Visit(
        service, request.state.request_id, secret, session, fields, local_path(target), area
    )


Visitor = Annotated[Visit, Depends(visit_of)]


def local_path(target: str) -> str:
    """Return a path on this site to go to; `/` for everything else.

    >>> local_path("/device?user_code=BCDF-GHJK"), local_path("//evil.example/")
    ('/device?user_code=BCDF-GHJK', '/')
    """
    allowed = frozenset("/?=&-_.%~")
    is_plain = target.isascii() and all(c.isalnum() or c in allowed for c in target)
    return target if is_plain and target.startswith("/") and target[1:2] != "/" else "/"


def area_of(path: str) -> str:
    """Return the link of the navigation that a page belongs to.

    >>> area_of("/organisations/lab/audit"), area_of("/repos/lab/sst/"), area_of("/")
    ('/organisations', '/repositories', '/repositories')
    """
    first = path.strip("/").partition("/")[0]
    return "/repositories" if first in {"", "repos"} else f"/{first}"


def quoted(path: str) -> str:
    """Return a path as a part of a query."""
    return quote(path, safe="/")


def page(visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    person = visit.session.caller.person if visit.session else None
    csrf = login.csrf_token(visit.service, visit.secret)
    provider = visit.service.settings.oidc
    text = _render(template, person=person, csrf=csrf, provider=provider, area=visit.area, **values)
    response = HTMLResponse(text, status, HEADERS)
    set_cookie(visit.service, response, visit.secret)
    return response


def _render(template: str, **values: Any) -> str:
    return templates_of("icefloe.service.pages").get_template(template).render(**values)


def navigation_of(request: Request) -> str:
    """Return the navigation above a page of a repository; none for a program with a token."""
    service = service_of(request)
    cookie = request.cookies.get(cookie_name(service))
    if cookie is None or "authorization" in request.headers:
        return ""
    csrf, name = login.csrf_token(service, cookie), request.state.person
    area = area_of(request.url.path)
    return _render("navigation.html", name=name, csrf=csrf, area=area)


def redirect(target: str) -> Response:
    """Send a browser to another page, with GET."""
    return RedirectResponse(target, 303, HEADERS)


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


def create_site(service: Service) -> FastAPI:
    """Return the application of a service with its pages."""
    from icefloe.service.pages import accounts, listings, repositories, requests
    from icefloe.service.pages.administration import ROUTERS

    app = create_app(service, navigation_of)
    readers = (repositories.router, listings.router, requests.router, accounts.router)
    for router in (*readers, *ROUTERS):
        app.include_router(router, include_in_schema=False)
    app.router.routes.append(static_files())
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _as_page(cast("_Handler", handler)))
    return app


# Errors

type _Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


def _as_page(handler: _Handler) -> _Handler:
    """Return a handler that shows errors of pages as pages, and leaves those of programs alone."""

    async def show(request: Request, error: Exception) -> Response:
        answer = handler(request, error)
        response = answer if isinstance(answer, Response) else await answer
        is_for_programs = request.url.path.startswith((f"{API}/", f"{ZARR}/", "/metrics"))
        if is_for_programs or "authorization" in request.headers:
            return response
        text = _text_of(error)
        if not is_document(request):
            return problem_part(request, text, response.status_code)
        if isinstance(error, NotLoggedInError) and request.method == "GET":
            return redirect(f"/login?next={quoted(_address(request))}")
        visit = await _visit_again(request)
        if visit is not None:
            return page(visit, "error.html", response.status_code, text=text)
        content = _render("error.html", person=None, csrf="", area="", text=text)
        return HTMLResponse(content, response.status_code, HEADERS)

    return show


def _text_of(error: Exception) -> str:
    if isinstance(error, StorageError):
        return "The object store of this data did not answer as it should: try it later."
    if isinstance(error, IcefloeError) and status_of(error) < 500:
        return printable(error.message, keep="\n")
    return "This page does not exist, or it failed."


def _address(request: Request) -> str:
    """Return path and query of a request, as a browser wrote them."""
    query = request.url.query
    return quote(request.url.path) + (f"?{query}" if query else "")


async def _visit_again(request: Request) -> Visit | None:
    """Return the visit of a request that failed, for the navigation of its page."""
    if request.method != "GET":
        return None
    try:
        return await service_of(request).database.run(visit_of, request, {})
    except IcefloeError:
        return None
