"""Which manifest set the rules send an array to, and how large it counts there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icefloe.config.chunk_manifests import EffectiveChunkManifests
from icefloe.config.manifest_sets import DEFAULT_SET, ChunkRange, ManifestRule
from icefloe.engine.manifests.patterns import matches

_ANY_PATH: Final = (None, ".*")


@dataclass(frozen=True, slots=True)
class Sent:
    """For each array: the set it is sent to, and the references it may bring."""

    targets: list[str]
    sizes: list[int]


def send(
    paths: Sequence[str],
    metadata_chunks: Sequence[int],
    initialized_chunks: Sequence[int],
    config: EffectiveChunkManifests,
) -> Sent:
    """Apply the rules to many arrays; those for which none holds go to the default set.

    An array counts for as many references as its shape has room for: then its place does not
    change while it is filled. Only if it was sent by how many chunks exist, these count.
    """
    targets = [DEFAULT_SET] * len(paths)
    sizes = list(metadata_chunks)
    undecided = list(range(len(paths)))
    for rule in config.rules:
        held = _those_that_match(rule, paths, undecided)
        held = _those_within(rule.metadata_chunks, metadata_chunks, held)
        held = _those_within(rule.initialized_chunks, initialized_chunks, held)
        for array in held:
            targets[array] = rule.target
            if rule.initialized_chunks is not None:
                sizes[array] = initialized_chunks[array]
        if held:
            decided = set(held)
            undecided = [array for array in undecided if array not in decided]
    return Sent(targets, sizes)


def _those_that_match(rule: ManifestRule, paths: Sequence[str], among: list[int]) -> list[int]:
    if rule.path is None or rule.path in _ANY_PATH or not among:
        return among
    found = matches(rule.path, [paths[array] for array in among])
    return [array for array, is_match in zip(among, found, strict=True) if is_match]


def _those_within(bounds: ChunkRange | None, counts: Sequence[int], among: list[int]) -> list[int]:
    if bounds is None:
        return among
    low = bounds[0] or 0
    if (high := bounds[1]) is None:
        return [array for array in among if counts[array] >= low]
    return [array for array in among if low <= counts[array] < high]
