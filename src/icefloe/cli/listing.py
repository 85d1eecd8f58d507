"""`icefloe listing`: what organisations offer to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.common import JsonOption, require_consent
from icefloe.cli.entries import (
    ServiceOption,
    YesOption,
    client_of,
    done,
    show_entries,
    show_entry,
)

if TYPE_CHECKING:
    from icefloe.catalog.model import Filter, SharedPrefix

TitleOption = Annotated[str | None, typer.Option(help="What it is, in a line.")]
LicenceOption = Annotated[str | None, typer.Option(help="The licence, like CC-BY-4.0.")]
TermsOption = Annotated[
    Path | None, typer.Option(help="A text file with the terms that subscribers accept.")
]
OfferedToOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An organisation that may subscribe, or * for all; several times for several."
    ),
]
VirtualChunksOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Where subscribers may also read virtual chunks, as bucket/prefix/, where"
        " policies of the organisation allow it to its members."
    ),
]
ListingArgument = Annotated[str, typer.Argument(help="The listing, as organisation/name.")]
NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node", help="The path of an array or a group; several times for several."),
]
RangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        help="A range of a coordinate, like time=2026-01-01..2026-12-31 or lat=30..; both ends"
        " are included.",
    ),
]


def list_(
    *,
    search: Annotated[str | None, typer.Option(help="Words of the title or the name.")] = None,
    organisation: Annotated[
        str | None, typer.Option("--org", help="Only listings of this organisation.")
    ] = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is offered to you, and what your organisations offer.

    Example: icefloe listing list --search 'sea surface'
    """
    listings = client_of(service).list_listings(organisation, search=search)
    columns = ("organisation", "name", "title", "licence", "needs_approval")
    show_entries(listings, *columns, as_json=as_json)


def show(
    listing: ListingArgument, *, service: ServiceOption = None, as_json: JsonOption = False
) -> None:
    """Show a listing with its licence and its terms.

    Example: icefloe listing show ocean-lab/sst
    """
    show_entry(client_of(service).show_listing(*two_names(listing)), as_json=as_json)


def create(
    listing: ListingArgument,
    repository: Annotated[str, typer.Argument(help="The organisation's repository to offer.")],
    *,
    title: TitleOption = None,
    licence: LicenceOption = None,
    terms: TermsOption = None,
    offered_to: OfferedToOption = None,
    needs_approval: Annotated[
        bool, typer.Option("--needs-approval", help="Subscriptions wait for an admin.")
    ] = False,
    virtual_chunks: VirtualChunksOption = None,
    node: NodeOption = None,
    ranges: RangeOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Offer a repository, or a part of it, to other organisations.

    Example: icefloe listing create ocean-lab/sst sst --licence CC-BY-4.0 --needs-approval
    """
    from icefloe.catalog.wire import ListingSettings

    given = _given(title, licence, terms, offered_to, virtual_chunks, filter_of(node, ranges))
    settings = ListingSettings(repository, needs_approval=needs_approval, **given)
    organisation, name = two_names(listing)
    created = client_of(service).create_listing(organisation, name, settings)
    show_entry(created, as_json=as_json)


def change(
    listing: ListingArgument,
    *,
    title: TitleOption = None,
    licence: LicenceOption = None,
    terms: TermsOption = None,
    offered_to: OfferedToOption = None,
    needs_approval: Annotated[
        bool | None,
        typer.Option("--needs-approval/--no-approval", help="Subscriptions wait for an admin."),
    ] = None,
    virtual_chunks: VirtualChunksOption = None,
    node: NodeOption = None,
    ranges: RangeOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a listing; what no option names stays, and so do subscriptions.

    Example: icefloe listing change ocean-lab/sst --offered-to zoo --offered-to archive
    """
    from icefloe.catalog.wire import ListingSettings
    from icefloe.records import replace

    client = client_of(service)
    organisation, name = two_names(listing)
    present = client.show_listing(organisation, name)
    fields = {field: getattr(present, field) for field in ListingSettings.__struct_fields__}
    given = _given(title, licence, terms, offered_to, virtual_chunks, filter_of(node, ranges))
    if needs_approval is not None:
        given["needs_approval"] = needs_approval
    settings = replace(ListingSettings(**fields), **given)
    changed = client.change_listing(organisation, name, settings, if_version=present.version)
    show_entry(changed, as_json=as_json)


def delete(
    listing: ListingArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a listing; all subscriptions to it end.

    Example: icefloe listing delete ocean-lab/sst
    """
    require_consent(f"delete {listing} with all subscriptions to it?", is_given=yes)
    client_of(service).delete_listing(*two_names(listing))
    done(f"{listing} was deleted", as_json=as_json)


def _given(
    title: str | None,
    licence: str | None,
    terms: Path | None,
    offered_to: list[str] | None,
    virtual_chunks: list[str] | None,
    part: Filter | None,
) -> dict[str, Any]:
    """Return the settings that options name."""
    settings = {
        "title": title,
        "licence": licence,
        "terms": None if terms is None else terms.read_text(),
        "offered_to": tuple(offered_to) if offered_to else None,
        "virtual_chunks": tuple(map(_shared, virtual_chunks)) if virtual_chunks else None,
        "filter": part,
    }
    return {name: value for name, value in settings.items() if value is not None}


def two_names(text: str) -> tuple[str, str]:
    """Read `organisation/name`."""
    from icefloe.errors import ErrorKind, InvalidInputError

    organisation, slash, name = text.partition("/")
    if not (organisation and slash and name) or "/" in name:
        problem = f"{text!r} is no name like organisation/name"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return organisation, name


def filter_of(nodes: list[str] | None, ranges: list[str] | None) -> Filter | None:
    """Read the options of a filter; None if there are none."""
    from icefloe.catalog.parts import read_filter

    return read_filter(nodes or (), ranges or ())


def _shared(text: str) -> SharedPrefix:
    from icefloe.catalog.parts import read_shared_prefix

    return read_shared_prefix(text)
