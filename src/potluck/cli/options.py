"""Options that several commands share."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.settings import NodeSettings, configured, read_settings
from potluck.cli.spec_options import Quant, option
from potluck.errors import UsageError
from potluck.types.choices import ArithmeticChoice
from potluck.types.ranges import MAX_THREADS

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A directory with a model, a .gguf file, a hub id (org/name, org/name:Q4_K_M, "
        "org/name:file.gguf, org/name@revision), or demo.",
        show_default=False,
    ),
]
StagesOption = Annotated[
    int, typer.Option("--stages", help="Split the model into this many stages in one process.")
]
ContextOption = Annotated[int | None, option("context_tokens")]
StatesOption = Annotated[int | None, option("num_states")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MAX_THREADS,
        help="At most as many CPU threads. Default: one for each usable core.",
        show_default=False,
    ),
]
QuantOption = Annotated[Quant, option("quantization")]
MmapOption = Annotated[bool, option("is_mapped")]
ArithmeticOption = Annotated[ArithmeticChoice | None, option("arithmetic")]
DraftOption = Annotated[str | None, option("draft")]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Maximum memory for stages on this machine, for example 2G.",
        show_default=False,
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Use only this backend (tinygrad:CL) or unit (cpu/native). Default: the fastest "
        "backend of each device.",
        show_default=False,
    ),
]
LocalBackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Backend (tinygrad:CL), on the first device where it works, or unit to run on. "
        "Default: native.",
        show_default=False,
    ),
]
AllowSoftwareOption = Annotated[
    bool,
    typer.Option("--allow-software", help="Also use software-emulated GPUs, such as PoCL."),
]
NoStoreOption = Annotated[
    bool,
    typer.Option(
        "--no-store",
        help="Do not store model files from other nodes or the hub on disk; load them directly "
        "into memory.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Wait longer than about 5 seconds for slow drivers and tests."),
]
_WAIT_SECONDS = 5.0
"""The time limit of a command; slower devices and tests are named, and need ``--wait``."""


def seconds_to_wait() -> float:
    """Return the seconds left of a command's time limit, part of which has passed at its start.

    ``proc(5)``: field 22 of ``/proc/PID/stat`` is the start of the process after boot, in ticks.
    """
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # no /proc
        return _WAIT_SECONDS
    return max(0.0, _WAIT_SECONDS - (time.clock_gettime(time.CLOCK_BOOTTIME) - started))


def resolve_backend(option: str | None, chosen: NodeSettings) -> str | None:
    """Return the backend or unit of the option, else of the settings; None means the fastest.

    Raises ``UsageError`` for a backend that this build does not have.
    """
    from potluck.engines.backends import BACKENDS
    from potluck.types.unit import backend_of

    name = chosen.backend if option is None else option
    names = [spec.name for spec in BACKENDS]
    if name is not None and backend_of(name) not in names:
        raise UsageError(
            f"unknown backend {name}",
            hint=f"known backends: {', '.join(names)}; potluck probe shows which work here",
        )
    return name


def resolve_draft(option: str | None, chosen: NodeSettings) -> str:
    """Return the source of drafts of the option, else of the settings."""
    return str(configured(chosen)["draft"]) if option is None else option


def resolve_arithmetic(option: ArithmeticChoice | None, chosen: NodeSettings) -> ArithmeticChoice:
    """Return the arithmetic of the option, else of the settings."""
    return ArithmeticChoice(configured(chosen)["arithmetic"]) if option is None else option


def settings() -> NodeSettings:
    """Read the settings of this process's user and environment."""
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
        help="State directory of the node; each agent on a machine needs its own.",
        show_default=False,
    ),
]


def state_directory(path: Path | None) -> StateDirectory:
    """Return the requested state directory, or the user's default one."""
    from potluck.cluster.agent.state import StateDirectory, default_state_directory

    return StateDirectory(path or default_state_directory(os.environ))
