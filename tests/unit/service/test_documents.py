"""The documents that cut credentials down, against golden ones.

No emulator evaluates scopes of Google, of R2 or of a hierarchical namespace of Azure. These
documents were written by hand from the documentation of the clouds. The signed queries come from
Microsoft's own library, of the version that signs the same version of the protocol.
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import httpx2 as httpx
import pytest

from icefloe.catalog.model import Bucket, Delegation, Platform
from icefloe.catalog.wire import Access
from icefloe.errors import AccessDeniedError, InternalError, InvalidInputError
from icefloe.records import replace
from icefloe.service.vending.azure import AzureVendor, SigningKey, signed_query
from icefloe.service.vending.gcs import GcsVendor, access_boundary
from icefloe.service.vending.grants import Grant, Secret, Vendor
from icefloe.service.vending.r2 import R2Vendor, temporary_access
from icefloe.service.vending.static import AnonymousVendor, StaticVendor
from icefloe.service.vending.sts import StsVendor, session_policy

GCS = Bucket("lab", "main", Platform.GCS, "ocean-data", "era5/")
S3 = Bucket("lab", "main", Platform.S3, "ocean-data", "era5/")
AZURE = Bucket(
    "lab", "main", Platform.AZURE, "cont", "era5/", account="acct", delegation=Delegation.SAS
)
END = datetime(2026, 1, 1, 1, tzinfo=UTC)
DELEGATION_KEY = SigningKey(
    b"k" * 32,
    {
        "skoid": "oid",
        "sktid": "tid",
        "skt": "2026-01-01T00:00:00Z",
        "ske": "2026-01-01T02:00:00Z",
        "sks": "b",
        "skv": "2022-11-02",
    },
)
ACCOUNT_KEY = SigningKey(b"a" * 32)


def test_a_boundary_of_google() -> None:
    assert access_boundary(Grant(GCS, ("era5/daily/",), "ada")) == {
        "accessBoundary": {
            "accessBoundaryRules": [
                {
                    "availableResource": "//storage.googleapis.com/projects/_/buckets/ocean-data",
                    "availablePermissions": ["inRole:roles/storage.objectViewer"],
                    "availabilityCondition": {
                        "expression": "resource.name.startsWith("
                        "'projects/_/buckets/ocean-data/objects/era5/daily/') || "
                        "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
                        ".startsWith('era5/daily/')"
                    },
                }
            ]
        }
    }


def test_a_boundary_of_google_for_several_prefixes() -> None:
    grant = Grant(GCS, ("era5/daily/", "era5/monthly/"), "ada")
    rules = access_boundary(grant)["accessBoundary"]["accessBoundaryRules"]
    assert [rule["availabilityCondition"]["expression"] for rule in rules] == [
        f"resource.name.startsWith('projects/_/buckets/ocean-data/objects/{prefix}') || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('{prefix}')"
        for prefix in grant.prefixes
    ]
    single = access_boundary(Grant(GCS, ("era5/monthly/",), "ada"))
    assert rules[1:] == single["accessBoundary"]["accessBoundaryRules"]


@pytest.mark.parametrize(
    ("access", "may_list", "role"),
    [
        (Access.READ, True, "roles/storage.objectViewer"),
        (Access.READ, False, "roles/storage.legacyObjectReader"),
        (Access.WRITE, True, "roles/storage.objectUser"),
    ],
)
def test_roles_of_google(access: Access, may_list: bool, role: str) -> None:
    boundary = access_boundary(Grant(GCS, ("era5/daily/",), "ada", access, may_list))
    (rule,) = boundary["accessBoundary"]["accessBoundaryRules"]
    assert rule["availablePermissions"] == [f"inRole:{role}"]
    assert ("objectListPrefix" in str(rule)) is may_list


def test_a_request_to_cloudflare() -> None:
    assert temporary_access(Grant(S3, ("era5/daily/",), "ada", seconds=900), "parent") == {
        "bucket": "ocean-data",
        "parentAccessKeyId": "parent",
        "permission": "object-read-only",
        "ttlSeconds": 900,
        "prefixes": ["era5/daily/"],
    }
    several = Grant(S3, ("era5/daily/", "era5/monthly/"), "ada")
    assert temporary_access(several, "parent")["prefixes"] == ["era5/daily/", "era5/monthly/"]
    whole = Grant(replace(S3, prefix=""), ("", "era5/"), "ada")
    assert "prefixes" not in temporary_access(whole, "parent")
    written = temporary_access(Grant(S3, ("era5/",), "ada", Access.WRITE), "parent")
    assert written["permission"] == "object-read-write"
    with pytest.raises(AccessDeniedError, match="cannot be hidden"):
        temporary_access(Grant(S3, ("era5/daily/",), "ada", may_list=False), "parent")


def test_a_session_policy_with_a_key_of_kms() -> None:
    key = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd"
    policy = session_policy(Grant(replace(S3, kms_key=key), ("era5/daily/",), "ada", Access.WRITE))
    assert policy == (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject",'
        '"s3:PutObject","s3:DeleteObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],'
        '"Resource":["arn:aws:s3:::ocean-data/era5/daily/*"]},{"Effect":"Allow","Action":'
        '["s3:ListBucket","s3:ListBucketMultipartUploads"],"Resource":["arn:aws:s3:::ocean-data"],'
        '"Condition":{"StringLike":{"s3:prefix":["era5/daily/*"]}}},{"Effect":"Allow","Action":'
        f'["kms:Decrypt","kms:GenerateDataKey"],"Resource":["{key}"]}}]}}'
    )


def test_a_session_policy_for_several_prefixes() -> None:
    assert session_policy(Grant(S3, ("era5/daily/", "era5/monthly/"), "ada")) == (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject"],'
        '"Resource":["arn:aws:s3:::ocean-data/era5/daily/*","arn:aws:s3:::ocean-data/era5/monthly/*"'
        ']},{"Effect":"Allow","Action":["s3:ListBucket"],"Resource":["arn:aws:s3:::ocean-data"],'
        '"Condition":{"StringLike":{"s3:prefix":["era5/daily/*","era5/monthly/*"]}}}]}'
    )
    whole = session_policy(Grant(replace(S3, prefix=""), ("", "era5/"), "ada"))
    assert "Condition" not in whole


def prefixes_of(length: int, number: int) -> tuple[str, ...]:
    """Return different prefixes of a length."""
    return tuple(f"era5/{index:03}".ljust(length - 1, "x") + "/" for index in range(number))


@pytest.mark.parametrize("may_list", [True, False])
@pytest.mark.parametrize("length", [10, 40, 200])
def test_prefixes_share_a_session_policy_as_far_as_it_goes(length: int, *, may_list: bool) -> None:
    grant = Grant(S3, prefixes_of(length, 60), "ada", may_list=may_list)
    parts = StsVendor(httpx.AsyncClient()).divide(grant)
    assert sorted(prefix for part in parts for prefix in part.prefixes) == list(grant.prefixes)
    sizes = [len(session_policy(part)) for part in parts]
    assert max(sizes) <= 2048
    one = len(session_policy(Grant(S3, grant.prefixes[:1], "ada", may_list=may_list)))
    two = len(session_policy(Grant(S3, grant.prefixes[:2], "ada", may_list=may_list)))
    room = 1 + (2048 - one) // (two - one)
    assert len(parts) == -(-60 // room)  # not one more than needed
    assert {part.may_list for part in parts} == {may_list}


def test_a_prefix_that_no_session_policy_has_room_for() -> None:
    longest = "era5/" + "x" * 250 + "/"
    grant = Grant(S3, (longest + ("y" * 250 + "/") * 3,), "ada")
    (same,) = StsVendor(httpx.AsyncClient()).divide(grant)
    with pytest.raises(InternalError, match="too long for a session policy"):
        session_policy(same)


def test_prefixes_are_divided_by_what_each_cloud_can_do() -> None:
    client, clock = httpx.AsyncClient(), lambda: END
    many = prefixes_of(20, 23)

    def sizes(vendor: Vendor, bucket: Bucket) -> list[int]:
        return [len(part.prefixes) for part in vendor.divide(Grant(bucket, many, "ada"))]

    assert sizes(GcsVendor(client, clock), GCS) == [10, 10, 3]
    assert sizes(R2Vendor(client, clock), S3) == [23]
    assert sizes(StaticVendor(), S3) == sizes(AnonymousVendor(), S3) == [23]
    assert sizes(AzureVendor(client, clock), AZURE) == [23]  # for the whole container
    assert sizes(AzureVendor(client, clock), replace(AZURE, hierarchical=True)) == [1] * 23
    with pytest.raises(InternalError, match="at most 10 rules"):
        access_boundary(Grant(GCS, many, "ada"))
    with pytest.raises(InternalError, match="for one folder"):
        signed_query(Grant(replace(AZURE, hierarchical=True), many, "ada"), ACCOUNT_KEY, END)
    container_wide = signed_query(Grant(AZURE, many, "ada"), ACCOUNT_KEY, END)
    assert container_wide == signed_query(Grant(AZURE, many[:1], "ada"), ACCOUNT_KEY, END)


@pytest.mark.parametrize(
    ("options", "access", "key", "golden"),
    [
        (
            {"hierarchical": True},
            Access.READ,
            DELEGATION_KEY,
            "se=2026-01-01T01%3A00%3A00Z&sp=rl&spr=https&sv=2022-11-02&sr=d&sdd=2"
            "&scid=6c841ff8-3764-5d17-ac50-229c50364cc9&skoid=oid&sktid=tid"
            "&skt=2026-01-01T00%3A00%3A00Z&ske=2026-01-01T02%3A00%3A00Z&sks=b&skv=2022-11-02"
            "&sig=Qae6ukH1NOs4AJOjZatnhJK6N5waqC/8RKUjV3uIMms%3D",
        ),
        (
            {"hierarchical": True},
            Access.WRITE,
            DELEGATION_KEY,
            "se=2026-01-01T01%3A00%3A00Z&sp=rcwdl&spr=https&sv=2022-11-02&sr=d&sdd=2"
            "&scid=6c841ff8-3764-5d17-ac50-229c50364cc9&skoid=oid&sktid=tid"
            "&skt=2026-01-01T00%3A00%3A00Z&ske=2026-01-01T02%3A00%3A00Z&sks=b&skv=2022-11-02"
            "&sig=aMpMsC/AEVaYphgyvJ5%2BcDj4Hd6myD60RymZtWSr3wY%3D",
        ),
        (
            {},
            Access.READ,
            ACCOUNT_KEY,
            "se=2026-01-01T01%3A00%3A00Z&sp=rl&spr=https&sv=2022-11-02&sr=c"
            "&sig=qTqq6p4dQolXKjlKjKovHEgeYtpueGp0tJFRuKmprJQ%3D",
        ),
        (
            {"allow_http": True},
            Access.WRITE,
            ACCOUNT_KEY,
            "se=2026-01-01T01%3A00%3A00Z&sp=rcwdl&spr=https%2Chttp&sv=2022-11-02&sr=c"
            "&sig=2OudBsduJ7s62d15%2BSjVIrYZ62doj8UsHQLbaQfmbww%3D",
        ),
    ],
)
def test_signed_queries_of_azure(
    options: dict[str, Any], access: Access, key: SigningKey, golden: str
) -> None:
    grant = Grant(replace(AZURE, **options), ("era5/daily/",), "ada", access)
    assert parse_qs(signed_query(grant, key, END)) == parse_qs(golden)


def test_a_signed_query_without_listing() -> None:
    grant = Grant(replace(AZURE, hierarchical=True), ("era5/daily/",), "ada", may_list=False)
    assert parse_qs(signed_query(grant, ACCOUNT_KEY, END))["sp"] == ["r"]


def test_a_bucket_without_its_secrets() -> None:
    """The way of delegation may have changed after the secrets were stored."""
    secret = Secret({"account_key": "a2V5"})
    assert secret.require("account_key") == "a2V5"
    with pytest.raises(InvalidInputError, match="no access_key_id for this bucket: an admin can"):
        secret.require("access_key_id")
