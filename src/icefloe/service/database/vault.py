"""Secrets at rest: each is sealed with a key of its own, which a master key wraps.

The database holds sealed secrets and wrapped keys; the master key is outside of it, in a file, in
an environment variable or in a key management service. To rotate the master key, every wrapped
key is wrapped again; the secrets themselves are not touched. A sealed secret is bound to its name,
so a row that is copied under another name does not open.
"""

import base64
import binascii
import hashlib
import os
import secrets as random
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, delete, insert, select, update

from icefloe.errors import ErrorKind, InvalidInputError, ServiceError
from icefloe.records import Record
from icefloe.service.database import tables

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_COMMAND_SECONDS: Final = 60


class MasterKey(Protocol):
    """Wraps keys of secrets; the key itself may be out of reach."""

    @property
    def key_id(self) -> str:
        """The name of the key, which is stored beside what it wraps."""

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Return a key in a form that only this master key can unwrap."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a wrapped key; raise an error if it was changed, or has another context."""


class LocalMasterKey:
    """A master key of 32 bytes that this process knows."""

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise InvalidInputError(
                f"a master key has {_KEY_BYTES} random bytes in base64, not {len(key)}",
                ErrorKind.INVALID_CONFIG,
            )
        self._key: Final = key
        self.key_id: Final = "local-" + hashlib.sha256(b"icefloe key id" + key).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"LocalMasterKey({self.key_id})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a master key does not leave its process")

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Return a key in a form that only this master key can unwrap."""
        return encrypt(self._key, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a wrapped key."""
        return decrypt(self._key, wrapped, context)


def new_master_key() -> str:
    """Return a new random master key, as text for a file or an environment variable."""
    return base64.urlsafe_b64encode(random.token_bytes(_KEY_BYTES)).decode()


def parse_master_key(text: str) -> LocalMasterKey:
    """Read a master key from its text form.

    >>> parse_master_key(new_master_key()).key_id.startswith("local-")
    True
    """
    try:
        key = base64.urlsafe_b64decode(text.strip())
    except (binascii.Error, ValueError):
        problem = f"the master key is not text in base64, of {_KEY_BYTES} random bytes"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from None
    return LocalMasterKey(key)


def read_master_key(path: Path, *, create: bool = False) -> LocalMasterKey:
    """Read a master key from a file that only its owner may read; create the file if asked to."""
    if create and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # another process was first
            pass
        else:
            with os.fdopen(descriptor, "w") as file:
                file.write(new_master_key() + "\n")
                file.flush()
                os.fsync(file.fileno())
    try:
        text = path.read_text()
    except OSError as error:
        problem = f"cannot read the master key in {path}: {error.strerror}"
        raise ServiceError(problem, ErrorKind.SECRET_UNREADABLE) from error
    if path.stat().st_mode & 0o077:
        problem = f"others may read the master key in {path}: run `chmod 600 {path}`"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
    return parse_master_key(text)


def run_key_command(command: Sequence[str]) -> LocalMasterKey:
    """Return the master key that a program prints; no shell is involved."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            command, capture_output=True, check=True, text=True, timeout=_COMMAND_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        # The output is not shown: it may be a part of the key.
        reason = f"exit code {getattr(error, 'returncode', None)}"
        if not isinstance(error, subprocess.CalledProcessError):
            reason = type(error).__name__
        problem = f"the program {command[0]!r} for the master key failed ({reason})"
        raise ServiceError(problem, ErrorKind.SECRET_UNREADABLE) from None
    return parse_master_key(done.stdout)


def write_new_key(path: Path) -> LocalMasterKey:
    """Put a new master key in the place of the one in a file, which gets the name of its id.

    At any moment, both keys are in files: see `read_former_keys`.
    """
    former = read_master_key(path)
    copy = path.with_name(f"{path.name}.{former.key_id}")
    if not copy.exists():
        os.link(path, copy)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    key = read_master_key(new, create=True)
    new.replace(path)
    return key


def read_former_keys(path: Path) -> list[LocalMasterKey]:
    """Return the former keys that `write_new_key` left beside the present one."""
    return [read_master_key(copy) for copy in sorted(path.parent.glob(f"{path.name}.local-*"))]


class Sealed(Record):
    """A secret that only its master key opens."""

    key_id: str
    wrapped_key: bytes
    sealed: bytes


class Vault:
    """Seals and opens secrets. The first master key seals; all of them open.

    `reload` returns the keys again, if somebody rotated them while this process runs.

    >>> vault = Vault([parse_master_key(new_master_key())])
    >>> vault.open("bucket/lab/main", vault.seal("bucket/lab/main", b"key"))
    b'key'
    """

    def __init__(
        self,
        keys: Sequence[MasterKey],
        reload: Callable[[], Sequence[MasterKey]] | None = None,
    ) -> None:
        if not keys:
            raise InvalidInputError("the service needs a master key", ErrorKind.INVALID_CONFIG)
        self._reload: Final = reload
        self._use(keys)

    def _use(self, keys: Sequence[MasterKey]) -> None:
        self._current = keys[0]
        self._keys = {key.key_id: key for key in keys}

    def seal(self, name: str, secret: bytes) -> Sealed:
        """Encrypt a secret under a name."""
        key, context = random.token_bytes(_KEY_BYTES), name.encode()
        return Sealed(
            self._current.key_id,
            self._current.wrap(key, context),
            encrypt(key, secret, context),
        )

    def open(self, name: str, sealed: Sealed) -> bytes:
        """Return a secret that was sealed under a name."""
        return decrypt(self._unwrap(name, sealed), sealed.sealed, name.encode())

    def wrap_again(self, name: str, sealed: Sealed) -> Sealed:
        """Return the same sealed secret with its key wrapped by the current master key."""
        key = self._unwrap(name, sealed)
        wrapped = self._current.wrap(key, name.encode())
        return Sealed(self._current.key_id, wrapped, sealed.sealed)

    def is_current(self, sealed: Sealed) -> bool:
        """Return whether the current master key wraps a secret's key."""
        return sealed.key_id == self._current.key_id

    def _unwrap(self, name: str, sealed: Sealed) -> bytes:
        if sealed.key_id not in self._keys and self._reload is not None:
            self._use(self._reload())
        master = self._keys.get(sealed.key_id)
        if master is None:
            problem = f"the secret {name!r} needs the master key {sealed.key_id}"
            advice = "which was not given: add it to the former keys of the configuration"
            raise ServiceError(f"{problem}, {advice}", ErrorKind.SECRET_UNREADABLE)
        return master.unwrap(sealed.wrapped_key, name.encode())


def encrypt(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt bytes with a key of 32 bytes; they are bound to a context."""
    nonce = random.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, context)


def decrypt(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return what was encrypted; raise `ServiceError` if it was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        problem = f"a secret was changed, or is not the one for {context.decode()!r}"
        raise ServiceError(problem, ErrorKind.SECRET_UNREADABLE) from None


# In the database


def put_secret(
    connection: Connection, vault: Vault, name: str, secret: bytes, now: datetime
) -> None:
    """Store a secret under a name, in place of an earlier one."""
    sealed = vault.seal(name, secret)
    connection.execute(delete(tables.secrets).where(tables.secrets.c.name == name))
    values = {
        "name": name,
        "key_id": sealed.key_id,
        "wrapped_key": sealed.wrapped_key,
        "sealed": sealed.sealed,
        "created_at": now,
    }
    connection.execute(insert(tables.secrets).values(values))


def get_secret(connection: Connection, vault: Vault, name: str) -> bytes | None:
    """Return the secret of a name; None if there is none."""
    query = select(tables.secrets).where(tables.secrets.c.name == name)
    row = connection.execute(query).first()
    return None if row is None else vault.open(name, _sealed(row))


def delete_secret(connection: Connection, name: str) -> None:
    """Delete the secret of a name, if there is one."""
    connection.execute(delete(tables.secrets).where(tables.secrets.c.name == name))


def rotate_secrets(connection: Connection, vault: Vault) -> int:
    """Wrap the keys of all secrets with the current master key; return how many changed."""
    table = tables.secrets
    changed = 0
    for row in connection.execute(select(table)).all():
        sealed = _sealed(row)
        if vault.is_current(sealed):
            continue
        again = vault.wrap_again(row.name, sealed)
        values = {"key_id": again.key_id, "wrapped_key": again.wrapped_key}
        connection.execute(update(table).where(table.c.name == row.name).values(values))
        changed += 1
    return changed


def _sealed(row: object) -> Sealed:
    return Sealed(
        row.key_id,  # type: ignore[attr-defined]
        bytes(row.wrapped_key),  # type: ignore[attr-defined]
        bytes(row.sealed),  # type: ignore[attr-defined]
    )
