"""`icefloe request`: from a refusal to a grant."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, echo, optional_moment, require_consent
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    YesOption,
    client_of,
    show_entries,
    show_entry,
)
from icefloe.cli.subscription import AnswerOption, EndOption, StateOption

IdArgument = Annotated[str, typer.Argument(help="The id of the request.")]


def ask(
    repository: Annotated[str, typer.Argument(help="The repository that did not open, org/name.")],
    *,
    container: Annotated[
        str | None, typer.Option(help="The container to ask for. [default: all that are missing]")
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="Why you ask.")] = "",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the owners of data for access, after a repository did not open.

    Example: icefloe request ask ocean-lab/sst -m 'for the yearly report'
    """
    client = client_of(service)
    requests = client.ask_for_access(repository, container=container, message=message)
    show_entries(requests, "id", "organisation", "container", "reason", "state", as_json=as_json)


def list_(
    organisation: Annotated[
        str | None,
        typer.Argument(help="Whose admins decide. [default: the requests that you sent]"),
    ] = None,
    *,
    state: StateOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List requests: your own, or those that an organisation's admins decide about.

    Example: icefloe request list archive --state pending
    """
    requests = client_of(service).list_requests(organisation, state=state)
    columns = ("id", "person", "repository", "container", "reason", "state", "answer")
    show_entries(requests, *columns, as_json=as_json)


def show(
    organisation: OrganisationArgument,
    request: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a request, what a grant would make, and who would gain access by it.

    Example: icefloe request show archive request-0123456789abcdef
    """
    show_entry(client_of(service).show_request(organisation, request), as_json=as_json)


def grant(
    organisation: OrganisationArgument,
    request: IdArgument,
    *,
    scope: Annotated[
        str | None, typer.Option(help="Whom the policy is for: organisation or anyone.")
    ] = None,
    share_with: Annotated[
        list[str] | None,
        typer.Option(help="An organisation to share with. [default: that of the asker]"),
    ] = None,
    confirm_prefix: Annotated[
        str | None,
        typer.Option(help="For anyone: the whole prefix once more, like s3://bucket/folder/."),
    ] = None,
    end: EndOption = None,
    answer: AnswerOption = "",
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Grant a request by the policy that is missing, which is shown first.

    Example: icefloe request grant archive request-0123456789abcdef --end 2027-01-01
    """
    from icefloe.catalog.administration import chosen
    from icefloe.catalog.model import PolicyScope
    from icefloe.catalog.wire import RequestDecision
    from icefloe.errors import ErrorKind, InvalidInputError
    from icefloe.records import replace

    client = client_of(service)
    proposal = client.show_request(organisation, request)
    if proposal.obstacle is not None:
        raise InvalidInputError(proposal.obstacle, ErrorKind.INVALID_REQUEST)
    ends_at, policy = optional_moment(end, "--end"), proposal.policy
    if policy is not None:
        policy = replace(policy, ends_at=ends_at)
        if scope is not None:
            policy = replace(policy, scope=chosen(PolicyScope, scope))
        if share_with is not None:
            policy = replace(policy, shared_with=tuple(share_with))
        policy = replace(policy, confirm_prefix=confirm_prefix)
    if not yes:
        echo(str(policy or proposal.subscription), err=True)
        require_consent(f"let {proposal.request.person} in by this?", is_given=False)
    decision = RequestDecision(True, policy, ends_at, answer)  # noqa: FBT003
    show_entry(client.decide_request(organisation, request, decision), as_json=as_json)


def decline(
    organisation: OrganisationArgument,
    request: IdArgument,
    *,
    answer: AnswerOption = "",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decline a request with a word.

    Example: icefloe request decline archive request-0123456789abcdef --answer 'not before May'
    """
    from icefloe.catalog.wire import RequestDecision

    decision = RequestDecision(False, answer=answer)  # noqa: FBT003
    decided = client_of(service).decide_request(organisation, request, decision)
    show_entry(decided, as_json=as_json)


def withdraw(
    request: IdArgument, *, service: ServiceOption = None, as_json: JsonOption = False
) -> None:
    """Withdraw a request of yours that waits for an answer.

    Example: icefloe request withdraw request-0123456789abcdef
    """
    show_entry(client_of(service).withdraw_request(request), as_json=as_json)
