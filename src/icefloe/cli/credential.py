"""`icefloe credential add`, `list` and `remove`: names of credentials on this machine."""

from typing import Annotated, Literal

import typer

from icefloe.cli.common import JsonOption, echo, show_json, show_table
from icefloe.errors import ErrorKind, InvalidInputError

NameArgument = Annotated[str, typer.Argument(help="The name of the credential.")]


def add(
    name: NameArgument,
    *,
    kind: Annotated[
        Literal["s3", "gcs-service-account", "gcs-token", "azure-key", "azure-sas", "azure-token"],
        typer.Option(help="What it consists of."),
    ] = "s3",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=VARIABLE",
            help="Look a part of it up in this variable of the environment, whenever it is used,"
            " rather than in the keyring. Can be repeated.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a credential that exists.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Save a credential under a name: its secrets are asked for, and go to the keyring.

    With --env, nothing is asked, and secrets stay in the environment. No file ever has a secret.
    The parts are access_key_id, secret_access_key and perhaps session_token for s3;
    service_account_key, access_key, sas_token or bearer_token for the others.

    Example: icefloe credential add lab
    """
    from icefloe.catalog.names import is_name
    from icefloe.catalog.saved_credentials import (
        KINDS,
        SavedCredential,
        require_new,
        save_credential,
    )

    if not is_name(name):
        raise InvalidInputError(
            f"{name!r} cannot be a name: use letters, digits, dots, hyphens and underscores, and"
            " begin with a letter or a digit",
            ErrorKind.INVALID_CONFIG,
        )
    if not replace:
        require_new(name)
    parts, optional = KINDS[kind].parts, KINDS[kind].optional
    variables = _variables(env or (), (*parts, *optional), parts)
    secrets = {} if variables else _asked(parts, optional)
    saved = SavedCredential(name, kind, variables)
    save_credential(saved, secrets)
    if as_json:
        show_json(saved.to_dict())
    else:
        echo(
            f"saved {name} ({saved.source}); use it with `icefloe config add NAME URL --credential"
            f" {name}`, or as {name}=URL to authorise virtual chunks"
        )


def _variables(
    pairs: list[str] | tuple[()], known: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        part, sign, variable = pair.partition("=")
        if part not in known or not sign or not variable.isidentifier():
            raise typer.BadParameter(
                f"{pair!r} is not like PART=VARIABLE, with the name of a variable, and one of these"
                f" parts: {', '.join(known)}",
                param_hint="--env",
            )
        variables[part] = variable
    if variables and (missing := [part for part in needed if part not in variables]):
        raise typer.BadParameter(f"{', '.join(missing)} is missing", param_hint="--env")
    return variables


def _asked(parts: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, str]:
    """Ask for secrets; nothing that is typed is shown."""
    answers = {
        part: typer.prompt(part.replace("_", " "), hide_input=True, err=True) for part in parts
    }
    for part in optional:
        question = f"{part.replace('_', ' ')} (if there is one)"
        answers[part] = typer.prompt(
            question, default="", hide_input=True, show_default=False, err=True
        )
    return {part: answer for part, answer in answers.items() if answer}


def list_(*, as_json: JsonOption = False) -> None:
    """List the saved credentials: their kinds, and where their secrets are.

    Example: icefloe credential list
    """
    from icefloe.catalog.saved_credentials import read_saved_credentials

    saved = sorted(read_saved_credentials().values(), key=lambda credential: credential.name)
    if as_json:
        show_json({"credentials": [credential.to_dict() for credential in saved]})
        return
    show_table(("name", "kind", "secrets"), [(c.name, c.kind, c.source) for c in saved])


def remove(name: NameArgument, *, as_json: JsonOption = False) -> None:
    """Remove a saved credential, and its secrets from the keyring.

    Example: icefloe credential remove lab
    """
    from icefloe.catalog.saved_credentials import forget_credential

    gone = forget_credential(name)
    if as_json:
        show_json(gone.to_dict())
    else:
        echo(f"forgot {name} ({gone.source})")
