"""Keys from the profile files of the AWS tools, which the client library does not read.

Only keys written in the files are used. Whoever needs single sign-on, assumed roles or an
external process passes a function that gets the keys (`get_credentials`).
"""

import os
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from pathlib import Path

from icefloe.credentials import S3StaticCredentials


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile says."""

    credentials: S3StaticCredentials
    region: str | None


def profile_credentials() -> Profile | None:
    """Read the present profile; None if the environment itself holds keys, or there is none."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    name = os.environ.get("AWS_PROFILE", "default")
    keys = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    options = _section("AWS_CONFIG_FILE", "config", _config_name(name))
    found = {**options, **keys}
    if "aws_access_key_id" not in found or "aws_secret_access_key" not in found:
        return None
    credentials = S3StaticCredentials(
        found["aws_access_key_id"],
        found["aws_secret_access_key"],
        found.get("aws_session_token"),
    )
    from_environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return Profile(credentials, None if from_environment else found.get("region"))


def _config_name(profile: str) -> str:
    return profile if profile == "default" else f"profile {profile}"


def _section(variable: str, file_name: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable, f"~/.aws/{file_name}"))
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path.expanduser())
    except (OSError, UnicodeDecodeError, ConfigError, RuntimeError):
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}
