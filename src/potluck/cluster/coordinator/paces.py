"""How fast stages are, compared with what was expected of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from potluck.cluster.coordinator.metrics import stage_times
from potluck.cluster.worker.messages import Stats
from potluck.types.placement import Prediction

Paces = Mapping[tuple[int, str], float]
"""How many times as long as expected steps take: by stage, and by what was expected of it."""

CHANGE = 1.5
"""A stage whose steps take so many times as long as expected, or so much less, is reason enough to
look; and then again whenever that factor has changed by so much."""


def paces_of(stats: Mapping[int, Stats], prediction: Prediction | None) -> Paces:
    """Return the pace of every stage, as far as it is known, from what the stages have measured."""
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
    """Return whether the pace of any stage is worth another look. One that is unknown is as it was.

    At first, all is expected to be as predicted.
    """
    return any(
        max(new, before.get(key, 1.0)) >= CHANGE * min(new, before.get(key, 1.0))
        for key, new in now.items()
    )
