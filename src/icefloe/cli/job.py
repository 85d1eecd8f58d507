"""`icefloe job`: work that a service does in the background."""

from typing import Annotated, Final

import typer

from icefloe.cli.common import JsonOption, progress_bar
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    client_of,
    show_entries,
    show_entry,
)

JOB_COLUMNS: Final = ("id", "kind", "subject", "state", "done", "total", "created_at", "error")
IdArgument = Annotated[str, typer.Argument(help="The id of the job.")]
StateOption = Annotated[
    str | None, typer.Option(help="Only those that are waiting, running, done or failed.")
]


def list_(
    organisation: OrganisationArgument,
    *,
    state: StateOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the updates and releases of an organisation, the oldest first.

    Example: icefloe job list zoo --state running
    """
    entries = client_of(service).list_jobs(organisation, state=state)
    show_entries(entries, *JOB_COLUMNS, as_json=as_json)


def show(
    organisation: OrganisationArgument,
    job: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a job is, its report, or why it failed.

    Example: icefloe job show zoo job-20270101T000000-01234567
    """
    show_entry(client_of(service).show_job(organisation, job), as_json=as_json)


def wait(
    organisation: OrganisationArgument,
    job: IdArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until a job is over, and show it.

    Example: icefloe job wait zoo job-20270101T000000-01234567
    """
    client = client_of(service)
    with progress_bar("waiting") as progress:
        ended = client.wait_for_job(client.show_job(organisation, job), progress=progress)
    show_entry(ended, as_json=as_json)
