"""`icefloe token`: keys for programs."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption
from icefloe.cli.entries import ServiceOption, client_of, done, show_entries, show_entry

_NOTE = "keep the secret now: nobody can show it again"


def list_(*, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """List your tokens, without their secrets.

    Example: icefloe token list
    """
    tokens = client_of(service).list_tokens()
    columns = ("id", "name", "expires_at", "last_used_at", "revoked_at")
    show_entries(tokens, *columns, as_json=as_json)


def create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    *,
    action: Annotated[
        list[str] | None,
        typer.Option(help="read, write, admin or an action. Can be repeated. [default: read]"),
    ] = None,
    repository: Annotated[
        list[str] | None,
        typer.Option(help="org/name, org/* or */*. Can be repeated. [default: */*]"),
    ] = None,
    days: Annotated[int, typer.Option(help="How long it lives.", min=1, max=366)] = 90,
    account: Annotated[
        str | None, typer.Option(help="org/name of a service account to make the token for.")
    ] = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token, and print its secret this once.

    Example: icefloe token create 'nightly ingest' --action write --repository 'ocean-lab/*'
    """
    owner = None
    if account is not None:
        organisation, slash, person = account.partition("/")
        if not (organisation and slash and person):
            raise typer.BadParameter(f"{account!r} is not like org/name", param_hint="--account")
        owner = (organisation, person)
    created = client_of(service).create_token(
        name,
        actions=action or ("read",),
        repositories=repository or ("*/*",),
        days=days,
        service_account=owner,
    )
    show_entry(created, _NOTE, as_json=as_json)


def create_for_job(
    repository: Annotated[str, typer.Argument(help="The repository, as org/name.")],
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    *,
    access: Annotated[str, typer.Option(help="read or write.")] = "read",
    hours: Annotated[int, typer.Option(help="How long it lives.", min=1, max=168)] = 24,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token that opens one repository for hours, and print its secret this once.

    Example: icefloe token create-for-job ocean-lab/sst 'monthly means' --hours 2
    """
    client = client_of(service)
    created = client.create_job_token(repository, name, access=access, hours=hours)
    show_entry(created, _NOTE, as_json=as_json)


def revoke(
    token_id: Annotated[str, typer.Argument(help="The id, as `icefloe token list` shows it.")],
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a token at once.

    Example: icefloe token revoke 4fGh1jK2mN3pQ4rS
    """
    client_of(service).revoke_token(token_id)
    done(f"the token {token_id} has ended", as_json=as_json)
