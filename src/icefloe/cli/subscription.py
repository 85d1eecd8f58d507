"""`icefloe subscription`: read what other organisations offer."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, echo, optional_moment, progress_bar, require_consent
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    WaitOption,
    YesOption,
    client_of,
    show_entries,
    show_entry,
)
from icefloe.cli.job import JOB_COLUMNS
from icefloe.cli.listing import ListingArgument, NodeOption, RangeOption, filter_of, two_names

_REPORT_COLUMNS = ("version", "snapshot", "changed", "written", "kept", "references")
IdArgument = Annotated[str, typer.Argument(help="The id of the subscription.")]
StateOption = Annotated[
    str | None, typer.Option(help="Only those that are pending, granted, declined or ended.")
]
AnswerOption = Annotated[str, typer.Option(help="A word to those who asked.")]
EndOption = Annotated[str | None, typer.Option("--end", help="When it ends, like 2027-01-01.")]


def list_(
    organisation: OrganisationArgument,
    *,
    state: StateOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions of an organisation, and those of others to its listings.

    Example: icefloe subscription list zoo --state pending
    """
    entries = client_of(service).list_subscriptions(organisation, state=state)
    columns = ("id", "subscriber", "provider", "listing", "kind", "state", "repository", "ends_at")
    show_entries(entries, *columns, as_json=as_json)


def show(
    organisation: OrganisationArgument,
    subscription: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a subscription, with the terms that were accepted.

    Example: icefloe subscription show zoo subscription-0123456789abcdef
    """
    entry = client_of(service).show_subscription(organisation, subscription)
    show_entry(entry, as_json=as_json)


def create(
    organisation: OrganisationArgument,
    listing: ListingArgument,
    *,
    repository: Annotated[
        str | None,
        typer.Option(help="Make a filtered subscription: the repository of manifests to create."),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(help="The organisation's bucket for that repository.")
    ] = None,
    node: NodeOption = None,
    ranges: RangeOption = None,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Subscribe an organisation to a listing; its licence and terms are shown first.

    With --repository, only a part is read, through manifests in a bucket of the organisation.

    Example: icefloe subscription create zoo ocean-lab/sst
    """
    from icefloe.catalog.model import SubscriptionKind
    from icefloe.catalog.wire import NewSubscription

    client = client_of(service)
    provider, name = two_names(listing)
    offer = client.show_listing(provider, name)
    if (offer.licence or offer.terms) and not yes:
        echo(f"Licence: {offer.licence}\n\n{offer.terms}", err=True)
        require_consent("do you accept the licence and the terms?", is_given=False)
    is_part = repository is not None or bool(node) or bool(ranges)
    new = NewSubscription(
        provider,
        name,
        SubscriptionKind.FILTERED if is_part else SubscriptionKind.DIRECT,
        offer.version,
        repository,
        bucket,
        filter_of(node, ranges),
    )
    show_entry(client.subscribe(organisation, new), as_json=as_json)


def update(
    organisation: OrganisationArgument,
    subscription: Annotated[
        str | None, typer.Argument(help="The id of the subscription. [default: all]")
    ] = None,
    *,
    wait: WaitOption = True,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Update filtered subscriptions to their provider's newest version.

    Example: icefloe subscription update zoo
    """
    from msgspec import convert

    from icefloe.catalog.wire import FollowAnswer

    client = client_of(service)
    if subscription is not None:
        chosen = [subscription]
    else:
        entries = client.list_subscriptions(organisation, state="granted")
        chosen = [e.id for e in entries if e.subscriber == organisation and e.kind == "filtered"]
    jobs = [client.begin_update(organisation, entry) for entry in chosen]
    if not wait:
        show_entries(jobs, *JOB_COLUMNS, as_json=as_json)
        return
    with progress_bar("updating") as progress:
        ended = [client.wait_for_job(job, progress=progress) for job in jobs]
    reports = [convert(job.report, FollowAnswer) for job in ended]
    show_entries(reports, *_REPORT_COLUMNS, as_json=as_json)


def approve(
    organisation: OrganisationArgument,
    subscription: IdArgument,
    *,
    end: EndOption = None,
    answer: AnswerOption = "",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Grant a subscription to a listing of your organisation, or change its end.

    Example: icefloe subscription approve ocean-lab subscription-0123456789abcdef --end 2027-01-01
    """
    from icefloe.catalog.wire import SubscriptionDecision

    decision = SubscriptionDecision(True, optional_moment(end, "--end"), answer)  # noqa: FBT003
    changed = client_of(service).decide_subscription(organisation, subscription, decision)
    show_entry(changed, as_json=as_json)


def decline(
    organisation: OrganisationArgument,
    subscription: IdArgument,
    *,
    answer: AnswerOption = "",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decline a subscription to a listing of your organisation.

    Example: icefloe subscription decline ocean-lab subscription-0123456789abcdef
    """
    from icefloe.catalog.wire import SubscriptionDecision

    decision = SubscriptionDecision(False, answer=answer)  # noqa: FBT003
    changed = client_of(service).decide_subscription(organisation, subscription, decision)
    show_entry(changed, as_json=as_json)


def end(
    organisation: OrganisationArgument,
    subscription: IdArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a subscription, as its subscriber or as its provider.

    Example: icefloe subscription end zoo subscription-0123456789abcdef
    """
    require_consent(f"end {subscription}? nobody reads by it any more", is_given=yes)
    show_entry(client_of(service).end_subscription(organisation, subscription), as_json=as_json)
