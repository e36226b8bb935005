"""Typed, bounded access to the configuration values in a model file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.types.model import ExpertsConfig

# Limits of values in files, so that a corrupt number causes an error and not an allocation. Each is
# at least eight times the value of the largest published model of these families.
MAX_LAYERS = 2**10
MAX_WIDTH = 2**20
MAX_HEADS = 2**12
MAX_VOCAB = 2**24
MAX_CONTEXT_TOKENS = 2**27
MAX_EXPERTS = 2**12
MAX_KERNEL = 2**6
HEAD_DIM_MULTIPLE = 8
"""Head sizes must be multiples of this, because of the kernels."""
EXPERT_ROWS_MULTIPLE = 16
"""Row counts of an expert's matrices must be multiples of this, so that an expert is a range of
whole panels."""
_LEAST_POSITIVE, _MOST_POSITIVE = 1e-30, 1e30
"""Bounds of positive numbers, so that products and quotients of several are still finite."""
_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The values of the file ``path``, or of its section ``prefix``. Null means absent.

    ``family`` is the name of the family whose model they configure; empty if nothing depends on it.
    A default of None makes a key required. Every method raises ``ModelFileError`` naming the key if
    it is missing or its value has the wrong type or is out of range.
    """

    values: Mapping[str, object]
    path: str
    prefix: str = ""
    family: str = ""

    def get(self, key: str) -> object:
        """Return the raw value, or None."""
        return self.values.get(key)

    def is_null(self, key: str) -> bool:
        """Return whether the key exists with a null value."""
        return key in self.values and self.values[key] is None

    def count(self, key: str, maximum: int, default: int | None = None, *, minimum: int = 1) -> int:
        """Return an integer in ``[minimum, maximum]``."""
        value: Any = self._value(key, default)
        if not _is_number(value, int) or not minimum <= value <= maximum:
            raise self.error(key, f"must be an integer from {minimum} to {maximum}")
        return int(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0 that is neither tiny nor huge."""
        value: Any = self._value(key, default)
        if not _is_number(value, int | float):
            raise self.error(key, "must be a number")
        if not _LEAST_POSITIVE <= value <= _MOST_POSITIVE:
            raise self.error(key, "must be finite and above 0 (1e-30 to 1e30)")
        return float(value)

    def nonzero(self, key: str, default: _T) -> float | _T:
        """Return a finite number above 0, or ``default`` for 0, as for an absent key."""
        return self.positive(key) if self.get(key) else default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def truth(self, key: str, *, default: bool) -> bool:
        """Return a boolean; null means false, as in code that only tests the value."""
        return not self.is_null(key) and self.flag(key, default=default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty if the key is absent."""
        return self._list(key, "must be a list of strings", lambda each: isinstance(each, str))

    def counts(self, key: str, maximum: int) -> tuple[int, ...]:
        """Return a list of integers in ``[0, maximum]``; empty if the key is absent."""
        problem = f"must be a list of integers from 0 to {maximum}"
        return self._list(key, problem, lambda each: _is_number(each, int) and 0 <= each <= maximum)

    def positives(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of ``count`` numbers as ``positive`` returns them."""
        self._value(key, None)  # unlike other lists, it is required
        problem = f"must be a list of {count} positive numbers"
        numbers = self._list(
            key,
            problem,
            lambda each: (
                _is_number(each, int | float) and _LEAST_POSITIVE <= each <= _MOST_POSITIVE
            ),
        )
        if len(numbers) != count:
            raise self.error(key, problem)
        return tuple(map(float, numbers))

    def section(self, key: str) -> Fields | None:
        """Return the mapping under ``key``, or None if it is absent or empty."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "must be an object")
        return dataclasses.replace(self, values=value, prefix=f"{key}.") if value else None

    def without(self, *keys: str) -> Fields:
        """Return these fields without some keys, which a family reads itself."""
        values = {key: value for key, value in self.values.items() if key not in keys}
        return dataclasses.replace(self, values=values)

    def changed(self, values: Mapping[str, object]) -> Fields:
        """Return these fields with other ``values`` for some keys."""
        return dataclasses.replace(self, values={**self.values, **values})

    def with_defaults(self, defaults: Mapping[str, object]) -> Fields:
        """Return these values, with ``defaults`` for absent keys; a null stays."""
        return dataclasses.replace(self, values={**defaults, **self.values})

    def refuse_others(self, accepted: Mapping[str, tuple[object, ...]]) -> None:
        """Raise ``UnsupportedModelError`` naming keys whose values are neither these nor null."""
        others = [
            f"{self.prefix}{key}={self.get(key)}"
            for key, values in accepted.items()
            if self.get(key) is not None and self.get(key) not in values
        ]
        if others:
            raise unsupported(*others)

    def error(self, key: str, problem: str) -> ModelFileError:
        """Return the error that the value of ``key`` has ``problem``."""
        value = _brief(self.get(key))
        return ModelFileError(self.path, f"{self.prefix}{key} {problem}, but is {value}")

    def _list(self, key: str, problem: str, is_valid: Callable[[Any], bool]) -> tuple[Any, ...]:
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(map(is_valid, value)):
            raise self.error(key, problem)
        return tuple(value)

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelFileError(self.path, f"{self.prefix}{key} is missing")
        return default


def check_heads(
    fields: Fields,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_heads_key: str,
    head_dim_key: str,
) -> None:
    """Raise unless query heads share key-value heads evenly and kernels support the head size."""
    if num_heads % num_kv_heads:
        raise ModelFileError(
            fields.path,
            f"{kv_heads_key} is {num_kv_heads}, which does not divide the number of heads, "
            f"{num_heads}",
        )
    if head_dim % HEAD_DIM_MULTIPLE:
        raise unsupported(f"{head_dim_key} {head_dim} (not a multiple of {HEAD_DIM_MULTIPLE})")


def read_sized_experts(
    fields: Fields,
    *,
    hidden_size: int,
    norm_topk_prob: bool,
    count_key: str,
    used_key: str,
    width_key: str,
) -> ExpertsConfig:
    """Return the experts under these keys.

    Raises unless there are enough experts for those used per token, and kernels support the sizes.
    """
    num_experts = fields.count(count_key, MAX_EXPERTS)
    # transformers accepts several of these names for the same key.
    fields.refuse_others({key: (num_experts,) for key in _COUNT_KEYS if key != count_key})
    num_used = fields.count(used_key, MAX_EXPERTS)
    if num_used > num_experts:
        raise fields.error(used_key, f"must be at most {num_experts}, the number of experts")
    width = fields.count(width_key, MAX_WIDTH)
    for what, rows in ((f"{fields.prefix}{width_key}", width), ("a hidden size of", hidden_size)):
        if rows % EXPERT_ROWS_MULTIPLE:
            raise unsupported(f"{what} {rows} with experts (not a multiple of 16)")
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_token=num_used,
        width=width,
        norm_topk_prob=norm_topk_prob,
    )


def with_groups(
    fields: Fields, experts: ExpertsConfig, *, count_key: str, used_key: str
) -> ExpertsConfig:
    """Return ``experts`` in the groups under these keys; one group if there are none.

    Raises unless groups have equal sizes, and the selected ones contain enough experts.
    """
    num_groups = fields.count(count_key, MAX_EXPERTS, 1)
    num_used = fields.count(used_key, MAX_EXPERTS, 1)
    if num_groups == 1:
        return experts
    size, rest = divmod(experts.num_experts, num_groups)
    if rest or size < 2:
        raise fields.error(
            count_key, f"must divide {experts.num_experts} experts into groups of at least two"
        )
    if num_used > num_groups or num_used * size < experts.num_experts_per_token:
        raise fields.error(
            used_key,
            f"must select enough groups of {size} experts, and at most {num_groups} groups",
        )
    return dataclasses.replace(experts, num_groups=num_groups, num_groups_used=num_used)


def unsupported(*features: str) -> UnsupportedModelError:
    """Return the error that the model needs ``features``, which no engine supports.

    They may contain arbitrary text from the model's files.
    """
    features = tuple(one_line(feature) for feature in features)
    return UnsupportedModelError(
        f"the model requires unsupported features: {', '.join(features)}",
        missing=features,
        hint="choose another model; README.md lists the supported ones",
    )


def one_line(text: str) -> str:
    """Return ``text``, which may come from a file, as a short printable line for a message."""
    shown = "".join(each if each.isprintable() else "?" for each in text[:200])
    return shown if len(text) <= 200 else f"{shown}…"


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
