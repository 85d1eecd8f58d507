"""Values that users make, print and compare: what settings and credentials are built from."""

from icefloe.values.checks import (
    U8,
    U16,
    U32,
    U64,
    Check,
    Moment,
    NonZeroU16,
    NonZeroU64,
    TextMapping,
    integer,
)
from icefloe.values.model import (
    NamedNumber,
    Settings,
    Value,
    Variant,
    defaults_of,
    merged,
    secret,
    setting,
    variant_of,
)

__all__ = [
    "U8",
    "U16",
    "U32",
    "U64",
    "Check",
    "Moment",
    "NamedNumber",
    "NonZeroU16",
    "NonZeroU64",
    "Settings",
    "TextMapping",
    "Value",
    "Variant",
    "defaults_of",
    "integer",
    "merged",
    "secret",
    "setting",
    "variant_of",
]
