"""The options of a copy in the record of its files, so that appending needs no options."""

from collections.abc import Mapping
from typing import Any

import msgspec

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.copying.layouts import CopyOptions
from icefloe.pipeline.writing.provenance import COPY, SourceRecord
from icefloe.records import asdict


def copying_to_json(options: CopyOptions) -> dict[str, Any]:
    """Write options as plain values, but for those that each run chooses.

    >>> plain = copying_to_json(CopyOptions.of({"time": 24}, compressors=None))
    >>> plain["layout"]
    {'chunks': {'time': 24}, 'shards': {}, 'compressors': None}
    """
    whole = asdict(options)
    del whole["overwrite"]
    whole["layout"]["compressors"] = _plain(options.layout.compressors)
    return whole


def _plain(compressors: Any) -> Any:
    """Write codecs of Zarr as they are in `zarr.json`."""
    if compressors is None or isinstance(compressors, str | Mapping):
        return compressors
    if hasattr(compressors, "to_dict"):
        return compressors.to_dict()
    return [_plain(codec) for codec in compressors]


def recorded_copying(record: SourceRecord | None) -> CopyOptions | None:
    """Return the options with which a dataset was copied; None if it refers to its files.

    >>> options = CopyOptions.of({"time": 24}, packing=True)
    >>> recorded_copying(SourceRecord((), {"copy": copying_to_json(options)})) == options
    True
    """
    if record is None or not record.is_copy:
        return None
    try:
        return msgspec.convert(record.options[COPY], CopyOptions)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            "the record of sources does not say how values are to be copied: copy all files again"
            " (overwrite=True)",
            ErrorKind.BAD_METADATA,
        ) from error
