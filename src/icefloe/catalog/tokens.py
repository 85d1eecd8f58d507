"""Tokens as text: recognisable, with a checksum, so that a typing error shows at once.

`icefloe_`, 16 characters that identify the token, 43 characters of 256 random bits, and 6
characters of a checksum.
"""

import binascii
import secrets
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

PREFIX: Final = "icefloe_"
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH: Final = 16
_SECRET_LENGTH: Final = 43
_CHECKSUM_LENGTH: Final = 6
_LENGTH: Final = len(PREFIX) + _ID_LENGTH + _SECRET_LENGTH + _CHECKSUM_LENGTH


def new_token() -> str:
    """Return a new random token.

    >>> token_id(new_token()).isalnum()
    True
    """
    number = _ID_LENGTH + _SECRET_LENGTH
    body = "".join(secrets.choice(_DIGITS) for _ in range(number))
    return PREFIX + body + _checksum(body)


def token_id(token: str) -> str:
    """Return the part that identifies a token; raise `InvalidInputError` if it has a fault."""
    body, checksum = token[len(PREFIX) : -_CHECKSUM_LENGTH], token[-_CHECKSUM_LENGTH:]
    is_whole = len(token) == _LENGTH and token.startswith(PREFIX) and token.isascii()
    if not is_whole or not secrets.compare_digest(_checksum(body), checksum):
        problem = "this is no token of Icefloe, or a part of it is missing or mistyped"
        raise InvalidInputError(problem, ErrorKind.NOT_LOGGED_IN)
    return body[:_ID_LENGTH]


def _checksum(body: str) -> str:
    number = binascii.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
