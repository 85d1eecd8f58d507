"""Errors of the API become errors of the package, and no token gets into them."""

import pickle
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import icefloe
from icefloe.catalog.tokens import new_token
from icefloe.catalog.transport import ERROR_OF, error_of
from icefloe.catalog.wire import MissingGrant, Problem
from icefloe.errors import ConflictError, ErrorKind, IcefloeError
from icefloe.service.http.problems import status_of
from tests.support.loopback import LoopbackHandler, LoopbackServer, serving


@pytest.mark.parametrize("code", ERROR_OF)
def test_an_error_keeps_its_class_code_and_status(code: str) -> None:
    kind = ERROR_OF[code]
    sent = ConflictError(message="no", kind=code) if kind is ConflictError else kind("no", code)
    error = error_of(Problem(code, str(sent), "r1"), status_of(sent))
    assert (type(error), error.kind, str(error)) == (kind, code, "no")
    assert error.context == {"request_id": "r1"}
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.kind) == (kind, code)


def test_an_unknown_code_is_judged_by_its_status() -> None:
    for status, kind in ((404, icefloe.NotFoundError), (422, icefloe.InvalidInputError)):
        assert type(error_of(Problem("new-code", "x", ""), status)) is kind
    assert isinstance(error_of(Problem("x", "x", ""), 503), icefloe.ServiceError)


def test_missing_grants_are_sentences() -> None:
    missing = MissingGrant(
        "s3://b/x/", "no_policy", "lab", "admins of lab", "ask them", "https://p"
    )
    code = ErrorKind.VIRTUAL_ACCESS_REQUIRED
    error = error_of(Problem(code, "lab/sst refers to more:\n  x", "", (missing,)), 403)
    assert isinstance(error, icefloe.AccessDeniedError)
    assert error.missing == (missing,)
    assert str(error).splitlines() == [
        "lab/sst refers to more:",
        "- s3://b/x/: no policy shares it. Admins of lab can change that: ask them."
        " The page for that is https://p",
    ]


# A server that does as it is told


class Scripted(LoopbackHandler):
    """Gives one answer after the other."""

    server: "Script"

    def respond(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers.get("authorization")))
        self.server.keys.append(self.headers.get("idempotency-key"))
        self.read_body()
        status, body, headers = self.server.answers.pop(0)
        self.answer(status, body, {"content-type": "application/json", **headers})


class Script(LoopbackServer):
    """A server with its answers, and what it was asked."""

    def __init__(self, answers: list[tuple[int, Any, dict[str, str]]]) -> None:
        super().__init__(Scripted)
        self.answers = [
            (status, body if isinstance(body, bytes) else msgspec.json.encode(body), headers)
            for status, body, headers in answers
        ]
        self.seen: list[tuple[str, str, str | None]] = []
        self.keys: list[str | None] = []


@contextmanager
def script(*answers: tuple[int, Any]) -> Iterator[Script]:
    whole = [(status, body, {"retry-after": "0"}) for status, body in answers]
    with serving(Script(whole)) as server:
        yield server


ME = {"person": "ada", "display_name": "", "operator": False, "roles": {}}
BUSY = Problem("too-many-requests", "wait", "r")


def test_a_reading_request_is_repeated_while_the_service_is_busy() -> None:
    with script((429, BUSY), (503, b"busy"), (200, ME)) as server:
        assert icefloe.Client(server.url, token=new_token()).whoami().person == "ada"
    assert len(server.seen) == 3


def test_a_changing_request_is_not_repeated() -> None:
    with script((503, BUSY), (200, {"name": "lab"})) as server:
        with pytest.raises(icefloe.ServiceError) as error:
            icefloe.Client(server.url, token=new_token()).set_member("lab", "ada", role="reader")
        assert error.value.retryable
    assert server.keys == [None]


def test_a_creation_is_repeated_with_the_key_that_it_has() -> None:
    running = Problem("entry-in-use", "a request with this key is running", "r")
    with script((503, b"busy"), (409, running), (201, {"name": "lab"})) as server:
        client = icefloe.Client(server.url, token=new_token())
        assert client.create_org("lab").name == "lab"
    (key,) = set(server.keys)
    assert key
    assert len(server.keys) == 3
    with script((201, {"name": "lab"})) as server:
        icefloe.Client(server.url, token=new_token()).create_org("lab")
    assert server.keys != [key]


def test_a_conflict_that_stays_is_not_repeated() -> None:
    taken = msgspec.json.encode(Problem("entry-already-exists", "there is one", "r"))
    with serving(Script([(409, taken, {})])) as server, pytest.raises(icefloe.AlreadyExistsError):
        icefloe.Client(server.url, token=new_token()).create_org("lab")
    assert len(server.seen) == 1


def test_a_token_does_not_follow_a_redirect() -> None:
    with (
        script((200, ME)) as other,
        serving(Script([(302, b"", {"location": other.url})])) as server,
        pytest.raises(IcefloeError),
    ):
        icefloe.Client(server.url, token=new_token()).whoami()
    assert other.seen == []


def test_answers_that_are_none_of_ours_are_explained() -> None:
    with script((200, b"<html>"), (200, b"7"), (404, b"<html>")) as server:
        client = icefloe.Client(server.url, token=new_token())
        for _ in range(2):
            with pytest.raises(icefloe.ServiceError, match="is it a service of Icefloe"):
                client.whoami()
        with pytest.raises(icefloe.NotFoundError, match="status 404"):
            client.whoami()


def test_no_traceback_has_the_token() -> None:
    token = new_token()
    with script() as server:
        url = server.url
    with pytest.raises(icefloe.ServiceError, match="cannot be reached") as error:
        icefloe.Client(url, token=token).create_org("lab")
    first = error.value.__traceback__
    assert first is not None
    # The frames below this one, which has the token itself.
    kind = type(error.value)
    below = traceback.TracebackException(kind, error.value, first.tb_next, capture_locals=True)
    text = "".join(below.format())
    assert "create_org_async" in text
    assert token not in text


def test_nobody_is_told_to_log_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ICEFLOE_TOKEN", raising=False)
    with script() as server:
        with pytest.raises(icefloe.NotLoggedInError, match=f"icefloe login {server.url}"):
            icefloe.Client(server.url).whoami()
        with pytest.raises(icefloe.InvalidInputError, match="ICEFLOE_SERVICE"):
            icefloe.Client()
    assert server.seen == []


# The device flow

CODE = {
    "device_code": "long",
    "user_code": "ABCD-EFGH",
    "verification_uri": "https://data.example.org/device",
    "verification_uri_complete": "https://data.example.org/device?user_code=ABCD-EFGH",
    "expires_in": 900,
    "interval": 0,
}
PENDING = (400, {"error": "authorization_pending"})


def test_a_login_waits_for_the_approval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token = new_token()
    approved = {"access_token": token, "token_type": "Bearer", "expires_in": 9, "person": "ada"}
    answers = ((200, CODE), PENDING, PENDING, (200, approved), (200, ME), (200, ME))
    with script(*answers) as server:
        icefloe.Client(server.url).login()
        paths = [path for _, path, _ in server.seen]
        assert paths == ["/api/v1/device/code", *["/api/v1/device/token"] * 3, "/api/v1/me"]
        assert [sent for *_, sent in server.seen[:4]] == [None] * 4
        # Another program of the same person is logged in, too.
        assert icefloe.Client().whoami().person == "ada"
        assert server.seen[-1][2] == f"Bearer {token}"
    printed = capsys.readouterr()
    assert "https://data.example.org/device?user_code=ABCD-EFGH" in printed.err
    assert token not in printed.err + printed.out


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("access_denied", icefloe.AccessDeniedError),
        ("expired_token", icefloe.NotLoggedInError),
        ("invalid_grant", icefloe.ServiceError),
    ],
)
def test_a_login_that_ends_without_a_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, error: str, kind: type[IcefloeError]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with script((200, CODE), PENDING, (400, {"error": error})) as server:
        with pytest.raises(kind) as raised:
            icefloe.Client(server.url).login(show=lambda *_: None)
        assert type(raised.value) is kind
