"""One implementation doing one group of comparisons; run as a process."""

import importlib
import json
import sys
import warnings

from bench import engine_requests
from bench.engine_location import Location
from bench.engine_rows import Run, Scale
from bench.sections import group_named

_REQUESTS: dict[str, Run] = {
    "prepare-requests": engine_requests.prepare,
    "operate-requests": engine_requests.operate,
}


def main(library: str, group: str, location: str, size: str) -> None:
    warnings.simplefilter("ignore")
    lib = importlib.import_module(library)
    if library == "icechunk":
        lib.set_logs_filter("error")
    run = _REQUESTS[group] if group in _REQUESTS else group_named(group).run
    print(json.dumps(dict(run(lib, Location.loads(location), Scale(size == "quick")))))


if __name__ == "__main__":
    main(*sys.argv[1:])
