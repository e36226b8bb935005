"""How fast stages are, compared with expectations. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from potluck.cluster.coordinator.metrics import stage_times
from potluck.cluster.worker.messages import Stats
from potluck.types.placement import Prediction

Paces = Mapping[tuple[int, str], float]
"""How many times as long as expected steps take: by stage, and by the kind of expectation."""

CHANGE = 1.5
"""A stage whose steps take this many times as long as expected (or as short) triggers a search for
a better plan; so does every further change of this factor."""


def paces_of(stats: Mapping[int, Stats], prediction: Prediction | None) -> Paces:
    """Return the pace of every stage, as far as it is known, from the stages' measurements."""
    predicted = () if prediction is None else prediction.stages
    paces: dict[tuple[int, str], float] = {}
    for index, each in stats.items():
        if each.slowdown is not None and 0 < each.slowdown < math.inf:
            paces[index, "before"] = each.slowdown
        measured = stage_times(each.step_times, None).decode_seconds
        if measured is not None and index < len(predicted) and predicted[index].decode_seconds > 0:
            paces[index, "predicted"] = measured / predicted[index].decode_seconds
    return paces


def have_changed(before: Paces, now: Paces) -> bool:
    """Return whether the pace of any stage has changed enough for another search.

    An unknown pace counts as unchanged. At first, everything is expected to be as predicted.
    """
    return any(
        max(new, before.get(key, 1.0)) >= CHANGE * min(new, before.get(key, 1.0))
        for key, new in now.items()
    )
