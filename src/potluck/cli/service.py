"""``potluck service``: run this node in the background as a systemd user service."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from potluck.cli.options import JsonOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.errors import PotluckError, UsageError
from potluck.host.child_environment import SECRET_VARIABLE
from potluck.types.document import Document, document_of

_START_SECONDS = 3.0
"""In which a node that cannot start has ended: wrong options, a port that is taken."""

service = typer.Typer(
    help="Run this node in the background as a systemd user service.",
    no_args_is_help=True,
)


@service.command()
def install(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTION…]", help="Options of potluck up.", show_default=False),
    ] = None,
) -> None:
    """Install a systemd unit that runs potluck up with these options; start it now and at every
    login.

    An invitation in the options is used immediately and not written to the unit.
    """
    from potluck.cli.systemd import UserManager, unit_path, unit_text

    given = list(options or ())
    parsed = _parsed(given)
    if os.environ.get(SECRET_VARIABLE):
        raise UsageError(
            f"{SECRET_VARIABLE} is not passed on to a service",
            hint="write the secret to a file with mode 0600, and add -- --secret-file FILE",
        )
    manager = UserManager.found(os.environ)
    rest = _joined(given, parsed)
    path = unit_path(os.environ)
    manager.start(path, unit_text([*_program(), "up", *rest]))
    time.sleep(_START_SECONDS)
    found = manager.state()
    if found.active != "active":
        raise PotluckError(
            f"the service did not stay up: it is {found.active}",
            hint="see journalctl --user --unit potluck",
        )
    note(f"the node runs as a service ({path})")
    note("potluck ps shows the cluster; journalctl --user --unit potluck shows the log")
    _say_lingering(found.is_lingering)


class ServiceDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck service status --json``."""

    schema: Literal["potluck.service/1"] = "potluck.service/1"
    unit: str | None
    """The unit's file; null if there is none."""
    enabled: str
    """The output of ``systemctl is-enabled``; ``unknown`` without a user manager."""
    active: str
    """The output of ``systemctl is-active``; ``unknown`` without a user manager."""
    is_lingering: bool | None
    """The user's services run without a login; null if that is unknown."""


@service.command()
def status(json: JsonOption = False) -> None:
    """Show whether this node runs as a service; exit code 1 if it does not."""
    from potluck.cli.systemd import UnitState, UserManager, unit_path

    path = unit_path(os.environ)
    is_installed = path.exists()
    try:
        found = UserManager.found(os.environ).state()
    except UsageError as error:  # then no service runs, installed or not
        found = UnitState(enabled="unknown", active="unknown", is_lingering=None)
        note(error.message)
    if json:
        unit = str(path) if is_installed else None
        emit_json(document_of(ServiceDocument, found, unit=unit))
    elif not is_installed:
        print("the service is not installed; install it with potluck service install")
    else:
        print(f"{path}: {found.active}, {found.enabled}")
        _say_lingering(found.is_lingering)
    if not is_installed or found.active != "active":
        raise typer.Exit(1)


@service.command()
def remove() -> None:
    """Stop the service and remove its unit. The node's state directory stays."""
    from potluck.cli.systemd import UserManager, unit_path

    path = unit_path(os.environ)
    if not path.exists():
        raise UsageError("the service is not installed", hint=f"its unit file would be {path}")
    UserManager.found(os.environ).remove(path)
    note("the service is stopped and removed; the node keeps its identity for the next start")


def _parsed(options: Sequence[str]) -> dict[str, Any]:
    """Parse the options as ``potluck up`` does, and report invalid ones as it does."""
    from typer.main import get_command

    from potluck.cli.app import application

    group: Any = get_command(application(["up"]))
    command = group.commands["up"] if hasattr(group, "commands") else group
    parsed: dict[str, Any] = command.make_context("potluck up", list(options)).params
    return parsed


def _joined(options: Sequence[str], parsed: dict[str, Any]) -> list[str]:
    """Join with the invitation in the options, if any; return the options without it."""
    from potluck.cli.own_identity import join_identity, join_options
    from potluck.cluster.invitations.invitation import is_invitation

    join = join_options(parsed["join"] or ())
    if join.invitation is None:
        return list(options)
    if parsed["lan"]:
        raise UsageError("--lan and an invitation cannot be used together", hint="omit --lan")
    directory = state_directory(parsed["state"])
    with directory.locked():
        join_identity(join, directory, parsed["secret_file"], new_node_id=parsed["new_node_id"])
    rest: list[str] = []
    words = iter(options)
    for word in words:
        name, separator, value = word.partition("=")
        if name != "--join":
            rest.append(word)
        elif not is_invitation(text := value if separator else next(words)) and text != "-":
            rest += ["--join", text]
    return rest


def _program() -> list[str]:
    """Return the command that runs Potluck, by an absolute path. Symbolic links are kept, because
    they may lead to newer versions later.
    """
    found = shutil.which(sys.argv[0])
    if found is None or Path(found).name != "potluck":
        return [sys.executable, "-m", "potluck"]
    return [str(Path(found).absolute())]


def _say_lingering(is_lingering: bool | None) -> None:
    from potluck.cli.systemd import user_name

    if is_lingering is False:
        note(
            "the service stops when you log out and does not start at boot; to change that, "
            f"run: sudo loginctl enable-linger {user_name()}"
        )
