"""The memory of a worker: its stage, and that of a process with edges."""

from __future__ import annotations

from potluck.loading import plan_stage
from potluck.scheduling.frame_limits import MAX_STEP_SEQUENCES, result_bytes
from potluck.types.engine import EngineCost
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize

PROCESS_BYTES = 48 * 2**20
"""A worker of the native backend without weights, cache, scratch and loading buffers; other
backends state their additional memory in ``EngineCost`` (measured: 22 MiB of its own, and 19 MiB of
mapped files that the kernel can drop)."""

_RESULT_TIMES = 5
"""The memory of the largest result, in multiples of its header: the header, and its values before
they are encoded (measured: 2.7 times as much; half as much in the core)."""

_FRAMES_RECEIVED = 2
_FRAMES_SENT = 3
_FRAMES_PASSED_ON = 2
"""Number of payloads of the largest step that an edge holds: its buffer grows to two
(``edges.edge``); outgoing data is also in the matrix that the engine has filled. The leader of a
group has an edge to each other member, over which it forwards what it receives."""


def plan_worker(
    profile: ModelProfile,
    shard: Shard,
    size: StageSize,
    *,
    cost: EngineCost | None = None,
) -> StagePlan:
    """Return ``plan_stage`` for a worker: the numbers of ``potluck plan`` and of every refusal.

    Raises the same errors as ``plan_stage``.
    """
    payload_bytes = 4 * profile.config.hidden_size * size.max_step_tokens
    num_payloads = 0
    if not shard.has_embedding:
        num_payloads += _FRAMES_RECEIVED
        if shard.part is not None and shard.part.is_leader:
            num_payloads += _FRAMES_PASSED_ON * (len(shard.part.shares) - 1)
    if not shard.has_head:
        num_payloads += _FRAMES_SENT
    own_bytes = PROCESS_BYTES + num_payloads * payload_bytes
    if shard.has_head:
        num_sequences = min(MAX_STEP_SEQUENCES, size.max_step_tokens)
        own_bytes += _RESULT_TIMES * result_bytes(
            size.max_step_tokens, num_sequences, profile.config.hidden_size
        )
    return plan_stage(
        profile,
        shard,
        size,
        process_bytes=own_bytes,
        cost=cost,
    )
