"""Whatever a repository says about itself, no command sends it to a terminal as it is."""

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.cli.common import show_json, show_table
from icefloe.cli.main import app
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.printable import printable, printable_json
from icefloe.records import replace
from icefloe.transactions.chunks import put_ref
from icefloe.transactions.nodes import require_array

pytestmark = pytest.mark.slow

COMMANDS = (
    *map(chr, [*range(0x20), *range(0x7F, 0xA0)]),
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029",
)
HOSTILE = "evil" + "".join(each for each in COMMANDS if each != "\x00") + "\x1b]0;owned\x07[red]"
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {HOSTILE: HOSTILE},
    "dimension_names": [HOSTILE],
}


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Which a graph has of its own."""


def raw(text: str, allowed: str = "\n") -> set[str]:
    """Find what a terminal would take for a command."""
    return {letter for letter in text if letter in COMMANDS and letter not in allowed}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a repository in which every text is hostile, past what is checked where it can be.

    Commands run in the temporary folder: what they write by default does not stay.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    folder = tmp_path / "repo"
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    for number in range(2):
        session = repository.writable_session("main")
        _write(session, number)
        notes = dict.fromkeys((HOSTILE, "author", "author_name"), HOSTILE)
        session.commit(HOSTILE, metadata=notes)
    stored = decode_repo_info((folder / "repo").read_bytes())
    head = stored.branches["main"]
    forged = replace(
        stored,
        branches={**stored.branches, HOSTILE: head},
        tags={f"{HOSTILE}tag": head},
        deleted_tags=(f"{HOSTILE}gone",),
        metadata={HOSTILE: HOSTILE},
    )
    (folder / "repo").write_bytes(encode_repo_info(forged))
    return folder


def _write(session: icefloe.Session, number: int) -> None:
    store = session.store
    buffer = default_buffer_prototype().buffer
    for path in ("a", f"{HOSTILE}{number}"):
        document = json.dumps(ARRAY).encode()
        run_blocking(store.set(f"{path}/zarr.json", buffer.from_bytes(document)))
        run_blocking(store.set(f"{path}/c/0", buffer.from_bytes(b"x")))
    state = session._session
    node = require_array(state, "/a")
    put_ref(state, node, (1,), VirtualChunk(f"s3://bucket/{HOSTILE}", 0, 1, HOSTILE))
    put_ref(state, node, (2,), VirtualChunk("file:///missing", 0, 1))


type Arguments = Callable[[str, Path], list[list[str]]]

ARGUMENTS: dict[str, Arguments] = {
    "inspect": lambda repo, _: [[repo], [repo, HOSTILE], [repo, f"refs/{HOSTILE}"]],
    "doctor": lambda repo, _: [[repo]],
    "expire": lambda repo, _: [[repo, "--older-than", "now", "--dry-run"]],
    "gc": lambda repo, _: [[repo, "--older-than", "now", "--dry-run"]],
    "clone": lambda repo, folder: [[repo, str(folder / "clone")]],
    "export": lambda repo, folder: [[repo, str(folder / "export")]],
    # With a repository that cannot be opened: jobs start Spark only after that.
    "ingest": lambda repo, folder: [
        [str(folder / f"{HOSTILE}*.nc"), "--repo", f"{HOSTILE}://x", "--concat", HOSTILE]
    ],
    "ingest virtual": lambda repo, folder: [
        [str(folder / f"{HOSTILE}*.nc"), "--repo", f"{HOSTILE}://x", "--concat", HOSTILE]
    ],
    "ingest native": lambda repo, folder: [
        [str(folder / f"{HOSTILE}*.nc"), "--repo", f"{HOSTILE}://x", "--concat", HOSTILE]
    ],
    "append": lambda repo, folder: [[str(folder / f"{HOSTILE}*.nc"), "--repo", f"{HOSTILE}://x"]],
    "plan": lambda repo, folder: [
        [str(folder / f"{HOSTILE}*.nc"), "--repo", repo, "--concat", HOSTILE]
    ],
    "create": lambda repo, folder: [[repo], [str(folder / "new")], [f"{HOSTILE}://x"]],
    "log": lambda repo, _: [[repo, "--all"], [repo, HOSTILE], [repo, f"{HOSTILE}?"]],
    "show": lambda repo, _: [[repo, HOSTILE], [repo, f"{HOSTILE}tag"], [repo, f"{HOSTILE}?"]],
    "diff": lambda repo, _: [[repo, "1cec", HOSTILE], [repo, HOSTILE, f"{HOSTILE}?"]],
    "branch create": lambda repo, _: [[repo, f"{HOSTILE}new", HOSTILE], [repo, HOSTILE]],
    "branch delete": lambda repo, _: [[repo, HOSTILE], [repo, HOSTILE, "-y"], [repo, HOSTILE]],
    "branch reset": lambda repo, _: [[repo, HOSTILE, "1cec"], [repo, HOSTILE, "1cec", "-y"]],
    "tag create": lambda repo, _: [[repo, f"{HOSTILE}new", HOSTILE], [repo, f"{HOSTILE}tag"]],
    "tag delete": lambda repo, _: [[repo, f"{HOSTILE}tag"], [repo, f"{HOSTILE}tag", "-y"]],
    "config set": lambda repo, _: [[repo, f"{HOSTILE}=1"], [repo, f"compression.level={HOSTILE}"]],
    "config add": lambda repo, _: [[HOSTILE, repo], ["evil", f"./{HOSTILE}"], ["evil", "s3://x/y"]],
    "config list": lambda *_: [[]],
    "config remove": lambda *_: [[HOSTILE]],
    "credential add": lambda *_: [
        [HOSTILE],
        ["evil", "--env", "access_key_id=X", "--env", "secret_access_key=Y"],
    ],
    "credential list": lambda *_: [[]],
    "credential remove": lambda *_: [[HOSTILE]],
    "container add": lambda repo, _: [[repo, HOSTILE], [repo, f"s3://{HOSTILE}/"]],
    "container remove": lambda repo, _: [[repo, HOSTILE]],
    "rechunk": lambda repo, folder: [
        [repo, "--repo", str(folder / "copy"), "--from-branch", f"{HOSTILE}?"]
    ],
}
"""What commands are called with, where that is not the repository alone."""


def alone(repo: str, _: Path) -> list[list[str]]:
    return [[repo]]


def commands() -> Iterator[tuple[str, Any]]:
    """List all commands: one that is added is tested here without a word about it."""
    tree: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while tree:
        name, command = tree.pop()
        is_group = hasattr(command, "commands")
        if not is_group:
            yield name, command.load()
        below = command.commands if is_group else command.forms
        tree += [(f"{name} {child}".strip(), each) for child, each in below.items()]


RUN_A_SERVICE = ("serve", "service", "audit verify")
"""Commands of operators, which print what the operators' own machine has."""


def needs_service(name: str, command: Any) -> bool:
    """Return whether a command talks to a service: those are tested with one of their own."""
    is_of_service = name.startswith(("login", *RUN_A_SERVICE))
    return is_of_service or any("--service" in each.opts for each in command.params)


ALL: dict[str, Any] = dict(sorted(commands()))
SERVES_PAGES = "view"
"""A command that runs until it is stopped; the tests of pages begin it."""
NAMES = {
    name: command
    for name, command in ALL.items()
    if name != SERVES_PAGES and not needs_service(name, command)
}


@pytest.mark.parametrize("name", NAMES)
def test_no_command_prints_what_a_terminal_would_obey(
    place: Path, tmp_path: Path, name: str
) -> None:
    options = {option for each in NAMES[name].params for option in each.opts}
    chosen = ARGUMENTS.get(name, alone)
    for arguments in chosen(str(place), tmp_path):
        variants = [arguments]
        variants += [[*arguments, "--json"]] if "--json" in options else []
        variants += [[*arguments, "--branch", HOSTILE]] if "--branch" in options else []
        variants += [[*arguments, "--branch", f"{HOSTILE}?"]] if "--branch" in options else []
        variants += [[*arguments, "--tag", f"{HOSTILE}tag"]] if "--tag" in options else []
        for variant in variants:
            result = CliRunner().invoke(app, [*name.split(), *variant])
            assert result.exception is None or isinstance(result.exception, SystemExit)
            assert not raw(result.stdout), variant
            assert not raw(result.stderr), variant
            if variant is arguments:
                assert result.exit_code != 2, f"give arguments in ARGUMENTS: {result.stderr}"


def test_json_means_the_same(place: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(place)])
    assert result.exit_code == 0
    assert HOSTILE in json.loads(result.stdout)["branches"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "show",
    [lambda: show_table([HOSTILE], [[HOSTILE]]), lambda: show_json({HOSTILE: [HOSTILE]})],
)
def test_what_is_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, show: Callable[[], None]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    show()
    assert "evil" in terminal.getvalue()
    assert not raw(terminal.getvalue())


def test_objects_describe_themselves(place: Path) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)))
    session = repository.readonly_session(HOSTILE)
    graph = repository.ancestry_graph()
    *_, first = repository.ancestry(branch="main")
    shown: list[object] = [
        repository,
        session,
        session.store,
        graph,
        *repository.ancestry(branch="main"),
        *repository.ops_log(),
        repository.diff(from_snapshot_id=first.id, to_branch=HOSTILE),
        repository.describe_access(),
        repository.virtual_dependencies(),
    ]
    for each in shown:
        for text in (repr(each), str(each)):
            drawn = COLOURS.sub("", text) if each is graph else text
            assert not raw(drawn), type(each)
        if hasattr(each, "_repr_html_"):
            assert not raw(each._repr_html_()), type(each)


def test_errors_and_logs(capsys: pytest.CaptureFixture[str]) -> None:
    assert not raw(str(InvalidInputError(HOSTILE)), allowed="\n\t")
    icefloe.set_logs_filter("info")
    try:
        logging.getLogger("icefloe.storage").warning("found %s", HOSTILE)
    finally:
        icefloe.set_logs_filter(None)
    assert "found evil" in (told := capsys.readouterr().err)
    assert not raw(told)
    assert told.count("\n") == 1


def test_every_command_character_is_written_out_and_nothing_else() -> None:
    assert not raw(printable("".join(COMMANDS)), allowed="")
    plain = "ÄÖ 日本\u3000語 👩‍👩‍👧 می‌خواهم \\ '\""
    assert printable(plain) == plain
    assert printable("a\nb\tc", keep="\n") == "a\nb\\tc"
    document = json.dumps(["".join(COMMANDS), plain], ensure_ascii=False)
    assert json.loads(printable_json(document)) == json.loads(document)
    assert not raw(printable_json(document))
