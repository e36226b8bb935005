"""A worker whose stage also requests the embedding and the head, whatever its position.

That is how pipelines are often loaded elsewhere. ``fourteen_boards.py --naive`` starts it in place
of Potluck's own worker, from which it differs in nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

import potluck.engines.loading.prepare as loading
from potluck.catalog import ModelDescription, read_profile
from potluck.cluster.worker.process import run_worker
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import LoadedStage, load_stage
from potluck.formats.source import FileTensorSource
from potluck.types.program import Shard
from potluck.types.stage import StagePlan

_kept: list[LoadedStage] = []


def load_with_both_ends(
    description: ModelDescription, tensors: FileTensorSource, plan: StagePlan, **options: Any
) -> LoadedStage:
    """Load as ``load_stage`` does, after the embedding and the head of the whole model."""
    last = description.config.num_layers
    ends = [
        Shard(start_layer=0, end_layer=0, num_layers=last, has_embedding=True, has_head=False),
        Shard(
            start_layer=last, end_layer=last, num_layers=last, has_embedding=False, has_head=True
        ),
    ]
    for end in ends:
        is_there = plan.shard.has_embedding if end.has_embedding else plan.shard.has_head
        if not is_there:
            end_plan = plan_stage(read_profile(description, [end]), end, plan.size)
            _kept.append(load_stage(description, tensors, end_plan, **options))
    return load_stage(description, tensors, plan, **options)


if __name__ == "__main__":
    vars(loading)["load_stage"] = load_with_both_ends
    sys.exit(run_worker(int(sys.argv[1]), int(sys.argv[2])))
