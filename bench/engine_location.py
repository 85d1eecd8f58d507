"""Where a repository of the engine's comparisons lives, for either implementation."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from icefloe.records import replace
from tests.support.servers import S3Endpoint

FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
SELECTIONS = "icefloe.zarr_store.selections.SelectionPipeline"
BATCHED = "zarr.core.codec_pipeline.BatchedCodecPipeline"


@dataclass(frozen=True, slots=True)
class Location:
    """A local folder, or a prefix of a bucket when there is an endpoint."""

    path: str
    url: str | None = None
    bucket: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    @classmethod
    def on(cls, endpoint: S3Endpoint, prefix: str, url: str | None = None) -> "Location":
        """Use a prefix, perhaps through a proxy at another URL."""
        return cls(
            prefix,
            url or endpoint.url,
            endpoint.bucket,
            endpoint.access_key_id,
            endpoint.secret_access_key,
        )

    @classmethod
    def loads(cls, text: str) -> "Location":
        return cls(**json.loads(text))

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_local(self) -> bool:
        return self.url is None

    def below(self, name: str) -> "Location":
        return replace(self, path=f"{self.path}/{name}")

    def storage(self, lib: ModuleType) -> Any:
        if self.url is None:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            return lib.local_filesystem_storage(self.path)
        return lib.s3_storage(
            bucket=self.bucket,
            prefix=self.path,
            region="us-east-1",
            endpoint_url=self.url,
            allow_http=True,
            force_path_style=True,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )

    def create(self, lib: ModuleType, **options: Any) -> Any:
        return lib.Repository.create(self.storage(lib), **options)

    def open(self, lib: ModuleType) -> Any:
        return lib.Repository.open(self.storage(lib))


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best_of(times: int, work: Callable[[], object]) -> float:
    return min(seconds_of(work) for _ in range(times))
