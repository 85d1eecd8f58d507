"""Messages of the library name options and commands when a shell shows them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

import icefloe
from icefloe.cli.wording import in_shell_words
from icefloe.config import VirtualChunkContainer, s3_store
from icefloe.errors import ConflictError, IcefloeError, RebaseFailedError
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.containers import container_at
from icefloe.storage import storage_from_url
from icefloe.virtual_chunks.access import unauthorised

PYTHON = re.compile(r"icefloe\.|[a-z]=\w|\b[a-z]+_[a-z_]+\b|\w\(|session")
IN_URLS = "?allow_http=true"


def virtual_chunk_without_container() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    store = repository.writable_session("main").store
    zarr.create_array(store, name="a", shape=1, dtype="u1", fill_value=0)
    store.set_virtual_ref("a/c/0", "s3://era5/a.nc", offset=0, length=1)
    zarr.open_array(store, path="a")[:]


def branch_that_exists() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    repository.create_branch("main", repository.lookup_branch("main"))


def no_repository() -> None:
    icefloe.Repository.open(icefloe.local_filesystem_storage("/no/where"))


def s3_store_with_password() -> None:
    VirtualChunkContainer("s3://x/", s3_store(endpoint_url="https://me:word@host"))


def raised(error: IcefloeError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fail", "advice"),
    [
        (
            raised(unauthorised(VirtualChunkContainer("s3://era5/", s3_store()), "s3://era5/a.nc")),
            "give --authorize 's3://era5/'",
        ),
        (virtual_chunk_without_container, "`icefloe container add URL 's3://era5/'`"),
        (virtual_chunk_without_container, "authorise it, with --authorize 's3://era5/'"),
        (s3_store_with_password, "with --authorize URL"),
        (lambda: container_at("az://box/"), "with `icefloe container add`"),
        (no_repository, "'/no/where': create it first, with `icefloe create`, or check the place"),
        (branch_that_exists, "move it with `icefloe branch reset`"),
        (
            lambda: storage_from_url("s3://b/x?endpoint_url=http://h"),
            "write ?allow_http=true behind the URL",
        ),
        (raised(MisfitsError(Report(1, 0))), "leave them out with --skip-misfits"),
        (raised(ConflictError("A", "B")), "run the command again"),
        (raised(RebaseFailedError("A", [])), "run the command again"),
    ],
)
def test_advice_is_for_the_shell(fail: Callable[[], object], advice: str) -> None:
    with pytest.raises(IcefloeError) as caught:
        fail()
    assert PYTHON.search(caught.value.message)
    message = in_shell_words(caught.value.message)
    assert advice in message
    assert not PYTHON.search(message.replace(IN_URLS, ""))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("replace them with on_changed='replace', or", "replace them with --changed replace, or"),
        ("Leave the variable out (drop=...), or", "Leave the variable out (--drop NAME), or"),
        ("give it more (memory_per_task), or", "give it more (--memory), or"),
    ],
)
def test_words_of_jobs(message: str, expected: str) -> None:
    assert in_shell_words(message) == expected
    package = Path(icefloe.__file__).parent
    sources = [*(package / "pipeline").rglob("*.py"), *(package / "spark").rglob("*.py")]
    written = re.compile("on_changed='replace'|memory_per_task\\)|drop=\\.\\.\\.")
    [word] = written.findall(message)
    assert any(word in source.read_text() for source in sources)


def test_each_variable_has_an_option_of_its_own() -> None:
    assert in_shell_words("(drop=('t2m', 'tp',))") == "(--drop t2m --drop tp)"


def test_what_a_repository_says_stays() -> None:
    text = "the array '/as_of/memory_per_task' of s3://on_misfit/x"
    assert in_shell_words(text) == text
