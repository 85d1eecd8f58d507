"""The lines of Python that open what a command wrote."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from icefloe.cli.common import (
    address_of,
    has_saved_credential,
    is_of_service,
    python_address,
)

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.api.session import Session

_LISTS_REFERENCES: Final = (".json", ".jsonl", ".parquet", ".parq", ".dmrpp", ".zst")
"""How the names of files end that may refer to other files."""


def opening_lines(
    repository: "Repository", name: str, group: str, branch: str = "main"
) -> tuple[str, ...]:
    """Return the lines that open a dataset with xarray, with the authorisation that it needs."""
    is_saved = has_saved_credential(name)
    shown = json.dumps(name if is_saved else python_address(name), ensure_ascii=False)
    source = f"icefloe.saved_storage({shown})" if is_saved else shown
    arguments = [source, 'engine="icefloe"']
    if group:
        arguments.append(f"group={json.dumps(group, ensure_ascii=False)}")
    if branch != "main":
        arguments.append(f"branch={json.dumps(branch, ensure_ascii=False)}")
    session = repository.readonly_session(branch)
    if not is_of_service(address_of(name)) and (prefixes := _prefixes(repository, session, group)):
        arguments.append(f"authorize={json.dumps(prefixes, ensure_ascii=False)}")
    imports = "import icefloe, xarray as xr" if is_saved else "import xarray as xr"
    opened = "dataset = xr.open_dataset"
    if _has_only_groups(session, group):
        opened = "tree = xr.open_datatree"
    return (imports, f"{opened}({', '.join(arguments)})")


def _has_only_groups(session: "Session", group: str) -> bool:
    """Return whether all arrays of a dataset are in groups below its own."""
    from icefloe.api.session import state_of
    from icefloe.format.nodes import ArrayNode
    from icefloe.format.paths import absolute_path, parent_path

    path = absolute_path(group)
    nodes = state_of(session).tree.below(path)
    return not any(isinstance(node, ArrayNode) and parent_path(node.path) == path for node in nodes)


def _prefixes(repository: "Repository", session: "Session", group: str) -> list[str]:
    """List the containers in which files of a dataset are; none for a dataset without files."""
    from icefloe.pipeline.writing.provenance import read_record

    record = read_record(session.store, group)
    if record is None or record.is_copy:
        return []
    declared = [*(repository.config.virtual_chunk_containers or {})]
    urls = [file.state.url for file in record.files]
    if any(url.lower().endswith(_LISTS_REFERENCES) for url in urls):
        return declared  # such files refer to others
    return sorted(set(_covering(urls, declared)))


def _covering(urls: Iterable[str], prefixes: Iterable[str]) -> Iterable[str]:
    """Yield the longest prefix of each URL."""
    longest_first = sorted(prefixes, key=len, reverse=True)
    for url in urls:
        yield from [prefix for prefix in longest_first if url.startswith(prefix)][:1]
