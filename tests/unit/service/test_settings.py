"""Settings of the service: one file, and the environment over it."""

from pathlib import Path

import pytest

from icefloe.errors import InvalidInputError
from icefloe.service.settings import Settings, load_settings


def test_without_a_file_everything_has_a_default() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert settings.database_url == "sqlite:///icefloe-service/service.db"


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text('url = "https://a.example"\ncredential_minutes = 30\nallows_anonymous = true\n')
    environment = {
        "ICEFLOE_SERVICE_URL": "https://b.example",
        "ICEFLOE_SERVICE_FOLDER": "/srv/icefloe",
        "ICEFLOE_SERVICE_ALLOWS_ANONYMOUS": "false",
        "ICEFLOE_SERVICE_ALLOWED_ENDPOINTS": '["http://minio:9000"]',
    }
    settings = load_settings(path, environment)
    assert (settings.url, settings.credential_minutes) == ("https://b.example", 30)
    assert settings.folder == Path("/srv/icefloe")
    assert not settings.allows_anonymous
    assert settings.allowed_endpoints == ("http://minio:9000",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("url = ", "are not TOML"),
        ("colour = 'red'", "colour"),
        ("credential_minutes = 5", "credential_minutes"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "service.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=problem) as told:
        load_settings(path, {})
    assert str(path) in str(told.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the settings"):
        load_settings(tmp_path / "none.toml", {})
