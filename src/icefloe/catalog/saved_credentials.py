"""Saved credentials: names for the keys of a storage, which a person keeps on this machine.

The file `credentials.toml`, beside the saved names, has the kind of a credential and where its
secrets are: in the keyring of the machine, or in variables of the environment. It never has a
secret.
"""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from icefloe.catalog.logins import user_folder, write_private
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, NotFoundError
from icefloe.records import Record, field
from icefloe.reports import JsonReady

_KEYRING_SERVICE: Final = "icefloe"


class CredentialKind(Record):
    """A form of credentials: the secrets that it consists of, and what they open."""

    parts: tuple[str, ...]
    schemes: tuple[str, ...]
    make: Callable[[Mapping[str, str]], AnyCredential]
    optional: tuple[str, ...] = ()


def _s3(secrets: Mapping[str, Any]) -> AnyCredential:
    return Credentials.S3(s3_credentials(**secrets))


def _gcs(secrets: Mapping[str, Any]) -> AnyCredential:
    return Credentials.Gcs(gcs_credentials(**secrets))


def _azure(secrets: Mapping[str, Any]) -> AnyCredential:
    return Credentials.Azure(azure_credentials(**secrets))


KINDS: Final[Mapping[str, CredentialKind]] = {
    "s3": CredentialKind(
        ("access_key_id", "secret_access_key"), ("s3", "r2", "tigris"), _s3, ("session_token",)
    ),
    "gcs-service-account": CredentialKind(("service_account_key",), ("gs", "gcs"), _gcs),
    "gcs-token": CredentialKind(("bearer_token",), ("gs", "gcs"), _gcs),
    "azure-key": CredentialKind(("access_key",), ("az",), _azure),
    "azure-sas": CredentialKind(("sas_token",), ("az",), _azure),
    "azure-token": CredentialKind(("bearer_token",), ("az",), _azure),
}
"""The kinds of credentials that can be saved."""


class SavedCredential(Record, JsonReady):
    """A credential under a name of one's own, without its secrets."""

    name: str
    kind: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables of the environment that have its parts; none if the keyring has them."""

    @property
    def source(self) -> str:
        """Return where the secrets are, in words."""
        return f"environment: {', '.join(self.variables.values())}" if self.variables else "keyring"

    def opens(self, url: str) -> bool:
        """Return whether it is for the platform of a URL.

        >>> SavedCredential("lab", "s3").opens("gs://bucket/cube")
        False
        """
        return url.partition("://")[0].lower() in KINDS[self.kind].schemes


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which saved credentials are listed.

    >>> print(credentials_path({"XDG_CONFIG_HOME": "/home/ada/.config"}))
    /home/ada/.config/icefloe/credentials.toml
    """
    return user_folder(environment) / "credentials.toml"


def read_saved_credentials(
    environment: Mapping[str, str] = os.environ,
) -> dict[str, SavedCredential]:
    """Read which credentials are saved; none if there is no file."""
    path = credentials_path(environment)
    try:
        with path.open("rb") as file:
            content = tomllib.load(file).get("credentials", {})
        return {name: _entry(name, entry) for name, entry in content.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        problem = f"cannot read the saved credentials in {path} ({type(error).__name__})"
        raise InvalidInputError(
            f"{problem}: correct or delete the file", ErrorKind.INVALID_CONFIG
        ) from None


def _entry(name: str, entry: Mapping[str, Any]) -> SavedCredential:
    variables = entry.get("variables", {})
    is_text = all(isinstance(variable, str) for variable in variables.values())
    if entry["kind"] not in KINDS or not is_text:
        raise TypeError
    return SavedCredential(name, entry["kind"], dict(variables))


def _write(saved: Mapping[str, SavedCredential], environment: Mapping[str, str]) -> None:
    lines = []
    for name in sorted(saved):
        # Texts of JSON are texts of TOML, too.
        lines += [f"[credentials.{json.dumps(name)}]", f"kind = {json.dumps(saved[name].kind)}"]
        lines += [
            f"variables.{part} = {json.dumps(variable)}"
            for part, variable in saved[name].variables.items()
        ]
        lines.append("")
    write_private(credentials_path(environment), "\n".join(lines))


def find_credential(name: str, environment: Mapping[str, str] = os.environ) -> SavedCredential:
    """Return a saved credential; raise `NotFoundError` if there is none of that name."""
    saved = read_saved_credentials(environment)
    if name not in saved:
        listed = ", ".join(sorted(saved)) or "none"
        raise NotFoundError(
            f"there is no saved credential {name!r}; known are: {listed}. `icefloe credential add"
            f" {name}` saves one",
            ErrorKind.ENTRY_NOT_FOUND,
        )
    return saved[name]


def require_new(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `AlreadyExistsError` if a credential has a name already."""
    if name in read_saved_credentials(environment):
        raise AlreadyExistsError(
            f"there is a saved credential {name!r} already: give --replace, or another name",
            ErrorKind.ENTRY_ALREADY_EXISTS,
        )


def save_credential(
    saved: SavedCredential,
    secrets: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Keep a credential: its name in the file, and its secrets in the keyring.

    A credential with variables has no secrets to keep.
    """
    before = read_saved_credentials(environment)
    if secrets:
        _in_keyring("set_password", saved.name, json.dumps(dict(secrets)))
    elif saved.name in before and not before[saved.name].variables:
        _forget_secrets(saved.name)
    _write({**before, saved.name: saved}, environment)


def forget_credential(name: str, environment: Mapping[str, str] = os.environ) -> SavedCredential:
    """Remove a credential, and its secrets from the keyring."""
    gone = find_credential(name, environment)
    if not gone.variables:
        _forget_secrets(name)
    others = read_saved_credentials(environment)
    _write({other: saved for other, saved in others.items() if other != name}, environment)
    return gone


def reveal_credential(
    saved: SavedCredential, environment: Mapping[str, str] = os.environ
) -> AnyCredential:
    """Return the credential itself, with its secrets."""
    if saved.variables:
        return KINDS[saved.kind].make(_of_environment(saved, environment))
    text = _in_keyring("get_password", saved.name)
    try:
        secrets: dict[str, str] = json.loads(text or "")
        return KINDS[saved.kind].make(secrets)
    except (ValueError, TypeError):  # whose texts may have a secret
        raise NotFoundError(
            f"the keyring has no secrets of the saved credential {saved.name!r}: save them with"
            f" `icefloe credential add {saved.name} --kind {saved.kind} --replace`",
            ErrorKind.ENTRY_NOT_FOUND,
        ) from None


def _of_environment(saved: SavedCredential, environment: Mapping[str, str]) -> dict[str, str]:
    kind = KINDS[saved.kind]
    missing = [
        variable
        for part, variable in saved.variables.items()
        if not environment.get(variable) and part not in kind.optional
    ]
    if missing:
        raise InvalidInputError(
            f"the saved credential {saved.name!r} is in the environment, which lacks"
            f" {' and '.join(missing)}: set what is missing",
            ErrorKind.INVALID_CREDENTIALS,
        )
    secrets = {part: environment.get(variable, "") for part, variable in saved.variables.items()}
    return {part: value for part, value in secrets.items() if value}


def _forget_secrets(name: str) -> None:
    if _in_keyring("get_password", name) is not None:
        _in_keyring("delete_password", name)


def _in_keyring(verb: str, name: str, *values: str) -> str | None:
    """Ask the keyring of this machine."""
    keyring = _keyring()
    try:
        secret: str | None = getattr(keyring, verb)(_KEYRING_SERVICE, name, *values)
    except Exception as error:
        if not isinstance(error, keyring.errors.KeyringError | keyring.errors.InitError):
            raise
        raise InvalidInputError(
            f"the keyring of this machine does not work ({type(error).__name__}): unlock or set up"
            " one, or keep secrets in the environment, with `icefloe credential add NAME --env"
            " PART=VARIABLE`",
            ErrorKind.INVALID_CREDENTIALS,
        ) from None
    return secret


def _keyring() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise InvalidInputError(
            "secrets are kept in a keyring, for which a package is missing: pip install"
            " 'icefloe[keyring]'; or keep them in the environment, with `icefloe credential add"
            " NAME --env PART=VARIABLE`",
            ErrorKind.INVALID_CREDENTIALS,
        ) from None
    return keyring
