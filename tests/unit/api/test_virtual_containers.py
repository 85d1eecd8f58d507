"""Containers are added, changed, listed and stored, or given for one opening only."""

import logging
from pathlib import Path

import pytest

from icefloe import Repository, in_memory_storage, local_filesystem_storage
from icefloe.config import RepositoryConfig, VirtualChunkContainer, s3_store
from icefloe.credentials import containers_credentials, s3_credentials
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.format.config_file import decode_config_flexbuffer, decode_config_yaml
from icefloe.format.flexbuffers import encode_flexbuffer
from icefloe.format.json_value import JsonValue

SPECS = pytest.mark.parametrize("spec_version", [1, 2])
ANONYMOUS = s3_credentials(anonymous=True)


def s3(prefix: str, region: str | None = None, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, s3_store(region=region), name)


def config_of(*containers: VirtualChunkContainer) -> RepositoryConfig:
    config = RepositoryConfig()
    for container in containers:
        config.set_virtual_chunk_container(container)
    return config


def listed(repository: Repository) -> list[VirtualChunkContainer]:
    return list((repository.config.virtual_chunk_containers or {}).values())


@SPECS
def test_containers_are_added_changed_and_stored(spec_version: int) -> None:
    storage = in_memory_storage()
    repository = Repository.create(storage, config_of(s3("s3://a/")), spec_version=spec_version)
    config = repository.config
    config.set_virtual_chunk_container(s3("s3://b", name="data"))
    config.set_virtual_chunk_container(s3("s3://a/", "eu-west-1"))
    changed = repository.reopen(config)
    assert listed(Repository.open(storage)) == [s3("s3://a/")]
    changed.save_config()
    assert listed(Repository.open(storage)) == [
        s3("s3://a/", "eu-west-1"),
        s3("s3://b/", None, "data"),
    ]
    config.clear_virtual_chunk_containers()
    changed.reopen(config).save_config()
    assert listed(Repository.open(storage)) == []


@SPECS
def test_containers_given_at_open_are_for_this_opening_only(spec_version: int) -> None:
    storage = in_memory_storage()
    Repository.create(storage, config_of(s3("s3://a/", "eu-west-1")), spec_version=spec_version)
    local = VirtualChunkContainer("s3://a/", s3_store(endpoint_url="https://localhost:9000"))
    opened = Repository.open(
        storage,
        config_of(local),
        authorize_virtual_chunk_access=containers_credentials({"s3://a": ANONYMOUS}),
    )
    assert listed(opened) == [local]
    assert opened._context.virtual.resolver.locate("s3://a/x").container == local
    assert listed(Repository.open(storage)) == [s3("s3://a/", "eu-west-1")]


@SPECS
def test_of_two_that_change_the_containers_at_once_one_is_told(
    tmp_path: Path, spec_version: int
) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    Repository.create(storage, config_of(s3("s3://a/")), spec_version=spec_version)
    one = Repository.open(storage, config_of(s3("s3://one/")))
    two = Repository.open(storage, config_of(s3("s3://two/")))
    one.save_config()
    with pytest.raises(ConflictError) as caught:
        two.save_config()
    assert caught.value.kind == ErrorKind.CONFIG_UPDATED
    assert listed(Repository.open(storage)) == [s3("s3://one/")]
    one.reopen(config_of(s3("s3://more/"))).save_config()
    assert listed(Repository.open(storage)) == [s3("s3://more/")]


def test_a_commit_in_between_does_not_lose_a_container(tmp_path: Path) -> None:
    """In spec 2 the configuration is part of the object that commits replace."""
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    committing = Repository.create(storage)
    saving = Repository.open(storage, config_of(s3("s3://a/")))
    snapshot = committing.writable_session("main").commit("between", allow_empty=True)
    saving.save_config()
    last = committing.writable_session("main").commit("after", allow_empty=True)
    reopened = Repository.open(storage)
    assert listed(reopened) == [s3("s3://a/")]
    assert [each.id for each in reopened.ancestry(branch="main")][:2] == [last, snapshot]


@SPECS
def test_default_containers_are_never_stored(spec_version: int) -> None:
    storage = in_memory_storage()
    access = containers_credentials({"s3": ANONYMOUS})
    repository = Repository.create(storage, spec_version=spec_version)
    opened = repository.reopen(authorize_virtual_chunk_access=access)
    assert opened._context.virtual.resolver.locate("s3://a/x").container.url_prefix == "s3://"
    opened.save_config()
    assert listed(Repository.open(storage)) == []
    assert opened.authorized_virtual_container_prefixes == set()


# -- configurations that contradict themselves -------------------------------------------------

CONTRADICTION: JsonValue = {
    "virtual_chunk_containers": {
        "s3://shown/": {"url_prefix": "s3://meant/", "store": {"s3": {}}, "name": None},
        "s3://fine/": {"url_prefix": "s3://fine", "store": {"s3": {}}, "name": None},
        "an old name": {"url_prefix": "s3://old/", "store": {"s3": {}}, "name": None},
        "s3": {"url_prefix": "s3://", "store": {"s3": {}}, "name": "s3"},
    }
}


def stored_contradiction(spec_version: int) -> RepositoryConfig:
    if spec_version == 2:
        return decode_config_flexbuffer(encode_flexbuffer(CONTRADICTION))
    text = """
virtual_chunk_containers:
  "s3://shown/": {url_prefix: "s3://meant/", store: !s3 {}}
  "s3://fine/": {url_prefix: "s3://fine", store: !s3 {}}
  an old name: {url_prefix: "s3://old/", store: !s3 {}}
  s3: {url_prefix: "s3://", store: !s3 {}, name: s3}
"""
    return decode_config_yaml(text.encode())


@SPECS
def test_a_container_under_another_prefix_than_its_own_is_refused(
    spec_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = stored_contradiction(spec_version)
    assert "s3://shown/" in caplog.text
    assert set(config.virtual_chunk_containers or {}) == {"s3://fine/", "s3://old/", "s3://"}
    assert config.disputed_prefixes == ("s3://shown/", "s3://meant/")
    # What merely was given on top leaves it; containers given by the caller settle it.
    assert config.merge(RepositoryConfig()).disputed_prefixes == config.disputed_prefixes
    assert config.merge(config_of(s3("s3://shown/"))).disputed_prefixes == ()


def test_neither_of_two_contradicting_prefixes_is_read(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path / "repo"))
    Repository.create(storage, config_of(s3("s3://a/")), spec_version=1)
    (tmp_path / "repo" / "config.yaml").write_text(
        """
virtual_chunk_containers:
  "s3://shown/": {url_prefix: "s3://meant/", store: !s3 {}}
  "s3://": {url_prefix: "s3://", store: !s3 {}}
"""
    )
    access = containers_credentials({"s3": ANONYMOUS})
    opened = Repository.open(storage, authorize_virtual_chunk_access=access)
    for repository in (opened, opened.reopen(), opened.reopen(RepositoryConfig())):
        reader = repository._context.virtual
        for location in ("s3://shown/x", "s3://meant/x"):
            with pytest.raises(InvalidInputError, match="contradicts itself"):
                reader.resolver.locate(location)
        assert reader.resolver.locate("s3://other/x").container.url_prefix == "s3://"
    settled = Repository.open(
        storage, config_of(s3("s3://meant/")), authorize_virtual_chunk_access=access
    )
    assert settled._context.virtual.resolver.locate("s3://meant/x").grant is not None
