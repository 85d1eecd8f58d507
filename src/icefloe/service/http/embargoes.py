"""Routes about rolling embargoes: set, show, delete, release."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy import Connection

from icefloe.catalog.model import Bucket, Delegation, Embargo, Filter, JobKind, Repository
from icefloe.catalog.wire import EmbargoSettings
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.records import replace
from icefloe.service.database import assets, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.filters import check_filter
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.jobs import ACCEPTED, begin_job
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import IfMatch, etag, expected_version
from icefloe.service.releasing import load_release

router = APIRouter(tags=["embargoes"], responses=PROBLEMS)


@router.get("/repos/{org}/{name}/embargo", response_model=Annotated[Embargo, Codec()])
def show_embargo(
    permit: Annotated[Permit, Depends(may(Action.SEE_POLICIES))], org: str, name: str
) -> Response:
    """Show the rolling embargo of a repository."""
    with permit.service.database.reading() as connection:
        embargo = _require(connection, org, name)
    return answer(embargo, headers=etag(embargo.version))


@router.put("/repos/{org}/{name}/embargo", response_model=Annotated[Embargo, Codec()])
def set_embargo(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    name: str,
    settings: Annotated[EmbargoSettings, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Set a rolling embargo: old enough data becomes public. Public data stays public."""
    check_filter(Filter(settings.nodes))
    embargo = Embargo(
        org,
        name,
        settings.days,
        settings.bucket,
        settings.prefix,
        settings.dimension,
        settings.nodes,
        settings.public_repository,
    )
    with permit.service.database.writing() as connection:
        _check(connection, embargo)
        key = {"organisation": org, "repository": name}
        before = rows.find(connection, tables.embargoes, Embargo, **key)
        if before is None:
            rows.add(connection, tables.embargoes, embargo)
        else:
            unreleased = replace(embargo, released_until=before.released_until)
            version = rows.change(
                connection, tables.embargoes, unreleased, if_version=expected_version(if_match)
            )
            embargo = replace(unreleased, version=version)
        details = {"days": embargo.days, "bucket": embargo.bucket, "prefix": embargo.prefix}
        permit.record(connection, f"embargo of {org}/{name}", details)
    return answer(embargo, headers=etag(embargo.version))


@router.delete("/repos/{org}/{name}/embargo", status_code=204)
def delete_embargo(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))], org: str, name: str
) -> Response:
    """Release nothing any more. What is public stays so."""
    with permit.service.database.writing() as connection:
        rows.remove(connection, tables.embargoes, organisation=org, repository=name)
        permit.record(connection, f"embargo of {org}/{name}", {"deleted": True})
    return Response(status_code=204)


@router.post("/repos/{org}/{name}/embargo/release", **ACCEPTED)
async def release_embargo(
    permit: Annotated[Permit, Depends(may(Action.RELEASE_EMBARGO))], org: str, name: str
) -> Response:
    """Make public what is old enough now. Doing it again changes nothing.

    The answer is a job to watch; its report is a `ReleaseAnswer`.
    """
    await asyncio.to_thread(load_release, permit.service, org, name)
    what = f"embargo of {org}/{name}"
    return await begin_job(permit, JobKind.RELEASE, f"{org}/{name}", what)


def _check(connection: Connection, embargo: Embargo) -> None:
    """Raise an error for an embargo whose public place is not fit for it."""
    organisation = embargo.organisation
    key = {"organisation": organisation, "name": embargo.bucket}
    bucket = rows.require(connection, tables.buckets, Bucket, **key)
    if bucket.delegation is Delegation.STATIC or not embargo.prefix:
        problem = "public data needs a prefix of its own, in a bucket without static keys"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    table = tables.repositories
    conditions = (table.c.organisation == organisation, table.c.bucket == embargo.bucket)
    for other in rows.find_all(connection, table, Repository, *conditions):
        if assets.do_overlap(other.prefix, embargo.prefix):
            problem = f"the public place overlaps with that of {other.full_name}, {other.prefix!r}"
            text = f"{problem}: choose another prefix"
            raise ConflictError(message=text, kind=ErrorKind.ENTRY_IN_USE)
    if embargo.public_repository is not None:
        key = {"organisation": organisation, "name": embargo.public_repository}
        rows.require(connection, table, Repository, **key)
        if embargo.public_repository == embargo.repository:
            problem = "the public repository must be another one than the private one"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


def _require(connection: Connection, organisation: str, name: str) -> Embargo:
    key = {"organisation": organisation, "repository": name}
    return rows.require(connection, tables.embargoes, Embargo, **key)
