"""`icefloe config add`, `list` and `remove`: names of repositories on this machine."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, echo, show_json, show_table

NameArgument = Annotated[str, typer.Argument(help="The name, to be used in place of the URL.")]


def add(
    name: NameArgument,
    url: Annotated[
        str,
        typer.Argument(
            help="The repository: a path, s3://, gs://, az://, https://…, or org/name of a service."
        ),
    ],
    *,
    region: Annotated[str | None, typer.Option(help="The region of the bucket.")] = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option("--endpoint-url", "--endpoint", help="The address of a server like S3."),
    ] = None,
    allow_http: Annotated[
        bool, typer.Option("--allow-http", help="Do not insist on encryption.")
    ] = False,
    force_path_style: Annotated[
        bool, typer.Option("--force-path-style", help="Write buckets into paths, not hosts.")
    ] = False,
    account_id: Annotated[str | None, typer.Option(help="The account, of r2:// URLs.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Send no credentials to the storage.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="The profile of the AWS tools whose credentials are used, unless the environment"
            " has others."
        ),
    ] = None,
    credential: Annotated[
        str | None,
        typer.Option(help="The saved credential to open it with; see `icefloe credential add`."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a name that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Save a name for a repository, with the options of its storage, on this machine.

    All commands take the name in place of a URL. The file has no secret: credentials are those of
    the environment, of a profile, or saved ones. The repository need not exist yet, and is not
    opened.

    Example: icefloe config add era5 s3://climate/era5 --region eu-west-1
    """
    from icefloe.catalog.names import checked_saved_name, names_path, save_name

    options = {
        "region": region,
        "endpoint_url": endpoint_url,
        "allow_http": "true" if allow_http else None,
        "force_path_style": "true" if force_path_style else None,
        "account_id": account_id,
        "anonymous": "true" if anonymous else None,
    }
    given = {option: value for option, value in options.items() if value is not None}
    saved = checked_saved_name(name, url, given, profile, credential)
    save_name(saved, replace=replace)
    if as_json:
        show_json(saved.to_dict())
    else:
        echo(f"{name} stands for {saved.url} from now on, in {names_path()}")


def list_(*, as_json: JsonOption = False) -> None:
    """List the names of repositories that are saved on this machine.

    Example: icefloe config list
    """
    from icefloe.catalog.names import names_path, read_names

    names = sorted(read_names(names_path()).values(), key=lambda saved: saved.name)
    if as_json:
        show_json({"names": [saved.to_dict() for saved in names]})
        return
    rows = [(n.name, n.url, n.profile or "", n.credential or "") for n in names]
    show_table(("name", "repository", "profile", "credential"), rows)


def remove(name: NameArgument, *, as_json: JsonOption = False) -> None:
    """Remove a name that is saved on this machine; the repository stays as it is.

    Example: icefloe config remove era5
    """
    from icefloe.catalog.names import forget_name

    saved = forget_name(name)
    if as_json:
        show_json(saved.to_dict())
    else:
        echo(f"{name} no longer stands for {saved.url}")
