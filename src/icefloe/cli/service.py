"""`icefloe service` and `icefloe audit verify`: work on the service's database directly."""

from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, echo, show_json
from icefloe.cli.serve import ConfigOption


def migrate(*, config: ConfigOption = None) -> None:
    """Bring the schema of the service's database to the one of this version.

    `icefloe serve` does the same when it starts.
    """
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    echo(f"The schema has revision {upkeep.migrate(load_settings(config))}.")


def backup(
    target: Annotated[Path, typer.Argument(help="The new file.")], *, config: ConfigOption = None
) -> None:
    """Copy the service's SQLite database to a file, also while the service runs.

    The copy contains no secret in plain. The master key is not in it: keep the key apart.

    Example: icefloe service backup /backups/icefloe-monday.db
    """
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    upkeep.back_up(load_settings(config), target)
    echo(f"Wrote {target}. It opens with the master key only, which is not in it.")


def restore(
    source: Annotated[Path, typer.Argument(help="A file that `icefloe service backup` wrote.")],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite the present database.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Put a backup in the place of the service's SQLite database.

    The service must be stopped, and its master key must be the one of the backup.
    """
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    head = upkeep.restore(load_settings(config), source, replaces=replace)
    echo(f"Restored {source}. Its audit is whole and ends with entry {head.number}.")


def rotate_key(*, config: ConfigOption = None) -> None:
    """Seal all secrets of the service with another master key.

    A key that the service made itself is replaced by a new one. Otherwise, set the new key in the
    settings and the old one among the former keys, and run this. A service that runs goes on.
    """
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    rotation = upkeep.rotate_key(load_settings(config))
    echo(f"Sealed {rotation.secrets} secrets with the master key {rotation.key_id}.")
    if rotation.former_files:
        echo("These former keys open older backups only. Delete them together with the backups:")
        for path in rotation.former_files:
            echo(f"  {path}")


def password_link(
    person: Annotated[str, typer.Argument(help="The name of the account.")],
    *,
    config: ConfigOption = None,
) -> None:
    """Print a link by which somebody who lost a password sets a new one. It works once."""
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    echo(upkeep.create_password_link(load_settings(config), person))


def verify_audit(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check that nobody changed the service's audit, in the database itself.

    Prints the number and the code of the last entry. Write them down elsewhere: they show later
    that the whole database was not put back to an older copy.
    """
    from icefloe.service.operation import upkeep
    from icefloe.service.settings import load_settings

    head = upkeep.verify_audit(load_settings(config))
    if as_json:
        show_json({"number": head.number, "code": head.code})
    else:
        echo(f"The audit is whole. It ends with entry {head.number}, code {head.code}.")
