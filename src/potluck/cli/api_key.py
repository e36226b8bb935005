"""``potluck api-key``: add a key for the HTTP API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potluck.api.keys import Role, create_api_key
from potluck.cli.output import note


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
        Role,
        typer.Option(
            "--role",
            help="use: send requests to models, and view the cluster. admin: also plan,"
            " deploy and undeploy.",
        ),
    ] = Role.USE,
) -> None:
    """Create an API key, add its hash to FILE, and print the key, which is not stored.

    Agents read the file when they start.
    """
    print(create_api_key(file, name, role))
    note("running agents accept it after a restart")
