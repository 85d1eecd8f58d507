"""Routes of the device flow (RFC 8628), by which programs without a browser log in."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.wire import DeviceCode, DeviceProblem, DeviceToken
from icefloe.errors import InvalidInputError
from icefloe.service import device
from icefloe.service.device import DeviceState
from icefloe.service.http.access import address_of, anybody, service_of
from icefloe.service.http.codec import FORM, PUBLIC, Codec, answer, form_fields
from icefloe.service.http.problems import PROBLEMS

GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:device_code"
_MESSAGES: Final = {
    DeviceState.PENDING: "nobody has approved this program yet: ask again after the interval",
    DeviceState.TOO_FAST: "the program asks too often: wait five seconds longer each time",
    DeviceState.ENDED: "the code was used or has ended: start again",
    DeviceState.DENIED: "somebody refused to approve this program",
}
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Annotated[DeviceProblem, Codec()], "description": "No token, and why"},
    413: PROBLEMS[413],
    429: PROBLEMS[429],
    500: PROBLEMS[500],
    503: PROBLEMS[503],
}

router = APIRouter(tags=["login", PUBLIC], responses=_REFUSED, dependencies=[Depends(anybody)])


def _form_of(required: tuple[str, ...], **properties: str) -> dict[str, Any]:
    """Return the description of a form for the OpenAPI document."""
    fields = {name: {"type": "string", "maxLength": 1000} for name in properties}
    schema = {"type": "object", "properties": fields, "required": list(required)}
    content = {FORM: {"schema": schema, "example": properties}}
    return {"requestBody": {"required": True, "content": content}}


Fields = Annotated[dict[str, str], Depends(form_fields)]


@router.post(
    "/device/code",
    response_model=Annotated[DeviceCode, Codec()],
    openapi_extra=_form_of(("client_id",), client_id="icefloe on laptop", scope="read lab/*"),
)
def start(request: Request, fields: Fields) -> Response:
    """Ask for codes. `scope` names actions and repositories; everything that writers may do
    without it.
    """
    service = service_of(request)
    service.limits.take(
        "device code", address_of(request), per_minute=service.settings.limits.device_codes
    )
    client = fields.get("client_id", "").strip()
    if not client or len(client) > 100 or not client.isprintable():
        text = "client_id must name the program, in a form, with at most 100 characters"
        return _refuse(request, "invalid_request", text)
    try:
        scope = device.parse_scope(fields.get("scope", ""))
    except InvalidInputError as error:
        return _refuse(request, "invalid_scope", str(error))
    return answer(device.start(service, client, scope))


@router.post(
    "/device/token",
    response_model=Annotated[DeviceToken, Codec()],
    openapi_extra=_form_of(
        ("grant_type", "device_code"),
        grant_type=GRANT_TYPE,
        device_code="GmRhmhcxhwAzkoEqiMEg",
        client_id="icefloe on laptop",
    ),
)
def get_token(request: Request, fields: Fields) -> Response:
    """Ask for the token of a program. The answer is an error until somebody approves it."""
    if fields.get("grant_type") != GRANT_TYPE:
        return _refuse(request, "unsupported_grant_type", f"grant_type must be {GRANT_TYPE}")
    if not fields.get("device_code"):
        return _refuse(request, "invalid_request", "device_code is missing")
    result = device.poll(service_of(request), fields["device_code"])
    if isinstance(result, DeviceState):
        return _refuse(request, result, _MESSAGES[result])
    return answer(result)


def _refuse(request: Request, error: str, text: str) -> Response:
    problem = DeviceProblem(
        error.replace("_", "-"),
        text,
        request.state.request_id,
        error=error,
        error_description=text,
    )
    return answer(problem, 400)
