"""Commands in a root, which see only the root's files and those shared with it.

As root, or as any user where user namespaces are allowed; another machine's roots through
qemu-user.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.roots.launcher import launcher

EVERY_FEATURE = "max,pauth-impdef=on"
"""The CPU with all that the emulator knows; pointers are signed with a cipher of its own, as the
architecture's takes most of the time where a distribution's builds sign them (Debian since 13)."""

CPUINFO = Path(__file__).with_name("cpuinfo-aarch64.txt")
"""The kernel's description of a Raspberry Pi 4's processors, for programs that trust it more than
the registers: ``shared={"cpuinfo": CPUINFO}``. With this machine's, ONNX Runtime for aarch64
crashes.
"""

_SCRIPT = Path(__file__).with_name("enter.sh")

# Paths of the machine's own tools, which enter.sh uses: a plain user's path lacks the last two.
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root at ``path`` for programs of ``machine``. ``cpu`` is the one that the emulator plays,
    as ``qemu-aarch64 -cpu help`` names it; it means nothing to the machine's own programs.
    """

    name: str
    path: Path
    machine: str
    cpu: str = EVERY_FEATURE
    shared: Mapping[str, Path] = field(default_factory=dict)
    """Folders and files of this machine that are found as ``/mnt/<name>``."""

    @property
    def is_emulated(self) -> bool:
        """Whether this machine runs the root's programs through an emulator only."""
        return self.machine != platform.machine()

    def run(
        self,
        *command: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the root, ``command[0]`` being its path there, to its end.

        ``env`` is all that it has of an environment. Raises ``TimeoutExpired``.
        """
        shared, env = dict(self.shared), {"PATH": _PATH, **(env or {})}
        if self.is_emulated:
            shared |= {"emulator": _emulator(self.machine), "launch": launcher()}
            env |= {"EMULATED_PROGRAM": command[0], "QEMU_CPU": self.cpu}
            command = ("/mnt/launch", *command[1:])
        return subprocess.run(
            self._entering(command, shared),
            input=stdin,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def command_line(self, *command: str) -> list[str]:
        """Return the command that runs a program of the root on this machine, without emulation.

        The program inherits its caller's environment.
        """
        return self._entering(command, self.shared)

    def _entering(self, command: Sequence[str], shared: Mapping[str, Path]) -> list[str]:
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        return [
            *("unshare", "--mount", *as_root, "--", "sh", str(_SCRIPT), str(self.path)),
            *(f"{name}={path}" for name, path in shared.items()),
            *("--", *command),
        ]


def _emulator(machine: str) -> Path:
    """Find the emulator, which must be linked statically: the root does not have its libraries."""
    name = f"qemu-{machine}-static"
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"there is no {name} (Debian: qemu-user-static)")
    return Path(found)
