"""Messages of the library in the words of the shell.

Errors advise programmers, and name functions and arguments of Python. A user of the command line
has options and commands instead.
"""

import re
from collections.abc import Callable
from typing import Final


def _as_options(names: re.Match[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names[0].split(", "))


def _as_drops(names: re.Match[str]) -> str:
    return " ".join(f"--drop {name}" for name in re.findall("'([^']*)'", names[0]))


_CREDENTIALS: Final = r"authorize_virtual_chunk_access=icefloe\.containers_credentials"

_WORDS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(python), shell)
    for python, shell in (
        (
            r"open (?:it|the repository) with "
            + _CREDENTIALS
            + r"\(\{(?:\.\.\., )?('[^']*'): .*\}\)(?:, or in xarray with authorize=\['[^']*'\])?",
            r"give --authorize \1",
        ),
        (
            r"with " + _CREDENTIALS + r"\(\{(?:\.\.\., )?('[^']*'): .*\}\)",
            r"with --authorize \1",
        ),
        (r"with " + _CREDENTIALS + r"\(\.\.\.\)", "with --authorize URL"),
        (
            r"add one to the configuration, with config\.set_virtual_chunk_container\("
            r"VirtualChunkContainer\(('[^']*'), \.\.\.\)\)",
            r"add one with `icefloe container add URL \1`",
        ),
        (
            r"in Python, with set_virtual_chunk_container",
            "with `icefloe container add`",
        ),
        (
            r"set on_change='(warn|off)' on its container",
            r"set the container again, with `icefloe container add` and --on-change \1",
        ),
        (
            r"add one with icefloe\.pipeline\.add_containers\(repository, \[(['\"].*?['\"])\]\)",
            r"add one with --container \1",
        ),
        (r"^endpoint_url (?=must|')", "--endpoint-url "),
        (r"(?<=takes no options: )[a-z_, ]+", _as_options),
        (
            r"(?:icefloe\.storage\.)\w+\((?:path=)?(.*?)\): create it first, or",
            r"\1: create it first, with `icefloe create`, or",
        ),
        (r"move it with reset_branch", "move it with `icefloe branch reset`"),
        (r"on_misfit='skip'", "--skip-misfits"),
        (r"on_changed='(\w+)'", r"--changed \1"),
        (r"\(memory_per_task\)", "(--memory)"),
        (r"\(most_bytes=\.\.\.\)", "(--most-copied)"),
        (r"\(drop=\.\.\.\)", "(--drop NAME)"),
        (r"\bdrop=\([^()]+\)", _as_drops),
        (r"\btake_first=\('([^']*)',\)", r"--take-first \1"),
        (r"\btolerance=\{'([^']*)': ([^}]*)\}", r"--tolerance \1=\2"),
        (r"\bconcat=\('([^']*)',\)", r"--concat \1"),
        (r"\bcoordinates=\{'([^']*)': '([^']*)'\}", r"--coordinate \1=\2"),
        (r"\bfrom_name=('[^']*')", r"--from-name \1"),
        (r"\bby='order'", "--in-order"),
        (r"\bgaps='(\w+)'", r"--gaps \1"),
        (r"\battributes='(\w+)'", r"--attributes \1"),
        (
            r"icefloe\.rechunk\(repository, repository, CopyOptions\.of\(overwrite=True\)\)",
            "`icefloe rechunk CUBE --repo CUBE --overwrite`",
        ),
        (r"copy=CopyOptions\.of\(\)", "`icefloe ingest native`"),
        (r"copy=CopyOptions\.of\(decode=True\)", "`icefloe ingest native` with --decode"),
        (r"\bleave out group='[^']*'", "leave out --source-group"),
        (r"\bfill_missing=True", "--fill-missing"),
        (r"\brectilinear=True", "--rectilinear"),
        (r"\bfollow_links=True", "--follow-links"),
        (r"\boverwrite=True", "--overwrite"),
        (r"with plan_copy, with", "with `icefloe plan --native` and"),
        (r"\(variables=\.\.\.\)", "(--variables)"),
        (r"\(rename=\.\.\.\)", "(--rename)"),
        (r"\(coordinates=\.\.\.\)", "(--coordinate DIM=NAME)"),
        (r"give it again \(preprocess=\.\.\.\)", "append in Python, with icefloe.append"),
        (
            r", choose another prefix, or pass check_clean_root=False",
            ", or choose another prefix",
        ),
        (r"say allow_http=True", "write ?allow_http=true behind the URL"),
        (
            r"The session keeps its changes: commit with rebase_with=.*",
            "Nothing was committed: run the command again",
        ),
        (
            r"The session keeps its changes, on the last commit that agrees with them\..*",
            "Nothing was committed: run the command again, on the present state",
        ),
    )
)


def in_shell_words(message: str) -> str:
    """Return a message of the library as it helps in a shell.

    >>> in_shell_words("Mend or remove them, or leave them out with on_misfit='skip'")
    'Mend or remove them, or leave them out with --skip-misfits'
    """
    for python, shell in _WORDS:
        message = python.sub(shell, message)
    return message
