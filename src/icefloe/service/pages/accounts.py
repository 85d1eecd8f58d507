"""Pages to log in, to accept an invitation, to approve a program, and to change the password."""

from fastapi import APIRouter, Depends, Request, Response

from icefloe.errors import IcefloeError
from icefloe.service import device, login, oidc
from icefloe.service.http.access import address_of, anybody
from icefloe.service.http.problems import status_of
from icefloe.service.pages.site import Visit, Visitor, page, quoted, redirect, set_cookie

router = APIRouter(dependencies=[Depends(anybody)])


@router.get("/account")
def show_account(visit: Visitor) -> Response:
    """Show who is logged in, and in which organisations."""
    if visit.session is None:
        return redirect("/login?next=/account")
    return page(visit, "account.html", roles=visit.session.caller.roles)


@router.get("/login")
def show_login(visit: Visitor) -> Response:
    """Show the form to log in."""
    if visit.session is not None:
        return redirect(visit.next)
    return page(visit, "login.html", next=visit.next, name="", problem="")


@router.post("/login")
def log_in(request: Request, visit: Visitor) -> Response:
    """Log in with a name and a password."""
    name = visit.fields.get("name", "")
    try:
        _take_login(request, visit, name)
        secret = login.log_in(
            visit.service, name, visit.fields.get("password", ""), visit.request_id
        )
    except IcefloeError as error:
        values = {"next": visit.next, "name": name, "problem": str(error)}
        return page(visit, "login.html", status_of(error), **values)
    return _enter(visit, secret)


@router.post("/logout")
def log_out(visit: Visitor) -> Response:
    """End the session."""
    login.end_session(visit.service, visit.secret)
    return redirect("/logged-out")


@router.get("/logged-out")
def show_logged_out(visit: Visitor) -> Response:
    """Show that the session has ended."""
    return page(visit, "logged_out.html")


# The identity provider


@router.get("/login/provider")
def go_to_provider(request: Request, visit: Visitor, link: str | None = None) -> Response:
    """Send a browser to the identity provider."""
    _take_login(request, visit, "provider")
    response = redirect(oidc.start(visit.service, visit.secret, visit.next, link))
    set_cookie(visit.service, response, visit.secret)
    return response


@router.get(oidc.CALLBACK)
def come_from_provider(visit: Visitor, code: str = "", state: str = "") -> Response:
    """Log in somebody whom the identity provider sent back."""
    arrival = oidc.finish(visit.service, visit.secret, code, state, visit.request_id)
    how = "by provider"
    secret = login.start_session(visit.service, arrival.person, how, visit.request_id)
    response = redirect(arrival.next)
    set_cookie(visit.service, response, secret)
    return response


# Invitations


@router.get("/join/{secret}")
def show_invitation(visit: Visitor, secret: str) -> Response:
    """Show the form to accept an invitation."""
    return _invitation_page(visit, secret)


@router.post("/join/{secret}")
def accept_invitation(request: Request, visit: Visitor, secret: str) -> Response:
    """Accept an invitation with a password."""
    fields = visit.fields
    try:
        _take_login(request, visit, secret)
        if fields.get("password") != fields.get("repeated"):
            return _invitation_page(visit, secret, 422, "The two passwords differ.")
        person = login.accept_by_password(
            visit.service,
            secret,
            fields.get("name", ""),
            fields.get("password", ""),
            visit.request_id,
        )
    except IcefloeError as error:
        return _invitation_page(visit, secret, status_of(error), str(error))
    how = "after an invitation"
    return _enter(visit, login.start_session(visit.service, person, how, visit.request_id))


def _invitation_page(visit: Visit, secret: str, status: int = 200, problem: str = "") -> Response:
    invitation = login.find_invitation(visit.service, secret)
    name = invitation.person or visit.fields.get("name", "")
    values = {"invitation": invitation, "name": name, "problem": problem, "link": secret}
    return page(visit, "join.html", status, shortest=login.SHORTEST_PASSWORD, **values)


# Devices


@router.get("/device")
def show_device(visit: Visitor, user_code: str = "") -> Response:
    """Ask for the code of a program, and show what it wants."""
    if visit.session is None:
        path = f"/device?user_code={user_code}" if user_code else "/device"
        return redirect(f"/login?next={quoted(path)}")
    if not user_code:
        return page(visit, "device.html", device=None, user_code="", problem="")
    try:
        _take_code(visit)
        waiting = device.find(visit.service, user_code)
    except IcefloeError as error:
        values = {"device": None, "user_code": user_code, "problem": str(error)}
        return page(visit, "device.html", status_of(error), **values)
    scope = device.scope_text(waiting.scope)
    return page(visit, "device.html", device=waiting, scope=scope, problem="")


@router.post("/device")
def decide_device(visit: Visitor) -> Response:
    """Approve or deny a program."""
    if visit.session is None:
        return redirect("/login?next=/device")
    user_code, person = visit.fields.get("user_code", ""), visit.session.caller.person.name
    approved = visit.fields.get("decision") == "approve"
    try:
        _take_code(visit)
        device.decide(visit.service, person, user_code, visit.request_id, approved=approved)
    except IcefloeError as error:
        values = {"device": None, "user_code": user_code, "problem": str(error)}
        return page(visit, "device.html", status_of(error), **values)
    return page(visit, "device_done.html", approved=approved)


# One's own password


@router.get("/password")
def show_password(visit: Visitor) -> Response:
    """Show the form to change the password."""
    if visit.session is None:
        return redirect("/login?next=/password")
    return page(visit, "password.html", shortest=login.SHORTEST_PASSWORD, problem="", done=False)


@router.post("/password")
def change_password(request: Request, visit: Visitor) -> Response:
    """Change the password, which ends all other sessions."""
    session, fields = visit.session, visit.fields
    if session is None:
        return redirect("/login?next=/password")
    values = {"shortest": login.SHORTEST_PASSWORD, "done": False}
    if fields.get("password") != fields.get("repeated"):
        return page(visit, "password.html", 422, problem="The two passwords differ.", **values)
    try:
        _take_login(request, visit, session.caller.person.name)
        login.change_password(
            visit.service,
            session,
            fields.get("present", ""),
            fields.get("password", ""),
            visit.request_id,
        )
    except IcefloeError as error:
        return page(visit, "password.html", status_of(error), problem=str(error), **values)
    return page(visit, "password.html", problem="", **(values | {"done": True}))


def _enter(visit: Visit, secret: str) -> Response:
    """Go on with a new session, whose cookie nobody else can have set."""
    response = redirect(visit.next)
    set_cookie(visit.service, response, secret)
    return response


def _take_login(request: Request, visit: Visit, name: str) -> None:
    per_minute = visit.service.settings.limits.logins
    for person in (address_of(request), f"name {name[:100]}"):
        visit.service.limits.take("login", person, per_minute=per_minute)


def _take_code(visit: Visit) -> None:
    assert visit.session is not None
    per_minute = visit.service.settings.limits.device_codes
    visit.service.limits.take("code", visit.session.caller.person.name, per_minute=per_minute)
