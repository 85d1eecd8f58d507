"""Let processes work against each other and against faults, on a folder and on S3."""

import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.soak.places import Place, local_place, s3_place
from tests.soak.run import PROCESSES, soak
from tests.support.servers import seaweedfs

_console = Console()


def main(
    seconds: Annotated[float, typer.Option(help="Time for all places together.")] = 600,
    seed: Annotated[int | None, typer.Option(help="For the moments of kills and faults.")] = None,
) -> None:
    """Soak a repository of each format version, on a folder and on S3."""
    chosen = random.randrange(2**32) if seed is None else seed
    random.seed(chosen)
    _console.print(f"{PROCESSES} processes, {seconds:g} s in all, seed {chosen}")
    has_failed = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icefloe-soak-")))
        endpoint = stack.enter_context(seaweedfs())
        for spec_version in (2, 1):
            places: list[Place] = [
                local_place(folder / f"local-{spec_version}"),
                stack.enter_context(s3_place(endpoint, f"soak-{spec_version}")),
            ]
            for place in places:
                journals = folder / f"{place.name}-{spec_version}"
                journals.mkdir()
                outcome = soak(place, journals, spec_version=spec_version, seconds=seconds / 4)
                has_failed |= bool(outcome.problems)
                _console.print(f"{place.name}, spec {spec_version}: {outcome.summary}")
                for problem in outcome.problems:
                    _console.print(problem, style="red", markup=False)
    _console.print("soak failed" if has_failed else "nothing was lost, nothing false was read")
    sys.exit(1 if has_failed else 0)


typer.run(main)
