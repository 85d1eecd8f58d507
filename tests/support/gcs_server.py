"""A small Google Cloud Storage, written by us for our tests.

This is *not* Google's software and no emulator of theirs: no usable one was found in the package
registries. It speaks the part of the XML API that object-store clients use, in memory:

- buckets that exist once named, objects with `x-goog-meta-*`, content type, ETag (the MD5 of the
  content, as the real one has it), `x-goog-generation`, last-modified;
- `x-goog-if-generation-match` on writes, copies and deletions (0: only if absent), else 412;
- `Range` and `If-Match` on reads, 206 and 416; reads of one `generation`, of which only the
  newest is kept;
- listings `list-type=2` with prefix, delimiter, pages and continuation tokens;
- copies by `x-goog-copy-source`, also conditional on the source's generation;
- multipart uploads (start, part, complete, abort).

It takes every request as authorised. Not there: JSON API, signatures, versioned buckets, ACLs.
"""

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.loopback import LoopbackHandler, LoopbackServer, parse_range, serving

_PAGE = 1000
_META = "x-goog-meta-"


@dataclass(frozen=True, slots=True)
class GcsEndpoint:
    """Where a bucket of the server is."""

    url: str
    bucket: str

    @property
    def service_account_key(self) -> str:
        """Name the server in the form that clients take credentials in; it holds no secret."""
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **empty})


@contextmanager
def gcs_server(*, bucket: str = "icefloe") -> Iterator[GcsEndpoint]:
    """Run the server on threads of this process, with an empty bucket."""
    with serving(_Server()) as server:
        yield GcsEndpoint(server.url, bucket)


class RefusedError(Exception):
    """The answer to a request that cannot be done."""

    def __init__(self, status: HTTPStatus, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    generation: int
    etag: str
    content_type: str
    metadata: Mapping[str, str]
    modified: datetime

    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "Last-Modified": format_datetime(self.modified, usegmt=True),
            "Content-Type": self.content_type,
            "Accept-Ranges": "bytes",
            **{_META + name: value for name, value in self.metadata.items()},
        }


@dataclass(slots=True)
class _Upload:
    content_type: str
    metadata: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class Buckets:
    """The objects of all buckets; every change is atomic under one lock."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, _Object]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1_700_000_000_000_000)

    def get(self, bucket: str, key: str, generation: str | None = None) -> _Object:
        """Find an object, or refuse."""
        found = self._objects.get(bucket, {}).get(key)
        if found is None or (generation is not None and str(found.generation) != generation):
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchKey")
        return found

    def put(
        self,
        bucket: str,
        key: str,
        content: bytes,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        if_generation: str | None = None,
    ) -> _Object:
        """Write an object if its generation is the expected one."""
        with self._lock:
            self._check(bucket, key, if_generation)
            new = _Object(
                content,
                next(self._numbers),
                f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"',
                content_type,
                metadata,
                datetime.now(UTC),
            )
            self._objects.setdefault(bucket, {})[key] = new
            return new

    def delete(self, bucket: str, key: str, if_generation: str | None = None) -> None:
        """Delete an object that exists."""
        with self._lock:
            self.get(bucket, key)
            self._check(bucket, key, if_generation)
            del self._objects[bucket][key]

    def keys(self, bucket: str, prefix: str) -> list[tuple[str, _Object]]:
        """List keys under a prefix in the order of their UTF-8 bytes."""
        with self._lock:
            objects = list(self._objects.get(bucket, {}).items())
        found = [item for item in objects if item[0].startswith(prefix)]
        return sorted(found, key=lambda item: item[0].encode())

    def start_upload(self, content_type: str, metadata: Mapping[str, str]) -> str:
        """Begin a multipart upload."""
        upload_id = f"upload-{next(self._numbers)}"
        self._uploads[upload_id] = _Upload(content_type, metadata)
        return upload_id

    def upload(self, upload_id: str) -> _Upload:
        """Find a multipart upload that is under way."""
        if (found := self._uploads.get(upload_id)) is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "NoSuchUpload")
        return found

    def end_upload(self, upload_id: str) -> None:
        """Forget a multipart upload."""
        self._uploads.pop(upload_id, None)

    def _check(self, bucket: str, key: str, if_generation: str | None) -> None:
        if if_generation is None:
            return
        found = self._objects.get(bucket, {}).get(key)
        if str(found.generation if found else 0) != if_generation:
            raise RefusedError(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")


class _Server(LoopbackServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.buckets = Buckets()


class _Handler(LoopbackHandler):
    @property
    def buckets(self) -> Buckets:
        return cast("_Server", self.server).buckets

    def respond(self) -> None:
        body = self.read_body()
        url = urlsplit(self.path)
        bucket, _, key = url.path.removeprefix("/").partition("/")
        bucket, key = unquote(bucket), unquote(key)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            self._dispatch(bucket, key, query, body)
        except RefusedError as refusal:
            self._answer_xml(f"<Error><Code>{refusal.code}</Code></Error>", refusal.status)

    def _dispatch(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> None:
        match self.command:
            case "GET" | "HEAD" if key:
                self._read(self.buckets.get(bucket, key, query.get("generation")))
            case "GET":
                self._list(bucket, query)
            case "PUT" if "uploadId" in query:
                self._put_part(query, body)
            case "PUT":
                self._put(bucket, key, body)
            case "POST" if "uploads" in query:
                self._start_upload(bucket, key)
            case "POST" if "uploadId" in query:
                self._complete_upload(bucket, key, query["uploadId"], body)
            case "DELETE" if "uploadId" in query:
                self.buckets.end_upload(query["uploadId"])
                self.answer(HTTPStatus.NO_CONTENT)
            case "DELETE":
                expected = self.headers.get("x-goog-if-generation-match")
                self.buckets.delete(bucket, key, expected)
                self.answer(HTTPStatus.NO_CONTENT)
            case _:
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed")

    def _answer_xml(self, text: str, status: int = HTTPStatus.OK) -> None:
        document = f'<?xml version="1.0" encoding="UTF-8"?>{text}'
        self.answer(status, document.encode(), {"Content-Type": "application/xml"})

    def _read(self, found: _Object) -> None:
        if_match = self.headers.get("If-Match")
        if if_match is not None and if_match not in ("*", found.etag):
            raise RefusedError(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        headers, size = found.headers(), len(found.content)
        match parse_range(self.headers.get("Range"), size):
            case None:
                self.answer(HTTPStatus.OK, found.content, headers)
            case (0, 0):
                raise RefusedError(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            case (start, stop):
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
                self.answer(HTTPStatus.PARTIAL_CONTENT, found.content[start:stop], headers)

    def _metadata(self) -> dict[str, str]:
        named = ((name.lower(), value) for name, value in self.headers.items())
        return {name.removeprefix(_META): value for name, value in named if name.startswith(_META)}

    def _content_type(self) -> str:
        return self.headers.get("Content-Type") or "application/octet-stream"

    def _put(self, bucket: str, key: str, body: bytes) -> None:
        expected = self.headers.get("x-goog-if-generation-match")
        if (source := self.headers.get("x-goog-copy-source")) is not None:
            self._copy(unquote(source).removeprefix("/"), (bucket, key), expected)
            return
        new = self.buckets.put(
            bucket,
            key,
            body,
            content_type=self._content_type(),
            metadata=self._metadata(),
            if_generation=expected,
        )
        self.answer(HTTPStatus.OK, headers=_identity(new))

    def _copy(self, source: str, target: tuple[str, str], expected: str | None) -> None:
        old = self.buckets.get(*source.split("/", 1))
        wanted = self.headers.get("x-goog-copy-source-if-generation-match")
        if wanted is not None and wanted != str(old.generation):
            raise RefusedError(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        new = self.buckets.put(
            *target,
            old.content,
            content_type=old.content_type,
            metadata=old.metadata,
            if_generation=expected,
        )
        self._answer_xml(f"<CopyObjectResult><ETag>{escape(new.etag)}</ETag></CopyObjectResult>")

    def _start_upload(self, bucket: str, key: str) -> None:
        upload_id = self.buckets.start_upload(self._content_type(), self._metadata())
        self._answer_xml(
            f"<InitiateMultipartUploadResult><Bucket>{escape(bucket)}</Bucket>"
            f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def _put_part(self, query: Mapping[str, str], body: bytes) -> None:
        self.buckets.upload(query["uploadId"]).parts[int(query["partNumber"])] = body
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        self.answer(HTTPStatus.OK, headers={"ETag": f'"{etag}"'})

    def _complete_upload(self, bucket: str, key: str, upload_id: str, body: bytes) -> None:
        upload = self.buckets.upload(upload_id)
        root = ElementTree.fromstring(body)
        numbers = [int(node.text or 0) for node in root.iter() if node.tag.endswith("PartNumber")]
        new = self.buckets.put(
            bucket,
            key,
            b"".join(upload.parts[number] for number in numbers),
            content_type=upload.content_type,
            metadata=upload.metadata,
            if_generation=self.headers.get("x-goog-if-generation-match"),
        )
        self.buckets.end_upload(upload_id)
        text = f"<ETag>{escape(new.etag)}</ETag>"
        document = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
        self.answer(HTTPStatus.OK, document.encode(), _identity(new))

    def _list(self, bucket: str, query: Mapping[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        limit = min(int(query.get("max-keys", _PAGE)), _PAGE)
        entries: dict[str, str] = {}  # in order; a common prefix appears once
        truncated = False
        for key, found in self.buckets.keys(bucket, prefix):
            name = _folded(key, prefix, delimiter)
            if name.encode() <= after.encode() or name in entries:
                continue
            if len(entries) == limit:
                truncated = True
                break
            entries[name] = _prefix_xml(name) if name != key else _entry_xml(key, found)
        last = next(reversed(entries), "")
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        self._answer_xml(
            f"<ListBucketResult><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(entries)}</KeyCount>"
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
            f"{token if truncated else ''}{''.join(entries.values())}</ListBucketResult>"
        )


def _identity(found: _Object) -> dict[str, str]:
    return {"ETag": found.etag, "x-goog-generation": str(found.generation)}


def _folded(key: str, prefix: str, delimiter: str) -> str:
    """Shorten a key to the first delimiter after the prefix, if there is one."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key if end < 0 else key[: end + len(delimiter)]


def _prefix_xml(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _entry_xml(key: str, found: _Object) -> str:
    modified = found.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{len(found.content)}</Size>"
        f"<LastModified>{modified}</LastModified><ETag>{escape(found.etag)}</ETag>"
        f"<Generation>{found.generation}</Generation></Contents>"
    )
