"""Making credentials, and what they never show."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from icefloe.credentials import (
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    Credentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3Credentials,
    S3StaticCredentials,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError

HUSH = "hush-hush-hush"


def s3_keys() -> S3StaticCredentials:
    return S3StaticCredentials("AKIAEXAMPLE0", HUSH, HUSH)


def test_s3_credentials_of_every_kind() -> None:
    assert s3_credentials() == S3Credentials.FromEnv()
    assert s3_credentials(from_env=True) == S3Credentials.FromEnv()
    assert s3_credentials(anonymous=False) == S3Credentials.FromEnv()
    assert s3_credentials(anonymous=True) == S3Credentials.Anonymous()
    end = datetime(2030, 1, 1, tzinfo=UTC)
    keys = s3_credentials(access_key_id="a", secret_access_key="b", expires_after=end)
    assert keys == S3Credentials.Static(S3StaticCredentials("a", "b", None, end))
    refreshable = s3_credentials(get_credentials=s3_keys)
    assert isinstance(refreshable, S3Credentials.Refreshable)
    assert refreshable.current is None
    assert refreshable.get_credentials() == s3_keys()


def test_gcs_credentials_of_every_kind() -> None:
    assert gcs_credentials() == GcsCredentials.FromEnv()
    assert gcs_credentials(anonymous=True) == GcsCredentials.Anonymous()
    for argument, kind in [
        ("service_account_file", GcsStaticCredentials.ServiceAccount),
        ("service_account_key", GcsStaticCredentials.ServiceAccountKey),
        ("application_credentials", GcsStaticCredentials.ApplicationCredentials),
        ("bearer_token", GcsStaticCredentials.BearerToken),
    ]:
        made = gcs_credentials(**{argument: "x"})  # type: ignore[arg-type]
        assert made == GcsCredentials.Static(kind("x"))
    refreshable = gcs_credentials(
        get_credentials=lambda: GcsBearerCredential("t"), scatter_initial_credentials=True
    )
    assert isinstance(refreshable, GcsCredentials.Refreshable)
    assert refreshable.current == GcsBearerCredential("t")


def test_azure_credentials_of_every_kind() -> None:
    assert azure_credentials() == AzureCredentials.FromEnv()
    assert azure_credentials(anonymous=True) == AzureCredentials.Anonymous()
    for argument, kind in [
        ("access_key", AzureStaticCredentials.AccessKey),
        ("sas_token", AzureStaticCredentials.SasToken),
        ("bearer_token", AzureStaticCredentials.BearerToken),
    ]:
        made = azure_credentials(**{argument: "x"})  # type: ignore[arg-type]
        assert made == AzureCredentials.Static(cast("Any", kind)("x"))
    refreshable = azure_credentials(
        get_credentials=lambda: AzureRefreshableCredential.BearerToken("t")
    )
    assert isinstance(refreshable, AzureCredentials.Refreshable)
    assert refreshable.get_credentials() == AzureRefreshableCredential.BearerToken("t")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: s3_credentials(access_key_id="a"), "secret_access_key must be given"),
        (lambda: s3_credentials(session_token="a"), "access_key_id, secret_access_key must be"),
        (
            lambda: s3_credentials(access_key_id="a", secret_access_key="b", anonymous=True),
            "access_key_id, secret_access_key and anonymous contradict",
        ),
        (
            lambda: s3_credentials(anonymous=True, from_env=True),
            "anonymous and from_env contradict",
        ),
        (lambda: s3_credentials(from_env=False), "from_env=False leaves no credentials"),
        (lambda: s3_credentials(scatter_initial_credentials=True), "get_credentials must be given"),
        (
            lambda: gcs_credentials(bearer_token="a", service_account_key="b"),
            "service_account_key and bearer_token contradict",
        ),
        (lambda: gcs_credentials(bearer_token="a", anonymous=True), "bearer_token and anonymous"),
        (lambda: azure_credentials(access_key="a", sas_token="b"), "access_key and sas_token"),
        (lambda: azure_credentials(from_env=False), "leaves no credentials"),
        (lambda: s3_credentials(get_credentials=3), "a function without parameters"),  # type: ignore[arg-type]
        (lambda: containers_credentials({"s3://b/": 3}), "int is no credential for 's3://b/'"),  # type: ignore[dict-item]
    ],
)
def test_contradictions_name_the_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        make()
    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS


@pytest.mark.parametrize(
    "secretive",
    [
        s3_keys(),
        S3Credentials.Static(s3_keys()),
        S3Credentials.Refreshable(HUSH.encode(), s3_keys()),
        Credentials.S3(S3Credentials.Static(s3_keys())),
        GcsStaticCredentials.ServiceAccountKey(HUSH),
        GcsStaticCredentials.BearerToken(HUSH),
        GcsCredentials.Static(GcsStaticCredentials.BearerToken(HUSH)),
        GcsBearerCredential(HUSH),
        GcsCredentials.Refreshable(b"", GcsBearerCredential(HUSH)),
        AzureStaticCredentials.AccessKey(HUSH),
        AzureStaticCredentials.SasToken(HUSH),
        AzureStaticCredentials.BearerToken(HUSH),
        AzureRefreshableCredential.AccessKey(HUSH),
        AzureRefreshableCredential.SasToken(HUSH),
        AzureRefreshableCredential.BearerToken(HUSH),
        Credentials.Azure(AzureCredentials.Static(AzureStaticCredentials.AccessKey(HUSH))),
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_secrets_are_never_shown(secretive: S3StaticCredentials) -> None:
    for shown in (repr(secretive), str(secretive), f"{secretive}", secretive._repr_html_()):
        assert HUSH not in shown
        assert "***" in shown


def test_wrong_types_do_not_show_the_value() -> None:
    with pytest.raises(InvalidInputError) as caught:
        S3Credentials.Static(HUSH)  # type: ignore[arg-type]
    assert HUSH not in str(caught.value)
    assert "S3StaticCredentials" in str(caught.value)


def test_expiry_needs_a_time_zone() -> None:
    with pytest.raises(InvalidInputError, match="time zone"):
        GcsBearerCredential("t", expires_after=datetime(2030, 1, 1))


def test_containers_credentials_wrap_by_platform() -> None:
    s3, gcs, azure = s3_credentials(), gcs_credentials(), azure_credentials()
    assert containers_credentials(
        {"s3://": s3, "gs://": gcs, "az://": azure, "file:///a/": LocalFileSystemAccess, "x": None}
    ) == {
        "s3://": Credentials.S3(s3),
        "gs://": Credentials.Gcs(gcs),
        "az://": Credentials.Azure(azure),
        "file:///a/": LocalFileSystemAccess,
        "x": None,
    }
    assert containers_credentials({"https://": HttpAccess}) == {"https://": HttpAccess}


def test_credentials_can_be_pickled() -> None:
    for value in (
        s3_keys(),
        Credentials.S3(S3Credentials.Static(s3_keys())),
        AzureRefreshableCredential.SasToken("t", expires_after=datetime(2030, 1, 1, tzinfo=UTC)),
        HttpAccess,
    ):
        assert pickle.loads(pickle.dumps(value)) == value


def test_leave_for_private_addresses() -> None:
    private = Credentials.HttpAccess(allow_private=True)
    assert not HttpAccess.allow_private  # never tacitly
    assert Credentials.HttpAccess() == HttpAccess
    assert private != HttpAccess
    assert pickle.loads(pickle.dumps(private)) == private
    assert repr(private).endswith("Credentials.HttpAccess(allow_private=True)")
    assert repr(HttpAccess).endswith("Credentials.HttpAccess()")
    assert containers_credentials({"https://": private}) == {"https://": private}
    with pytest.raises(InvalidInputError):
        Credentials.HttpAccess(allow_private="yes")  # type: ignore[arg-type]
