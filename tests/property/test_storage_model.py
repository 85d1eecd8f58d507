"""Backends against a model: a dictionary from keys to states."""

import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from icefloe.effects import run_blocking
from icefloe.errors import ObjectNotFoundError, PreconditionFailedError
from icefloe.storage.local import LocalBackend
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import Backend, Version
from icefloe.testing.storage_suite import infos_of, keys_of

# No key is a directory of another: on a file system they could not both exist.
KEYS = st.sampled_from(["repo", "a/x", "a/y", "a/b/x", "refs/branch.ñ/ref.json", "odd %#1~/z"])
CONTENTS = st.binary(max_size=40)
PREFIXES = st.sampled_from(["", "a", "a/", "a/b", "refs/branch.", "odd %#", "r", "zz/"])

type Known = tuple[str, Version]


class BackendMachine(RuleBasedStateMachine):
    """Every operation, with conditions on present, former and foreign versions."""

    versions: Bundle[Known] = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make()
        self.model: dict[str, tuple[bytes, Version]] = {}
        self.seen: dict[str, dict[Version, bytes]] = {}

    def make(self) -> Backend:
        raise NotImplementedError

    def record(self, key: str, data: bytes, version: Version, *, is_copy: bool = False) -> Known:
        former = self.seen.setdefault(key, {})
        # A copy may bring back a former state: the same bytes, so nobody can tell.
        assert former.setdefault(version, data) == data if is_copy else version not in former
        former[version] = data
        self.model[key] = (data, version)
        return key, version

    @rule(target=versions, key=KEYS, data=CONTENTS)
    def put(self, key: str, data: bytes) -> Known:
        return self.record(key, data, run_blocking(self.backend.put(key, data)))

    @rule(target=versions, key=KEYS, data=CONTENTS)
    def create(self, key: str, data: bytes) -> Known | MultipleResults[Known]:
        if key in self.model:
            with pytest.raises(PreconditionFailedError):
                run_blocking(self.backend.put(key, data, if_absent=True))
            return multiple()
        return self.record(key, data, run_blocking(self.backend.put(key, data, if_absent=True)))

    @rule(target=versions, known=versions, data=CONTENTS)
    def swap(self, known: Known, data: bytes) -> Known | MultipleResults[Known]:
        key, version = known
        if key not in self.model or self.model[key][1] != version:
            with pytest.raises(PreconditionFailedError):
                run_blocking(self.backend.put(key, data, if_version=version))
            return multiple()
        return self.record(key, data, run_blocking(self.backend.put(key, data, if_version=version)))

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        if key not in self.model:
            for request in (self.backend.get(key), self.backend.head(key)):
                with pytest.raises(ObjectNotFoundError):
                    run_blocking(request)
            return
        data, version = self.model[key]
        fetched = run_blocking(self.backend.get(key))
        assert (bytes(fetched.data), fetched.info.version) == (data, version)
        assert run_blocking(self.backend.head(key)).info == fetched.info

    @rule(key=KEYS, cuts=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=4))
    def get_ranges(self, key: str, cuts: list[tuple[float, float]]) -> None:
        if key not in self.model:
            return
        data, _ = self.model[key]
        ranges = [tuple(sorted(int(cut * len(data)) for cut in pair)) for pair in cuts]
        got = run_blocking(self.backend.get_ranges(key, [(pair[0], pair[1]) for pair in ranges]))
        assert [bytes(each) for each in got] == [data[pair[0] : pair[1]] for pair in ranges]

    @rule(source=KEYS, copied_to=KEYS, only_present=st.booleans())
    def copy(self, source: str, copied_to: str, only_present: bool) -> None:
        if source not in self.model:
            with pytest.raises(ObjectNotFoundError):
                run_blocking(self.backend.copy(source, copied_to))
            return
        data, version = self.model[source]
        wanted = version if only_present else None
        run_blocking(self.backend.copy(source, copied_to, if_version=wanted))
        found = run_blocking(self.backend.head(copied_to)).info.version
        self.record(copied_to, data, found, is_copy=True)

    @rule(known=versions, copied_to=KEYS)
    def copy_of_a_former_state(self, known: Known, copied_to: str) -> None:
        source, version = known
        if source in self.model and self.model[source][1] != version:
            with pytest.raises(PreconditionFailedError):
                run_blocking(self.backend.copy(source, copied_to, if_version=version))

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete(self, keys: list[str]) -> None:
        report = run_blocking(self.backend.delete_many(keys))
        assert report.deleted == len(set(keys))
        assert not report.failures
        for key in keys:
            self.model.pop(key, None)

    @rule(prefix=PREFIXES)
    def list(self, prefix: str) -> None:
        wanted = sorted(key for key in self.model if key.startswith(prefix))
        assert run_blocking(keys_of(self.backend, prefix)) == wanted

    @invariant()
    def listing_tells_the_present_state(self) -> None:
        listed = run_blocking(infos_of(self.backend))
        assert {key: (info.size_bytes, info.version) for key, info in listed.items()} == {
            key: (len(data), version) for key, (data, version) in self.model.items()
        }


class MemoryMachine(BackendMachine):
    def make(self) -> Backend:
        return MemoryBackend()


class LocalMachine(BackendMachine):
    def make(self) -> Backend:
        self.root = tempfile.mkdtemp(prefix="icefloe-model-")
        return LocalBackend(self.root)

    def teardown(self) -> None:
        shutil.rmtree(self.root)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=40, stateful_step_count=30)
TestLocal = LocalMachine.TestCase
TestLocal.settings = settings(max_examples=40, stateful_step_count=30)
