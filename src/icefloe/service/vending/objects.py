"""Objects of a store, reached with a credential through the service's own connections.

The library has a client for each storage, which resolves names and follows redirects by itself.
The service talks to stores that organisations point it at. So it uses its guarded client here:
every address is checked, no redirect is followed, and connections are kept for the next request.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import httpx2 as httpx

from icefloe.catalog.model import Platform
from icefloe.catalog.wire import CredentialAnswer, StoreAnswer
from icefloe.errors import ErrorKind, ObjectNotFoundError, StorageError
from icefloe.records import Record
from icefloe.service.vending.azure import VERSION
from icefloe.storage.obstore_errors import refusal

_UPLOAD_ID: Final = re.compile(rb"<UploadId>([^<]{1,2000})</UploadId>")
_BLOCK: Final = "AAAA"
_LONGEST_LIST: Final = 4 * 1024 * 1024
_SIZES: Final = frozenset({"Size", "Content-Length"})
_COPY_HEADER: Final = {
    Platform.S3: "x-amz-copy-source",
    Platform.GCS: "x-goog-copy-source",
    Platform.AZURE: "x-ms-copy-source",
}


class ReadObject(Record):
    """An object as it was read; `data` is None if it has the version that is known already."""

    version: str
    data: bytes | None


class StoredObject(Record):
    """An object in a list."""

    key: str
    size_bytes: int


class Contents(Record):
    """The first names below a prefix. Keys begin at the bucket."""

    folders: tuple[str, ...]
    objects: tuple[StoredObject, ...]
    is_cut: bool
    """Whether there are more."""


class StoreClient:
    """Sends single requests to a store, with one credential."""

    def __init__(
        self, client: httpx.AsyncClient, store: StoreAnswer, credential: CredentialAnswer
    ) -> None:
        self._client: Final = client
        self._store: Final = store
        self._credential: Final = credential

    async def read(
        self, key: str, *, known_version: str | None = None, most_bytes: int
    ) -> ReadObject:
        """Read an object below the prefix of the store, unless it has the known version.

        Raise `ObjectNotFoundError` if there is none, and `StorageError` for one with more bytes
        than allowed, of which no more is read.
        """
        headers = {"accept-encoding": "identity"}
        if known_version is not None and known_version.endswith('"'):
            headers["if-none-match"] = known_version
        url, headers = self._signed("GET", self._store.prefix + key, "", headers, b"")
        try:
            async with self._client.stream("GET", url, headers=headers) as response:
                return await _read(response, key, known_version, most_bytes)
        except httpx.HTTPError as error:
            raise self._unreachable(error, key) from None

    async def list_some(self, prefix: str, *, most: int, has_folders: bool) -> Contents:
        """List the first objects below a prefix, which begins at the bucket.

        With folders, objects that are deeper stand for their folder. Raise `StorageError` if the
        store refuses, or sends no such list.
        """
        query = _list_query(self._store.platform, prefix, most, delimiter="/" * has_folders)
        url, headers = self._signed("GET", "", query, {"accept-encoding": "identity"}, b"")
        content = bytearray()
        try:
            async with self._client.stream("GET", url, headers=headers) as response:
                if (status := response.status_code) != 200:
                    raise refusal(status, f"cannot list {prefix!r}", prefix, f" (status {status})")
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > _LONGEST_LIST:
                        problem = f"the store sent more than {_LONGEST_LIST} bytes as a list"
                        raise StorageError(problem, key=prefix)
        except httpx.HTTPError as error:
            raise self._unreachable(error, prefix) from None
        return _parse_list(bytes(content), prefix, most)

    # Attempts of the probe: keys begin at the bucket, the status is the answer

    async def get(self, key: str) -> int:
        """Try to read an object."""
        return (await self._send("GET", key)).status_code

    async def put(self, key: str, data: bytes) -> int:
        """Try to write an object."""
        headers = {"content-type": "application/octet-stream"}
        if self._store.platform is Platform.AZURE:
            headers["x-ms-blob-type"] = "BlockBlob"
        return (await self._send("PUT", key, headers=headers, body=data)).status_code

    async def put_in_parts(self, key: str, data: bytes) -> int:
        """Try to write an object by the protocol for large ones, as a single part."""
        if self._store.platform is Platform.AZURE:
            query = urlencode({"comp": "block", "blockid": _BLOCK})
            status = (await self._send("PUT", key, query, body=data)).status_code
            if not is_success(status):
                return status
            body = f"<BlockList><Latest>{_BLOCK}</Latest></BlockList>".encode()
            return (await self._send("PUT", key, "comp=blocklist", body=body)).status_code
        begun = await self._send("POST", key, "uploads=")
        match = _UPLOAD_ID.search(begun.content)
        if not is_success(begun.status_code) or match is None:
            return begun.status_code
        upload = match[1].decode()
        query = urlencode({"partNumber": "1", "uploadId": upload}, quote_via=quote)
        part = await self._send("PUT", key, query, body=data)
        if not is_success(part.status_code):
            return part.status_code
        tag = part.headers.get("etag", "").replace('"', "&quot;")
        listed = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        query = urlencode({"uploadId": upload}, quote_via=quote)
        return (await self._send("POST", key, query, body=body)).status_code

    async def copy(self, source: str, key: str) -> int:
        """Try to copy an object within the bucket."""
        path = f"/{self._store.bucket}/{quote(source, safe='/~')}"
        if self._store.platform is Platform.AZURE:
            path, _ = self._signed("GET", source, "", {}, b"")
        headers = {_COPY_HEADER[self._store.platform]: path}
        return (await self._send("PUT", key, headers=headers)).status_code

    async def delete(self, key: str) -> int:
        """Try to delete an object."""
        return (await self._send("DELETE", key)).status_code

    async def list(self, prefix: str) -> int:
        """Try to list the objects below a prefix."""
        query = _list_query(self._store.platform, prefix, 1)
        return (await self._send("GET", "", query)).status_code

    async def _send(
        self,
        method: str,
        key: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> httpx.Response:
        url, signed = self._signed(method, key, query, dict(headers or {}), body)
        try:
            return await self._client.request(method, url, headers=signed, content=body or None)
        except httpx.HTTPError as error:
            raise self._unreachable(error, key) from None

    def _unreachable(self, error: Exception, key: str) -> StorageError:
        is_slow = isinstance(error, httpx.TimeoutException)
        reason = "the store takes too long" if is_slow else "the store cannot be reached"
        problem = f"cannot ask for {key!r} in bucket {self._store.bucket}: {reason}"
        return StorageError(problem, retryable=True, key=key)

    def _signed(
        self, method: str, key: str, query: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, dict[str, str]]:
        """Return the address of a request, and its headers with the credential."""
        store, values = self._store, self._credential.values
        path = f"/{quote(key, safe='/~')}" if key else ""
        match store.platform:
            case Platform.S3:
                url = f"{_bucket_address(store)}{path}{'?' if query else ''}{query}"
                return url, self._signed_for_s3(method, url, headers, body)
            case Platform.GCS:
                if "token" in values:
                    headers["authorization"] = f"Bearer {values['token']}"
                base = (store.endpoint or "https://storage.googleapis.com").rstrip("/")
                return f"{base}/{store.bucket}{path}{'?' if query else ''}{query}", headers
            case Platform.AZURE:
                base = store.endpoint or f"https://{store.account}.blob.core.windows.net"
                account = f"/{store.account}" if store.endpoint and store.path_style else ""
                whole = "&".join(filter(None, (query, values.get("sas"))))
                headers["x-ms-version"] = VERSION
                url = f"{base.rstrip('/')}{account}/{store.bucket}{path}"
                return f"{url}{'?' if whole else ''}{whole}", headers

    def _signed_for_s3(
        self, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> dict[str, str]:
        if self._credential.kind == "anonymous":
            return headers
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        values = self._credential.values
        keys = Credentials(
            values["access_key_id"], values["secret_access_key"], values.get("session_token")
        )
        request = AWSRequest(method, url, headers=headers, data=body)
        S3SigV4Auth(keys, "s3", self._store.region or "us-east-1").add_auth(request)
        return dict(request.headers)


def is_success(status: int) -> bool:
    """Return whether a status says that a request was done."""
    return 200 <= status < 300


def _list_query(platform: Platform, prefix: str, most: int, delimiter: str = "") -> str:
    """Return the query that lists objects below a prefix."""
    names = {"prefix": prefix} | ({"delimiter": delimiter} if delimiter else {})
    match platform:
        case Platform.S3:
            names |= {"list-type": "2", "max-keys": str(most)}
        case Platform.GCS:
            names |= {"max-keys": str(most)}
        case Platform.AZURE:
            names |= {"restype": "container", "comp": "list", "maxresults": str(most)}
    return urlencode(sorted(names.items()), quote_via=quote, safe="")


def _parse_list(content: bytes, prefix: str, most: int) -> Contents:
    """Read the list of a store: S3 and Google write the same, Azure has other names for it."""
    unreadable = StorageError("the store sent no list of objects that can be read", key=prefix)
    if b"<!" in content:  # a document type with entities, which no list has
        raise unreadable
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - bounded, and no entities
    except ElementTree.ParseError:
        raise unreadable from None
    folders: list[str] = []
    objects: list[StoredObject] = []
    is_cut = False
    for element in root.iter():
        kind, values = _local_name(element), {_local_name(part): part.text for part in element}
        if kind in {"CommonPrefixes", "BlobPrefix"}:
            folders.append(values.get("Prefix") or values.get("Name") or "")
        elif kind in {"Contents", "Blob"}:
            sizes = [p.text or "" for p in element.iter() if _local_name(p) in _SIZES]
            size = next((int(text) for text in sizes if text.isdecimal()), 0)
            objects.append(StoredObject(values.get("Key") or values.get("Name") or "", size))
        elif kind == "IsTruncated":
            is_cut |= element.text == "true"
        elif kind == "NextMarker":
            is_cut |= bool(element.text)
    is_cut |= len(folders) > most or len(objects) > most
    return Contents(tuple(folders[:most]), tuple(objects[:most]), is_cut)


def _local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _bucket_address(store: StoreAnswer) -> str:
    """Return the address of a bucket of S3: in the host name, or in the path."""
    default = f"https://s3.{store.region or 'us-east-1'}.amazonaws.com"
    endpoint = (store.endpoint or default).rstrip("/")
    if store.path_style or "." in store.bucket:
        return f"{endpoint}/{store.bucket}"
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{store.bucket}.{parts.netloc}"


async def _read(
    response: httpx.Response, key: str, known_version: str | None, most_bytes: int
) -> ReadObject:
    status = response.status_code
    if status == 304 and known_version is not None:
        await response.aread()  # its end, so that the connection is kept
        return ReadObject(known_version, None)
    if status == 404:
        raise ObjectNotFoundError(f"no object {key!r} (status 404)", key=key)
    if status != 200:
        raise refusal(status, f"cannot read {key!r}", key, f" (status {status})")
    version = response.headers.get("etag")
    if not version:
        raise StorageError(f"the store names no version of {key!r}", key=key)
    length = response.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > most_bytes:
        problem = f"the file {key} has {length or 'unknown'} bytes"
        limit = f"a service reads at most {most_bytes}"
        raise StorageError(f"{problem}; {limit}", ErrorKind.INVALID_CONFIG, key=key)
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > int(length):
            break
    if len(data) != int(length):
        problem = f"the store sent another number of bytes of {key!r} than it said"
        raise StorageError(problem, retryable=True, key=key)
    return ReadObject(version, bytes(data))
