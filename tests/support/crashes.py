"""Servers that die in the middle of a job."""

import inspect
from threading import Event
from typing import Any

import pytest


class Crash(BaseException):  # nobody may handle it: the server is gone
    """Stands for the end of a process at some moment."""


class Crashes:
    """Lets a step of a job be the last one that happens, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.happened = Event()

    def after(self, owner: Any, step: str) -> None:
        """Crash when a function of a class or of a module has done its work."""
        original = getattr(owner, step)

        def run(*arguments: Any) -> Any:
            result = original(*arguments)
            if inspect.iscoroutine(result):
                return self._after(result)
            self._crash()
            return result

        self._monkeypatch.setattr(owner, step, run)

    async def _after(self, result: Any) -> None:
        await result
        self._crash()

    def before(self, owner: Any, step: str) -> None:
        """Crash when a function of a class or of a module is called."""
        original = getattr(owner, step)

        def run(*arguments: Any) -> Any:
            self._crash()
            return original(*arguments)

        self._monkeypatch.setattr(owner, step, run)

    def _crash(self) -> None:
        if not self.happened.is_set():
            self.happened.set()
            raise Crash
