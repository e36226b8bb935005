"""Potluck's unit for the user's own manager of systemd, and what ``systemctl --user`` does with it.

A user's units need no root. They end with the user's last session, and start with the first one,
unless the user *lingers* (``loginctl enable-linger``).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import PotluckError, UsageError
from potluck.host.child_environment import child_environment

UNIT = "potluck.service"

_SECONDS = 30.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """The state of a unit. ``enabled`` and ``active`` are the manager's words, such as ``disabled``
    and ``failed``. ``is_lingering`` is None if it is unknown.
    """

    enabled: str
    active: str
    is_lingering: bool | None


class UserManager:
    """The user's manager. Made by :meth:`found`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    @classmethod
    def found(cls, environ: Mapping[str, str]) -> UserManager:
        """Return the manager of this user. Raises ``UsageError`` where there is none."""
        known = child_environment(environ)
        folder = f"/run/user/{os.getuid()}"
        if "XDG_RUNTIME_DIR" not in known and Path(folder).is_dir():
            known["XDG_RUNTIME_DIR"] = folder  # su and sudo drop it
        if shutil.which("systemctl", path=known.get("PATH")) is None:
            raise UsageError(
                "systemd is not available on this machine (no systemctl)",
                hint="configure your service manager to run potluck up in the foreground",
            )
        manager = cls(known)
        done = manager._run("show-environment")
        if done.returncode != 0:
            raise UsageError(
                f"systemd runs no user manager for {user_name()}: {_last_line(done.stderr)}",
                hint=f"run sudo loginctl enable-linger {user_name()}, log in as this user and try "
                "again; or configure a system service that runs potluck up",
            )
        return manager

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

    def state(self) -> UnitState:
        """Return the state of the unit as the manager reports it."""
        return UnitState(
            enabled=self._run("is-enabled", UNIT).stdout.strip() or "not-found",
            active=self._run("is-active", UNIT).stdout.strip() or "unknown",
            is_lingering=self._is_lingering(),
        )

    def _is_lingering(self) -> bool | None:
        program = shutil.which("loginctl", path=self._environ.get("PATH"))
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
                timeout=_SECONDS,
                env=child_environment(self._environ),
            )
        except subprocess.TimeoutExpired:
            raise PotluckError(
                f"{' '.join(command)} did not finish within {_SECONDS:.0f} s"
            ) from None


def unit_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the unit, which may not exist."""
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
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
