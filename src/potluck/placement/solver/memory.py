"""Why a problem has no solution: the memory that the units lack in total."""

from __future__ import annotations

import numpy as np

from potluck.placement.path import PathProblem


def missing_bytes(problem: PathProblem) -> int:
    """Return how many bytes the units lack at least to hold all items together; 0 if none.

    This is a lower bound: every unit is given the bytes of a whole stage, an item counts as on the
    unit where it takes least, and items may be divided. If 0 is returned and there is no path, then
    memory suffices in total, but no stages of whole items fit (or links or limits forbid them).
    """
    if not problem.num_units:
        return 0
    stage = problem.stage_bytes
    least = problem.item_bytes.min(axis=0)
    saved = int(problem.shared_bytes.max())
    if problem.num_items > 1:
        spared = problem.item_bytes[:, [0, -1]] + stage[:, None] - problem.lone_bytes
        saved = max(saved, int(np.maximum(spared, 0).max(axis=0).sum()))
    needed = int(least.sum()) - saved
    room = np.maximum(problem.usable_bytes - stage, 0)
    return max(0, needed - int(room.sum()))
