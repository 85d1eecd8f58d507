"""The `icefloe` command: which commands exist, and how it reports errors.

A command is known by its name and help line. Its module is imported when the command runs, so
that `icefloe --help` and each command load only what they need.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from icefloe.cli.common import echo, is_quiet
from icefloe.cli.option_sets import spread
from icefloe.errors import (
    AccessDeniedError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    ServiceError,
    StorageError,
)
from icefloe.printable import printable
from icefloe.version import VERSION

EXIT_CODES: dict[type[IcefloeError], int] = {
    NotFoundError: 3,
    FormatError: 4,
    InvalidInputError: 5,
    ConflictError: 6,
    StorageError: 7,
    AccessDeniedError: 8,
    ServiceError: 9,
    IcefloeError: 1,
}
"""What the shell sees for each group of errors; the first that fits counts."""


def exit_code(error: IcefloeError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def reporting[**P](command: Callable[P, None]) -> Callable[P, None]:
    """Turn our errors into a message on standard error and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                # Text of a fixed length: users of a command have no choice of data types.
                warnings.filterwarnings("ignore", ".* does not have a Zarr V3 specification")
                command(*args, **kwargs)
        except IcefloeError as error:
            _show_error(error)
            raise typer.Exit(exit_code(error)) from error

    return run


def _show_error(error: IcefloeError) -> None:
    """Print an error: on a terminal within its width, elsewhere each message in one line."""
    from rich.console import Console
    from rich.text import Text

    from icefloe.cli.wording import in_shell_words

    console = Console(stderr=True, highlight=False)
    message = printable(in_shell_words(error.message), keep="\n")
    lines = [Text.assemble(("error", "bold red"), f" ({error.kind}): {message}")]
    notes = getattr(error, "__notes__", ())
    lines += [Text(f"  {printable(note, keep='\n')}") for note in notes]
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def without_markup(text: str) -> str:
    r"""Escape what the printer of help would take for markup, and leave out.

    >>> print(without_markup("A branch. [default: main]"))
    A branch. \[default: main]
    """
    return re.sub(r"(\[[a-z#/@][^[]*?\])", r"\\\1", text)


class LazyCommand(TyperCommand):
    """A command whose module is imported when the command runs, not when help lists it.

    `source` names its function, below `icefloe.cli`; `help_line` is the first line of the
    function's docstring. A command may have forms: commands that its first word chooses. Without
    the name of a form it runs itself.
    """

    def __init__(
        self,
        name: str,
        source: str,
        help_line: str,
        panel: str | None = None,
        forms: Sequence["LazyCommand"] = (),
    ) -> None:
        super().__init__(name, help=help_line, rich_help_panel=panel)
        self.source = source
        self.forms = {str(form.name): form for form in forms}

    def load(self) -> Any:
        """Import the command, with its options, those of all commands, and its whole help."""
        module, _, function = self.source.partition(":")
        single = typer.Typer(add_completion=False)
        function_ = getattr(import_module(f"icefloe.cli.{module}"), function)
        single.command(self.name)(reporting(spread(function_)))
        command = typer.main.get_command(single)
        command.params += _shared_params()
        command.help = without_markup(command.help or "")
        for param in command.params:
            if help_text := getattr(param, "help", None):
                param.help = without_markup(help_text)  # type: ignore[attr-defined]
        return _CommandWithForms(command, self.forms) if self.forms else command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,
        **extra: Any,
    ) -> Any:
        """Parse the arguments of the command, which then runs in place of this one."""
        form = self.forms.get(args[0]) if args else None
        if form is None:
            return self.load().make_context(info_name, args, parent, **extra)
        if Path(str(form.name)).exists() and not extra.get("resilient_parsing"):
            echo(
                f"{form.name} is a form of the command: write ./{form.name} for the file", err=True
            )
        return form.make_context(f"{info_name} {form.name}", args[1:], parent, **extra)


class _CommandWithForms(TyperGroup):
    """A command whose help lists its forms, too; arguments are parsed as those of any command."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, command: Any, forms: Mapping[str, LazyCommand]) -> None:
        super().__init__(
            name=command.name,
            commands=dict(forms),
            callback=command.callback,
            params=command.params,
            help=command.help,
            no_args_is_help=True,
            subcommand_metavar="",
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse all arguments: none of them is the name of a form."""
        return super(TyperGroup, self).parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command itself."""
        return super(TyperGroup, self).invoke(ctx)


COMMANDS: Final = (
    LazyCommand(
        "create",
        "settings:create",
        "Create a repository with the branch main and one empty version.",
    ),
    LazyCommand(
        "log",
        "history:log",
        "Draw the history of a version, the newest first, with branches and tags.",
    ),
    LazyCommand(
        "show",
        "history:show",
        "Show a version: its time, message and metadata, and what its commit changed.",
    ),
    LazyCommand(
        "diff",
        "history:diff",
        "List groups and arrays that changed between two versions, and the regions of arrays.",
    ),
    LazyCommand(
        "tree",
        "tree:tree",
        "Draw the groups and arrays of a version: dimensions, type, chunks, units.",
    ),
    LazyCommand(
        "status",
        "tree:status",
        "Show the state of a repository: branches, spec version, counts, settings.",
    ),
    TyperGroup(
        name="branch",
        help="List, create, delete and move branches.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list", "refs:list_branches", "List the branches, and the newest version of each."
            ),
            LazyCommand(
                "create", "refs:create_branch", "Create a branch that begins at a version."
            ),
            LazyCommand("delete", "refs:delete_branch", "Delete a branch; main cannot be deleted."),
            LazyCommand(
                "reset", "refs:reset_branch", "Move a branch to another version, for everybody."
            ),
        ],
    ),
    TyperGroup(
        name="tag",
        help="List, create and delete tags.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list", "refs:list_tags", "List the tags, and the version that each names."
            ),
            LazyCommand("create", "refs:create_tag", "Name a version for good: a tag never moves."),
            LazyCommand(
                "delete", "refs:delete_tag", "Delete a tag; no tag can have its name afterwards."
            ),
        ],
    ),
    TyperGroup(
        name="config",
        help="Settings of a repository (show, set); names of repositories on this machine (add,"
        " list, remove).",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "show",
                "settings:show_config",
                "Show the configuration of a repository, with the keys that `icefloe config set`"
                " takes.",
                "Settings of a repository",
            ),
            LazyCommand(
                "set",
                "settings:set_config",
                "Change the stored configuration of a repository, for everybody who opens it"
                " later.",
                "Settings of a repository",
            ),
            LazyCommand(
                "add",
                "names:add",
                "Save a name for a repository, with the options of its storage, on this machine.",
                "Names on this machine",
            ),
            LazyCommand(
                "list",
                "names:list_",
                "List the names of repositories that are saved on this machine.",
                "Names on this machine",
            ),
            LazyCommand(
                "remove",
                "names:remove",
                "Remove a name that is saved on this machine; the repository stays as it is.",
                "Names on this machine",
            ),
        ],
    ),
    TyperGroup(
        name="container",
        help="Places outside of a repository that its virtual chunks may lie in.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list",
                "settings:list_containers",
                "List the containers of virtual chunks: places that a repository may refer to.",
            ),
            LazyCommand(
                "add",
                "settings:add_container",
                "Allow a repository to refer to files below a URL.",
            ),
            LazyCommand(
                "remove",
                "settings:remove_container",
                "Remove a container: virtual chunks below it cannot be read any more.",
            ),
        ],
    ),
    TyperGroup(
        name="credential",
        help="Credentials under names of your own: secrets in the keyring or the environment.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "add",
                "credential:add",
                "Save a credential under a name: its secrets are asked for, and go to the keyring.",
            ),
            LazyCommand(
                "list",
                "credential:list_",
                "List the saved credentials: their kinds, and where their secrets are.",
            ),
            LazyCommand(
                "remove",
                "credential:remove",
                "Remove a saved credential, and its secrets from the keyring.",
            ),
        ],
    ),
    LazyCommand(
        "inspect",
        "inspect:inspect",
        "Print any metadata file of a repository as JSON.",
    ),
    LazyCommand(
        "access",
        "dependencies:access",
        "Show what you need to read the virtual chunks of a repository, before you open it.",
    ),
    LazyCommand(
        "dependencies",
        "dependencies:dependencies",
        "Show the external objects that a repository needs: chunks, bytes, arrays and versions.",
    ),
    LazyCommand(
        "verify",
        "health:verify",
        "Check that every file that some version needs exists, can be read, and fits to the"
        " others.",
    ),
    LazyCommand(
        "doctor",
        "health:doctor",
        "Test a storage: conditional writes, reads after writes, ranges, listings, deletions.",
    ),
    LazyCommand(
        "repair",
        "health:repair",
        "Repair a repository, even if it cannot be opened; without --apply, show the repair.",
    ),
    LazyCommand(
        "stats",
        "space:stats",
        "Show the size of chunks, in all versions that branches and tags reach.",
    ),
    LazyCommand(
        "expire",
        "space:expire",
        "Remove versions from the history that were written before a time.",
    ),
    LazyCommand(
        "gc",
        "space:gc",
        "Delete files that no version needs and that were written before a time.",
    ),
    LazyCommand(
        "migrate",
        "migrate:migrate",
        "Migrate a repository from spec version 1 to 2; all versions, branches and tags stay.",
    ),
    LazyCommand(
        "clone",
        "copies:clone",
        "Copy a repository, with all of its history or as one version.",
    ),
    LazyCommand(
        "export",
        "copies:export",
        "Write one version as plain Zarr (format 3): chunks byte for byte, also virtual ones.",
    ),
    LazyCommand(
        "ingest",
        "automatic:ingest",
        "Make one dataset of many files: by reference where possible, as a copy where not.",
        forms=(
            LazyCommand(
                "virtual",
                "ingest:ingest_virtual",
                "Combine many files to one dataset, without copying their data, in one commit.",
                "One form only",
            ),
            LazyCommand(
                "native",
                "native:ingest_native",
                "Copy the values of many files into one dataset, in one commit.",
                "One form only",
            ),
        ),
    ),
    LazyCommand(
        "append",
        "ingest:append",
        "Add new files to a dataset that `icefloe ingest` made of files; safe to repeat.",
    ),
    LazyCommand(
        "rechunk",
        "native:rechunk",
        "Copy a dataset of a repository, or a Zarr hierarchy, with other chunks, in one commit.",
    ),
    LazyCommand(
        "plan",
        "plan:plan",
        "Estimate time and memory of `icefloe ingest` or `icefloe append`; write nothing.",
    ),
    LazyCommand(
        "coverage",
        "coverage:coverage",
        "Show which steps of datasets are present, missing or late.",
    ),
    LazyCommand(
        "sources",
        "coverage:sources",
        "List the files of a version, in the order of their positions.",
    ),
    TyperGroup(
        name="manifests",
        help="Show, judge and rewrite the layout of manifests.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "show",
                "manifests:show",
                "List the manifests of a version: arrays, references, bytes; the largest first.",
            ),
            LazyCommand(
                "suggest",
                "manifests:suggest",
                "Propose a configuration of manifests, from the arrays and how they grew.",
            ),
            LazyCommand(
                "rewrite",
                "manifests:rewrite",
                "Rewrite all manifests of a branch to the configured layout, in one commit.",
            ),
        ],
    ),
    TyperGroup(
        name="listing",
        help="What organisations offer to others.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list",
                "listing:list_",
                "List what is offered to you, and what your organisations offer.",
            ),
            LazyCommand(
                "show",
                "listing:show",
                "Show a listing with its licence and its terms.",
            ),
            LazyCommand(
                "create",
                "listing:create",
                "Offer a repository, or a part of it, to other organisations.",
            ),
            LazyCommand(
                "change",
                "listing:change",
                "Change a listing; what no option names stays, and so do subscriptions.",
            ),
            LazyCommand(
                "delete",
                "listing:delete",
                "Delete a listing; all subscriptions to it end.",
            ),
        ],
    ),
    TyperGroup(
        name="subscription",
        help="Read what other organisations offer.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list",
                "subscription:list_",
                "List the subscriptions of an organisation, and those of others to its listings.",
            ),
            LazyCommand(
                "show",
                "subscription:show",
                "Show a subscription, with the terms that were accepted.",
            ),
            LazyCommand(
                "create",
                "subscription:create",
                "Subscribe an organisation to a listing; its licence and terms are shown first.",
            ),
            LazyCommand(
                "update",
                "subscription:update",
                "Update filtered subscriptions to their provider's newest version.",
            ),
            LazyCommand(
                "approve",
                "subscription:approve",
                "Grant a subscription to a listing of your organisation, or change its end.",
            ),
            LazyCommand(
                "decline",
                "subscription:decline",
                "Decline a subscription to a listing of your organisation.",
            ),
            LazyCommand(
                "end",
                "subscription:end",
                "End a subscription, as its subscriber or as its provider.",
            ),
        ],
    ),
    TyperGroup(
        name="request",
        help="From a refusal to a grant.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "ask",
                "request:ask",
                "Ask the owners of data for access, after a repository did not open.",
            ),
            LazyCommand(
                "list",
                "request:list_",
                "List requests: your own, or those that an organisation's admins decide about.",
            ),
            LazyCommand(
                "show",
                "request:show",
                "Show a request, what a grant would make, and who would gain access by it.",
            ),
            LazyCommand(
                "grant",
                "request:grant",
                "Grant a request by the policy that is missing, which is shown first.",
            ),
            LazyCommand(
                "decline",
                "request:decline",
                "Decline a request with a word.",
            ),
            LazyCommand(
                "withdraw",
                "request:withdraw",
                "Withdraw a request of yours that waits for an answer.",
            ),
        ],
    ),
    TyperGroup(
        name="embargo",
        help="Data that becomes public when it is old enough.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "show",
                "embargo:show",
                "Show the rolling embargo of a repository.",
            ),
            LazyCommand(
                "set",
                "embargo:set_",
                "Set a rolling embargo: data of a repository becomes public when it is old enough.",
            ),
            LazyCommand(
                "delete",
                "embargo:delete",
                "Release nothing of a repository any more; what is public stays so.",
            ),
            LazyCommand(
                "release",
                "embargo:release",
                "Make public what is old enough now; doing it again changes nothing.",
            ),
        ],
    ),
    TyperGroup(
        name="job",
        help="Updates and releases that a service does in the background.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list",
                "job:list_",
                "List the updates and releases of an organisation, the oldest first.",
            ),
            LazyCommand(
                "show",
                "job:show",
                "Show how far a job is, its report, or why it failed.",
            ),
            LazyCommand(
                "wait",
                "job:wait",
                "Wait until a job is over, and show it.",
            ),
        ],
    ),
    LazyCommand(
        "view",
        "view:view",
        "Look at a repository in a browser: its tree, pictures of its data, its history.",
    ),
    LazyCommand(
        "serve",
        "serve:serve",
        "Run the repository service: names instead of places, credentials that end soon.",
    ),
    TyperGroup(
        name="service",
        help="Operate the repository service: its database and its keys.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "migrate",
                "service:migrate",
                "Bring the schema of the service's database to the one of this version.",
            ),
            LazyCommand(
                "backup",
                "service:backup",
                "Copy the service's SQLite database to a file, also while the service runs.",
            ),
            LazyCommand(
                "restore",
                "service:restore",
                "Put a backup in the place of the service's SQLite database.",
            ),
            LazyCommand(
                "rotate-key",
                "service:rotate_key",
                "Seal all secrets of the service with another master key.",
            ),
            LazyCommand(
                "password-link",
                "service:password_link",
                "Print a link by which somebody who lost a password sets a new one. It works once.",
            ),
        ],
    ),
    LazyCommand(
        "login",
        "login:login",
        "Log in at a repository service, and keep the token for later commands and programs.",
    ),
    LazyCommand("logout", "login:logout", "End the token of the last login, and forget it."),
    LazyCommand("whoami", "login:whoami", "Show who the service takes you for, and your roles."),
    TyperGroup(
        name="org",
        help="Organisations of a repository service.",
        no_args_is_help=True,
        commands=[
            LazyCommand("list", "org:list_", "List your organisations."),
            LazyCommand("show", "org:show", "Show an organisation."),
            LazyCommand(
                "create", "org:create", "Create an organisation, with you as its first admin."
            ),
            LazyCommand(
                "rename", "org:rename", "Change the name under which an organisation is shown."
            ),
            LazyCommand(
                "delete",
                "org:delete",
                "Delete an organisation and all that the service keeps of it; stored data stays.",
            ),
        ],
    ),
    TyperGroup(
        name="member",
        help="Members of organisations, and service accounts.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list", "member:list_", "List the members of an organisation, and their roles."
            ),
            LazyCommand(
                "set",
                "member:set_",
                "Add somebody to an organisation, or change the role of a member.",
            ),
            LazyCommand(
                "invite",
                "member:invite",
                "Invite somebody who has no account yet, and print a link that works once.",
            ),
            LazyCommand(
                "remove",
                "member:remove",
                "Take somebody out of an organisation; no credential is made for them from now on.",
            ),
            LazyCommand(
                "accounts", "member:accounts", "List the service accounts of an organisation."
            ),
            LazyCommand(
                "create-account",
                "member:create_account",
                "Create a service account: a member without a login, in whose name tokens act.",
            ),
            LazyCommand(
                "disable-account",
                "member:disable_account",
                "Disable a service account for good; all its tokens end at once.",
            ),
        ],
    ),
    TyperGroup(
        name="bucket",
        help="Buckets that organisations registered at a service.",
        no_args_is_help=True,
        commands=[
            LazyCommand("list", "bucket:list_", "List the buckets of an organisation."),
            LazyCommand("show", "bucket:show", "Show a bucket, without its secrets."),
            LazyCommand(
                "register", "bucket:register", "Register a bucket at the service, and probe it."
            ),
            LazyCommand(
                "change",
                "bucket:change",
                "Replace the settings of a bucket, and probe it; secrets stay if the file has"
                " none.",
            ),
            LazyCommand(
                "probe",
                "bucket:probe",
                "Test whether a bucket's credentials allow only their own folder.",
            ),
            LazyCommand(
                "prove",
                "bucket:prove",
                "Show what proves that a bucket is the organisation's own.",
            ),
            LazyCommand(
                "suspend",
                "bucket:suspend",
                "Cut a bucket off: no further credential is made for it, for anybody.",
            ),
            LazyCommand("resume", "bucket:resume", "End the suspension of a bucket, and probe it."),
            LazyCommand(
                "credentials",
                "bucket:credentials",
                "Print a short-lived credential for a bucket or a folder of it, to list its files"
                " say.",
            ),
            LazyCommand(
                "delete",
                "bucket:delete",
                "Remove a bucket without repositories from the service; stored data stays.",
            ),
        ],
    ),
    TyperGroup(
        name="repo",
        help="Repositories of a service.",
        no_args_is_help=True,
        commands=[
            LazyCommand("list", "repo:list_", "List the repositories that you may read."),
            LazyCommand("show", "repo:show", "Show what the service knows of a repository."),
            LazyCommand(
                "create", "repo:create", "Create a repository in a bucket of its organisation."
            ),
            LazyCommand(
                "import", "repo:import_", "Register a repository that exists in a bucket already."
            ),
            LazyCommand(
                "change",
                "repo:change",
                "Change the description, the visibility or the status of a repository.",
            ),
            LazyCommand(
                "delete",
                "repo:delete",
                "Remove a repository from the service; its data stays in the bucket.",
            ),
        ],
    ),
    TyperGroup(
        name="policy",
        help="Who may read virtual chunks in the buckets of an organisation.",
        no_args_is_help=True,
        commands=[
            LazyCommand(
                "list", "policy:list_", "List the policies on the buckets of an organisation."
            ),
            LazyCommand("show", "policy:show", "Show a policy."),
            LazyCommand("create", "policy:create", "Allow reading virtual chunks below a prefix."),
            LazyCommand("change", "policy:change", "Replace a policy."),
            LazyCommand(
                "delete",
                "policy:delete",
                "Delete a policy: no credential is made by it from now on.",
            ),
            LazyCommand(
                "history",
                "policy:history",
                "List the versions of a policy, oldest first; also of one that was deleted.",
            ),
            LazyCommand(
                "undo",
                "policy:undo",
                "Put a policy back to the version before the last one; a deleted one comes back.",
            ),
        ],
    ),
    TyperGroup(
        name="token",
        help="Keys for programs.",
        no_args_is_help=True,
        commands=[
            LazyCommand("list", "token:list_", "List your tokens, without their secrets."),
            LazyCommand(
                "create", "token:create", "Create a token, and print its secret this once."
            ),
            LazyCommand(
                "create-for-job",
                "token:create_for_job",
                "Create a token that opens one repository for hours, and print its secret this"
                " once.",
            ),
            LazyCommand("revoke", "token:revoke", "End a token at once."),
        ],
    ),
    TyperGroup(
        name="audit",
        help="Who did what on a service.",
        no_args_is_help=True,
        commands=[
            LazyCommand("list", "audit:list_", "List what was done, the newest first."),
            LazyCommand(
                "show",
                "audit:show",
                "Show an entry of the audit with its details: reasons, grants and their ends.",
            ),
            LazyCommand(
                "export",
                "audit:export",
                "Write all entries of the audit to a file, a line of JSON for each, the newest"
                " first.",
            ),
            LazyCommand(
                "verify",
                "service:verify_audit",
                "Check that nobody changed the service's audit, in the database itself.",
            ),
        ],
    ),
)
"""All commands, in the order in which help lists them."""


PANELS: Final = {
    "Versions": ("create", "log", "show", "diff", "tree", "status", "branch", "tag"),
    "Look inside": ("view", "inspect", "stats", "access", "dependencies"),
    "Archives of files": ("ingest", "append", "rechunk", "plan", "coverage", "sources"),
    "Copies": ("clone", "export"),
    "Care": ("verify", "doctor", "repair", "expire", "gc", "manifests", "migrate"),
    "Settings and names": ("config", "container", "credential"),
    "Use a repository service": (
        "login", "logout", "whoami", "repo", "org", "member", "bucket", "policy", "token",
        "listing", "subscription", "request", "embargo", "job", "audit",
    ),
    "Run a repository service": ("serve", "service"),
}  # fmt: skip
"""The purposes of commands, in the order of help."""


class _AllCommands(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        for command in COMMANDS:
            assert command.name is not None
            command.rich_help_panel = panels.get(command.name)
        order = {name: number for number, name in enumerate(panels)}
        for listed in sorted(
            COMMANDS, key=lambda command: order.get(str(command.name), len(order))
        ):
            self.add_command(listed)


app = typer.Typer(
    name="icefloe",
    cls=_AllCommands,
    help="Transactional, versioned storage for Zarr arrays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# -- options of all commands ---------------------------------------------------------------

_SHARED: Final = "Options of all commands"


def _note_log(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Set the log and the progress bars by all options that were given until now."""
    if value:
        root = context.find_root()
        chosen = root.meta.setdefault("icefloe.log", {})
        if not chosen:
            root.call_on_close(lambda: _set_log({}))
        chosen[str(param.name).strip("_")] = value
        _set_log(chosen)
    return value


def _set_log(chosen: Mapping[str, Any]) -> None:
    from icefloe.logs import set_logs_filter

    is_quiet.set(bool(chosen.get("quiet")))
    level = chosen.get("log_level")
    if level is None and chosen.get("verbose"):
        level = "info" if chosen["verbose"] == 1 else "debug"
    elif level is None and chosen.get("quiet"):
        level = "off"
    set_logs_filter(level)


VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        callback=_note_log,
        help="Log events, such as commits and retries, to standard error; -vv logs more.",
        rich_help_panel=_SHARED,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        show_default=False,
        callback=_note_log,
        help="Show no progress and no log; results and errors are shown.",
        rich_help_panel=_SHARED,
    ),
]
LogLevelOption = Annotated[
    Literal["off", "error", "warn", "info", "debug", "trace"] | None,
    typer.Option(
        "--log-level",
        callback=_note_log,
        help="Log from this level on; ICEFLOE_LOG in the environment does the same.",
        rich_help_panel=_SHARED,
    ),
]


def _shared_params() -> list[Any]:
    """Make the options that each command has, whether they stand before or behind its name."""
    single = typer.Typer(add_completion=False)

    @single.command()
    def _options(
        *,
        verbose: VerboseOption = 0,
        quiet: QuietOption = False,
        log_level: LogLevelOption = None,
    ) -> None:
        pass

    params = typer.main.get_command(single).params
    for param in params:
        param.expose_value = False
    return params


def _show_version(is_asked: bool) -> None:  # noqa: FBT001 - called by typer
    if is_asked:
        echo(f"icefloe {VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    _verbose: VerboseOption = 0,
    _quiet: QuietOption = False,
    _log_level: LogLevelOption = None,
) -> None:
    pass
