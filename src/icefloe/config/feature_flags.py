"""Parts of the behaviour that a repository can switch off for everybody."""

from dataclasses import dataclass

from icefloe.values import U16, Value


@dataclass(frozen=True, slots=True)
class FeatureFlag(Value):
    """A part of the behaviour, and whether a repository allows it.

    `setting` is the explicit choice, or None where the default applies.

    >>> FeatureFlag(4, "create_tag", default_enabled=True, setting=False).enabled
    False
    """

    id: U16
    name: str
    default_enabled: bool
    setting: bool | None = None

    @property
    def enabled(self) -> bool:
        """Say whether the repository allows it."""
        return self.default_enabled if self.setting is None else self.setting
