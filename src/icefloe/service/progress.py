"""The progress of a job, as the job tells it and as others see it."""


class InterruptedJobError(Exception):
    """Raised inside a job that has to stop before its end."""


class Progress:
    """The progress of a job, and the way to stop it.

    A job runs in threads; it stops where it tells its progress.

    >>> progress = Progress()
    >>> progress.expect(2)
    >>> progress.advance()
    >>> progress.done, progress.total
    (1, 2)
    """

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self._is_stopped = False

    def expect(self, total: int) -> None:
        """Set how much there is to do; raise `InterruptedJobError` if the job has to stop."""
        self.done, self.total = 0, total
        self.advance(0)

    def advance(self, count: int = 1) -> None:
        """Add what is done; raise `InterruptedJobError` if the job has to stop."""
        self.done += count
        if self._is_stopped:
            raise InterruptedJobError

    def stop(self) -> None:
        """Stop the job when it tells its progress next."""
        self._is_stopped = True
