"""Routes about jobs: work that the service does in the background."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from icefloe.catalog.model import Job, JobKind, JobState
from icefloe.catalog.wire import Page
from icefloe.service.database import jobs, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.gate import API
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.problems import PROBLEMS

router = APIRouter(tags=["jobs"], responses=PROBLEMS)
State = Annotated[JobState | None, Query(description="Only jobs in this state")]
ACCEPTED: dict[str, Any] = {"response_model": Annotated[Job, Codec()], "status_code": 202}
"""The answer of routes that begin a job."""


@router.get("/orgs/{org}/jobs", response_model=Annotated[Page[Job], Codec()])
def list_jobs(
    permit: Annotated[Permit, Depends(may(Action.SEE_JOBS))],
    org: str,
    state: State = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the jobs of an organisation, the oldest first. Jobs are kept for a month."""
    table, database = tables.jobs, permit.service.database
    is_theirs = table.c.organisation == org
    return page_of(database, table, Job, is_theirs, state=state, limit=limit, cursor=cursor)


@router.get("/orgs/{org}/jobs/{job}", response_model=Annotated[Job, Codec()])
def show_job(
    permit: Annotated[Permit, Depends(may(Action.SEE_JOBS))], org: str, job: str
) -> Response:
    """Show how far a job is, its report, or why it failed."""
    with permit.service.database.reading() as connection:
        entry = rows.require(connection, tables.jobs, Job, organisation=org, id=job)
    return answer(entry)


async def begin_job(permit: Permit, kind: JobKind, subject: str, what: str) -> Response:
    """Leave a job in the database, and answer with it.

    A job that waits for the same already is that job.
    """
    organisation = permit.resource.organisation
    assert organisation is not None

    def begin() -> Job:
        job = Job(
            jobs.new_job_id(permit.now),
            organisation,
            kind,
            subject,
            created_by=permit.person,
            created_at=permit.now,
        )
        with permit.service.database.writing() as connection:
            added = jobs.add(connection, job)
            permit.record(connection, what, {"job": added.id})
        return added

    job = await asyncio.to_thread(begin)
    permit.service.job_bell.set()
    return answer(job, 202, {"location": f"{API}/orgs/{organisation}/jobs/{job.id}"})
