"""The client library's own objects, for other libraries that take nothing else.

Requests made through them are neither counted nor retried by us.
"""

from typing import Any

from obstore.store import LocalStore

from icefloe.config import effective_storage_settings
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.storage.clients import open_clients, user_agent
from icefloe.storage.foreign_errors import FOREIGN_ERRORS, translate
from icefloe.storage.handle import Storage
from icefloe.storage.specs import AzureSpec, GcsSpec, HttpSpec, LocalSpec, S3Spec


def open_foreign_client(storage: Storage) -> Any:
    """Give the `obstore` client of a storage, made anew; it sends no request yet."""
    match storage.spec:
        case LocalSpec(path=path):
            return LocalStore(path)
        case S3Spec() | GcsSpec() | AzureSpec() | HttpSpec() as spec:
            settings = effective_storage_settings(storage.default_settings(), None)
            return open_clients(spec, settings, user_agent()).reader
        case other:
            raise InvalidInputError(
                f"files in {type(other).__name__.removesuffix('Spec').lower()} storages cannot be"
                " parsed: use a directory, an object store or a web server",
                ErrorKind.STORAGE_CONFIG,
            )


def as_storage_error(error: BaseException, url: str) -> IcefloeError | None:
    """Give what an exception raised through such a client means; None if it is no such thing."""
    is_foreign = type(error).__module__.startswith("obstore")
    if isinstance(error, FileNotFoundError) or (is_foreign and isinstance(error, FOREIGN_ERRORS)):
        return translate(error, "read", url)
    return None
