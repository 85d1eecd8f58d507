"""Where references are kept, and what would be better, as users see it."""

from collections.abc import Iterator
from typing import Any, Final

from icefloe.config import RepositoryConfig
from icefloe.format.config_file import encode_partial_config_yaml
from icefloe.maintenance.layout.advice import Advice, Cost, Costs
from icefloe.printable import printable
from icefloe.records import Record, asdict
from icefloe.reports import shown_bytes, table_html, table_text

COST_HEADINGS: Final = ("manifests for", "now", "bytes", "proposed", "bytes")
LAYOUT_HEADINGS: Final = ("manifest", "arrays", "references", "bytes", "paths")
_WORK: Final = {
    "first_read": "the first chunk of the largest array",
    "coordinates": "all coordinates",
    "append": "an append and its commit",
    "change": "a commit of one changed chunk",
}
_SHOWN_PATHS: Final = 3


class ManifestContents(Record):
    """A manifest of a version, and the arrays with references in it."""

    id: str
    size_bytes: int
    num_chunk_refs: int
    arrays: tuple[str, ...]

    def to_row(self) -> list[object]:
        """Return the row of a table."""
        more = len(self.arrays) - _SHOWN_PATHS
        paths = [*self.arrays[:_SHOWN_PATHS], *([f"and {more} more"] if more > 0 else [])]
        size = shown_bytes(self.size_bytes)
        return [self.id, len(self.arrays), self.num_chunk_refs, size, ", ".join(paths)]


class ManifestAdvice:
    """A configuration of manifests that suits a repository, with what it would cost.

    Costs count manifests, and their bytes, that are fetched and written; those of the proposal
    are estimates. `config` holds what is to be set, and nothing else.
    """

    def __init__(self, advice: Advice | None) -> None:
        self._advice = advice

    @property
    def config(self) -> RepositoryConfig:
        """What to set: nothing if what applies is good."""
        return RepositoryConfig() if self._advice is None else self._advice.config

    @property
    def changes_config(self) -> bool:
        """Whether there is something to set."""
        return self.config != RepositoryConfig()

    @property
    def is_worth_a_rewrite(self) -> bool:
        """Whether manifests that are stored should be rewritten."""
        return self._advice is not None and self._advice.is_worth_a_rewrite

    @property
    def yaml(self) -> str:
        """The configuration in the form of `config.yaml`; empty if there is nothing to set."""
        return encode_partial_config_yaml(self.config).decode() if self.changes_config else ""

    def cost_rows(self) -> Iterator[list[object]]:
        """Yield the rows of a table of costs."""
        if (advice := self._advice) is None:
            return
        for name, text in _WORK.items():
            now: Cost = getattr(advice.now, name)
            proposed: Cost = getattr(advice.proposed, name)
            yield [text, *_shown(now), *_shown(proposed)]
        yield ["in all", advice.now.num_manifests, "", advice.proposed.num_manifests, ""]

    def notes(self) -> Iterator[str]:
        """Describe the findings, and what to do."""
        if (advice := self._advice) is None:
            yield "there are no references yet: nothing to suggest"
            return
        for path, growth in advice.growing.items():
            yield f"{path} grows along axis {growth.axis}, {growth.num_chunks} chunks at a time"
        yield from (f"{reason}" for reason in advice.reasons)
        if not self.changes_config:
            yield "the configuration is good as it is"
        if self.is_worth_a_rewrite:
            yield "manifests that are stored should be rewritten: icefloe manifests rewrite"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        if (advice := self._advice) is None:
            return {"now": None, "proposed": None, "config": "", "reasons": []}
        return {
            "largest": advice.largest,
            "growing": {path: asdict(growth) for path, growth in advice.growing.items()},
            "now": _plain(advice.now),
            "proposed": _plain(advice.proposed),
            "config": self.yaml,
            "reasons": list(advice.reasons),
            "is_worth_a_rewrite": self.is_worth_a_rewrite,
        }

    def __repr__(self) -> str:
        rows = list(self.cost_rows())
        lines = [*map(printable, self.notes())]
        if rows:
            lines.insert(0, table_text(COST_HEADINGS, rows))
        return "\n".join([*lines, *([self.yaml.rstrip()] if self.yaml else [])])

    def _repr_html_(self) -> str:
        return table_html(COST_HEADINGS, self.cost_rows())


def _shown(cost: Cost) -> tuple[str, str]:
    requests = f"{cost.fetched} in"
    sizes = shown_bytes(cost.bytes_in)
    if cost.written:
        requests += f", {cost.written} out"
        sizes += f", {shown_bytes(cost.bytes_out)}"
    return requests, sizes


def _plain(costs: Costs) -> dict[str, Any]:
    return asdict(costs)
