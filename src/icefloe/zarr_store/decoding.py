"""Decode chunks straight into the result of a read, without a copy between.

This works for chunks whose values lie in the result as they lie in the chunk: one behind the other,
in the same byte order. All others take the way of Zarr's own functions. So does a chunk that does
not decode to the expected number of bytes: then Zarr's codecs report what is wrong with it.
"""

import threading
import zlib
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, Final

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import zstandard
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec, GetResult
from zarr.codecs import BloscCodec, BytesCodec, ZstdCodec
from zarr.codecs import numcodecs as numcodecs_of_zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.buffer.cpu import Buffer as MemoryBuffer
from zarr.core.chunk_utils import ChunkTransform, decode_and_scatter_chunk
from zarr.core.dtype.common import HasEndianness
from zarr.core.indexing import SelectorTuple

from icefloe.storage.port import Buffer as StoredBytes

type Decode = Callable[[BytesBytesCodec, Any, NDArray[np.uint8]], bool]
"""Decodes bytes into a destination; False if they do not fill it."""

_PLAIN_KINDS: Final = "biufcmM"
_BLOSC_SIZE: Final = slice(4, 8)
"""Where the header of Blosc has the number of decoded bytes."""
_SMALL_BYTES: Final = 32 << 10


class ChunkDecoder:
    """Decodes the chunks of one read into its result."""

    def __init__(
        self, transform: ChunkTransform, out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        self._transform, self._out, self._drop_axes = transform, out, drop_axes
        self._codecs: list[Any] = list(reversed(transform.codecs[1:]))
        self._array = _destination(transform, out)
        self._plain: dict[int, bool] = {}
        """By identity: the read keeps its specs, and to compare them takes longer."""

    def into(self, out: NDBuffer) -> "ChunkDecoder":
        """Return a decoder of the same chunks into an array of the same type."""
        other = copy(self)
        other._out = out  # noqa: SLF001 - of this class
        other._array = _destination(self._transform, out)  # noqa: SLF001
        return other

    def decode(
        self,
        data: StoredBytes,
        spec: ArraySpec,
        chunk_selection: SelectorTuple,
        out_selection: SelectorTuple,
    ) -> GetResult:
        """Decode the bytes of a chunk, and put the selected values into the result."""
        if self._is_plain(spec):
            target = self._target(spec, chunk_selection, out_selection)
            if target is None:
                if self._select_into(data, spec, chunk_selection, out_selection):
                    return _PRESENT
            elif self._decode_into(data, spec, target):
                return _PRESENT
        buffer = spec.prototype.buffer.from_bytes(data)
        return self._scatter(buffer, spec, chunk_selection, out_selection)

    def fill(self, spec: ArraySpec, out_selection: SelectorTuple) -> GetResult:
        """Put the fill value into the result, for a chunk that was never written."""
        return self._scatter(None, spec, (), out_selection)

    def temporary_bytes(self, spec: ArraySpec, decoded_bytes: int) -> int:
        """Return how many bytes a chunk takes while it is decoded, beside those stored."""
        is_direct = self._array is not None and self._is_plain(spec)
        is_direct = is_direct and all(type(codec) in _INTO for codec in self._codecs[-1:])
        return decoded_bytes * max(0, len(self._codecs) - 1) if is_direct else 2 * decoded_bytes

    def _scatter(
        self,
        data: Buffer | None,
        spec: ArraySpec,
        chunk_selection: SelectorTuple,
        out_selection: SelectorTuple,
    ) -> GetResult:
        return decode_and_scatter_chunk(
            data,
            self._out,
            chunk_spec=spec,
            chunk_selection=chunk_selection,
            out_selection=out_selection,
            drop_axes=self._drop_axes,
            decode=self._transform.decode_chunk,
        )

    def _is_plain(self, spec: ArraySpec) -> bool:
        """Return whether decoded bytes are the values as they are in the result."""
        known = self._plain.get(id(spec))
        if known is None:
            known = self._plain[id(spec)] = self._array is not None and _has_values_of(
                spec, self._transform.codecs[0], self._array.dtype
            )
        return known

    def _target(
        self, spec: ArraySpec, chunk_selection: SelectorTuple, out_selection: SelectorTuple
    ) -> NDArray[np.uint8] | None:
        """Return the bytes of the result that a chunk fills whole, and in its own order."""
        if (
            self._array is None
            or not isinstance(chunk_selection, tuple)
            or len(chunk_selection) != len(spec.shape)
        ):
            return None
        for selected, length in zip(chunk_selection, spec.shape, strict=True):
            if isinstance(selected, slice):
                if selected.indices(length) != (0, length, 1):
                    return None
            elif not (length == 1 and isinstance(selected, int | np.integer) and selected == 0):
                return None
        out_slices = out_selection if isinstance(out_selection, tuple) else (out_selection,)
        if not all(isinstance(selected, slice) for selected in out_slices):
            return None
        values = self._array[out_slices or ...]  # without `...`, a scalar would be a copy
        if not values.flags.c_contiguous or values.size != prod(spec.shape):
            return None
        return values.reshape(-1).view(np.uint8)

    def _select_into(
        self,
        data: StoredBytes,
        spec: ArraySpec,
        chunk_selection: SelectorTuple,
        out_selection: SelectorTuple,
    ) -> bool:
        """Decode a chunk by itself, and copy the selected values; False if that is impossible."""
        assert self._array is not None
        target = np.empty(prod(spec.shape) * self._array.dtype.itemsize, np.uint8)
        if not self._decode_into(data, spec, target):
            return False
        values = target.view(self._array.dtype).reshape(spec.shape)[chunk_selection]
        if self._drop_axes:
            values = values.squeeze(axis=self._drop_axes)
        self._array[out_selection] = values
        return True

    def _decode_into(self, data: StoredBytes, spec: ArraySpec, target: NDArray[np.uint8]) -> bool:
        if not self._codecs:
            return _copy(data, target)
        *earlier, last = self._codecs
        try:
            for codec in earlier:
                data = _decoded(codec, data, spec, len(target))
            into = _INTO.get(type(last))
            if into is not None:
                return into(last, data, target)
            return _copy(_decoded(last, data, spec, len(target)), target)
        except (RuntimeError, ValueError, zlib.error, zstandard.ZstdError):
            return False


_PRESENT: Final = GetResult(status="present")


def _destination(transform: ChunkTransform, out: NDBuffer) -> NDArray[Any] | None:
    """Return the array of a result, if chunks of these codecs can be decoded into it."""
    array = out.as_ndarray_like()
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _PLAIN_KINDS:
        return None
    if not isinstance(transform.codecs[0], BytesCodec):
        return None
    return array


def _has_values_of(spec: ArraySpec, codec: Any, dtype: np.dtype[Any]) -> bool:
    stored = spec.dtype.to_native_dtype()
    if isinstance(spec.dtype, HasEndianness):
        stored = replace(spec.dtype, endianness=codec.endian).to_native_dtype()  # type: ignore[call-arg]
    return bool(stored == dtype == spec.dtype.to_native_dtype())


def _copy(data: StoredBytes, target: NDArray[np.uint8]) -> bool:
    source = np.frombuffer(data, np.uint8)
    if len(source) != len(target):
        return False
    target[:] = source
    return True


_own: Final = threading.local()
"""What each thread decompresses with: making it again takes longer than a small chunk."""


def _decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_own, "decompressor", None)
    if decompressor is None:
        decompressor = _own.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def _zstd(_: BytesBytesCodec, data: StoredBytes, target: NDArray[np.uint8]) -> bool:
    # A shorter chunk would leave a part of the result as it was, and nobody would notice.
    if zstandard.frame_content_size(data) != len(target):
        return False
    if len(target) <= _SMALL_BYTES:  # a copy takes less time than another decompressor
        return _copy(_decompressor().decompress(data, allow_extra_data=False), target)
    numcodecs.zstd.decompress(data, target)
    return True


def _blosc(_: BytesBytesCodec, data: StoredBytes, target: NDArray[np.uint8]) -> bool:
    if int.from_bytes(data[_BLOSC_SIZE], "little") != len(target):
        return False
    numcodecs.blosc.decompress(data, target)
    return True


def _shuffle(codec: BytesBytesCodec, data: StoredBytes, target: NDArray[np.uint8]) -> bool:
    if len(data) != len(target):
        return False
    codec._codec.decode(data, target)  # type: ignore[attr-defined]  # noqa: SLF001
    return True


_INTO: Final[dict[type, Decode]] = {
    ZstdCodec: _zstd,
    BloscCodec: _blosc,
    numcodecs_of_zarr.Zstd: _zstd,
    numcodecs_of_zarr.Blosc: _blosc,
    numcodecs_of_zarr.Shuffle: _shuffle,
}


def _decoded(codec: Any, data: StoredBytes, spec: ArraySpec, size_bytes: int) -> StoredBytes:
    if isinstance(codec, numcodecs_of_zarr.Zlib):  # the same, without growing step by step
        return zlib.decompress(data, bufsize=size_bytes)
    decoded: Buffer = codec._decode_sync(MemoryBuffer.from_bytes(data), spec)  # noqa: SLF001
    return decoded.as_buffer_like()
