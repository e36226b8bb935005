"""Resolve the choice of arithmetic for a unit of this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from potluck.engines.backends import module_named
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.choices import ArithmeticChoice

if TYPE_CHECKING:
    from collections.abc import Collection

    from potluck.types.unit import UnitAddress

_log = logging.getLogger(__name__)


def arithmetic_on(unit: UnitAddress, choice: ArithmeticChoice) -> Arithmetic:
    """Return the arithmetic on ``unit``; warn if it is not the requested one.

    Fast arithmetic is that of the unit's instruction set, which is the fastest that works unless
    one was requested.
    """
    if choice is ArithmeticChoice.EXACT:
        return Arithmetic.EXACT
    if not module_named(unit.engine).COST.abilities.has_arithmetics:
        _log.warning("%s has only one arithmetic, so the setting has no effect", unit.backend)
        return Arithmetic.EXACT
    from potluck.engines.native.engine import choose_isa

    isa = choose_isa(unit.variant or None)
    *_, arithmetic = arithmetics_with((isa,))
    if arithmetic is Arithmetic.EXACT:
        _log.warning("using exact arithmetic: the instruction set %s has no fast kernels", isa)
    return arithmetic


def arithmetic_of_weights(chosen: Arithmetic, formats: Collection[str]) -> Arithmetic:
    """Return ``chosen``, the result of ``arithmetic_on``, for weights in ``formats`` (labels); warn
    if none of these has fast kernels in it.
    """
    if chosen is Arithmetic.EXACT or is_faster_for(chosen, formats):
        return chosen
    _log.warning(
        "using exact arithmetic: %s has no fast kernels for %s",
        chosen.value,
        ", ".join(sorted(formats)),
    )
    return Arithmetic.EXACT


def is_faster_for(arithmetic: Arithmetic, formats: Collection[str]) -> bool:
    """Return whether one of ``formats`` (labels) has fast kernels in it."""
    return any(each.label in formats for each in arithmetic.fast_formats)
