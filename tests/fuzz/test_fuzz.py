"""A few thousand mutants and all bombs, each run in a process with limited memory."""

import random

import pytest

from icefloe.errors import FormatError
from icefloe.format.envelope import FileType
from tests.fuzz.bombs import bombs
from tests.fuzz.campaign import MEMORY_CAP_BYTES, Report, bombs_in_process, mutants_in_process
from tests.fuzz.corpus import corpus
from tests.fuzz.exercise import exercise, is_refused
from tests.fuzz.mutations import mutant

SEED = 20_260_101
PART = 750
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_mutants_are_decoded_or_refused(part: int) -> None:
    total = Report()
    for report in mutants_in_process(SEED, part * PART, (part + 1) * PART):
        total.add(report)
    assert not total.failures, "\n".join(total.failures)
    assert total.mutants == PART
    assert PART / 2 < total.refused < PART, "mutations should damage, but not always"
    assert total.peak_bytes < MEMORY_CAP_BYTES


@pytest.mark.parametrize("file_type", FileType, ids=lambda one: one.attribute)
def test_bombs_do_not_go_off(file_type: FileType) -> None:
    report = bombs_in_process(file_type)
    assert not report.failures, "\n".join(report.failures)
    assert report.mutants == len([*bombs(file_type)])


def test_the_corpus_is_sound() -> None:
    """What is mutated is valid, of every type and of both spec versions."""
    for seed in corpus():
        assert not is_refused(seed.file_type, seed.data), seed.name
    found = {(seed.file_type, seed.spec_version) for seed in corpus()}
    wanted = {(one, spec) for one in FileType for spec in (1, 2)} - {(FileType.REPO_INFO, 1)}
    assert wanted < found


def test_a_mutant_follows_from_its_number() -> None:
    for number in range(20):
        assert mutant(SEED, number) == mutant(SEED, number)
    assert len({mutant(SEED, number)[1] for number in range(200)}) > 190


@pytest.mark.parametrize("file_type", FileType, ids=lambda one: one.attribute)
def test_noise_is_refused(file_type: FileType) -> None:
    rng = random.Random(file_type)
    for size in (0, 1, 38, 39, 40, 100, 5000):
        with pytest.raises(FormatError):
            exercise(file_type, rng.randbytes(size))
