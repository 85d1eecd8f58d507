"""Build the documentation as a website, or serve it while pages are edited.

    python -m tools.site build             write the site to build/site; warnings are errors
    python -m tools.site serve             serve it on this machine and follow changes of pages

The generator works on a copy of the pages in `build/site-source`: the API reference is written into
this copy, never into `docs`. The generator also empties a folder `.cache` beside its configuration,
which must not be the one of the project.
"""

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tools.bootstrap import ROOT, VENV
from tools.reference import write_reference

DOCS: Final = ROOT / "docs"
CONFIG: Final = DOCS / "site.toml"
STAGE: Final = ROOT / "build" / "site-source"
SITE: Final = ROOT / "build" / "site"
PROJECT_PAGES: Final = ("CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT")
"""Pages of the root that the site shows below `project/`."""
_FOLLOW_SECONDS: Final = 0.5


def build(stage: Path = STAGE, site: Path = SITE) -> int:
    """Build the site; return the exit code of the generator."""
    shutil.rmtree(stage, ignore_errors=True)
    copy_pages(stage)
    write_reference(stage / "docs" / "reference" / "api")
    code = _generator("build", "--strict", stage=stage)
    if code == 0:
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(stage / "site", site)
    return code


def serve() -> int:
    """Serve the site until interrupted; pages that change are copied and shown."""
    shutil.rmtree(STAGE, ignore_errors=True)
    copy_pages(STAGE)
    write_reference(STAGE / "docs" / "reference" / "api")
    threading.Thread(target=_follow, daemon=True).start()
    try:
        return _generator("serve", stage=STAGE)
    except KeyboardInterrupt:
        return 0


def copy_pages(stage: Path, since: float = 0.0) -> None:
    """Copy configuration, pages and pictures that were modified after `since`."""
    for path in [*DOCS.rglob("*"), *(ROOT / f"{name}.md" for name in PROJECT_PAGES)]:
        if not path.is_file() or path.stat().st_mtime < since:
            continue
        target = _target(path, stage)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.parent == ROOT:
            target.write_text(project_page(path.read_text()))
        else:
            shutil.copyfile(path, target)


def _target(path: Path, stage: Path) -> Path:
    if path == CONFIG:
        return stage / "zensical.toml"
    if path.parent == ROOT:
        return stage / "docs" / "project" / path.name.lower()
    return stage / "docs" / path.relative_to(DOCS)


def project_page(text: str) -> str:
    """Change the links of a page of the root to where the site has their targets.

    >>> project_page("[a](docs/glossary.md) [b](SECURITY.md#x) [c](https://zarr.dev)")
    '[a](../glossary.md) [b](security.md#x) [c](https://zarr.dev)'
    """
    text = re.sub(r"\]\(docs/", "](../", text)
    return re.sub(r"\]\(([A-Z_]+\.md)", lambda match: f"]({match[1].lower()}", text)


def _follow() -> None:
    """Copy pages that change, for as long as the process lives."""
    looked = time.time()
    while True:
        time.sleep(_FOLLOW_SECONDS)
        now = time.time()
        copy_pages(STAGE, since=looked - 1)
        looked = now


def _generator(*arguments: str, stage: Path) -> int:
    program = str(VENV / "bin" / "zensical")
    config = ["--config-file", str(stage / "zensical.toml")]
    return subprocess.run([program, *arguments, *config], cwd=stage, check=False).returncode


if __name__ == "__main__":
    actions = {"build": build, "serve": serve}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit("usage: python -m tools.site build|serve")
    sys.exit(actions[sys.argv[1]]())
