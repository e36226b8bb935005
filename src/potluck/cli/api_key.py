"""``potluck api-key``: add a key for the HTTP API."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.output import note


class KeyRole(enum.Enum):
    """The roles of keys, as values of the option."""

    USE = "use"
    ADMIN = "admin"


def api_key(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file of --api-key-file; it is created if it does not exist.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name for the key, to distinguish it from others.",
            show_default=False,
        ),
    ],
    role: Annotated[
        KeyRole,
        typer.Option(
            "--role",
            help="use: send requests to models, and view the cluster. admin: also plan,"
            " deploy and undeploy.",
        ),
    ] = KeyRole.USE,
) -> None:
    """Create an API key, add its hash to FILE, and print the key, which is not stored.

    Agents read the file when they start.
    """
    from potluck.api.keys import Role, create_api_key  # the web framework comes with it

    print(create_api_key(file, name, Role(role.value)))
    note("running agents accept it after a restart")
