"""Settings: defaults < ``~/.config/potluck/config.toml`` < ``POTLUCK_*`` < flags.

A key of the file that is unknown, or a value of the wrong kind, is an error that names it. A
variable that is empty counts as not set. Unknown variables are left to the caller: other programs
may use the prefix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from potluck.cli.spec_options import parse
from potluck.errors import UsageError
from potluck.types.deployment_spec import DeploymentSpec, Setting, settings_of, value_types
from potluck.types.ranges import MAX_THREADS, MAX_WHOLE
from potluck.types.states import MAX_STATES

_PREFIX = "POTLUCK_"
_NOT_SETTINGS = frozenset({"POTLUCK_INVITATION", "POTLUCK_SECRET", "POTLUCK_STATE"})
"""Variables that single commands read."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Defaults that do not belong to a deployment; None leaves the choice to Potluck."""

    threads: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None,
        Meta(description="at most as many threads compute; automatic: one for each usable core"),
    ] = None
    context: Annotated[
        int | None, Meta(description="longest sequence in tokens; automatic: what the model allows")
    ] = None
    states: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_STATES)] | None,
        Meta(
            description="state slots of models with recurrent layers; automatic: what 512 MiB "
            "hold, 8 to 64"
        ),
    ] = None
    isa: Annotated[
        str | None,
        Meta(
            description="instruction set of the kernels: `scalar`, `avx2`, `avx512`, "
            "`avx512_bf16`, `amx`, `neon`, `dotprod` or `i8mm`; automatic: the fastest that works"
        ),
    ] = None
    backend: Annotated[
        str | None,
        Meta(description="use only this backend; see [probe](../guides/probe.md#choosing)"),
    ] = None
    allow_software: Annotated[
        bool, Meta(description="also use software-emulated GPUs, such as PoCL")
    ] = False
    step_seconds: Annotated[
        Annotated[float, Meta(gt=0)],
        Meta(description="seconds until a step is abandoned although its stages make progress"),
    ] = 300.0
    unit_step_seconds: Annotated[
        Annotated[float, Meta(gt=0)],
        Meta(description="seconds until a step on a GPU counts as hung"),
    ] = 30.0
    idle_test_seconds: Annotated[
        Annotated[float, Meta(gt=0)],
        Meta(description="seconds without work after which the self-test of a GPU is repeated"),
    ] = 600.0
    stall_seconds: Annotated[
        Annotated[float, Meta(gt=0)],
        Meta(description="seconds without progress until a worker that loads is ended"),
    ] = 120.0
    packed_cache_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_WHOLE)] | None,
        Meta(
            description="limit of the files that `--mmap` keeps; automatic: 20 GiB, or a quarter "
            "of the free disk space if that is less"
        ),
    ] = None
    weights_store: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_WHOLE)] | None,
        Meta(description="limit of the store of fetched weights in bytes; 0 keeps nothing"),
    ] = None
    drop_system_line: Annotated[
        tuple[str, ...] | str | None,
        Meta(
            description="beginnings of lines of system messages that are not passed to the model; "
            "see [the HTTP API](http-api.md#system-lines-that-change)"
        ),
    ] = None
    strict_tools: Annotated[
        bool,
        Meta(
            description="refuse requests with tools that only OpenAI's servers execute, instead of "
            "ignoring these tools"
        ),
    ] = False


def settings_struct(kind: type[DeploymentSpec]) -> Any:
    """Return the struct of all settings: those of a node, and those of deployments of ``kind``."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    types = value_types(kind)
    fields = [
        (setting.key, *_key(types[name], setting, defaults[name]))
        for name, setting in settings_of(kind).items()
        if setting.key
    ]
    return msgspec.defstruct(
        "Settings",
        fields,
        bases=(NodeSettings,),
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _key(kind: Any, setting: Setting, default: object) -> tuple[Any, object]:
    """Return the type and the default of a key."""
    numbers = setting.numbers
    if numbers is not None:
        kind = Annotated[kind, Meta(ge=numbers.least, le=numbers.most)]
    if setting.parse == "units":
        kind |= Annotated[str, Meta(pattern="^(auto|off|[1-9][0-9]*)$")]
        default = "auto"
    return Annotated[kind, Meta(description=setting.meaning)], default


Settings: Any = settings_struct(DeploymentSpec)
"""All settings. ``docs/reference/settings.md`` is generated from the fields and their descriptions.
"""


def configured(
    settings: NodeSettings, kind: type[DeploymentSpec] = DeploymentSpec
) -> dict[str, Any]:
    """Return the fields of a specification that the configuration sets, or else their defaults."""
    return {
        name: parse(setting, getattr(settings, setting.key))
        for name, setting in settings_of(kind).items()
        if setting.key
    }


def read_settings(environ: Mapping[str, str], home: Path | None) -> NodeSettings:
    """Read settings from the file, then from the environment.

    ``home`` is the user's home directory, or None if there is none. See ``unknown_variables``.
    """
    values: dict[str, object] = {}
    path = config_path(environ, home)
    if path is not None and _is_there(path):
        values.update(_read_file(path))
    for name, text in environ.items():
        key = _key_of(name)
        if key in Settings.__struct_fields__ and text:
            values.update(_checked({key: text}, name))
    read: NodeSettings = msgspec.convert(values, Settings)
    return read


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of variables with Potluck's prefix that no command reads, sorted."""
    return sorted(
        name
        for name in environ
        if name.startswith(_PREFIX)
        and name not in _NOT_SETTINGS
        and _key_of(name) not in Settings.__struct_fields__
    )


def _key_of(variable: str) -> str:
    return variable.removeprefix(_PREFIX).lower() if variable.startswith(_PREFIX) else ""


def config_path(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the path of the file, which may not exist (``XDG_CONFIG_HOME`` is honoured)."""
    base = environ.get("XDG_CONFIG_HOME")
    if base:
        return Path(base) / "potluck" / "config.toml"
    return None if home is None else home / ".config" / "potluck" / "config.toml"


def _is_there(path: Path) -> bool:
    """Return whether the file exists; one in another user's folder is ignored."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read_file(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # no TOML, or a huge integer
        raise UsageError(f"{path}: {error}", hint="fix or remove the file") from error
    return _checked(values, str(path))


def _checked(values: Mapping[str, object], where: str) -> dict[str, object]:
    """Convert the values to their types. Raise ``UsageError`` with ``where`` if one is invalid."""
    known = ", ".join(Settings.__struct_fields__)
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", hint=f"known settings: {known}") from error
    return {name: getattr(settings, name) for name in values}
