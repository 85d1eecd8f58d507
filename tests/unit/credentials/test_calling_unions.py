"""Unions of credentials can be called, and `anon` says the same as `anonymous`."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import icefloe
from icefloe import storage

PLACE: dict[str, Any] = {"bucket": "b", "prefix": "p"}
STORAGES: dict[Callable[..., icefloe.Storage], dict[str, Any]] = {
    storage.s3_storage: PLACE,
    storage.s3_object_store_storage: PLACE,
    storage.r2_storage: PLACE | {"account_id": "a"},
    storage.tigris_storage: PLACE | {"region": "iad"},
    storage.gcs_storage: PLACE,
    storage.azure_storage: {"account": "a", "container": "c", "prefix": "p"},
}
UNIONS: list[Any] = [icefloe.S3Credentials, icefloe.GcsCredentials, icefloe.AzureCredentials]


@pytest.mark.parametrize("make", STORAGES, ids=lambda make: make.__name__)
def test_storages(make: Callable[..., icefloe.Storage]) -> None:
    short, long = (make(**STORAGES[make], **{name: True}) for name in ("anon", "anonymous"))
    assert short == long != make(**STORAGES[make])
    assert "anonymous=True" in repr(short)


@pytest.mark.parametrize("union", UNIONS)
def test_unions(union: Any) -> None:
    assert union(anon=True) == union(anonymous=True) == union.Anonymous()
    assert union(from_env=True) == union() == union.FromEnv()
    assert isinstance(union(anon=True), union)
    with pytest.raises(TypeError):
        union(nonsense=True)
    with pytest.raises(TypeError):
        union("key")
    assert list(signature(union.Refreshable).parameters) == ["pickled_function", "current"]


def test_keys() -> None:
    keys = icefloe.S3Credentials(access_key_id="a", secret_access_key="b")
    assert keys == icefloe.s3_credentials(access_key_id="a", secret_access_key="b")
    with pytest.raises(icefloe.InvalidInputError, match="anon"):
        icefloe.s3_credentials(anon=True, access_key_id="a", secret_access_key="b")
    token = icefloe.GcsCredentials(bearer_token="t")
    assert token == icefloe.gcs_credentials(bearer_token="t")
    key = icefloe.AzureCredentials(access_key="k")
    assert key == icefloe.azure_credentials(access_key="k")
