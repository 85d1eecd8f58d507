"""Versions of the on-disk format."""

from icefloe.values import NamedNumber


class SpecVersion(NamedNumber):
    """A version of the on-disk format; compares with plain integers.

    >>> SpecVersion.current() == 2
    True
    """

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> "SpecVersion":
        """Give the version of new repositories."""
        return SpecVersion.v2
