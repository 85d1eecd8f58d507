"""Shared parts of commands: arguments, options, progress, tables, JSON, prompts, times, access."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.printable import printable, printable_json
from icefloe.records import Record

if TYPE_CHECKING:
    from rich.table import Table

    from icefloe.api.repository import Repository
    from icefloe.catalog.names import SavedName
    from icefloe.config import RepositoryConfig
    from icefloe.credentials import AnyCredential
    from icefloe.reports import Report
    from icefloe.storage import Storage

RepositoryArgument = Annotated[
    str,
    typer.Argument(
        help="The repository: a path, s3://, gs://, az://, https://…, a name of `icefloe config"
        " add`, or org/name or icefloe://host/org/name of a service."
    ),
]
AnonymousOption = Annotated[
    bool, typer.Option(help="Send no credentials to the repository's own storage.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllRowsJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with all rows.")]
MaxRowsOption = Annotated[int, typer.Option(help="Show at most this many rows.", min=0)]
DeepOption = Annotated[
    bool,
    typer.Option("--deep", help="Also read all chunks, and check the files of virtual chunks."),
]
AuthorizeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Read virtual chunks below this URL, with the credentials of the environment, or with"
        " a saved credential: NAME=URL. Can be repeated."
    ),
]
AuthorizeAnonymousOption = Annotated[
    list[str] | None, typer.Option(help="… or without credentials. Can be repeated.")
]


LookAtBranchOption = Annotated[
    str | None, typer.Option("--branch", help="Read this branch. [default: main]")
]
LookAtTagOption = Annotated[str | None, typer.Option("--tag", help="… or this tag.")]
LookAtSnapshotOption = Annotated[
    str | None,
    typer.Option("--snapshot", help="… or this snapshot, by its id or the first characters of it."),
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        help="The version of the branch that was the newest then: a date or time such as"
        " 2026-01-31, or a period before now such as 30d.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DestinationArgument = Annotated[
    str, typer.Argument(help="An empty destination: a path, s3://, gs://, az://…")
]


class Place(Record):
    """The repository of a command: a storage, or the answer of a service."""

    storage: Storage
    config: RepositoryConfig | None = None
    """The containers that a service granted; None for a storage."""
    access: Mapping[str, AnyCredential | None] = {}

    @property
    def is_of_service(self) -> bool:
        """Whether a service vends credentials for it."""
        return self.config is not None

    def exists(self) -> bool:
        """Return whether there is a repository."""
        from icefloe.api.repository import Repository

        return Repository.exists(self.storage)

    def open(
        self,
        config: RepositoryConfig | None = None,
        access: Mapping[str, AnyCredential | None] | None = None,
    ) -> Repository:
        """Open the repository; settings and credentials of the command count first."""
        from icefloe.api.repository import Repository

        if self.config is not None:
            config = self.config if config is None else self.config.merge(config)
        return Repository.open(self.storage, config, {**self.access, **(access or {})} or None)

    @contextmanager
    def filled(self, create: Callable[[], Repository] | None = None) -> Iterator[Repository]:
        """Open the repository, or create it where there is none, and write to it in the body.

        If the body fails, a repository that was created for it is deleted again, unless it is that
        of a service.
        """
        from icefloe.api.repository import Repository
        from icefloe.pipeline.running.orphans import discard_if_empty

        if self.exists():
            yield self.open()
            return
        repository = Repository.create(self.storage) if create is None else create()
        try:
            yield repository
        except BaseException:
            if not self.is_of_service:
                discard_if_empty(repository)
            raise


def place_of(text: str, *, anonymous: bool = False, writes: bool = False) -> Place:
    """Return where the repository is that a command names.

    `org/name` is a repository of the service of the last login, unless there is such a folder. A
    word without a slash may be a saved name.
    """
    saved = _saved_name(text)
    address = text if saved is None else saved.url
    if not is_of_service(address):
        return Place(_storage(saved, address, anonymous=anonymous))
    if anonymous:
        raise typer.BadParameter("a service vends credentials: leave out --anonymous")
    from icefloe.catalog.client import locate

    opened = locate(address, "write" if writes else "read")
    return Place(opened.storage, opened.config, opened.access)


def address_of(text: str) -> str:
    """Return the path or URL that a saved name stands for; a text that is none, as it is.

    The profile of a name counts from now on, unless the environment chooses another one.
    """
    saved = _saved_name(text)
    return text if saved is None else saved.url


def _storage(saved: SavedName | None, address: str, *, anonymous: bool = False) -> Storage:
    """Open the storage of a saved name, or of an address."""
    if saved is not None:
        return saved.storage(anonymous=anonymous)
    from icefloe.storage import storage_from_url

    return storage_from_url(address, anonymous=anonymous)


def _saved_name(text: str) -> SavedName | None:
    if "/" in text:
        return None
    from icefloe.catalog.names import find_name

    saved = find_name(text)
    if saved is None:
        return None
    if Path(text).exists():
        raise InvalidInputError(
            f"{text!r} is a saved name, for {saved.url}, and also a folder or file: write ./{text}"
            f" for that one, or remove the name with `icefloe config remove {text}`",
            ErrorKind.CANNOT_PARSE_URL,
        )
    saved.choose_profile()
    return saved


def has_saved_credential(text: str) -> bool:
    """Return whether a text is a saved name whose repository is opened with a saved credential."""
    saved = _saved_name(text)
    return saved is not None and saved.credential is not None


def python_address(text: str) -> str:
    """Return what Python takes for the repository of a command: saved names and `org/name` as URLs.

    >>> python_address("./cube")
    './cube'
    """
    from icefloe.catalog.handles import is_service_url, repository_url
    from icefloe.catalog.logins import current_service

    address = address_of(text)
    if not is_of_service(address) or is_service_url(address):
        return address
    return repository_url(current_service() or "", address)


def lasting_url(text: str, *, anonymous: bool = False) -> str:
    """Return a URL or path of a repository that means the same in other folders and programs.

    >>> lasting_url("s3://climate/era5?region=eu-west-1", anonymous=True)
    's3://climate/era5?region=eu-west-1&anonymous=true'
    """
    address = python_address(text)
    if "://" not in address:
        return str(Path(address).expanduser().absolute())
    return f"{address}{'&' if '?' in address else '?'}anonymous=true" if anonymous else address


def storage_of_destination(text: str) -> Storage:
    """Return the storage that a command writes a copy to."""
    from icefloe.catalog.handles import is_service_url

    saved = _saved_name(text)
    address = text if saved is None else saved.url
    if is_service_url(address):
        raise typer.BadParameter(
            f"{text} is a repository of a service: give a path or the URL of a storage",
            param_hint="DESTINATION",
        )
    return _storage(saved, address)


def is_of_service(text: str) -> bool:
    """Return whether a text names a repository of a service."""
    from icefloe.catalog.handles import is_repository_name, is_service_url

    if is_service_url(text):
        return True
    if not is_repository_name(text) or Path(text).exists():
        return False
    from icefloe.catalog.logins import current_service

    return current_service() is not None


def open_repository(
    url: str,
    config: RepositoryConfig | None = None,
    *,
    anonymous: bool = False,
    writes: bool = False,
    authorisations: Mapping[str, AnyCredential | None] | None = None,
) -> Repository:
    """Open the repository that a command was given, by one request to a service if it is there."""
    return place_of(url, anonymous=anonymous, writes=writes).open(config, authorisations)


def read_config(path: Path) -> RepositoryConfig:
    """Read a configuration from a file in the form of config.yaml."""
    from icefloe.format.config_file import decode_config_yaml

    try:
        return decode_config_yaml(path.read_bytes())
    except OSError as reason:
        raise InvalidInputError(
            f"cannot read the configuration: {reason}", ErrorKind.INVALID_CONFIG
        ) from reason


is_quiet: Final = ContextVar("is_quiet", default=False)
"""Whether the option --quiet was given: then no progress is shown."""


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how much of how much is done, and the time that is left, on standard error.

    Nothing is shown if that is no terminal.
    """
    if is_quiet.get() or not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def is_coloured() -> bool:
    """Return whether standard output is a terminal that may be sent colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of one or more lines; what a terminal would take for a command is written out."""
    typer.echo(printable(text, keep="\n"), err=err, nl=nl)


def show_json(value: Any) -> None:
    """Print JSON, in colours on a terminal."""
    text = printable_json(json.dumps(value, indent=2, ensure_ascii=False))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        typer.echo(text)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, plain columns that other programs can cut elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(drawn_table(headings, rows))
    else:
        from icefloe.reports import table_text

        echo(table_text(headings, rows))


def present(report: Report, *, as_json: bool, max_rows: int | None = None) -> None:
    """Print a report as JSON, or its table and its notes."""
    if as_json:
        show_json(report.to_dict())
        return
    if (rows := report.rows(max_rows)) or report.has_empty_table:
        show_table(report.headings, rows)
    from icefloe.cli.wording import in_shell_words

    for note in report.notes():
        echo(in_shell_words(note))


def drawn_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Draw a table; what a repository says is never taken for markup."""
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table = Table()
    for number, heading in enumerate(headings):
        is_number = bool(body) and all(isinstance(row[number], int) for row in body)
        table.add_column(
            Text(printable(heading)), justify="right" if is_number else "left", overflow="fold"
        )
    for row in body:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


INTERRUPTED: Final = 130
"""What the shell sees after a key press, as with other commands."""
DECLINED: Final = 1


def require_consent(question: str, *, is_given: bool) -> None:
    """Ask, unless the answer was given with the command; leave if it is not yes."""
    if is_given:
        return
    try:
        agrees = typer.confirm(printable(question, keep="\n"), err=True)
    except typer.Abort:  # nobody is there to answer
        echo("", err=True)
        agrees = False
    if not agrees:
        echo("nothing was changed; --yes goes on without asking", err=True)
        raise typer.Exit(DECLINED)


@contextmanager
def interruptible(after: str) -> Iterator[None]:
    """Report an interruption by the keyboard, and what it left behind."""
    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {after}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def authorised(
    with_environment: Sequence[str], anonymously: Sequence[str]
) -> Mapping[str, AnyCredential | None]:
    """Return the credential for each url prefix: of its platform, or `NAME=` for a saved one.

    >>> sorted(authorised(["file:///data/"], ["s3://public/"]))
    ['file:///data/', 's3://public/']
    """
    from icefloe.credentials.access import credential_of_platform

    access: dict[str, AnyCredential | None] = {}
    for text in with_environment:
        name, sign, prefix = text.partition("=")
        if not sign or "/" in name:
            access[text] = credential_of_platform(text)
            continue
        from icefloe.catalog.saved_credentials import find_credential, reveal_credential

        saved = find_credential(name)
        if not saved.opens(prefix):
            raise typer.BadParameter(
                f"the saved credential {name!r} ({saved.kind}) does not open {prefix!r}",
                param_hint="--authorize",
            )
        access[prefix] = reveal_credential(saved)
    return access | {
        prefix: credential_of_platform(prefix, is_anonymous=True) for prefix in anonymously
    }


_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PERIOD: Final = re.compile(r"(\d+)([smhdw])")

OLDER_THAN_HELP: Final = (
    "A period before now, such as 12h, 30d or 8w; a date or time such as 2026-01-31 or"
    " 2026-01-31T06:00+01:00 (UTC unless it says otherwise); or now."
)


def optional_moment(text: str | None, option: str) -> datetime | None:
    """Read the moment of an option; return None if the option is not set."""
    return None if text is None else moment(text, option=option)


def moment(text: str, now: datetime | None = None, *, option: str = "--older-than") -> datetime:
    """Read a moment, or a period before now.

    >>> noon = datetime(2026, 3, 31, 12, tzinfo=UTC)
    >>> moment("30d", noon).isoformat()
    '2026-03-01T12:00:00+00:00'
    >>> moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'
    """
    now = now or datetime.now(UTC)
    if text == "now":
        return now
    try:
        if period := _PERIOD.fullmatch(text):
            return now - int(period[1]) * _UNITS[period[2]]
        moment_ = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no moment: write a period before now such as 30d or 12h, a date such as"
            " 2026-01-31, or now",
            param_hint=option,
        ) from None
    return moment_ if moment_.tzinfo is not None else moment_.replace(tzinfo=UTC)


def command_line(context: typer.Context, *more: str) -> str:
    """Return the command that is running, as it could be typed, with more arguments."""
    words = ["icefloe", *context.command_path.split()[1:]]
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if value is None or value == param.get_default(context):
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if param.param_type_name == "argument":
            words += map(str, values)
        elif value is True:
            words.append(param.opts[0])
        else:
            words += [f"{param.opts[0]}={text}" for text in values]
    return shlex.join([*words, *more])
