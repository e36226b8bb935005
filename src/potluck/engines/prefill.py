"""Whether a unit computes prompts any faster when it may be less exact."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from potluck.engines.backends import NATIVE
from potluck.types.prefill import Prefill

if TYPE_CHECKING:
    from collections.abc import Collection

    from potluck.types.unit import UnitAddress

_log = logging.getLogger(__name__)


def prefill_on(unit: UnitAddress, asked: Prefill) -> Prefill:
    """What is done on ``unit``, which is this machine's; warns where it is not what was asked."""
    if asked is Prefill.EXACT:
        return Prefill.EXACT
    if unit.backend != NATIVE:
        _log.warning("prefill is exact: %s has no fast one", unit.backend)
        return Prefill.EXACT
    from potluck.engines.native import choose_isa
    from potluck.kernels import fast_formats

    isa = choose_isa(unit.variant or None)
    if not fast_formats(isa):
        _log.warning("prefill is exact: the instruction set %s has no fast one", isa)
        return Prefill.EXACT
    return Prefill.FAST


def prefill_of_weights(unit: UnitAddress, chosen: Prefill, formats: Collection[str]) -> Prefill:
    """``chosen`` on ``unit`` by ``prefill_on``, for weights held in ``formats`` (labels); warns
    where none of these has faster products.
    """
    if chosen is Prefill.EXACT:
        return Prefill.EXACT
    from potluck.engines.native import choose_isa
    from potluck.kernels import fast_formats

    if not set(formats) & set(fast_formats(choose_isa(unit.variant or None))):
        _log.warning("prefill is exact: weights in %s have no fast one", ", ".join(sorted(formats)))
        return Prefill.EXACT
    return Prefill.FAST
