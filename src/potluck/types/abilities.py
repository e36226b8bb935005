"""What the engines of a backend can do, as planning reads it: data, and no backend's name."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from potluck.types import program as programs

if TYPE_CHECKING:
    from potluck.types.program import Op, Program
    from potluck.types.tensor import TensorFormat


def features_of(op: Op) -> Iterator[str]:
    """Yield what an engine must have for an op: the op itself, and whatever of it is optional.

    That is ``Attention``, ``Attention with window`` for a field that differs from its default,
    ``GatedActivation with activation gelu_tanh`` for one of several words, and ``Head without
    weight`` for what is absent and has no default. Sizes and factors that every op of the kind
    has are no features.
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
"""What a program can ask for at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAbilities:
    """What the engines of a backend can do; by default nothing.

    They compute programs of these ``features`` (see ``features_of``) with matrices in these
    ``formats``. With ``has_arithmetics`` they compute in the ``Arithmetic`` that is asked for, and
    are bit-identical to one another in it; without, in one of their own whatever is asked. With
    ``maps_weights`` they read weights from a packed file that is mapped, and need no memory for
    them. A backend that ``is_built_in`` is the CPU's own, works wherever this build does and needs
    no trial before it is used in this process.
    """

    features: frozenset[str] = frozenset()
    formats: frozenset[TensorFormat] = frozenset()
    has_arithmetics: bool = False
    maps_weights: bool = False
    is_built_in: bool = False

    def missing_features(self, program: Program) -> tuple[str, ...]:
        """Return what ``program`` needs and such engines do not compute, each once.

        Of an op that they do not compute at all, nothing more is named.
        """
        needed = dict.fromkeys(each for op in program.ops for each in features_of(op))
        missing = tuple(each for each in needed if each not in self.features)
        return tuple(
            each for each in missing if " " not in each or each.partition(" ")[0] not in missing
        )

    def missing_formats(self, formats: Iterable[TensorFormat]) -> tuple[str, ...]:
        """Return the labels of the formats that such engines cannot hold matrices in, each once."""
        return tuple(dict.fromkeys(each.label for each in formats if each not in self.formats))
