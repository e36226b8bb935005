"""Backends, the kinds of devices on which they are tried, and the abilities of their engines, as
data for planning.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from potluck.types import program as programs
from potluck.types.program import AllGather

if TYPE_CHECKING:
    from potluck.types.program import Op, Program
    from potluck.types.tensor import TensorFormat


def features_of(op: Op) -> Iterator[str]:
    """Yield the features that an engine must support for an op: the op itself, and each of its
    optional parts.

    Examples are ``Attention``, ``Attention with window`` for a field that differs from its default,
    ``GatedActivation with activation gelu_tanh`` for an enum value, and ``Head without weight`` for
    a missing field without a default. Sizes and factors that every op of the kind has are not
    features.
    """
    name = type(op).__name__
    yield name
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if field.default is dataclasses.MISSING:
            if value is None:
                yield f"{name} without {field.name}"
        elif value != field.default:
            yield _with(name, field.name, value)


def _with(op: str, field: str, value: object) -> str:
    word = f" {value.value}" if isinstance(value, enum.Enum) else ""
    return f"{op} with {field}{word}"


def _every_feature() -> Iterator[str]:
    for op in get_args(programs.Op):
        yield op.__name__
        hints = get_type_hints(op)
        for field in dataclasses.fields(op):
            hint: Any = hints[field.name]
            if field.default is dataclasses.MISSING:
                if type(None) in get_args(hint):
                    yield f"{op.__name__} without {field.name}"
            elif isinstance(hint, type) and issubclass(hint, enum.Enum):
                for value in hint:
                    if value is not field.default:
                        yield _with(op.__name__, field.name, value)
            else:
                yield _with(op.__name__, field.name, None)


ALL_FEATURES = frozenset(_every_feature())
"""All features that programs can require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAbilities:
    """The abilities of a backend's engines, none by default.

    They compute programs with these ``features`` (see ``features_of``) and with matrices in these
    ``formats``. With ``has_arithmetics`` they compute in the requested ``Arithmetic``, in which
    they are bit-identical to each other; without it, they always use their own arithmetic. With
    ``maps_weights`` they can read weights from a mapped packed file, and need no memory for them. A
    backend that ``is_built_in`` runs on the CPU, works wherever this build works, and needs no
    trial before it is used in this process.
    """

    features: frozenset[str] = frozenset()
    formats: frozenset[TensorFormat] = frozenset()
    has_arithmetics: bool = False
    maps_weights: bool = False
    is_built_in: bool = False

    @property
    def can_join_groups(self) -> bool:
        """Whether such an engine can be a member of a group.

        Members must be bit-identical to each other, and exchange their results.
        """
        return self.has_arithmetics and AllGather.__name__ in self.features

    def missing_features(self, program: Program) -> tuple[str, ...]:
        """Return the features of ``program`` that these engines do not support, each once.

        For an op that is not supported at all, its optional parts are not listed.
        """
        needed = dict.fromkeys(each for op in program.ops for each in features_of(op))
        missing = tuple(each for each in needed if each not in self.features)
        return tuple(
            each for each in missing if " " not in each or each.partition(" ")[0] not in missing
        )

    def missing_formats(self, formats: Iterable[TensorFormat]) -> tuple[str, ...]:
        """Return the labels of the formats that these engines do not support for matrices, once."""
        return tuple(dict.fromkeys(each.label for each in formats if each not in self.formats))


class DeviceKind(enum.Enum):
    """The kind of device."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLibrary:
    """A system library that a backend finds and opens by itself.

    ``name`` is for display (``libOpenCL.so``). The library is the first file whose whole name
    matches one of ``patterns`` (regular expressions, the preferred one first) in one of
    ``folders``, in which ``{machine}`` stands for the output of ``uname -m``. The environment
    variable ``variable`` may specify the file, or a folder that is searched first, as are the
    folders in ``LD_LIBRARY_PATH``.
    """

    name: str
    patterns: tuple[str, ...]
    folders: tuple[str, ...]
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend, identified by the module that tests it (``python -m``; ``probe.trials.running``).

    ``kinds`` and ``makes`` are the kinds and vendors of devices on which it is tried; no makes
    means all. ``engine`` is the module with its engine (``engines.backends.EngineModule``); a
    backend without one is tried, but cannot hold stages.
    ``packages`` are the distributions whose versions are part of a trial's fingerprint.
    ``api`` is the interface that a device must have, or empty. If ``is_software``, it is only tried
    if software emulation is allowed. ``extra`` is the extra of this distribution that installs the
    packages, or empty. ``libraries`` are the system libraries that it requires. ``abilities`` are
    those of its engines (``EngineCost.abilities``).
    """

    name: str
    module: str
    kinds: frozenset[DeviceKind]
    engine: str = ""
    makes: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    api: str = ""
    is_software: bool = False
    extra: str = ""
    libraries: tuple[BackendLibrary, ...] = ()
    abilities: BackendAbilities = dataclasses.field(default_factory=BackendAbilities)
