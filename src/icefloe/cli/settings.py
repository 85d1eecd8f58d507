"""`icefloe create`, `config show`, `config set` and `container`: settings of a repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from icefloe.cli.common import (
    AnonymousOption,
    JsonOption,
    RepositoryArgument,
    YesOption,
    address_of,
    echo,
    is_of_service,
    open_repository,
    place_of,
    read_config,
    require_consent,
    show_json,
    show_table,
)
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.api.repository import Repository
    from icefloe.config import RepositoryConfig
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.config.stores import AnyObjectStoreConfig
    from icefloe.values.tree import Tree

_CONTAINERS: Final = "virtual_chunk_containers"
_WHOLE: Final = frozenset({_CONTAINERS, "preload_if", "splitting", "chunk-manifests"})
"""Settings whose parts are not settings of their own."""


_LONGEST_VALUE: Final = 60


def create(
    url: RepositoryArgument,
    *,
    spec_version: Annotated[int, typer.Option(min=1, max=2, help="The version of the format.")] = 2,
    config: Annotated[
        Path | None, typer.Option(help="A file in the form of config.yaml, to be stored.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a repository with the branch main and one empty version.

    The place must be empty. A repository of a service is created with `icefloe repo create`.

    Example: icefloe create s3://bucket/repository
    """
    from icefloe.api.repository import Repository

    if is_of_service(address_of(url)):
        raise InvalidInputError(
            f"{url} is a name at a service: create it with `icefloe repo create {url} --bucket"
            " BUCKET`, or write a path as ./…",
            ErrorKind.INVALID_REQUEST,
        )
    settings = None if config is None else read_config(config)
    storage = place_of(url, writes=True).storage
    if Repository.exists(storage):
        raise AlreadyExistsError(
            f"there is a repository at {url} already", ErrorKind.ENTRY_ALREADY_EXISTS
        )
    repository = Repository.create(storage, settings, spec_version=spec_version)
    head = repository.lookup_branch("main")
    if as_json:
        show_json({"url": url, "spec_version": spec_version, "branch": "main", "snapshot_id": head})
    else:
        echo(f"created a repository of spec version {spec_version} at {url}")


# -- config --------------------------------------------------------------------------------


def show_config(
    url: RepositoryArgument,
    *,
    only_changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that are not the default.")
    ] = False,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show the configuration of a repository, with the keys that `icefloe config set` takes.

    Containers of virtual chunks are listed by `icefloe container list`.

    Example: icefloe config show ./repo --changed
    """
    repository = open_repository(url, anonymous=anonymous)
    changed = changed_settings(repository)
    settings = changed if only_changed else all_settings(repository)
    if as_json:
        show_json({"settings": settings, "changed": sorted(changed)})
        return
    rows = [
        (key, shown_setting(value), "" if key in changed else "default")
        for key, value in settings.items()
    ]
    show_table(("setting", "value", "note"), rows)


def set_config(
    url: RepositoryArgument,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Settings as `icefloe config show` names them, such as compression.level=9.",
        ),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Change the stored configuration of a repository, for everybody who opens it later.

    A VALUE is YAML, as in config.yaml.

    Example: icefloe config set ./repo inline_chunk_threshold_bytes=1024
    """
    given = parse_settings(settings)
    # Without what a service grants to this user, which is not to be stored.
    stored = _stored(url)
    changed = stored.reopen(given)
    changed.save_config()
    found = changed_settings(changed)
    if as_json:
        show_json({"settings": all_settings(changed), "changed": sorted(found)})
        return
    values = all_settings(changed)
    for pair in settings:
        key = pair.partition("=")[0]
        echo(f"{key} = {_shown(values.get(key))}")


def parse_settings(pairs: list[str]) -> RepositoryConfig:
    """Read settings that were written as KEY=VALUE.

    >>> parse_settings(["compression.level=9"]).compression.level
    9
    """
    from icefloe.config import RepositoryConfig
    from icefloe.values.stored import TreeReader
    from icefloe.values.yaml_tree import decode_yaml

    class GivenSettings(TreeReader):
        """Refuses what the user wrote, where a stored configuration would be called damaged."""

        def wrong(self, path: str, problem: str) -> None:
            raise _unfit(f"{path or 'a setting'} {problem}")

        def unknown(self, path: str, key: str, keys: tuple[str, ...]) -> None:
            known = ", ".join(f"{path}.{name}" if path else name for name in keys)
            raise _unfit(
                f"there is no setting {f'{path}.' if path else ''}{key}; known are {known}"
            )

    tree: dict[str, Tree] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not (sign and text and all(key.split("."))):
            raise _unfit(f"{pair!r} is not like KEY=VALUE")
        if key.split(".")[0] == _CONTAINERS:
            raise _unfit("containers are changed with `icefloe container add` and `remove`")
        try:
            value = decode_yaml(text.encode(errors="replace"))
        except FormatError:
            raise _unfit(f"the value of {key} is no YAML: {text!r}") from None
        _put(tree, key, value)
    return GivenSettings().value(RepositoryConfig, tree, "")


def _put(tree: dict[str, Tree], key: str, value: Tree) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        inner = tree.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise _unfit(f"{key} is a part of a setting that is given, too")
        tree = inner
    if name in tree:
        raise _unfit(f"{key} is given twice")
    tree[name] = value


def all_settings(repository: Repository) -> dict[str, Any]:
    """Return all settings of a repository that count, with dots between the parts of keys."""
    from icefloe.values import overlaid

    return dict(_leaves(_plain(overlaid(_defaults(repository), repository.config))))


def changed_settings(repository: Repository) -> dict[str, Any]:
    """Return the settings of a repository that are not the default."""
    usual = dict(_leaves(_plain(_defaults(repository))))
    return {
        key: value for key, value in all_settings(repository).items() if usual.get(key) != value
    }


def _defaults(repository: Repository) -> RepositoryConfig:
    """Return the settings of a repository without a configuration in the same storage."""
    from icefloe.config import RepositoryConfig, StorageSettings
    from icefloe.values import overlaid, shared_defaults

    storage = overlaid(shared_defaults(StorageSettings), repository.storage.default_settings())
    return overlaid(shared_defaults(RepositoryConfig), RepositoryConfig(storage=storage))


def _plain(config: RepositoryConfig) -> Mapping[str, Any]:
    from icefloe.format.config_file import encode_config_flexbuffer
    from icefloe.format.flexbuffers import decode_flexbuffer

    tree: Any = decode_flexbuffer(encode_config_flexbuffer(config))
    return {key: value for key, value in tree.items() if key not in (_CONTAINERS, "previous_file")}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown_setting(value: Any) -> str:
    """Write the value of a setting for a table; long ones are left to JSON."""
    text = _shown(value)
    return text if len(text) <= _LONGEST_VALUE else "…  (see --json)"


def _stored(url: str) -> Repository:
    from icefloe.api.repository import Repository

    return Repository.open(place_of(url, writes=True).storage)


def _unfit(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_CONFIG)


# -- containers ----------------------------------------------------------------------------


def list_containers(
    url: RepositoryArgument, *, as_json: JsonOption = False, anonymous: AnonymousOption = False
) -> None:
    """List the containers of virtual chunks: places that a repository may refer to.

    What you need to read them is shown by `icefloe access`.

    Example: icefloe container list ./repo
    """
    from icefloe.values.urls import without_user

    repository = open_repository(url, anonymous=anonymous)
    containers = (repository.config.virtual_chunk_containers or {}).values()
    entries = [
        {
            "url_prefix": without_user(container.url_prefix),
            "name": container.name,
            "store": type(container.store).__name__,
            "options": _store_options(container.store),
            "on_change": container.on_change,
        }
        for container in containers
    ]
    if as_json:
        show_json({"containers": entries})
        return
    rows = [
        (
            entry["url_prefix"],
            entry["name"] or "",
            entry["store"],
            ", ".join(f"{name}={value}" for name, value in _store_options(container.store).items()),
            entry["on_change"],
        )
        for entry, container in zip(entries, containers, strict=True)
    ]
    show_table(("url prefix", "name", "store", "options", "on change"), rows)


def add_container(
    url: RepositoryArgument,
    url_prefix: Annotated[
        str,
        typer.Argument(
            help="The place: a folder of this machine, or a bucket or a part of it such as"
            " s3://bucket/folder/, gs://…, az://…, https://…"
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="A name, for locations like vcc://NAME/….")
    ] = None,
    region: Annotated[str | None, typer.Option(help="The region, of S3.")] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="The address of a server that is like S3.")
    ] = None,
    allow_http: Annotated[
        bool, typer.Option("--allow-http", help="Do not insist on encryption.")
    ] = False,
    force_path_style: Annotated[
        bool, typer.Option("--force-path-style", help="Write buckets into paths, not hosts.")
    ] = False,
    account: Annotated[str | None, typer.Option(help="The account, of Azure.")] = None,
    on_change: Annotated[
        Literal["strict", "warn", "off"],
        typer.Option(help="What readers do about files that changed: fail, warn, or nothing."),
    ] = "strict",
    as_json: JsonOption = False,
) -> None:
    """Allow a repository to refer to files below a URL.

    A container with the same prefix is replaced. Readers still have to authorise the place, with
    --authorize or in Python.

    Example: icefloe container add ./repo s3://era5/ --region us-east-1
    """
    from icefloe.config.containers import VirtualChunkContainer

    options = {
        "--region": region,
        "--endpoint-url": endpoint_url,
        "--allow-http": allow_http or None,
        "--force-path-style": force_path_style or None,
        "--account": account,
    }
    given = {option: value for option, value in options.items() if value is not None}
    url_prefix = _prefix_of(url_prefix)
    container = VirtualChunkContainer(
        url_prefix, _store(url_prefix, given), name, on_change=on_change
    )
    stored = _stored(url)
    config = stored.config
    config.set_virtual_chunk_container(container)
    _save_containers(stored, config)
    _report_container(f"added the container {url_prefix}", url_prefix, as_json=as_json)


def _prefix_of(text: str) -> str:
    """Return the URL of a folder of this machine, as an ingest writes it; URLs stay as they are."""
    from icefloe.pipeline.files.containers import as_prefix

    if "://" in text:
        return text
    if not Path(text).expanduser().is_dir():
        raise _unfit(
            f"there is no folder {text!r}: a container is a folder of this machine, or a URL such"
            " as s3://bucket/folder/"
        )
    return as_prefix(text)


def remove_container(
    url: RepositoryArgument,
    url_prefix: Annotated[
        str, typer.Argument(help="The URL prefix, the folder, or the name of a container.")
    ],
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a container: virtual chunks below it cannot be read any more.

    Example: icefloe container remove ./repo s3://era5/
    """
    stored = _stored(url)
    config = stored.config
    found = _found_container(config, url_prefix)
    require_consent(
        f"remove the container {found.url_prefix}? Its virtual chunks cannot be read afterwards.",
        is_given=yes,
    )
    config.virtual_chunk_containers = {
        prefix: container
        for prefix, container in (config.virtual_chunk_containers or {}).items()
        if prefix != found.url_prefix
    }
    _save_containers(stored, config)
    _report_container(
        f"removed the container {found.url_prefix}", found.url_prefix, as_json=as_json
    )


def _save_containers(stored: Repository, config: RepositoryConfig) -> None:
    stored.reopen(config).save_config()


def _found_container(config: RepositoryConfig, text: str) -> VirtualChunkContainer:
    from icefloe.pipeline.files.sources import as_url

    containers = config.virtual_chunk_containers or {}
    by_name = [container for container in containers.values() if container.name == text]
    found = config.get_virtual_chunk_container(text) or (by_name[0] if by_name else None)
    if found is None and "://" not in text:
        found = config.get_virtual_chunk_container(as_url(f"{text}/"))
    if found is None:
        known = ", ".join(containers) or "none"
        raise NotFoundError(
            f"there is no container {text!r}; known are: {known}", ErrorKind.ENTRY_NOT_FOUND
        )
    return found


def _store(url_prefix: str, options: Mapping[str, Any]) -> AnyObjectStoreConfig:
    from icefloe.config.stores import STORES_OF_SCHEME, azure_store, s3_store
    from icefloe.pipeline.files.containers import container_at

    scheme = url_prefix.partition(":")[0].lower()
    # For a scheme of one's own, a server like S3 has the buckets.
    is_s3 = scheme == "s3" or ("://" in url_prefix and scheme not in STORES_OF_SCHEME)
    s3_options = {"--region", "--endpoint-url", "--allow-http", "--force-path-style"}
    allowed = s3_options if is_s3 else {"--account"} if scheme in _AZURE else set[str]()
    if unfit := options.keys() - allowed:
        raise _unfit(f"{', '.join(sorted(unfit))} cannot be given for {scheme}:// URLs")
    if is_s3:
        arguments = {option[2:].replace("-", "_"): value for option, value in options.items()}
        return s3_store(s3_compatible="--endpoint-url" in options, **arguments)
    if scheme in _AZURE:
        if "--account" not in options:
            raise _unfit(f"a container for {scheme}:// URLs needs --account")
        return azure_store(account=options["--account"])
    if scheme == "tigris":
        raise _unfit(
            "a container for tigris:// URLs is added in Python: use"
            " RepositoryConfig.set_virtual_chunk_container"
        )
    return container_at(url_prefix).store


_AZURE: Final = ("az", "azure", "abfs")


def _store_options(store: AnyObjectStoreConfig) -> dict[str, Any]:
    """Return the options of a store that are set; nothing that may be a secret."""
    from icefloe.config.stores import ObjectStoreConfig
    from icefloe.values.urls import has_user

    match store:
        case (
            ObjectStoreConfig.S3(options)
            | ObjectStoreConfig.S3Compatible(options)
            | ObjectStoreConfig.Tigris(options)
        ):
            shown = {
                "region": options.region,
                "endpoint_url": options.endpoint_url,
                "allow_http": options.allow_http or None,
                "anonymous": options.anonymous or None,
                "force_path_style": options.force_path_style or None,
            }
        case ObjectStoreConfig.LocalFileSystem(path):
            shown = {"path": path}
        case ObjectStoreConfig.Azure(opts):
            shown = {"account": (opts or {}).get("account")}
        case _:
            shown = {}
    return {
        name: value
        for name, value in shown.items()
        if value is not None and not (isinstance(value, str) and has_user(value))
    }


def _report_container(sentence: str, url_prefix: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"url_prefix": url_prefix, "done": sentence})
    else:
        echo(sentence)
