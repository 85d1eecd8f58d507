"""Labels that tell the operator of a storage who is asking."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import Value

_LONGEST: Final = 128
_PRODUCT: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
_COMMENT: Final = re.compile(r"[^\x00-\x1f\x7f-\U0010ffff\"();=\\]*")


@dataclass(frozen=True, slots=True)
class Attribution(Value):
    """Labels added to the user agent of every request.

    `client` is a program, `name` or `name/version`; the others are free text of ASCII without
    control characters and any of `"();=\\`.

    >>> Attribution(client="nightly-ingest/2", workload="era5").client
    'nightly-ingest/2'
    """

    _: KW_ONLY
    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        Value.__post_init__(self)
        _check("client", self.client, _PRODUCT, "be 'name' or 'name/version' in token characters")
        for name in ("workload", "principal"):
            wanted = 'be ASCII without control characters and without any of "();=\\'
            _check(name, getattr(self, name), _COMMENT, wanted)

    def label(self, agent: str) -> str:
        """Add the labels to a user agent.

        >>> Attribution(client="ingest/2", workload="era5", principal="ada").label("icefloe/1.0")
        'ingest/2 icefloe/1.0 (workload=era5; principal=ada)'
        """
        named = (("workload", self.workload), ("principal", self.principal))
        comment = "; ".join(f"{name}={text}" for name, text in named if text is not None)
        parts = (self.client, agent, f"({comment})" if comment else None)
        return " ".join(part for part in parts if part is not None)


def _check(name: str, label: str | None, pattern: re.Pattern[str], wanted: str) -> None:
    if label is None:
        return
    if not pattern.fullmatch(label):
        raise InvalidInputError(
            f"Attribution.{name} must {wanted}, got {label!r}", ErrorKind.INVALID_CONFIG
        )
    if len(label) > _LONGEST:
        raise InvalidInputError(
            f"Attribution.{name} must not be longer than {_LONGEST} bytes, got {len(label)}",
            ErrorKind.INVALID_CONFIG,
        )
