"""The arithmetic that a choice stands for on a unit of this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from potluck.engines.opening import module_named
from potluck.types.arithmetic import Arithmetic, ArithmeticChoice, arithmetics_with

if TYPE_CHECKING:
    from collections.abc import Collection

    from potluck.types.unit import UnitAddress

_log = logging.getLogger(__name__)


def arithmetic_on(unit: UnitAddress, asked: ArithmeticChoice) -> Arithmetic:
    """What is computed in on ``unit``; warns where it is not what was asked for.

    Fast is that of the unit's instruction set, the fastest that works unless one was asked for.
    """
    if asked is ArithmeticChoice.EXACT:
        return Arithmetic.EXACT
    if not module_named(unit.engine).COST.abilities.has_arithmetics:
        _log.warning("%s has one arithmetic, which is neither exact nor fast", unit.backend)
        return Arithmetic.EXACT
    from potluck.engines.native import choose_isa

    isa = choose_isa(unit.variant or None)
    *_, arithmetic = arithmetics_with((isa,))
    if arithmetic is Arithmetic.EXACT:
        _log.warning("arithmetic is exact: the instruction set %s has no fast products", isa)
    return arithmetic


def arithmetic_of_weights(chosen: Arithmetic, formats: Collection[str]) -> Arithmetic:
    """``chosen`` by ``arithmetic_on``, for weights held in ``formats`` (labels); warns where none
    of these has fast products in it.
    """
    if chosen is Arithmetic.EXACT or speeds_up(chosen, formats):
        return chosen
    _log.warning(
        "arithmetic is exact: %s has no fast products of %s",
        chosen.value,
        ", ".join(sorted(formats)),
    )
    return Arithmetic.EXACT


def speeds_up(arithmetic: Arithmetic, formats: Collection[str]) -> bool:
    """Whether weights held in one of ``formats`` (labels) have fast products in it."""
    return any(each.label in formats for each in arithmetic.fast_formats)
