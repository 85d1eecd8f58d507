"""Saved names: short names of repositories that a person keeps on this machine.

They are kept in the file `names.toml`, beside the logins. The file has addresses and options, never
a secret: credentials are those of the environment, of a profile of the AWS tools, or saved ones.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from icefloe.catalog.handles import is_repository_name, is_service_url, parse_service_url
from icefloe.catalog.logins import current_service, user_folder, write_private
from icefloe.catalog.saved_credentials import (
    SavedCredential,
    find_credential,
    reveal_credential,
)
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, NotFoundError
from icefloe.records import Record
from icefloe.reports import JsonReady
from icefloe.storage import Storage, storage_from_url
from icefloe.storage.urls import spec_from_url
from icefloe.values.urls import has_user

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PLAIN_SCHEMES: Final = ("http", "https", "file")
"""Of URLs without options."""
_PROFILE_SCHEMES: Final = ("s3", "r2", "tigris")


class SavedName(Record, JsonReady):
    """A repository under a name of one's own."""

    name: str
    url: str
    """An absolute path, a URL with its options, or the URL of a repository of a service."""
    profile: str | None = None
    """The profile of the AWS tools whose credentials are used."""
    credential: str | None = None
    """The name of the saved credential that is used."""

    def choose_profile(self) -> None:
        """Have its profile count from now on, unless the environment chooses another one."""
        if self.profile is not None:
            os.environ.setdefault("AWS_PROFILE", self.profile)

    def storage(
        self, *, anonymous: bool = False, environment: Mapping[str, str] = os.environ
    ) -> Storage:
        """Return the storage of the repository, opened with the saved credential if it has one."""
        if anonymous or self.credential is None:
            return storage_from_url(self.url, anonymous=anonymous)
        saved = find_credential(self.credential, environment)
        return storage_from_url(self.url, credential=reveal_credential(saved, environment))


def names_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which names are kept.

    >>> print(names_path({"XDG_CONFIG_HOME": "/home/ada/.config"}))
    /home/ada/.config/icefloe/names.toml
    """
    return user_folder(environment) / "names.toml"


def is_name(text: str) -> bool:
    """Return whether a text can be a saved name.

    >>> is_name("era5"), is_name("./era5"), is_name("s3://era5")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def read_names(path: Path) -> dict[str, SavedName]:
    """Read the names that a file has; none if there is no file."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = f"cannot read the saved names in {path} ({type(error).__name__})"
        raise InvalidInputError(
            f"{problem}: correct or delete the file", ErrorKind.INVALID_CONFIG
        ) from None
    try:
        return {name: _entry(name, entry) for name, entry in content.get("names", {}).items()}
    except (AttributeError, KeyError, TypeError):
        problem = f"the saved names in {path} have no known form: correct or delete the file"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from None


def _entry(name: str, entry: Mapping[str, Any]) -> SavedName:
    url, profile, credential = entry["url"], entry.get("profile"), entry.get("credential")
    is_text = isinstance(profile, str | None) and isinstance(credential, str | None)
    if not isinstance(url, str) or not is_text:
        raise TypeError
    return SavedName(name, url, profile, credential)


def _write(path: Path, names: Mapping[str, SavedName]) -> None:
    lines = []
    for name in sorted(names):
        saved = names[name]
        # Texts of JSON are texts of TOML, too.
        lines += [f"[names.{json.dumps(name)}]", f"url = {json.dumps(saved.url)}"]
        if saved.profile is not None:
            lines.append(f"profile = {json.dumps(saved.profile)}")
        if saved.credential is not None:
            lines.append(f"credential = {json.dumps(saved.credential)}")
        lines.append("")
    write_private(path, "\n".join(lines))


def find_name(text: str, environment: Mapping[str, str] = os.environ) -> SavedName | None:
    """Return what a saved name stands for; None if there is none of that name."""
    return read_names(names_path(environment)).get(text) if is_name(text) else None


def save_name(
    saved: SavedName, *, replace: bool = False, environment: Mapping[str, str] = os.environ
) -> None:
    """Keep a name; `replace` puts it in the place of another one.

    Raise `AlreadyExistsError` if the name is taken.
    """
    path = names_path(environment)
    names = read_names(path)
    if saved.name in names and not replace:
        raise AlreadyExistsError(
            f"the name {saved.name!r} is taken: it stands for {names[saved.name].url}",
            ErrorKind.ENTRY_ALREADY_EXISTS,
        )
    _write(path, {**names, saved.name: saved})


def forget_name(name: str, environment: Mapping[str, str] = os.environ) -> SavedName:
    """Remove a name and return what it stood for; raise `NotFoundError` if there is none."""
    path = names_path(environment)
    names = read_names(path)
    if name not in names:
        raise _unknown_name(name, names)
    _write(path, {other: saved for other, saved in names.items() if other != name})
    return names[name]


def checked_saved_name(
    name: str,
    url: str,
    options: Mapping[str, str],
    profile: str | None = None,
    credential: str | None = None,
) -> SavedName:
    """Make a saved name of an address and options; refuse secrets, and what cannot be opened.

    >>> checked_saved_name("era5", "s3://climate/era5", {"region": "eu-west-1"}).url
    's3://climate/era5?region=eu-west-1'
    """
    if not is_name(name):
        raise InvalidInputError(
            f"{name!r} cannot be a name: use letters, digits, dots, hyphens and underscores, and"
            " begin with a letter or a digit",
            ErrorKind.INVALID_CONFIG,
        )
    addresses = [*([url] if "://" in url else []), *options.values()]
    if any(map(has_user, addresses)):
        raise _secret("a user or a password")
    if is_repository_name(url) and not Path(url).exists():
        # A name that is kept says which service knows it: the next login may be at another one.
        service = current_service()
        url = url if service is None else f"icefloe://{service.partition('://')[2]}/{url}"
    names = {"profile": profile, "credential": credential}
    others = {key: value for key, value in names.items() if value is not None}
    chosen_options = {**options, **others}
    if is_service_url(url):
        parse_service_url(url)
        _refuse_options(chosen_options, "a repository of a service, which knows its storage,")
        return SavedName(name, url)
    if "://" not in url:
        _refuse_options(chosen_options, "a folder")
        return SavedName(name, str(Path(url).expanduser().absolute()))
    checked = _checked_url(url, options, chosen_options, profile)
    if credential is not None:
        _require_fit(find_credential(credential), checked, chosen_options)
    return SavedName(name, checked, profile, credential)


def _require_fit(credential: SavedCredential, url: str, chosen_options: Mapping[str, str]) -> None:
    if not credential.opens(url):
        raise InvalidInputError(
            f"the saved credential {credential.name!r} ({credential.kind}) does not open"
            f" {url.partition('://')[0]}:// URLs: choose another one",
            ErrorKind.INVALID_CREDENTIALS,
        )
    if others := [name for name in ("profile", "anonymous") if name in chosen_options]:
        raise InvalidInputError(
            f"a name has one way of access: leave out the credential, or {' and '.join(others)}",
            ErrorKind.INVALID_CONFIG,
        )


def _checked_url(
    url: str, options: Mapping[str, str], chosen_options: Mapping[str, str], profile: str | None
) -> str:
    """Return the URL of a storage with options behind it."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may repeat a secret
        raise InvalidInputError(
            "the URL is malformed: write it like s3://bucket/prefix", ErrorKind.CANNOT_PARSE_URL
        ) from None
    scheme = parts.scheme.lower()
    if scheme in _PLAIN_SCHEMES:
        _refuse_options(chosen_options, f"a {scheme}:// URL")
    if parts.fragment or (scheme in _PLAIN_SCHEMES and parts.query):
        raise _secret("a query or a fragment")
    if profile is not None and scheme not in _PROFILE_SCHEMES:
        raise InvalidInputError(
            f"a profile has credentials for S3, not for {scheme}:// URLs", ErrorKind.INVALID_CONFIG
        )
    if scheme == "memory":
        raise InvalidInputError(
            "memory:// is empty in each process: there is nothing to name",
            ErrorKind.INVALID_CONFIG,
        )
    merged = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    address = urlunsplit(parts._replace(query=urlencode(merged, safe=":/")))
    spec_from_url(address)  # refuses options that it does not know, secrets among them
    return address


def _refuse_options(chosen_options: Mapping[str, str], kind: str) -> None:
    if chosen_options:
        names = ", ".join(chosen_options)
        raise InvalidInputError(f"{kind} takes no options: {names}", ErrorKind.INVALID_CONFIG)


def _secret(part: str) -> InvalidInputError:
    return InvalidInputError(
        f"an address with {part} is not saved, because it may be a secret: leave it out."
        " Secrets are in the environment, or in the keyring (`icefloe credential add`)",
        ErrorKind.INVALID_CREDENTIALS,
    )


def saved_storage(name: str) -> Storage:
    """Return the storage of a repository that `icefloe config add` saved a name for.

    It is opened with the saved credential of the name, if it has one. A profile of the name counts
    from now on, unless the environment chooses another one. Raise `NotFoundError` for other names.

    >>> import icefloe
    >>> icefloe.saved_storage("no-such-name")
    Traceback (most recent call last):
    icefloe.errors.NotFoundError: there is no saved name 'no-such-name'; known are: ...
    """
    saved = find_name(name)
    if saved is None:
        raise _unknown_name(name, read_names(names_path()))
    if is_service_url(saved.url):
        raise InvalidInputError(
            f"{name!r} is a repository of a service: open it with"
            " icefloe.Client(...).get_repo(...)",
            ErrorKind.NOT_ALLOWED,
        )
    saved.choose_profile()
    return saved.storage()


def _unknown_name(name: str, names: Mapping[str, SavedName]) -> NotFoundError:
    listed = ", ".join(sorted(names)) or "none"
    return NotFoundError(
        f"there is no saved name {name!r}; known are: {listed}", ErrorKind.ENTRY_NOT_FOUND
    )
