"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.settings import Settings, read_settings

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face directory, a .gguf file, a hub id (org/name, org/name:file.gguf, "
        "org/name@revision), or demo.",
        show_default=False,
    ),
]
StagesOption = Annotated[
    int, typer.Option("--stages", help="Cut the model into this many in-process stages.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        help="Longest sequence, in tokens. Default: what the model allows, at most 4096.",
        show_default=False,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="CPU threads. Default: the cores that may be used.",
        show_default=False,
    ),
]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Most memory that stages may use here, such as 2G.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]


def settings() -> Settings:
    """Settings of this process's user and environment."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME and no entry in the user database
        return read_settings(os.environ, None)
    return read_settings(os.environ, home)


StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="POTLUCK_STATE",
        show_envvar=True,
        help="State directory of the node; one for each agent on a machine.",
        show_default=False,
    ),
]


def state_directory(path: Path | None) -> StateDirectory:
    """The directory that was asked for, or the user's own."""
    from potluck.cluster.agent.state import StateDirectory, default_state_directory

    return StateDirectory(path or default_state_directory(os.environ))
