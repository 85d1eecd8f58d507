"""The page with the audit of an organisation: search it, and take it along."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Final
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import StreamingResponse

from icefloe.catalog.wire import AuditEntry
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.printable import harmless_cell
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit
from icefloe.service.http.audit import AuditSearch, find_entries
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import MembersRoute, may_visit, moment_of, show
from icefloe.service.pages.site import Visitor

router = APIRouter(route_class=MembersRoute)

_ON_A_PAGE: Final = 100
_IN_A_STEP: Final = 1000
MOST_EXPORTED: Final = 100_000
"""The most entries of an export: the newest ones."""
_FIELDS: Final = ("person", "action", "resource", "allowed", "since", "until")
_LONGEST_FIELD: Final = 200
_COLUMNS: Final = (
    "number",
    "at",
    "person",
    "action",
    "resource",
    "allowed",
    "organisation",
    "request_id",
    "details",
)
_SeeAudit = Annotated[Permit, Depends(may_visit(Action.SEE_AUDIT))]


@router.get("/organisations/{org}/audit")
def show_audit(
    request: Request, visit: Visitor, permit: _SeeAudit, org: str, before: str = ""
) -> Response:
    """Show entries of the audit, the newest first."""
    fields = _fields(request.query_params)
    entries: list[AuditEntry] = []
    error: IcefloeError | None = None
    try:
        last = _number(before)
        search = _search(fields)
        entries = find_entries(permit, org, search, before=last, limit=_ON_A_PAGE + 1)
    except IcefloeError as fault:
        error = fault
    shown_entries = entries[:_ON_A_PAGE]
    following = None
    if len(entries) > _ON_A_PAGE:
        following = urlencode({**fields, "before": shown_entries[-1].number})
    return show(
        visit,
        "audit.html",
        status_of(error) if error else 200,
        org=org,
        fields=fields,
        entries=[(entry, _details(entry)) for entry in shown_entries],
        following=following,
        query="" if error else urlencode(fields),
        actions=tuple(Action),
        most=MOST_EXPORTED,
        problem=str(error) if error else "",
    )


@router.get("/organisations/{org}/audit.csv")
def export_as_csv(request: Request, permit: _SeeAudit, org: str) -> Response:
    """Send the entries of a search as a table."""
    search = _search(_fields(request.query_params))
    lines = _csv_lines(_entries(permit, org, search))
    return _download(lines, "audit.csv", "text/csv; charset=utf-8")


@router.get("/organisations/{org}/audit.jsonl")
def export_as_json(request: Request, permit: _SeeAudit, org: str) -> Response:
    """Send the entries of a search as lines of JSON."""
    search = _search(_fields(request.query_params))
    lines = (msgspec.json.encode(entry) + b"\n" for entry in _entries(permit, org, search))
    return _download(lines, "audit.jsonl", "application/jsonl")


def _fields(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query[name].strip() for name in _FIELDS if query.get(name, "").strip()}


def _search(fields: Mapping[str, str]) -> AuditSearch:
    if any(len(text) > _LONGEST_FIELD for text in fields.values()):
        problem = f"search for at most {_LONGEST_FIELD} characters"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    allowed = fields.get("allowed")
    if allowed not in {None, "yes", "no"}:
        raise InvalidInputError("allowed is yes or no", ErrorKind.INVALID_REQUEST)
    return AuditSearch(
        fields.get("person"),
        fields.get("action"),
        fields.get("resource"),
        None if allowed is None else allowed == "yes",
        moment_of(fields.get("since", ""), "From"),
        moment_of(fields.get("until", ""), "Before"),
    )


def _number(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        problem = "the page is named by the number of an entry"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return int(text)


def _details(entry: AuditEntry) -> str:
    return json.dumps(entry.details, ensure_ascii=False, sort_keys=True)


# Exports


def _entries(permit: Permit, org: str, search: AuditSearch) -> Iterator[AuditEntry]:
    """Read the entries of a search in steps, the newest first.

    If there are more than an export has, a last line without a number says so.
    """
    before, left = None, MOST_EXPORTED
    while left:
        limit = min(_IN_A_STEP, left)
        entries = find_entries(permit, org, search, before=before, limit=limit)
        yield from entries
        if len(entries) < limit:
            return
        before, left = entries[-1].number, left - limit
    if find_entries(permit, org, search, before=before, limit=1):
        text = f"older entries are left out: an export has {MOST_EXPORTED}, search for less"
        yield AuditEntry(permit.now, "icefloe", "export", text, True, permit.request_id, org)  # noqa: FBT003


def _csv_lines(entries: Iterator[AuditEntry]) -> Iterator[bytes]:
    yield _csv_line(_COLUMNS)
    for entry in entries:
        values = {name: getattr(entry, name) for name in _COLUMNS}
        values |= {"at": entry.at.isoformat(), "details": _details(entry)}
        texts = ("" if values[name] is None else str(values[name]) for name in _COLUMNS)
        yield _csv_line([harmless_cell(text) for text in texts])


def _csv_line(cells: tuple[str, ...] | list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL).writerow(cells)
    return line.getvalue().encode()


def _download(lines: Iterator[bytes], name: str, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, headers=headers, media_type=media_type)
