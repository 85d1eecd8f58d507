"""The jobs of the demonstration: each is one command, and each ends in one commit or in none."""

from dataclasses import dataclass
from pathlib import Path

import icefloe
from examples.demo.commands import Shell, shown_path
from examples.demo.weather import Deliveries, Weather

MISFIT = 4
"""What the shell sees if files do not fit."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """Takes the archives to the repository."""

    shell: Shell
    folder: Path

    @property
    def repo(self) -> tuple[str, str]:
        """The option that names the repository."""
        return ("--repo", shown_path(self.folder / "cube"))

    @property
    def months(self) -> str:
        """The files of the ocean."""
        return shown_path(self.folder / "archive" / "ocean" / "*.nc")

    @property
    def days(self) -> str:
        """The files of the weather."""
        return shown_path(self.folder / "archive" / "weather" / "*" / "*.nc")

    def opened(self) -> icefloe.Repository:
        """Open the repository to look at it, which no command does."""
        storage = icefloe.local_filesystem_storage(str(self.folder / "cube"))
        prefix = f"{(self.folder / 'archive').as_uri()}/"
        access = {prefix: icefloe.credentials.LocalFileSystemAccess}
        return icefloe.Repository.open(
            storage, authorize_virtual_chunk_access=icefloe.containers_credentials(access)
        )

    def ingest_ocean(self, month: str) -> None:
        """Make a dataset of files whose usual coordinate is empty: another one tells the time."""
        self.shell.run(
            "ingest", shown_path(self.folder / "archive" / "ocean" / month), *self.repo,
            "--group", "ocean", "--concat", "time_counter",
            "--coordinate", "time_counter=time_centered",
            "--container", shown_path(self.folder / "archive"),
            "--message", "two months of the ocean",
        )  # fmt: skip

    def catch_a_broken_file(self) -> None:
        """Try to ingest a file that was cut off: nothing is committed, and the file is named."""
        before = self.opened().lookup_branch("main")
        self.ingest_weather(code=MISFIT)
        if self.opened().lookup_branch("main") != before:
            raise SystemExit("something was committed")
        self.shell.console.print(
            "Nothing was committed. The file is delivered again; we try again:"
        )

    def ingest_weather(self, code: int = 0) -> None:
        """Make a dataset of thousands of files, with room for days that are late."""
        self.shell.run(
            "ingest", self.days, *self.repo, "--group", "weather", "--concat", "time",
            "--gaps", "leave", "--message", "the first delivery", "--engine", "spark",
            code=code,
        )  # fmt: skip

    def name_the_delivery(self) -> None:
        """Name the version for good."""
        self.shell.run("tag", "create", self.repo[1], "first-delivery", "main")

    def append_weather(self, deliveries: Deliveries) -> None:
        """Add what is new, and do so twice: the second time there is nothing to do."""
        tips = []
        for _ in range(2):
            self.shell.run(
                "append", self.days, *self.repo, "--group", "weather",
                "--message", "the second delivery", "--engine", "spark",
            )  # fmt: skip
            tips.append(self.opened().lookup_branch("main"))
        if tips[0] != tips[1]:
            raise SystemExit(f"{len(deliveries.second)} files were appended twice")

    def append_ocean(self) -> None:
        """Add the third month."""
        self.shell.run(
            "append", self.months, *self.repo, "--group", "ocean",
            "--message", "a third month of the ocean",
        )  # fmt: skip


def late_file(archive: Weather, deliveries: Deliveries) -> Path:
    """Return a file that came with the second delivery."""
    return archive.path(deliveries.late[0])
