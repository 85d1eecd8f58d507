"""Values of metadata items: any JSON value, encoded as the spec version of the file says."""

from icefloe.config import SpecVersion
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import JsonValue, as_json_value
from icefloe.format.messagepack import decode_messagepack, encode_messagepack


def encode_metadata_value(value: object, spec_version: int) -> bytes:
    """Check and encode the value of one metadata item.

    >>> encode_metadata_value([1, 2, 3], SpecVersion.v2).hex(" ")
    '01 02 03 03 50 01'
    """
    checked = as_json_value(value)
    match spec_version:
        case SpecVersion.v1:
            return encode_messagepack(checked)
        case SpecVersion.v2:
            return encode_flexbuffer(checked)
    raise InvalidInputError(
        f"metadata cannot be written for spec version {spec_version}",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def decode_metadata_value(data: bytes | memoryview, spec_version: int) -> JsonValue:
    """Decode the value of one metadata item of a file of that spec version.

    >>> decode_metadata_value(bytes.fromhex("01 02 03 03 50 01"), SpecVersion.v2)
    [1, 2, 3]
    """
    match spec_version:
        case SpecVersion.v1:
            return decode_messagepack(data)
        case SpecVersion.v2:
            return decode_flexbuffer(data)
    raise FormatError(
        f"metadata of spec version {spec_version} cannot be read",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )
