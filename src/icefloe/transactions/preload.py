"""Manifests that are fetched when a session begins, before anybody asks for them.

All of this happens in the background, the choice included: it never delays a session, and if it
fails nobody notices. What was fetched is in the cache, within its limits.
"""

from collections.abc import Iterator
from functools import partial

from icefloe.assets import Assets
from icefloe.background import BackgroundWork, Step
from icefloe.config.conditions import (
    ManifestPreloadCondition,
    PreloadAnd,
    PreloadFalse,
    PreloadNameMatches,
    PreloadNumRefs,
    PreloadOr,
    PreloadPathMatches,
    PreloadTrue,
)
from icefloe.config.effective import EffectivePreload
from icefloe.config.manifest_sets import ManifestSetPreload
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.ids import ManifestId
from icefloe.format.paths import node_name
from icefloe.format.snapshot import Snapshot
from icefloe.manifests.lookup import listed_in
from icefloe.manifests.partition import is_found, matches
from icefloe.records import Record
from icefloe.repo.context import RepoContext


class _Candidate(Record):
    """A manifest of an array."""

    path: str
    manifest: ManifestId
    size_bytes: int
    num_refs: int


def start_preload(
    context: RepoContext, snapshot: Snapshot, *, is_writing: bool
) -> BackgroundWork | None:
    """Begin to fetch manifests as configured; None if there is nothing to be done.

    Where nothing is configured, those that look like coordinates are fetched for readers, if
    the repository is far: on this machine there is no waiting to be saved.
    """
    set_by_user = context.user_config
    manifest = set_by_user.manifest
    has_conditions = manifest is not None and manifest.preload is not None
    has_sets = set_by_user.chunk_manifests is not None
    is_default = not has_conditions and not has_sets
    if is_default and (is_writing or context.is_near):
        return None
    config = context.config
    conditions = config.manifest.preload if has_conditions or is_default else None
    sets = config.chunk_manifests.preload if has_sets or is_default else None
    if (conditions is None and sets is None) or len(snapshot.files) == 0:
        return None
    return BackgroundWork.start(_steps(context, snapshot, conditions, sets))


def _steps(
    context: RepoContext,
    snapshot: Snapshot,
    conditions: EffectivePreload | None,
    sets: ManifestSetPreload | None,
) -> Iterator[Step]:
    """Fetch one manifest after the other; never more than half of what the cache can hold."""
    room = context.config.caching.num_chunk_refs // 2
    done: set[ManifestId] = set()
    for chosen in _chosen(snapshot, conditions, sets):
        if chosen.manifest not in done and chosen.num_refs <= room:
            done.add(chosen.manifest)
            room -= chosen.num_refs
            yield partial(_fetch, context.assets, chosen)


async def _fetch(assets: Assets, chosen: _Candidate) -> None:
    if not assets.is_loading_manifest(chosen.manifest):  # somebody was quicker
        await assets.load_manifest(chosen.manifest, chosen.size_bytes)


def _chosen(
    snapshot: Snapshot, conditions: EffectivePreload | None, sets: ManifestSetPreload | None
) -> Iterator[_Candidate]:
    if sets is not None:
        yield from _chosen_by_path(snapshot, sets)
    if conditions is not None:
        yield from _chosen_by_condition(snapshot, conditions)


def _chosen_by_path(snapshot: Snapshot, preload: ManifestSetPreload) -> Iterator[_Candidate]:
    """Choose manifests of arrays with certain paths, those that are asked for first."""
    table = snapshot.nodes
    rows = [row for row in range(len(table)) if table.is_array[row]]
    paths = [table.paths[row].decode() for row in rows]
    chosen: set[ManifestId] = set()
    for pattern in preload.arrays:
        for row, is_match in zip(rows, matches(pattern, paths), strict=True):
            for manifest in _manifests(snapshot, row) if is_match else ():
                if (
                    manifest.num_refs <= preload.max_manifest_size
                    and manifest.manifest not in chosen
                ):
                    if len(chosen) == preload.max_manifests:
                        return
                    chosen.add(manifest.manifest)
                    yield manifest


def _chosen_by_condition(snapshot: Snapshot, preload: EffectivePreload) -> Iterator[_Candidate]:
    """Choose among the first arrays, up to a number of references in all."""
    room, scanned, chosen = preload.max_total_refs, 0, set[ManifestId]()
    for row in range(len(snapshot.nodes)):
        if not snapshot.nodes.is_array[row]:
            continue
        if scanned == preload.max_arrays_to_scan or room <= 0:
            return
        scanned += 1
        for manifest in _manifests(snapshot, row):
            is_new = manifest.manifest not in chosen and manifest.num_refs <= room
            if is_new and _holds(preload.preload_if, manifest):
                chosen.add(manifest.manifest)
                room -= manifest.num_refs
                yield manifest


def _manifests(snapshot: Snapshot, row: int) -> list[_Candidate]:
    node = snapshot.nodes.array(row)
    ids = [ref.id for ref in node.array.manifests]
    sizes, counts = listed_in(snapshot.manifests, ids)
    return [_Candidate(node.path, *columns) for columns in zip(ids, sizes, counts, strict=True)]


def _holds(condition: ManifestPreloadCondition, candidate: _Candidate) -> bool:
    match condition:
        case PreloadTrue():
            return True
        case PreloadFalse():
            return False
        case PreloadNumRefs(low, high):
            return (low or 0) <= candidate.num_refs and (high is None or candidate.num_refs < high)
        case PreloadPathMatches(regex):
            return is_found(regex, candidate.path)
        case PreloadNameMatches(regex):
            return is_found(regex, node_name(candidate.path))
        case PreloadOr(conditions):
            return any(_holds(inner, candidate) for inner in conditions)
        case PreloadAnd(conditions):
            return all(_holds(inner, candidate) for inner in conditions)
        case _:
            raise InvalidInputError(
                f"{condition!r} is no condition for preloading manifests", ErrorKind.INVALID_CONFIG
            )
