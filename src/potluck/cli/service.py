"""``potluck service``: run this node in the background as a systemd user service.

A user's units need no root. They end with the user's last session, and start with the first one,
unless the user *lingers* (``loginctl enable-linger``).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from potluck.cli.options import JsonOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.errors import PotluckError, UsageError
from potluck.host.child_environment import SECRET_VARIABLE, child_environment
from potluck.types.document import Document

_START_SECONDS = 3.0
"""In which a node that cannot start has ended: wrong options, a port that is taken."""

UNIT = "potluck.service"

_SYSTEMCTL_SECONDS = 30.0
"""systemctl answers in milliseconds; it waits for units that it starts or stops."""

_UNIT = """\
# Made by potluck service install; potluck service remove removes it.
[Unit]
Description=Potluck node
StartLimitIntervalSec=0

[Service]
ExecStart={command}
WorkingDirectory=%h
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""

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
    given = list(options or ())
    parsed = _parsed(given)
    if os.environ.get(SECRET_VARIABLE):
        raise UsageError(
            f"{SECRET_VARIABLE} is not passed on to a service",
            hint="write the secret to a file with mode 0600, and add -- --secret-file FILE",
        )
    if parsed["new_node_id"]:
        raise UsageError(
            "--new-node-id would give the node a new id at every start of the service",
            hint="run potluck up --new-node-id once, and omit it here",
        )
    for name, value in parsed.items():
        if isinstance(value, Path) and not value.is_absolute():
            raise UsageError(
                f"--{name.replace('_', '-')} {value}: a service needs an absolute path",
                hint=f"give {value.absolute()}",
            )
    manager = UserManager()
    rest = _joined(given, parsed)
    if parsed["state"] is not None and "--state" not in [each.partition("=")[0] for each in given]:
        rest = ["--state", str(parsed["state"]), *rest]  # of the environment, which units lack
    path = unit_path()
    manager.start(path, unit_text([*_program(), "up", *rest]))
    time.sleep(_START_SECONDS)
    found = manager.state(str(path))
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
    path = unit_path()
    unit = str(path) if path.exists() else None
    try:
        found = UserManager().state(unit)
    except UsageError as error:  # then no service runs, installed or not
        found = ServiceDocument(unit=unit, enabled="unknown", active="unknown", is_lingering=None)
        note(error.message)
    if json:
        emit_json(found)
    elif unit is None:
        print("the service is not installed; install it with potluck service install")
    else:
        print(f"{unit}: {found.active}, {found.enabled}")
        _say_lingering(found.is_lingering)
    if unit is None or found.active != "active":
        raise typer.Exit(1)


@service.command()
def remove() -> None:
    """Stop the service and remove its unit. The node's state directory stays."""
    path = unit_path()
    if not path.exists():
        raise UsageError("the service is not installed", hint=f"its unit file would be {path}")
    UserManager().remove(path)
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
        join_identity(join, directory, parsed["secret_file"], new_node_id=False)
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
    if is_lingering is False:
        note(
            "the service stops when you log out and does not start at boot; to change that, "
            f"run: sudo loginctl enable-linger {user_name()}"
        )


class UserManager:
    """The user's own manager of systemd. Raises ``UsageError`` where there is none."""

    def __init__(self) -> None:
        self._environment = child_environment()
        folder = f"/run/user/{os.getuid()}"
        if "XDG_RUNTIME_DIR" not in self._environment and Path(folder).is_dir():
            self._environment["XDG_RUNTIME_DIR"] = folder  # su and sudo drop it
        if shutil.which("systemctl", path=self._environment.get("PATH")) is None:
            raise UsageError(
                "systemd is not available on this machine (no systemctl)",
                hint="configure your service manager to run potluck up in the foreground",
            )
        done = self._run("show-environment")
        if done.returncode != 0:
            raise UsageError(
                f"systemd runs no user manager for {user_name()}: {_last_line(done.stderr)}",
                hint=f"run sudo loginctl enable-linger {user_name()}, log in as this user and try "
                "again; or configure a system service that runs potluck up",
            )

    def start(self, path: Path, text: str) -> None:
        """Write the unit, enable it, and start it (again). Raises ``PotluckError``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for arguments in (("daemon-reload",), ("enable", UNIT), ("restart", UNIT)):
            self._do(*arguments)

    def remove(self, path: Path) -> None:
        """Stop the unit and remove it. Raises ``PotluckError``."""
        self._do("disable", "--now", UNIT)
        path.unlink(missing_ok=True)
        self._do("daemon-reload")

    def state(self, unit: str | None) -> ServiceDocument:
        """Return the state of the unit, whose file is ``unit``, as the manager reports it."""
        return ServiceDocument(
            unit=unit,
            enabled=self._run("is-enabled", UNIT).stdout.strip() or "not-found",
            active=self._run("is-active", UNIT).stdout.strip() or "unknown",
            is_lingering=self._is_lingering(),
        )

    def _is_lingering(self) -> bool | None:
        program = shutil.which("loginctl", path=self._environment.get("PATH"))
        if program is None:
            return None
        done = self._started([program, "show-user", user_name(), "--property=Linger", "--value"])
        return {"yes": True, "no": False}.get(done.stdout.strip())

    def _do(self, *arguments: str) -> None:
        done = self._run(*arguments)
        if done.returncode != 0:
            raise PotluckError(
                f"systemctl --user {' '.join(arguments)} failed: {_last_line(done.stderr)}",
                hint=f"systemctl --user status {UNIT} shows details",
            )

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._started(["systemctl", "--user", *arguments])

    def _started(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_SYSTEMCTL_SECONDS,
                env=self._environment,
            )
        except subprocess.TimeoutExpired:
            raise PotluckError(
                f"{' '.join(command)} did not finish within {_SYSTEMCTL_SECONDS:.0f} s"
            ) from None


def unit_path() -> Path:
    """Return the path of the unit, which may not exist. Raise ``UsageError`` without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError as error:  # no HOME and no entry in the user database
        raise UsageError("there is no home directory for the unit", hint="set HOME") from error
    return folder / "systemd" / "user" / UNIT


def unit_text(command: Sequence[str]) -> str:
    """Return a unit that runs a command. Raise ``UsageError`` if no unit can contain it."""
    return _UNIT.format(command=" ".join(map(_quoted, command)))


def user_name() -> str:
    """Return the user's name, or the number of a user without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _quoted(word: str) -> str:
    """Quote a word for ``ExecStart`` (systemd.service(5), systemd.syntax(7))."""
    if not word.isprintable():
        raise UsageError(f"a systemd unit cannot contain the argument {word!r}")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$")}"'


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
