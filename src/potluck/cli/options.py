"""Options that several commands share."""

from __future__ import annotations

import enum
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.settings import Settings, read_settings
from potluck.errors import UsageError
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.quantization import Quantization
from potluck.types.ranges import MAX_THREADS
from potluck.types.states import LEAST_DEFAULT_STATES, MOST_DEFAULT_STATES

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory


class Quant(enum.Enum):
    """What ``--quant`` takes."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q4_K = "q4_k"
    IQ4_NL = "iq4_nl"
    Q4_0 = "q4_0"
    Q3_K = "q3_k"
    AUTO = "auto"

    @property
    def quantization(self) -> Quantization | None:
        """None for auto."""
        return None if self is Quant.AUTO else Quantization(self.value)


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
StatesOption = Annotated[
    int | None,
    typer.Option(
        "--states",
        metavar="N",
        help="Slots for the states of sequences and checkpoints of them, of models that keep more "
        f"than keys and values. Default: as many as 512 MiB hold, {LEAST_DEFAULT_STATES} to "
        f"{MOST_DEFAULT_STATES}.",
        show_default=False,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MAX_THREADS,
        help="CPU threads. Default: the cores that may be used.",
        show_default=False,
    ),
]
QuantOption = Annotated[
    Quant,
    typer.Option(
        "--quant",
        help="Quantize weights stored as floats while they are loaded; auto: as little as makes "
        "the model fit.",
    ),
]
MmapOption = Annotated[
    bool,
    typer.Option(
        "--mmap",
        help="Keep the weights in a file of the cache and map it: they take no memory but what is "
        "free, and a second start is quick.",
    ),
]
ArithmeticOption = Annotated[
    ArithmeticChoice | None,
    typer.Option(
        "--arithmetic",
        help="exact: bit-identical on every CPU. fast: multiply in bf16 where CPUs have it, "
        "bit-identical only among those of one kind. Default: exact.",
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
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Use this backend (tinygrad:CL) or unit (cpu/native) and no other. Default: of each "
        "device the fastest.",
        show_default=False,
    ),
]
LocalBackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="What computes: a backend (tinygrad:CL), on the first device where it works, or a "
        "unit. Default: native.",
        show_default=False,
    ),
]
AllowSoftwareOption = Annotated[
    bool,
    typer.Option(
        "--allow-software", help="Also use what only plays a GPU on the CPU, such as PoCL."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Wait for slow drivers and tests, beyond about 5 seconds."),
]
_WAIT_SECONDS = 5.0
"""What a person waits for an answer; what is slower is named, and waited for with ``--wait``."""


def seconds_to_wait() -> float:
    """What is left of the time that a command may take: on a busy machine its start takes some.

    ``proc(5)``: field 22 of ``/proc/PID/stat`` is the start of the process after boot, in ticks.
    """
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # no /proc
        return _WAIT_SECONDS
    return max(0.0, _WAIT_SECONDS - (time.clock_gettime(time.CLOCK_BOOTTIME) - started))


def asked_backend(option: str | None) -> str | None:
    """The backend or unit that the option asks for, else the settings; None: whatever is fastest.

    Raises ``UsageError`` for a backend that this build does not have.
    """
    from potluck.engines.backends import BACKENDS
    from potluck.types.unit import backend_of

    asked = settings().backend if option is None else option
    names = [spec.name for spec in BACKENDS]
    if asked is not None and backend_of(asked) not in names:
        raise UsageError(
            f"there is no backend {asked}",
            hint=f"backends are {', '.join(names)}; potluck probe shows what works here",
        )
    return asked


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
