"""Objects in S3, Google Cloud Storage, Azure Blob Storage or on an HTTP server.

A thin adapter over `obstore`: blocking callers use its blocking functions, asynchronous ones
await, at most once per small read. It makes one attempt at everything: `obstore` is set never
to repeat a request, because a repeated conditional write turns its own success into a
conflict. Repeating is the task of `icefloe.storage.retrying`, which knows what is safe.

One thing is repeated here: a request whose credentials the storage refused, once these have been
replaced. It was not carried out, so that is safe for all requests.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from itertools import batched
from typing import TYPE_CHECKING, Any, Concatenate, Final, cast

import obstore
from obstore import exceptions as foreign

from icefloe import effects
from icefloe.config import EffectiveStorageSettings
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.storage.clients import Clients, require_request_threads
from icefloe.storage.keys import (
    check_expected_version,
    check_key,
    check_order,
    cut_range,
    decode_key,
    encode_key,
    encode_prefix,
    merge_ranges,
    range_past_end,
    same_state,
    split_range,
)
from icefloe.storage.obstore_errors import (
    FOREIGN_ERRORS,
    may_be_of_credentials,
    plain_conflict,
    translate,
)
from icefloe.storage.port import (
    UNKNOWN_TIME,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode
    from obstore.store import ObjectStore, S3Store

_LIST_BATCH: Final = 1000
_DELETE_BATCH: Final = 1000  # what S3 takes in one request
_MERGE_GAP_BYTES: Final = 1 << 20
_LEAST_PART_BYTES: Final = 5 << 20  # S3 takes no smaller part of an upload
_MOST_PARTS: Final = 10_000
_CHUNKS: Final = "chunks/"  # keys to which the storage class for chunks applies
_BINARY: Final = "application/octet-stream"
_NOT_USER_ATTRIBUTES: Final = frozenset(
    {
        "Content-Disposition",
        "Content-Encoding",
        "Content-Language",
        "Content-Type",
        "Cache-Control",
        "Storage-Class",
    }
)


class ObjectStoreBackend:
    """One attempt at each operation, through `obstore`.

    `open_clients` makes the clients, and makes them again when the storage refused credentials:
    a client keeps those it has until shortly before their end.
    """

    def __init__(
        self, open_clients: Callable[[], Clients], settings: EffectiveStorageSettings
    ) -> None:
        self._open_clients = open_clients
        self._clients = open_clients()
        self._settings = settings
        self._encodes = self._clients.encodes_keys
        self._part_bytes = settings.concurrency.ideal_concurrent_request_size
        self._concurrency = settings.concurrency.max_concurrent_requests_for_object

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read an object or a range of it; a large object in concurrent parts."""
        if byte_range is not None:
            check_order(key, byte_range)
            if byte_range[0] == byte_range[1]:
                return await self._get_nothing(key, byte_range)
        options: GetOptions = {} if byte_range is None else {"range": byte_range}
        result = await self._request("read", key, options)
        info = _info(key, result.meta)
        if byte_range is not None and result.range != byte_range:
            raise range_past_end(key, byte_range, info.size_bytes)
        start, end = result.range
        if end - start > 2 * self._part_bytes:
            data = await self._read_parts(key, (start, end), info.version.etag)
        else:
            data = await self._body(key, result)
        return Fetched(data, info, _user_attributes(result.attributes))

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges; those near each other come in one request."""
        for byte_range in byte_ranges:
            check_order(key, byte_range)
        if not any(start < end for start, end in byte_ranges):
            for byte_range in byte_ranges or ((0, 0),):
                await self._get_nothing(key, byte_range)
            return [b""] * len(byte_ranges)
        if len(byte_ranges) == 1 and byte_ranges[0][1] - byte_ranges[0][0] <= self._part_bytes:
            return [await self._read_window(key, byte_ranges[0])]
        windows = merge_ranges(byte_ranges, gap=_MERGE_GAP_BYTES, limit=self._part_bytes)
        states: set[Version] = set()

        async def fetch(window: ByteRange) -> memoryview:
            if len(windows) == 1 and window[1] - window[0] <= self._part_bytes:
                return await self._read_window(key, window)
            return memoryview(await self._read_parts(key, window, None, states))

        fetched = await effects.map_concurrently(fetch, windows, limit=self._concurrency)
        if len(states) > 1:
            raise _replaced(key)
        return [cut_range(windows, fetched, byte_range) for byte_range in byte_ranges]

    async def put(
        self,
        key: str,
        data: Buffer,
        *,
        if_absent: bool = False,
        if_version: Version | None = None,
        attributes: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        """Write an object; a large one in parts, unless there is a condition on it."""
        if if_version is not None:
            check_expected_version(if_version, if_absent=if_absent)
        sent = self._attributes(key, attributes or {}, content_type)
        if if_absent and not self._settings.unsafe_use_conditional_create:
            await self._look_before_creating(key)
            if_absent = False
        if if_version is not None and not self._settings.unsafe_use_conditional_update:
            await self._look_before_updating(key, if_version)
            if_version = None
        return await self._write(key, data, _mode(if_version, if_absent=if_absent), sent)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk a prefix; `obstore` lists whole segments, so the last one is sifted here."""
        require_request_threads()
        encoded = encode_prefix(prefix) if self._encodes else prefix
        folder = encoded.rpartition("/")[0]
        clients = self._clients
        stream = iter(obstore.list(clients.reader, folder or None, chunk_size=_LIST_BATCH))
        while True:
            try:
                batch = next(stream) if effects.is_blocking() else await anext(stream)
            except (StopIteration, StopAsyncIteration):
                return
            except FOREIGN_ERRORS as error:
                failure = self._failure(error, "list", prefix)
                if may_be_of_credentials(error) and isinstance(failure, StorageError):
                    failure.retryable = await self._replace(clients)
                raise failure from failure.__cause__
            infos = [
                _info(key, meta) for meta in batch if (key := self._key(meta["path"], encoded))
            ]
            if infos:
                yield infos

    async def head(self, key: str) -> Fetched:
        """Look at an object, with its user metadata."""
        result = await self._request("look at", key, {"head": True})
        return Fetched(b"", _info(key, result.meta), _user_attributes(result.attributes))

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Copy on the server; through here if the source must be in a given state.

        Servers can check that, `obstore` cannot ask them. What is read belongs to one state,
        so comparing afterwards is just as sound.
        """
        if if_version is None:
            paths = (self._path(source), self._path(target))
            await self._call("copy", source, self._writer, obstore.copy, obstore.copy_async, *paths)
            return
        result = await self._request("copy", source, {})
        if not same_state(_version(result.meta["e_tag"], result.meta["version"]), if_version):
            raise PreconditionFailedError(f"{source!r} is no longer in the expected state")
        data = await self._body(source, result)
        attributes = {**result.attributes}
        content_type = attributes.pop("Content-Type", None)
        sent = self._attributes(target, _user_attributes(attributes), content_type)
        await self._write(target, data, "overwrite", sent)

    async def sign_reads(self, keys: Sequence[str], lifetime: timedelta) -> Sequence[str] | None:
        """Return signed addresses of objects, where a plain GET reads as this client does."""
        if not self._clients.can_sign:
            return None
        if not keys:
            return []
        paths = [self._path(key) for key in keys]
        return await self._call(
            "sign the address of",
            keys[0],
            self._reader,
            _sign_reads,
            _sign_reads_async,
            paths,
            lifetime,
        )

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete in batches; if a batch fails, one by one to learn which ones."""
        for key in keys:
            check_key(key)
        failures: dict[str, StorageError] = {}
        distinct = list(dict.fromkeys(keys))
        for batch in batched(distinct, _DELETE_BATCH):
            failures |= await self._delete_batch(batch)
        return DeleteReport(
            len(distinct) - len(failures),
            {key: failure.message for key, failure in failures.items()},
            frozenset(key for key, failure in failures.items() if failure.retryable),
        )

    async def _delete_batch(self, keys: Sequence[str]) -> dict[str, StorageError]:
        try:
            await self._delete(keys[0], [self._path(key) for key in keys])
        except ObjectNotFoundError:
            if len(keys) == 1:
                return {}
        except StorageError as failure:
            if len(keys) == 1:
                return {keys[0]: failure}
        else:
            return {}
        singles = await effects.map_concurrently(
            lambda key: self._delete_batch([key]), keys, limit=self._concurrency
        )
        return {key: failure for failures in singles for key, failure in failures.items()}

    async def _delete(self, key: str, paths: Sequence[str]) -> None:
        await self._call(
            "delete", key, self._writer, obstore.delete, obstore.delete_async, [*paths]
        )

    async def _get_nothing(self, key: str, byte_range: ByteRange) -> Fetched:
        """Answer for an empty range, which HTTP cannot ask for."""
        head = await self.head(key)
        if byte_range[1] > head.info.size_bytes:
            raise range_past_end(key, byte_range, head.info.size_bytes)
        return head

    async def _read_window(self, key: str, window: ByteRange) -> memoryview:
        """Read in one request, and that in one step."""
        start, end = window
        data = memoryview(
            await self._call(
                "read",
                key,
                self._reader,
                obstore.get_range,
                obstore.get_range_async,
                self._path(key),
                start=start,
                end=end,
            )
        )
        if len(data) != end - start:
            raise range_past_end(key, window)
        return data

    async def _read_parts(
        self, key: str, window: ByteRange, etag: str | None, states: set[Version] | None = None
    ) -> Buffer:
        """Read a large range in concurrent parts; note the states of the object they are of."""
        whole = bytearray(window[1] - window[0])

        async def fetch(part: ByteRange) -> None:
            options: GetOptions = {"range": part}
            if etag is not None:
                options["if_match"] = etag
            try:
                result = await self._request("read", key, options)
            except PreconditionFailedError:
                raise _replaced(key) from None
            if states is not None:
                states.add(_version(result.meta["e_tag"], result.meta["version"]))
            if result.range != part:
                raise range_past_end(key, part, result.meta["size"])
            data = await self._body(key, result)
            memoryview(whole)[part[0] - window[0] : part[1] - window[0]] = data

        parts = split_range(window, self._part_bytes)
        await effects.map_concurrently(fetch, parts, limit=self._concurrency)
        return memoryview(whole).toreadonly()

    async def _request(self, verb: str, key: str, options: "GetOptions") -> "GetResult":
        return await self._call(
            verb,
            key,
            self._reader,
            obstore.get,
            obstore.get_async,
            self._path(key),
            options=options,
        )

    async def _body(self, key: str, result: "GetResult") -> Buffer:
        try:
            is_blocking = effects.is_blocking()
            return memoryview(result.bytes() if is_blocking else await result.bytes_async())
        except FOREIGN_ERRORS as error:
            raise translate(error, "read", key) from None

    async def _write(
        self, key: str, data: Buffer, mode: "PutMode", attributes: dict[str, str]
    ) -> Version:
        view = memoryview(data).cast("B")
        in_parts = mode == "overwrite" and len(view) > max(
            self._settings.minimum_size_for_multipart_upload, _LEAST_PART_BYTES
        )
        try:
            result = await self._call(
                "write",
                key,
                self._writer,
                obstore.put,
                obstore.put_async,
                self._path(key),
                view,
                attributes=attributes,
                mode=mode,
                use_multipart=in_parts,
                chunk_size=max(self._part_bytes, _LEAST_PART_BYTES, len(view) // _MOST_PARTS + 1),
                max_concurrency=self._concurrency,
            )
        except ObjectNotFoundError:
            raise StorageError(
                f"cannot write {key!r}: {self._clients.place} does not exist", key=key
            ) from None
        if result["e_tag"] is None and result["version"] is None:
            return (await self.head(key)).info.version
        return _version(result["e_tag"], result["version"])

    async def _call[**P, T](
        self,
        verb: str,
        key: str,
        choose_store: Callable[[str, str], "ObjectStore"],
        blocking: Callable[Concatenate["ObjectStore", P], T],
        awaiting: Callable[Concatenate["ObjectStore", P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call the form of a function that suits the caller; its errors become ours."""
        require_request_threads()
        while True:
            clients = self._clients
            store = choose_store(verb, key)
            try:
                if effects.is_blocking():
                    return blocking(store, *args, **kwargs)
                return await awaiting(store, *args, **kwargs)
            except FOREIGN_ERRORS as error:
                failure = self._failure(error, verb, key, kwargs.get("mode", "overwrite"))
                if may_be_of_credentials(error) and await self._replace(clients):
                    continue
                raise failure from failure.__cause__

    def _failure(
        self, error: Exception, verb: str, key: str, mode: object = "overwrite"
    ) -> IcefloeError:
        """Return our error for one of `obstore`."""
        source = self._clients.credential_source
        if isinstance(error, foreign.UnauthenticatedError) and source and source.failure:
            return source.failure  # its cause is the exception of the user's own function
        if not isinstance(error, foreign.AlreadyExistsError):
            return translate(error, verb, key)
        # This is 409. On a creation it is the answer. On an update, another conditional write
        # was under way and ours was not looked at. Without a condition, nothing is at stake.
        if mode == "overwrite":
            return plain_conflict(error, verb, key)
        failure = translate(error, verb, key)
        if isinstance(failure, PreconditionFailedError):
            failure.retryable = isinstance(mode, dict)
        return failure

    async def _replace(self, refused: Clients) -> bool:
        """Open other clients than those with refused credentials, if there are other ones."""
        if self._clients is not refused:
            return True  # another request was first
        source = refused.credential_source
        if source is None or source.failure is not None:
            return False
        if not await effects.offload_waiting(source.replace_refused):
            return False
        if self._clients is refused:
            self._clients = self._open_clients()
        return True

    async def _look_before_creating(self, key: str) -> None:
        """Stand in for a conditional creation where they are switched off: not atomic."""
        try:
            await self.head(key)
        except ObjectNotFoundError:
            return
        raise PreconditionFailedError(f"{key!r} already exists", key=key)

    async def _look_before_updating(self, key: str, expected: Version) -> None:
        """Stand in for a conditional update where they are switched off: not atomic."""
        try:
            head = await self.head(key)
        except ObjectNotFoundError:
            head = None
        if head is None or not same_state(head.info.version, expected):
            raise PreconditionFailedError(f"{key!r} is no longer in the expected state", key=key)

    def _attributes(
        self, key: str, attributes: Mapping[str, str], content_type: str | None
    ) -> dict[str, str]:
        """Gather what is stored beside the bytes."""
        settings = self._settings
        sent = dict(attributes) if settings.unsafe_use_metadata else {}
        sent["Content-Type"] = content_type or _BINARY  # servers would guess otherwise
        is_chunk = key.startswith(_CHUNKS)
        special = settings.chunks_storage_class if is_chunk else settings.metadata_storage_class
        if (storage_class := special or settings.storage_class) is not None:
            sent["Storage-Class"] = storage_class
        return sent

    def _reader(self, verb: str, key: str) -> "ObjectStore":
        del verb, key
        return self._clients.reader

    def _writer(self, verb: str, key: str) -> "ObjectStore":
        if self._clients.writer is None:
            raise ReadOnlyError(
                f"cannot {verb} {key!r}: {self._clients.place} can only be read",
                ErrorKind.READ_ONLY_STORAGE,
                key=key,
            )
        return self._clients.writer

    def _path(self, key: str) -> str:
        if self._encodes:
            return encode_key(key)
        check_key(key)
        return key

    def _key(self, path: str, prefix: str) -> str | None:
        if not path.startswith(prefix):
            return None
        return decode_key(path) if self._encodes else path


def _sign_reads(store: "ObjectStore", paths: list[str], lifetime: timedelta) -> Sequence[str]:
    return obstore.sign(cast("S3Store", store), "GET", paths, lifetime)


async def _sign_reads_async(
    store: "ObjectStore", paths: list[str], lifetime: timedelta
) -> Sequence[str]:
    return await obstore.sign_async(cast("S3Store", store), "GET", paths, lifetime)


def _mode(if_version: Version | None, *, if_absent: bool) -> "PutMode":
    if if_version is not None:
        version = {"e_tag": if_version.etag, "version": if_version.generation}
        return cast("PutMode", {name: value for name, value in version.items() if value})
    return "create" if if_absent else "overwrite"


def _user_attributes(attributes: Mapping[Any, str]) -> dict[str, str]:
    return {
        str(name): value for name, value in attributes.items() if name not in _NOT_USER_ATTRIBUTES
    }


def _replaced(key: str) -> StorageError:
    return StorageError(f"{key!r} was replaced while it was read", retryable=True, key=key)


def _version(etag: str | None, generation: str | None) -> Version:
    if etag is not None and not etag.endswith('"'):
        etag = f'"{etag}"'  # Azure leaves out the quotes in listings
    return Version(etag=etag, generation=generation)


def _info(key: str, meta: "ObjectMeta") -> ObjectInfo:
    version = _version(meta["e_tag"], meta["version"])
    modified = meta["last_modified"]  # the client takes the beginning of 1970 for no answer
    return ObjectInfo(key, meta["size"], modified, version, modified > UNKNOWN_TIME)
