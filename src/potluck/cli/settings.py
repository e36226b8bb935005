"""Settings: defaults < ``~/.config/potluck/config.toml`` < ``POTLUCK_*`` < flags.

A key that is unknown, or a value of the wrong kind, is an error that names it. A variable that is
empty counts as not set.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from potluck.errors import UsageError
from potluck.placement.rebalancing import DEFAULT_THRESHOLD
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.placement import DEFAULT_NUM_STREAMS, Objective, Rebalance
from potluck.types.ranges import (
    DEFAULT_TARGET_STEP_MS,
    MAX_CACHE_DISK_BYTES,
    MAX_REBALANCE_THRESHOLD,
    MAX_RECOVERY_WAIT_SECONDS,
    MAX_SPARES,
    MAX_STREAMS,
    MAX_TARGET_STEP_MS,
    MAX_THREADS,
    MIN_REBALANCE_THRESHOLD,
    MIN_TARGET_STEP_MS,
)
from potluck.types.states import MAX_STATES

_PREFIX = "POTLUCK_"
_NOT_SETTINGS = frozenset({"POTLUCK_SECRET", "POTLUCK_STATE"})
"""Variables that single commands read."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What can be set once for all commands. None leaves the choice to Potluck.

    ``backend``, ``allow_software``, ``step_seconds``, ``unit_step_seconds``,
    ``idle_test_seconds``, ``stall_seconds`` and ``packed_cache_bytes``: see ``AgentConfig``.
    ``drop_system_line`` is one beginning of lines or several, as ``--drop-system-line`` has them.
    ``recovery_wait_seconds``, ``spares``, ``rebalance``, ``rebalance_threshold``,
    ``prefix_cache``, ``cache_disk_bytes`` and ``target_step_ms`` are of what is deployed from here,
    and ``objective`` and ``streams`` of plans as well. ``states`` counts for models with state.
    """

    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] | None = None
    context: int | None = None
    states: Annotated[int, msgspec.Meta(ge=1, le=MAX_STATES)] | None = None
    isa: str | None = None
    backend: str | None = None
    allow_software: bool = False
    step_seconds: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    unit_step_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    idle_test_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    stall_seconds: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    packed_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    drop_system_line: tuple[str, ...] | str | None = None
    arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT
    recovery_wait_seconds: (
        Annotated[float, msgspec.Meta(ge=0, le=MAX_RECOVERY_WAIT_SECONDS)] | None
    ) = None
    spares: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPARES)] = 0
    objective: Objective = Objective.LATENCY
    streams: Annotated[int, msgspec.Meta(ge=1, le=MAX_STREAMS)] = DEFAULT_NUM_STREAMS
    rebalance: Rebalance = Rebalance.AUTO
    rebalance_threshold: Annotated[
        float, msgspec.Meta(ge=MIN_REBALANCE_THRESHOLD, le=MAX_REBALANCE_THRESHOLD)
    ] = DEFAULT_THRESHOLD
    prefix_cache: bool = True
    cache_disk_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_CACHE_DISK_BYTES)] = 0
    target_step_ms: Annotated[float, msgspec.Meta(ge=MIN_TARGET_STEP_MS, le=MAX_TARGET_STEP_MS)] = (
        DEFAULT_TARGET_STEP_MS
    )


def read_settings(environ: Mapping[str, str], home: Path | None) -> Settings:
    """Settings from the file, then from the environment.

    ``home`` is the user's home directory, or None if there is none.
    """
    values: dict[str, object] = {}
    path = config_path(environ, home)
    if path is not None and _is_there(path):
        values.update(_read_file(path))
    for name, text in environ.items():
        if name.startswith(_PREFIX) and name not in _NOT_SETTINGS and text:
            values.update(_checked({name.removeprefix(_PREFIX).lower(): text}, name))
    return msgspec.convert(values, Settings)


def config_path(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Where the file would be (``XDG_CONFIG_HOME`` is honoured)."""
    base = environ.get("XDG_CONFIG_HOME")
    if base:
        return Path(base) / "potluck" / "config.toml"
    return None if home is None else home / ".config" / "potluck" / "config.toml"


def _is_there(path: Path) -> bool:
    """Whether there is such a file; one in a folder of somebody else's holds nothing for us."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read_file(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}", hint="mend or remove the file") from error
    return _checked(values, str(path))


def _checked(values: Mapping[str, object], where: str) -> dict[str, object]:
    """The values with their types, or an error that says which is wrong and where it stands."""
    known = ", ".join(Settings.__struct_fields__)
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", hint=f"known settings: {known}") from error
    return {name: getattr(settings, name) for name in values}
