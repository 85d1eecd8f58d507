"""Which token goes where, and that nobody else sees it."""

import copy
import logging
import pickle
import stat
import sys
import traceback
from pathlib import Path

import pytest

from icefloe.catalog.handles import (
    is_repository_name,
    parse_service_url,
    repository_url,
    service_origin,
)
from icefloe.catalog.logins import (
    Login,
    Logins,
    Secret,
    TokenSource,
    current_service,
    forget_login,
    logins_path,
    read_logins,
    remember_login,
    write_logins,
)
from icefloe.catalog.tokens import new_token
from icefloe.errors import InvalidInputError, NotLoggedInError

SERVICE = "https://data.example.org"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


# Secrets


def test_a_secret_shows_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("canary-7391")
    logging.getLogger("test").warning("token %s %r", secret, secret)
    with pytest.raises(TypeError) as error:
        pickle.dumps(secret)
    whole = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    text = "".join(whole.format())
    assert "***" in text
    shown = [repr(secret), str(secret), f"{secret}", repr(Login(secret)), caplog.text]
    assert all("canary-7391" not in text for text in shown)
    assert "***" in caplog.text
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="does not leave its process"):
            leave(secret)
    assert secret == Secret("canary-7391") != Secret("other")
    assert not hasattr(secret, "__dict__")


# The file


def test_logins_are_kept_for_this_person_only(home: dict[str, str]) -> None:
    token = new_token()
    path = remember_login(SERVICE, Secret(token), "ada", home)
    assert path == logins_path(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["logins.toml"]
    logins = read_logins(path)
    assert logins.current == SERVICE
    assert logins.services[SERVICE] == Login(Secret(token), "ada")
    assert TokenSource(SERVICE, environment=home).get() == Secret(token)
    forget_login(SERVICE, home)
    assert read_logins(path) == Logins()
    assert TokenSource(SERVICE, environment=home).get() is None


def test_odd_texts_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logins.toml"
    odd = Login(Secret('quote " and \\ and\nline'), "ä\u202e", ("print", "a b", '"'))
    write_logins(path, Logins(SERVICE, {SERVICE: odd, "http://127.0.0.1:80": Login()}))
    assert read_logins(path).services[SERVICE] == odd


def test_a_file_that_others_can_read_is_refused(home: dict[str, str]) -> None:
    path = remember_login(SERVICE, Secret(new_token()), "ada", home)
    path.chmod(0o644)
    with pytest.raises(InvalidInputError, match="chmod 600"):
        TokenSource(SERVICE, environment=home).get()


@pytest.mark.parametrize("content", ["not toml = = [", 'services = "x"', '[services]\n"a" = 7'])
def test_a_damaged_file_is_explained_without_its_content(tmp_path: Path, content: str) -> None:
    path = tmp_path / "logins.toml"
    path.write_text(f"# canary-7391\n{content}")
    path.chmod(0o600)
    with pytest.raises(InvalidInputError, match="log in again") as error:
        read_logins(path)
    assert "canary" not in "".join(traceback.format_exception(error.value))


# The choice


def test_a_token_of_the_environment_goes_to_its_service_only(home: dict[str, str]) -> None:
    token = new_token()
    named = home | {"ICEFLOE_TOKEN": token, "ICEFLOE_SERVICE": f"{SERVICE}/"}
    assert TokenSource(SERVICE, environment=named).get() == Secret(token)
    assert TokenSource("https://evil.example", environment=named).get() is None
    assert current_service(named) == SERVICE
    unnamed = home | {"ICEFLOE_TOKEN": token}
    with pytest.raises(NotLoggedInError, match=f"set ICEFLOE_SERVICE={SERVICE}"):
        TokenSource(SERVICE, environment=unnamed).get()
    assert current_service(unnamed) is None


def test_a_given_token_comes_before_all_others(home: dict[str, str]) -> None:
    given, other = new_token(), new_token()
    environment = home | {"ICEFLOE_TOKEN": other, "ICEFLOE_SERVICE": SERVICE}
    source = TokenSource(SERVICE, given, environment=environment)
    assert source.get() == Secret(given)
    assert not source.renew()
    assert source.given_id is not None
    assert source.given_id in given
    with pytest.raises(InvalidInputError, match="mistyped") as error:
        TokenSource(SERVICE, given[:-1])
    assert given[:-1] not in str(error.value)


def test_a_command_prints_a_token_again_after_a_refusal(
    home: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    command = [sys.executable, "-c", f"print(open({str(file)!r}).read())"]
    source = TokenSource(SERVICE, token_command=command, environment=home)
    assert source.get() == Secret("first")
    assert not source.renew()
    file.write_text("second\n")
    assert source.get() == Secret("first")
    assert source.renew()
    assert source.get() == Secret("second")


@pytest.mark.parametrize("program", ["import sys; print('canary'); sys.exit(3)", "pass"])
def test_a_command_that_fails_is_explained_without_its_output(
    home: dict[str, str], program: str
) -> None:
    source = TokenSource(SERVICE, token_command=[sys.executable, "-c", program], environment=home)
    with pytest.raises(NotLoggedInError, match="printed no token") as error:
        source.get()
    assert "canary" not in str(error.value)
    with pytest.raises(NotLoggedInError, match="FileNotFoundError"):
        TokenSource(SERVICE, token_command="/no/such/program --x").get()


# Addresses


def test_addresses_of_services_have_one_form() -> None:
    assert service_origin("https://Data.Example.org:443/") == SERVICE
    assert service_origin("http://127.0.0.1:8321") == "http://127.0.0.1:8321"
    assert service_origin("http://[::1]:8321/") == "http://[::1]:8321"
    assert service_origin("http://localhost:80") == "http://localhost"


@pytest.mark.parametrize(
    "url",
    [
        "http://data.example.org",
        "http://10.0.0.1",
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1@evil.example",
        "https://user:word@data.example.org",
        "https://data.example.org/path",
        "https://data.example.org?x=1",
        "https://data.example.org:99999",
        "ftp://data.example.org",
        "https://",
        "data.example.org",
        "https://[::1",
    ],
)
def test_odd_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        service_origin(url)
    assert "word" not in str(error.value)


def test_urls_of_repositories() -> None:
    for url, service in (
        ("icefloe://data.example.org/lab/sst", SERVICE),
        ("icefloe://127.0.0.1:8321/lab/sst", "http://127.0.0.1:8321"),
    ):
        assert parse_service_url(url) == (service, "lab/sst")
        assert repository_url(service, "lab/sst") == url
    for wrong in (
        "icefloe://data.example.org/lab",
        "icefloe://data.example.org/lab/sst/more",
        "icefloe://data.example.org/lab/sst?branch=x",
        "icefloe://data.example.org/../sst",
        "icefloe+http://127.0.0.1/lab/sst",
        "icefloe://user@data.example.org/lab/sst",
        "s3://lab/sst",
    ):
        with pytest.raises(InvalidInputError):
            parse_service_url(wrong)
    assert not any(map(is_repository_name, ("lab", "lab/", "/sst", "lab/a/b", "LAB/sst", "./sst")))
