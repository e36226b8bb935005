"""The ``potluck`` command: one file per subcommand, and the one place where errors are printed.

Exit codes: 0, 1 for a failure, 2 for a wrong use, 130 after Ctrl-C. An error is one line that says
what is wrong, then ``hint:`` with what to do; a traceback only with ``--debug``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

import potluck
from potluck.cli.bench import bench
from potluck.cli.cluster import deploy, down, plan, ps, undeploy
from potluck.cli.run import run
from potluck.cli.up import up
from potluck.errors import PotluckError

app = typer.Typer(
    name="potluck",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="One language model over whatever machines are on the table.",
)
app.command("run")(run)
app.command("bench")(bench)
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


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="potluck", standalone_mode=False)
    except TyperException as error:
        _fail(error.format_message(), "potluck --help lists commands and options")
        status = 2
    except PotluckError as error:
        if "--debug" in arguments:
            raise
        _fail(error.message, error.hint)
        status = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", "")
        status = 130
    except BrokenPipeError:
        # The reader of our stdout has gone (head, less); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _fail(message: str, hint: str) -> None:
    print(f"potluck: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
