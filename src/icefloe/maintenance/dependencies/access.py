"""What a reader needs to read the virtual chunks of a repository, told before anything is read."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.containers import moved_container
from icefloe.errors import InvalidInputError
from icefloe.format.columns import BytesColumn, concat_bytes
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance.dependencies.summary import Versions, container_numbers, summary
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage.specs import without_secrets
from icefloe.values.model import Progress
from icefloe.values.urls import parse_prefix, without_user
from icefloe.virtual_chunks.access import anonymous_doubt, credential_for, credentials_doubt
from icefloe.virtual_chunks.counts import PlaceGrouping
from icefloe.virtual_chunks.grouping import Grouped, by_bucket, by_number
from icefloe.virtual_chunks.locations import DEFAULT_CONTAINERS, PrefixTable

_PLATFORMS: Final[dict[type[ObjectStoreConfig], str]] = {
    ObjectStoreConfig.InMemory: "memory",
    ObjectStoreConfig.LocalFileSystem: "local files",
    ObjectStoreConfig.S3: "Amazon S3",
    ObjectStoreConfig.S3Compatible: "S3-compatible",
    ObjectStoreConfig.Tigris: "Tigris",
    ObjectStoreConfig.Gcs: "Google Cloud Storage",
    ObjectStoreConfig.Azure: "Azure Blob Storage",
    ObjectStoreConfig.Http: "HTTP",
}
_DEFAULTS: Final = PrefixTable(
    (parse_prefix(default_container.url_prefix), default_container)
    for default_container in DEFAULT_CONTAINERS
)


class ContainerAccess(Record):
    """One container, or one bucket that no container covers, and what it takes to read it."""

    url_prefix: str
    name: str | None
    platform: str
    needs: str | None
    """The credential to give for it, as Python; None if a container has to be declared first."""
    endpoint: str | None
    region: str | None
    needs_consent: str | None
    """What only the repository says about where credentials would go; they do not, until you do."""
    is_declared: bool
    """Whether the configuration has it; other places are read once they are authorised."""
    references: int
    """Chunks of the version that lie there."""
    size_bytes: int
    """What these chunks take."""
    authorized: tuple[str, ...]
    """The prefixes that were authorised: its own if all of it may be read."""

    @property
    def is_authorized(self) -> bool:
        """Whether all of it may be read."""
        return self.url_prefix in self.authorized

    @property
    def is_used(self) -> bool:
        """Whether the version has any chunks there."""
        return self.references > 0


class AccessFacts(Record):
    """All places of virtual chunks, for one version."""

    version: SnapshotEntry
    containers: tuple[ContainerAccess, ...]
    """Those with most chunks first."""
    disputed: tuple[str, ...]
    """Prefixes about which the stored configuration contradicts itself: nothing is read there."""


async def access_facts(
    context: RepoContext, versions: Versions, progress: Progress | None = None
) -> AccessFacts:
    """Find out which containers one version uses, and what each of them needs."""
    containers = context.config.virtual_chunk_containers
    dependencies = await summary(
        context, _by_need(containers), versions=versions, progress=progress
    )
    chunks, sizes = dependencies.chunks.tolist(), dependencies.bytes_.tolist()
    counts = dict(
        zip(dependencies.places.to_strings(), zip(chunks, sizes, strict=True), strict=True)
    )
    rows = [
        _access(context, container, counts.pop(_label(number), (0, 0)))
        for number, container in enumerate(containers)
    ]
    rows += [_undeclared(context, bucket, counted) for bucket, counted in counts.items()]
    rows.sort(key=lambda row: (-row.references, row.url_prefix))
    return AccessFacts(dependencies.entries[0], tuple(rows), tuple(context.virtual.places.disputed))


def _by_need(containers: Sequence[VirtualChunkContainer]) -> PlaceGrouping:
    """Group locations by container, and those outside of all by bucket."""
    labels = BytesColumn.from_strings([_label(number) for number in range(len(containers))])

    def group(recorded: BytesColumn, canonical: BytesColumn) -> Grouped:
        numbers = container_numbers(containers, recorded, canonical)
        outside = np.flatnonzero(numbers < 0)
        others, rows = by_bucket(canonical.take(outside))
        numbers[outside] = len(labels) + rows
        return by_number(concat_bytes([labels, others]), numbers)

    return group


def _label(number: int) -> str:
    """Write the number of a container; no canonical location begins like this."""
    return f"#{number}"


def _access(
    context: RepoContext,
    container: VirtualChunkContainer,
    counted: tuple[int, int],
    *,
    url_prefix: str | None = None,
) -> ContainerAccess:
    """Describe a container, or the part of a default one that is below a prefix."""
    shown = url_prefix or container.url_prefix
    allowed = context.virtual.places.access.prefixes_in(
        parse_prefix(shown), moved_container(container, shown)
    )
    endpoint, region = _destination(container.store)
    return ContainerAccess(
        without_secrets(shown),
        container.name,
        _PLATFORMS[type(container.store)],
        needed_credential(container),
        endpoint,
        region,
        _consent(context, container),
        url_prefix is None,
        *counted,
        tuple(map(without_secrets, allowed)),
    )


def _undeclared(context: RepoContext, bucket: str, counted: tuple[int, int]) -> ContainerAccess:
    """Describe a bucket that no container covers."""
    prefix = f"{bucket}/"
    try:
        default = _DEFAULTS.longest(parse_prefix(prefix))
    except InvalidInputError:
        default = None
    if default is None:
        platform = "local files" if bucket.startswith("file:") else "unknown"
        outside = (without_user(bucket), None, platform, None, None, None, None, False)
        return ContainerAccess(*outside, *counted, ())
    return _access(context, default[1], counted, url_prefix=prefix)


def needed_credential(container: VirtualChunkContainer) -> str:
    """Write down, as Python, the credential to give for a container."""
    if _is_open(container.store):
        return "icefloe.s3_credentials(anonymous=True)"
    return credential_for(container)


def _is_open(store: ObjectStoreConfig) -> bool:
    """Return whether a store is described as one that anybody may read."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return options.anonymous
        case ObjectStoreConfig.Tigris(options):
            return options.anonymous
        case _:
            return False


def _consent(context: RepoContext, container: VirtualChunkContainer) -> str | None:
    """Return what the reader must agree to before the credential is used, if anything."""
    if container in context.virtual.trusted:
        return None
    is_open = _is_open(container.store)
    return anonymous_doubt(container) if is_open else credentials_doubt(container)


def _destination(store: ObjectStoreConfig) -> tuple[str | None, str | None]:
    """Return the address of a store: endpoint, or account, and region."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return _endpoint(options), options.region
        case ObjectStoreConfig.Tigris(options):
            return _endpoint(options), options.region
        case ObjectStoreConfig.Azure(opts):
            account = (opts or {}).get("account")
            return None if account is None else f"account {account}", None
        case _:
            return None, None


def _endpoint(options: S3Options) -> str | None:
    return None if options.endpoint_url is None else without_secrets(options.endpoint_url)
