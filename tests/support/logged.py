"""What the package itself logged during a test."""

import pytest


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """List what the package said; other packages log whenever they like."""
    return [each.getMessage() for each in caplog.records if each.name.startswith("icefloe.")]
