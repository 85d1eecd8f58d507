"""`icefloe branch` and `icefloe tag`: names of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AsOfOption,
    JsonOption,
    RepositoryArgument,
    YesOption,
    echo,
    open_repository,
    require_consent,
    show_json,
    show_table,
)
from icefloe.cli.versions import (
    OptionalVersionArgument,
    VersionArgument,
    choose_version,
    short_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.api.repository import Repository
    from icefloe.repo.snapshot_info import SnapshotInfo

BranchArgument = Annotated[str, typer.Argument(help="The name of the branch.")]
TagArgument = Annotated[str, typer.Argument(help="The name of the tag.")]


def list_branches(
    url: RepositoryArgument, *, as_json: JsonOption = False, anonymous: AnonymousOption = False
) -> None:
    """List the branches, and the newest version of each.

    Example: icefloe branch list ./repo
    """
    versions = open_repository(url, anonymous=anonymous).branch_versions()
    if as_json:
        show_json({"branches": version_entries(versions)})
    else:
        show_versions("branch", versions)


def create_branch(
    url: RepositoryArgument,
    name: BranchArgument,
    version: OptionalVersionArgument = None,
    *,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a branch that begins at a version.

    Example: icefloe branch create ./repo experiment main
    """
    repository = open_repository(url, writes=True)
    chosen = choose_version(repository, version, as_of)
    repository.create_branch(name, chosen.snapshot_id)
    _report(
        f"created the branch {name} at {short_id(chosen.snapshot_id)}",
        {"name": name, "snapshot_id": chosen.snapshot_id},
        as_json=as_json,
    )


def delete_branch(
    url: RepositoryArgument,
    name: BranchArgument,
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a branch; main cannot be deleted.

    Its versions stay until `icefloe gc` finds that no other branch and no tag needs them. If the
    branch moves before the answer, it is not deleted.

    Example: icefloe branch delete ./repo experiment
    """
    repository = open_repository(url, writes=True)
    head = repository.lookup_branch(name)
    require_consent(f"delete the branch {name}, at {_titled(repository, head)}?", is_given=yes)
    repository.delete_branch(name, from_snapshot_id=head)
    _report(
        f"deleted the branch {name}; it was at {head}",
        {"deleted": name, "snapshot_id": head},
        as_json=as_json,
    )


def reset_branch(
    url: RepositoryArgument,
    name: BranchArgument,
    version: VersionArgument,
    *,
    as_of: AsOfOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move a branch to another version, for everybody.

    Versions that only this branch had are no longer in its history; `icefloe gc` deletes them. If
    the branch moves before the answer, it is not reset.

    Example: icefloe branch reset ./repo main v1
    """
    repository = open_repository(url, writes=True)
    head = repository.lookup_branch(name)
    target = choose_version(repository, version, as_of).snapshot_id
    if target != head:
        question = (
            f"move the branch {name} from {_titled(repository, head)} to"
            f" {_titled(repository, target)}?"
        )
        require_consent(question, is_given=yes)
        repository.reset_branch(name, target, from_snapshot_id=head)
    _report(
        f"the branch {name} is at {short_id(target)}; it was at {head}",
        {"name": name, "snapshot_id": target, "previous_snapshot_id": head},
        as_json=as_json,
    )


def list_tags(
    url: RepositoryArgument, *, as_json: JsonOption = False, anonymous: AnonymousOption = False
) -> None:
    """List the tags, and the version that each names.

    Example: icefloe tag list ./repo
    """
    versions = open_repository(url, anonymous=anonymous).tag_versions()
    if as_json:
        show_json({"tags": version_entries(versions)})
    else:
        show_versions("tag", versions)


def create_tag(
    url: RepositoryArgument,
    name: TagArgument,
    version: OptionalVersionArgument = None,
    *,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name a version for good: a tag never moves.

    Example: icefloe tag create ./repo v1 main
    """
    repository = open_repository(url, writes=True)
    chosen = choose_version(repository, version, as_of)
    repository.create_tag(name, chosen.snapshot_id)
    _report(
        f"created the tag {name} at {short_id(chosen.snapshot_id)}",
        {"name": name, "snapshot_id": chosen.snapshot_id},
        as_json=as_json,
    )


def delete_tag(
    url: RepositoryArgument,
    name: TagArgument,
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a tag; no tag can have its name afterwards.

    Example: icefloe tag delete ./repo v1
    """
    repository = open_repository(url, writes=True)
    target = repository.lookup_tag(name)
    question = f"delete the tag {name}, at {_titled(repository, target)}? The name cannot be used"
    require_consent(f"{question} again.", is_given=yes)
    repository.delete_tag(name)
    _report(
        f"deleted the tag {name}; it was at {target}",
        {"deleted": name, "snapshot_id": target},
        as_json=as_json,
    )


def version_entries(versions: Mapping[str, SnapshotInfo]) -> list[dict[str, Any]]:
    """Describe the versions of branches or tags, ready for JSON."""
    return [
        {
            "name": name,
            "snapshot_id": version.id,
            "written_at": version.written_at.isoformat(),
            "message": version.message,
        }
        for name, version in versions.items()
    ]


def show_versions(kind: str, versions: Mapping[str, SnapshotInfo]) -> None:
    """Print the versions of branches or tags as a table."""
    rows = [
        (
            name,
            short_id(version.id),
            f"{version.written_at:%Y-%m-%d %H:%M}",
            version.message.strip().partition("\n")[0],
        )
        for name, version in versions.items()
    ]
    show_table((kind, "version", "written", "message"), rows)


def _titled(repository: Repository, snapshot_id: str) -> str:
    """Describe a version in a question."""
    version = repository.lookup_snapshot(snapshot_id)
    title = version.message.strip().partition("\n")[0]
    return f"{short_id(snapshot_id)} ({version.written_at:%Y-%m-%d %H:%M}, {title!r})"


def _report(sentence: str, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(facts)
    else:
        echo(sentence)
