"""Report what a reader needs to read the virtual chunks of a repository."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.containers import moved_container
from icefloe.errors import InvalidInputError
from icefloe.format.columns import BytesColumn, concat_bytes
from icefloe.maintenance.dependencies.summary import VersionQuery, container_numbers, summary
from icefloe.printable import escaped_html, printable
from icefloe.records import Record, asdict
from icefloe.repo.context import RepoContext
from icefloe.reports import Report, shown_bytes
from icefloe.storage.specs import without_secrets
from icefloe.values.model import Progress
from icefloe.values.urls import parse_prefix, without_user
from icefloe.virtual_chunks.access import anonymous_doubt, credential_for, credentials_doubt
from icefloe.virtual_chunks.grouping import Grouped, PlaceGrouping, by_bucket, by_number
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
type Counts = tuple[int, int]
"""Chunks, and their bytes."""

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
    """A destination of credentials that only the repository names: you have to agree to it."""
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


class AccessReport(Report, Record):
    """The access that reading all virtual chunks needs; see `Repository.describe_access`.

    Print it, or let a notebook show it; `containers` has a row for each place.
    """

    snapshot_id: str
    """The version whose references were counted."""
    containers: tuple[ContainerAccess, ...]
    """All places: those with most references first."""
    disputed: tuple[str, ...]
    """Prefixes about which the stored configuration contradicts itself; never read."""

    headings = (
        "container",
        "name",
        "platform",
        "reached at",
        "references",
        "bytes",
        "authorised",
        "needs",
    )

    @property
    def missing(self) -> tuple[ContainerAccess, ...]:
        """The places that have references and were not, or not wholly, authorised."""
        return tuple(
            container
            for container in self.containers
            if container.is_used and not container.is_authorized
        )

    @property
    def how_to_open(self) -> str | None:
        """The code that opens the repository so that all its virtual chunks can be read.

        None if there are none.
        """
        used = [
            container
            for container in self.containers
            if container.is_used and container.needs is not None
        ]
        if not used:
            return None
        entries = "".join(
            f"        {printable(container_access.url_prefix)!r}: {container_access.needs},\n"
            for container_access in used
        )
        return (
            "icefloe.Repository.open(\n    storage,\n"
            "    authorize_virtual_chunk_access=icefloe.containers_credentials({\n"
            f"{entries}    }}),\n)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        containers = [
            asdict(container)
            | {"is_authorized": container.is_authorized, "is_used": container.is_used}
            for container in self.containers
        ]
        return {
            "snapshot_id": self.snapshot_id,
            "containers": containers,
            "disputed": list(self.disputed),
            "how_to_open": self.how_to_open,
        }

    def _rows(self) -> Iterator[list[object]]:
        for container in self.containers:
            yield [
                container.url_prefix,
                container.name or "",
                container.platform,
                " ".join(filter(None, (container.endpoint, container.region))),
                container.references,
                shown_bytes(container.size_bytes),
                _authorised(container),
                container.needs or "a container",
            ]

    def _notes(self) -> Iterator[str]:
        if not self.containers:
            yield "no virtual chunks, and no containers for any: nothing to authorise"
        for container in self.containers:
            if container.needs_consent is not None:
                yield (
                    f"{container.url_prefix}: the repository says that it is reached with"
                    f" {container.needs_consent}. Your credentials are only sent there if you pass"
                    " this container yourself, in the config given to Repository.open"
                )
            if container.is_used and container.needs is None:
                yield (
                    f"{container.url_prefix}: no container covers these references, and there is"
                    " none by default: declare one with config.set_virtual_chunk_container(...)"
                )
        for prefix in self.disputed:
            yield (
                f"{prefix}: the stored configuration contradicts itself about this container, so"
                " nothing is read there"
            )

    def __repr__(self) -> str:
        code = [] if self.how_to_open is None else [f"to read everything:\n{self.how_to_open}"]
        return "\n".join([super().__repr__(), *code])

    def _repr_html_(self) -> str:
        code = "" if self.how_to_open is None else f"<pre>{escaped_html(self.how_to_open)}</pre>"
        return super()._repr_html_() + code


def _authorised(container: ContainerAccess) -> str:
    if container.is_authorized:
        return "yes"
    return f"in part: {', '.join(container.authorized)}" if container.authorized else "no"


async def describe_access(
    context: RepoContext, versions: VersionQuery, progress: Progress | None = None
) -> AccessReport:
    """Find out which containers one version uses, and what each of them needs."""
    containers = context.config.virtual_chunk_containers
    dependencies = await summary(
        context, "container", _by_need(containers), versions=versions, progress=progress
    )
    chunks, sizes = dependencies.chunk_counts.tolist(), dependencies.byte_counts.tolist()
    counts = dict(
        zip(dependencies.places.to_strings(), zip(chunks, sizes, strict=True), strict=True)
    )
    declared = [counts.pop(_label(number), (0, 0)) for number in range(len(containers))]
    rows = access_rows(context, declared, counts)
    rows.sort(key=lambda row: (-row.references, row.url_prefix))
    version = str(dependencies.entries[0].id)
    return AccessReport(version, tuple(rows), tuple(context.virtual.resolver.disputed))


def access_rows(
    context: RepoContext, declared: Sequence[Counts], outside: Mapping[str, Counts]
) -> list[ContainerAccess]:
    """Describe what the containers need, in the order of the configuration, and then buckets.

    `declared` has the counts of each container, `outside` those of each bucket that no container
    covers.
    """
    containers = zip(context.config.virtual_chunk_containers, declared, strict=True)
    return [
        *(_access(context, container, counts) for container, counts in containers),
        *(_undeclared(context, bucket, counts) for bucket, counts in outside.items()),
    ]


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
    counted: Counts,
    *,
    url_prefix: str | None = None,
) -> ContainerAccess:
    """Describe a container, or the part of a default one that is below a prefix."""
    shown = url_prefix or container.url_prefix
    allowed = context.virtual.resolver.access.prefixes_in(
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


def _undeclared(context: RepoContext, bucket: str, counted: Counts) -> ContainerAccess:
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
    if is_open(container.store):
        return "icefloe.s3_credentials(anonymous=True)"
    return credential_for(container)


def is_open(store: ObjectStoreConfig) -> bool:
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
    return anonymous_doubt(container) if is_open(container.store) else credentials_doubt(container)


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
