"""`icefloe policy`: who may read virtual chunks in the buckets of an organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.common import JsonOption, optional_moment, require_consent
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    YesOption,
    client_of,
    done,
    show_entries,
    show_entry,
)

if TYPE_CHECKING:
    from icefloe.catalog.wire import PolicySettings, SimulationAnswer

IdArgument = Annotated[str, typer.Argument(help="The id, as `icefloe policy list` shows it.")]
BucketOption = Annotated[str, typer.Option(help="The bucket, by its name in the organisation.")]
PrefixOption = Annotated[
    str, typer.Option(help="A folder below the prefix of the bucket, like daily/. [default: all]")
]
ScopeOption = Annotated[
    str, typer.Option(help="organisation, or anyone for all who are logged in.")
]
SharedOption = Annotated[
    list[str] | None,
    typer.Option("--share-with", help="Another organisation. Can be repeated."),
]
EndsOption = Annotated[
    str | None, typer.Option("--end", "--ends", help="A date or time of its end.")
]
EmbargoOption = Annotated[
    str | None, typer.Option("--embargoed-until", help="A date or time before which it is void.")
]
ConfirmOption = Annotated[
    str | None,
    typer.Option(
        "--confirm-prefix",
        help="For anyone: the whole prefix once more, like s3://bucket/folder/.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show who would gain and lose access.")
]


def list_(
    organisation: OrganisationArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the policies on the buckets of an organisation.

    Example: icefloe policy list ocean-lab
    """
    policies = client_of(service).list_policies(organisation)
    columns = ("id", "bucket", "prefix", "scope", "shared_with", "embargoed_until", "ends_at")
    show_entries(policies, *columns, as_json=as_json)


def show(
    organisation: OrganisationArgument,
    policy_id: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a policy.

    Example: icefloe policy show ocean-lab policy-7d1f
    """
    show_entry(client_of(service).show_policy(organisation, policy_id), as_json=as_json)


def create(
    organisation: OrganisationArgument,
    *,
    bucket: BucketOption,
    prefix: PrefixOption = "",
    scope: ScopeOption = "organisation",
    share_with: SharedOption = None,
    embargoed_until: EmbargoOption = None,
    ends: EndsOption = None,
    confirm_prefix: ConfirmOption = None,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Allow reading virtual chunks below a prefix.

    Example: icefloe policy create ocean-lab --bucket archive --prefix daily/ --dry-run
    """
    settings = _settings(bucket, prefix, scope, share_with, embargoed_until, ends, confirm_prefix)
    client = client_of(service)
    if dry_run:
        _show_trial(client.simulate_policy(organisation, settings), as_json=as_json)
        return
    created = client.create_policy(
        organisation,
        bucket=settings.bucket,
        prefix=settings.prefix,
        scope=settings.scope,
        shared_with=settings.shared_with,
        embargoed_until=settings.embargoed_until,
        ends_at=settings.ends_at,
        confirm_prefix=settings.confirm_prefix,
    )
    show_entry(created, as_json=as_json)


def change(
    organisation: OrganisationArgument,
    policy_id: IdArgument,
    *,
    bucket: BucketOption,
    prefix: PrefixOption = "",
    scope: ScopeOption = "organisation",
    share_with: SharedOption = None,
    embargoed_until: EmbargoOption = None,
    ends: EndsOption = None,
    confirm_prefix: ConfirmOption = None,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a policy.

    Example: icefloe policy change ocean-lab policy-7d1f --bucket archive --prefix daily/ --dry-run
    """
    settings = _settings(bucket, prefix, scope, share_with, embargoed_until, ends, confirm_prefix)
    client = client_of(service)
    if dry_run:
        trial = client.simulate_policy(organisation, settings, policy_id=policy_id)
        _show_trial(trial, as_json=as_json)
        return
    show_entry(client.change_policy(organisation, policy_id, settings), as_json=as_json)


def delete(
    organisation: OrganisationArgument,
    policy_id: IdArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a policy: no credential is made by it from now on.

    Example: icefloe policy delete ocean-lab policy-7d1f --dry-run
    """
    client = client_of(service)
    if dry_run:
        trial = client.simulate_policy(organisation, policy_id=policy_id)
        _show_trial(trial, as_json=as_json)
        return
    require_consent(f"delete the policy {policy_id}?", is_given=yes)
    client.delete_policy(organisation, policy_id)
    done(f"{policy_id} was deleted; `icefloe policy undo` brings it back", as_json=as_json)


def history(
    organisation: OrganisationArgument,
    policy_id: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the versions of a policy, oldest first; also of one that was deleted.

    Example: icefloe policy history ocean-lab policy-7d1f
    """
    versions = client_of(service).policy_history(organisation, policy_id)
    show_entries(versions, "changed_at", "changed_by", "policy", as_json=as_json)


def undo(
    organisation: OrganisationArgument,
    policy_id: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a policy back to the version before the last one; a deleted one comes back.

    Example: icefloe policy undo ocean-lab policy-7d1f
    """
    show_entry(client_of(service).undo_policy(organisation, policy_id), as_json=as_json)


def _settings(
    bucket: str,
    prefix: str,
    scope: str,
    share_with: list[str] | None,
    embargoed_until: str | None,
    ends: str | None,
    confirm_prefix: str | None,
) -> PolicySettings:
    from icefloe.catalog.administration import chosen
    from icefloe.catalog.model import PolicyScope
    from icefloe.catalog.wire import PolicySettings

    return PolicySettings(
        bucket,
        prefix,
        chosen(PolicyScope, scope),
        optional_moment(embargoed_until, "--embargoed-until"),
        optional_moment(ends, "--end"),
        tuple(share_with or ()),
        confirm_prefix,
    )


def _show_trial(trial: SimulationAnswer, *, as_json: bool) -> None:
    """Print who would gain and lose what, and which repositories would open or break."""
    if as_json:
        show_entry(trial, as_json=True)
        return
    rows = [
        *(("gains", person, repository) for person, repository in trial.gains),
        *(("loses", person, repository) for person, repository in trial.losses),
    ]
    from icefloe.cli.common import echo, show_table

    if rows:
        show_table(("change", "person", "repository"), rows)
    others = ((trial.other_gains, "gain"), (trial.other_losses, "lose"))
    for counts, verb in others:
        for count in counts:
            people = "1 person" if count.people == 1 else f"{count.people:,} people"
            echo(f"{people} of {count.organisation or 'other organisations'} would {verb} access")
    for repositories, hidden, text in (
        (trial.opens, trial.other_opens, "would open"),
        (trial.breaks, trial.other_breaks, "would break"),
    ):
        names = [*repositories, *([f"{hidden:,} that you may not see"] if hidden else [])]
        if names:
            echo(f"{', '.join(names)} {text}")
    is_idle = not (rows or trial.other_gains or trial.other_losses)
    echo(
        "nobody would gain or lose access; nothing was changed"
        if is_idle
        else "nothing was changed"
    )
