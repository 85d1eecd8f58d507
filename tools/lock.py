"""Compile the pinned requirement files from `pyproject.toml`.

Pins that still satisfy it are kept; `--upgrade` takes the newest of everything. The files name
versions and hashes, never the place they came from, so any mirror serves them.
"""

import sys

from tools.bootstrap import REQUIREMENTS, VENV, SetupError, find_uv, run, say

GROUPS = ("build", "test", "interop", "bench", "docs", "lint")
FILES = {
    # First the versions that are tested, then subsets that agree with them.
    "dev.txt": ("pyproject.toml", "--all-extras", *(f"--group={group}" for group in GROUPS)),
    "all.txt": ("pyproject.toml", "--all-extras", "--constraints=requirements/dev.txt"),
    "runtime.txt": ("pyproject.toml", "--constraints=requirements/dev.txt"),
    "java.txt": ("--group=java",),
    "uv.txt": ("--group=bootstrap",),
    # It runs with the other packages of the environment.
    "icechunk-1.txt": ("--group=former-reference", "--no-deps"),
}
OPTIONS = (
    "--quiet",
    "--universal",
    "--python-version=3.12",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-header",
    "--no-annotate",
    "--no-python-downloads",
    f"--python={VENV / 'bin' / 'python'}",
)


def main(options: list[str]) -> int:
    """Compile every file."""
    uv = find_uv(None)
    for name, sources in FILES.items():
        say(f"compiling requirements/{name}")
        output = f"--output-file={REQUIREMENTS / name}"
        remedy = "read the resolver's answer above; then loosen a bound in pyproject.toml"
        run([uv, "pip", "compile", *OPTIONS, *options, *sources, output], remedy=remedy)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        say(f"FAILED: {error}")
        say(f"TO FIX: {error.remedy}")
        sys.exit(1)
