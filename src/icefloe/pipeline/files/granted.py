"""Sources that a repository may refer to, read with the credentials that it was opened with."""

from typing import Final

from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import replace
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.storage.specs import AzureSpec, GcsSpec, S3Spec

OBJECT_STORE_SCHEMES: Final = ("s3://", "gs://", "gcs://", "az://", "azure://", "abfs://")
"""How URLs begin whose objects a service lets others read."""


def granted_sources(context: RepoContext) -> SourceAccess:
    """Return the storages of a repository's containers in object stores, by prefix.

    Only containers count that the opener gave, with a credential: a service gives both. All other
    files are reached as their URL says.
    """
    reader = context.virtual_reader
    storages: dict[str, Storage] = {}
    if reader is None:
        return SourceAccess()
    for container in reader.trusted:
        prefix = container.url_prefix
        if not prefix.startswith(OBJECT_STORE_SCHEMES) or not prefix.endswith("/"):
            continue
        resolved = reader.resolver.locate(f"{prefix}file")
        if resolved.container != container or resolved.grant is None:
            continue
        spec = reader.storage_of(resolved, resolved.grant).spec
        if isinstance(spec, (S3Spec, GcsSpec, AzureSpec)):
            folder = resolved.key.rpartition("/")[0]
            storages[prefix] = Storage(replace(spec, prefix=folder))
    return SourceAccess(storages)
