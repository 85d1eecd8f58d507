"""Waiting for other processes, however long the machine takes over them."""

from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event


def wait_for(event: Event, *processes: BaseProcess) -> None:
    """Wait until an event is set; not if one of those who are to bring it about has ended."""
    while not event.wait(1):
        ended = [process for process in processes if not process.is_alive()]
        assert not ended or event.is_set(), f"they ended before: {ended}"
