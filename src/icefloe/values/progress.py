"""How long work tells how far it is."""

from collections.abc import Callable

type Progress = Callable[[int, int], None]
"""Hears how many steps of how many are done; more may turn up on the way."""
