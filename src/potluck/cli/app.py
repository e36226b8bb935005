"""The commands and the options that all of them have."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

import potluck
from potluck.cli.bench import bench
from potluck.cli.run import run

app = typer.Typer(
    name="potluck",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One language model over whatever machines are on the table.",
)
app.command("run")(run)
app.command("bench")(bench)


def _print_version(value: bool) -> None:
    if value:
        print(f"potluck {potluck.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and a traceback when something fails.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version  # handled by its callback
    # What went wrong is said in one line; the logs of it are for --debug.
    logging.basicConfig(level=logging.DEBUG if debug else logging.CRITICAL)
