"""The commands and the options that all of them have."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

import potluck
from potluck.cli.bench import bench
from potluck.cli.cluster import deploy, down, plan, ps, undeploy
from potluck.cli.doctor import doctor
from potluck.cli.run import run
from potluck.cli.up import up

app = typer.Typer(
    name="potluck",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One language model over whatever machines are on the table.",
)
app.command("run")(run)
app.command("bench")(bench)
app.command("doctor")(doctor)
app.command("up")(up)
app.command("deploy")(deploy)
app.command("plan")(plan)
app.command("ps")(ps)
app.command("undeploy")(undeploy)
app.command("down")(down)


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
    if debug:
        logging.basicConfig(level=logging.DEBUG)
    else:
        logging.basicConfig(level=logging.WARNING, format="potluck: %(message)s")
