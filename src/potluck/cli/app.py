"""The commands and their common options."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import potluck
from potluck.errors import UsageError

_MODULES = {
    "run": "potluck.cli.run",
    "bench": "potluck.cli.bench",
    "check": "potluck.cli.check",
    "fetch": "potluck.cli.fetch",
    "cache": "potluck.cli.cache",
    "probe": "potluck.cli.probe",
    "doctor": "potluck.cli.doctor",
    "serve": "potluck.cli.serve",
    "up": "potluck.cli.up",
    "deploy": "potluck.cli.cluster",
    "plan": "potluck.cli.plan",
    "ps": "potluck.cli.cluster",
    "rebalance": "potluck.cli.rebalance",
    "undeploy": "potluck.cli.cluster",
    "down": "potluck.cli.cluster",
    "invite": "potluck.cli.invite",
    "nodes": "potluck.cli.nodes",
    "dashboard": "potluck.cli.dashboard",
    "api-key": "potluck.cli.api_key",
    "service": "potluck.cli.service",
    "wheel": "potluck.cli.wheel",
}
"""The module of each command; the function, or the group of commands, has its name, with _
for -.
"""


def application(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the command that ``arguments`` name, or with all if they name none.

    Each command imports what it needs, so no command waits for another's imports.
    """
    app = typer.Typer(
        name="potluck",
        cls=_Group,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Run one language model across several machines.",
    )
    app.callback()(_options)
    named = next((word for word in arguments if not word.startswith("-")), "")
    names = [named] if named in _MODULES else _MODULES
    for name in () if list(arguments[:1]) == ["--version"] else names:
        command = getattr(import_module(_MODULES[name]), name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=_Command)(command)
    return app


class _Option(TyperOption):
    """An option that costs nothing where it is not given, or is a text or a path.

    typer converts values with Pydantic, even those of the right type and None. Its import takes
    half as long as all of ``potluck probe`` does otherwise, and 7 MB of an agent's memory.
    """

    def process_value(self, ctx: Any, value: Any) -> Any:
        kind = self.type_descriptor.annotation
        if kind is Path and isinstance(value, str):
            if not value:  # an unset variable of a script; Path would make it the current folder
                raise UsageError(f"{self.opts[0]} is empty", hint="omit it, or give a path")
            value = Path(value)
        is_read = value is None or (isinstance(kind, type) and isinstance(value, kind))
        if self.required or not is_read:
            return super().process_value(ctx, value)
        return value if self.callback is None else self.callback(ctx, self, value)


def _with_cheap_options(parameters: list[Any]) -> list[Any]:
    """Change the class of Typer's options in place, because Typer creates no other class."""
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = _Option
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _with_cheap_options(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _with_cheap_options(super().get_params(ctx))


def _print_version(value: bool) -> None:
    if value:
        print(f"potluck {potluck.__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and a traceback for errors.")
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
        logging.basicConfig(
            level=logging.DEBUG, format="%(asctime)s %(levelname)s:%(name)s:%(message)s"
        )
    else:
        logging.basicConfig(level=logging.WARNING, format="potluck: %(message)s")
