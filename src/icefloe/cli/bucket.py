"""`icefloe bucket`: buckets that organisations registered at a service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.common import JsonOption, require_consent
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
    from icefloe.catalog.wire import BucketSettings

NameArgument = Annotated[str, typer.Argument(help="The name of the bucket in its organisation.")]
SettingsArgument = Annotated[
    Path,
    typer.Argument(
        help="A JSON file with the settings: platform, bucket, prefix, region, endpoint,"
        " delegation, role, secrets, … - for standard input."
    ),
]

PROBE_CODES = {"proven": 0}
"""What the shell sees after a probe; 10 for all other states."""


def list_(
    organisation: OrganisationArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the buckets of an organisation.

    Example: icefloe bucket list ocean-lab
    """
    buckets = client_of(service).list_buckets(organisation)
    columns = ("name", "platform", "bucket", "prefix", "delegation", "state")
    show_entries(buckets, *columns, as_json=as_json)


def show(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a bucket, without its secrets.

    Example: icefloe bucket show ocean-lab archive
    """
    show_entry(client_of(service).show_bucket(organisation, name), as_json=as_json)


def register(
    organisation: OrganisationArgument,
    name: NameArgument,
    settings: SettingsArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a bucket at the service, and probe it.

    Secrets come from the file or from standard input, never from the command line. Exit code 10:
    the probe found that credentials would allow too little or too much.

    Example: icefloe bucket register ocean-lab archive bucket.json
    """
    client = client_of(service)
    client.register_bucket(organisation, name, _read(settings))
    _probe(service, organisation, name, as_json=as_json)


def change(
    organisation: OrganisationArgument,
    name: NameArgument,
    settings: SettingsArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the settings of a bucket, and probe it; secrets stay if the file has none.

    Example: icefloe bucket change ocean-lab archive bucket.json
    """
    client_of(service).change_bucket(organisation, name, _read(settings))
    _probe(service, organisation, name, as_json=as_json)


def probe(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test whether a bucket's credentials allow only their own folder.

    Exit code 0: proven. 10: not proven.

    Example: icefloe bucket probe ocean-lab archive
    """
    _probe(service, organisation, name, as_json=as_json)


def prove(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what proves that a bucket is the organisation's own.

    The trust policy of a role demands the external id. The owner of a public bucket writes the
    text of the challenge to the object that is named.

    Example: icefloe bucket prove ocean-lab archive
    """
    proof = client_of(service).bucket_ownership(organisation, name)
    note = f"then probe the bucket: icefloe bucket probe {organisation} {name}"
    show_entry(proof, note, as_json=as_json)


def suspend(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut a bucket off: no further credential is made for it, for anybody.

    Credentials that were made before live on, until the time that is printed at the latest.

    Example: icefloe bucket suspend ocean-lab archive
    """
    require_consent(f"make no further credential for the bucket {name}?", is_given=yes)
    suspension = client_of(service).suspend_bucket(organisation, name)
    if as_json:
        show_entry(suspension, as_json=True)
        return
    until = suspension.issued_until.isoformat(" ", "seconds")
    done(f"{name} is suspended; credentials made before live until {until}", as_json=False)


def resume(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the suspension of a bucket, and probe it.

    Exit code 0: proven. 10: not proven.

    Example: icefloe bucket resume ocean-lab archive
    """
    client_of(service).resume_bucket(organisation, name)
    _probe(service, organisation, name, as_json=as_json)


def credentials(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    prefix: Annotated[str, typer.Option(help="A folder below the prefix of the bucket.")] = "",
    access: Annotated[str, typer.Option(help="read, for writers; write, for admins.")] = "read",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a short-lived credential for a bucket or a folder of it, to list its files say.

    Example: icefloe bucket credentials ocean-lab archive --prefix raw/ --json
    """
    made = client_of(service).bucket_credentials(organisation, name, prefix=prefix, access=access)
    if as_json:
        show_entry(made, as_json=True)
        return
    store, credential = made.store, made.credential
    place = {"bucket": store.bucket, "prefix": store.prefix, "region": store.region}
    facts = {**place, "endpoint": store.endpoint, "account": store.account, **credential.values}
    facts["expires_at"] = str(credential.expires_at or "never")
    note = [] if made.is_scoped else ["this credential reaches the whole bucket, not one folder"]
    show_entry({k: v for k, v in facts.items() if v is not None}, *note, as_json=False)


def delete(
    organisation: OrganisationArgument,
    name: NameArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a bucket without repositories from the service; stored data stays.

    Example: icefloe bucket delete ocean-lab archive
    """
    require_consent(f"forget the bucket {name} with its policies?", is_given=yes)
    client_of(service).delete_bucket(organisation, name)
    done(f"the bucket {name} was forgotten", as_json=as_json)


def _probe(service: str | None, organisation: str, name: str, *, as_json: bool) -> None:
    report = client_of(service).probe_bucket(organisation, name)
    if as_json:
        show_entry(report, as_json=True)
    else:
        show_entries(report.checks, "name", "passed", "detail", as_json=False)
        done(f"{name} is {report.state}: {report.reason}", as_json=False)
    if code := PROBE_CODES.get(report.state, 10):
        raise typer.Exit(code)


def _read(path: Path) -> BucketSettings:
    import msgspec

    from icefloe.catalog.wire import BucketSettings

    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    try:
        return msgspec.convert(json.loads(text), BucketSettings)
    except (ValueError, msgspec.ValidationError) as error:
        # The text of a decoder may repeat a secret; that of a validation names a field.
        reason = error if isinstance(error, msgspec.ValidationError) else "this is no JSON"
        raise typer.BadParameter(f"{path}: {reason}", param_hint="SETTINGS") from None
