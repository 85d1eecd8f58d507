"""A program that makes virtual datasets with VirtualiZarr, as its users do.

It runs in a process of its own, since VirtualiZarr writes through whatever `icechunk` is there:
the real one, or Icefloe in its place.
"""

import importlib
import json
import sys
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import icefloe


def main(job: dict[str, Any]) -> None:
    """Make a group for each file, and commit once."""
    if job["library"] == "icefloe":
        icefloe.install_as_icechunk()
    icechunk: Any = importlib.import_module("icechunk")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore, S3Store
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    assert (icechunk.Repository is icefloe.Repository) == (job["library"] == "icefloe")
    warnings.simplefilter("default")  # what VirtualiZarr and its parsers warn of is theirs
    s3 = job["s3"]
    registry: Any
    if s3 is None:
        storage = icechunk.local_filesystem_storage(job["repository"])
        store = icechunk.local_filesystem_store(job["folder"])
        registry = ObjectStoreRegistry({"file://": LocalStore()})
    else:
        place = {"region": s3["region"], "endpoint_url": s3["url"], "allow_http": True}
        keys = {name: s3[name] for name in ("access_key_id", "secret_access_key")}
        storage = icechunk.s3_storage(
            bucket=s3["bucket"], prefix=job["repository"], force_path_style=True, **place, **keys
        )
        store = icechunk.s3_store(s3_compatible=True, force_path_style=True, **place)
        bucket = S3Store(
            s3["bucket"],
            endpoint=s3["url"],
            region=s3["region"],
            client_options={"allow_http": True},
            **keys,
        )
        registry = ObjectStoreRegistry({f"s3://{s3['bucket']}": bucket})
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(job["prefix"], store))
    repository = icechunk.Repository.create(storage, config, spec_version=job["spec_version"])
    session = repository.writable_session("main")
    soon = datetime.now(UTC) + timedelta(minutes=1)
    for name, url in job["files"].items():
        dataset = open_virtual_dataset(
            url, registry=registry, parser=HDFParser(), loadable_variables=[]
        )
        dataset.vz.to_icechunk(session.store, group=name, last_updated_at=soon)
    session.commit("virtual datasets")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
