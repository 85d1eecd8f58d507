"""What is special about storages that speak the protocol of S3."""

from icefloe.config import S3Options
from icefloe.credentials import AnyS3Credential
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.specs import Headers, S3Spec, copy_of, s3_spec

_TIGRIS_URL = "https://t3.storage.dev"
_HUGGING_FACE_URL = "https://s3.hf.co"


def tigris_spec(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None,
    *,
    use_weak_consistency: bool,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of Tigris.

    Its replicas may lag behind; all requests of one region see the same. So either the region
    is known and every request is bound to it, or the storage is read-only.
    """
    chosen = copy_of(options)
    chosen.endpoint_url = chosen.endpoint_url or _TIGRIS_URL
    given = headers or Headers()
    if not use_weak_consistency:
        if chosen.region is None:
            raise StorageError(
                "Tigris is consistent only within one region: give the region of the bucket, or"
                " read only, with use_weak_consistency=True"
            )
        bound = {"X-Tigris-Regions": chosen.region, "X-Tigris-Consistent": "true"}
        given = Headers(
            {**bound, "Cache-Control": "no-cache", **given.reads}, {**bound, **given.writes}
        )
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=given,
        legacy_rooted_keys=legacy_rooted_keys,
        can_write=not use_weak_consistency,
    )


def r2_spec(
    options: S3Options,
    bucket: str | None,
    prefix: str | None,
    account_id: str | None,
    credentials: AnyS3Credential | None,
    *,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of Cloudflare R2; without a bucket the prefix begins with it."""
    if bucket is None:
        if not prefix:
            raise StorageError("give a bucket or a prefix", ErrorKind.STORAGE_CONFIG)
        bucket, _, prefix = prefix.strip("/").partition("/")
    chosen = copy_of(options)
    if chosen.endpoint_url is None:
        if account_id is None:
            raise StorageError("give an endpoint_url or an account_id", ErrorKind.STORAGE_CONFIG)
        chosen.endpoint_url = f"https://{account_id}.r2.cloudflarestorage.com"
    chosen.region = chosen.region or "auto"
    chosen.force_path_style = True
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=headers,
        legacy_rooted_keys=legacy_rooted_keys,
    )


def hugging_face_spec(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None,
    *,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of a namespace at Hugging Face."""
    chosen = copy_of(options)
    chosen.endpoint_url = f"{chosen.endpoint_url or _HUGGING_FACE_URL}/{namespace}"
    chosen.region = chosen.region or "us-east-1"
    chosen.force_path_style = True
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=headers,
        legacy_rooted_keys=legacy_rooted_keys,
    )
