"""The pipeline, on Spark and without. `python -m bench pipeline`."""

from typing import Final

from bench import (
    pipeline_append,
    pipeline_archive,
    pipeline_decode,
    pipeline_local,
    pipeline_native,
    pipeline_synthetic,
)
from bench.engine_rows import Group

GROUPS: Final[dict[str, Group]] = {
    **pipeline_local.GROUPS,
    **pipeline_archive.GROUPS,
    **pipeline_synthetic.GROUPS,
    **pipeline_append.GROUPS,
    **pipeline_native.GROUPS,
    **pipeline_decode.GROUPS,
}
