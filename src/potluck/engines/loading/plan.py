"""Compute the memory requirement of a stage from headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from potluck.engines.backends import check_backend, cost_of
from potluck.errors import ParameterError
from potluck.models.program import program_to_count
from potluck.models.work import rope_table_bytes
from potluck.scheduling.frame_limits import result_bytes, sequences_in_step
from potluck.types.engine import EngineCost
from potluck.types.memory import MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Head, HeadLinear, Linear, Moe, Program, Shard
from potluck.types.stage import StagePlan, StageSize
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.types.unit import NATIVE
from potluck.weights.load import check_weights, format_remarks, loaded_weights, staging_bytes

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


def plan_stage(
    profile: ModelProfile,
    shard: Shard,
    size: StageSize,
    *,
    process_bytes: int = 0,
    cost: EngineCost | None = None,
) -> StagePlan:
    """Compute the memory requirement of ``shard``. No file is read.

    ``process_bytes`` is the memory of the process without its engine. ``cost`` is the engine's cost
    (by default that of ``size.backend``). A head tied to the embedding is the same tensor and
    counts once. Raise ``ParameterError`` if the model does not support the context or if weights
    cannot be mapped, and the errors of ``check_backend``, ``check_weights`` and ``cost_of``.
    """
    engine = cost or cost_of(size.backend)
    if size.is_mapped and not engine.abilities.maps_weights:
        raise ParameterError(
            "mmap",
            f"the backend {size.backend} does not support memory-mapped weights",
            hint=f"omit --mmap, or use --backend {NATIVE}",
        )
    program = program_to_count(profile.config, shard, size.context_tokens)
    check_backend(size.backend, engine, program)
    stored = check_weights(program, profile, path=profile.path)
    loaded = loaded_weights(program, stored, size.quantization)
    check_backend(size.backend, engine, program, matrix_formats(loaded))
    weights: Counter[str] = Counter()
    for info in loaded:
        weights[info.format.label] += engine.loaded_bytes(info)
    by_format = tuple(weights.most_common())
    staging = staging_bytes(stored, loaded) + profile.decoding_bytes
    if size.is_mapped:
        # Imported here, so that agents that do not plan can start without the compiled core.
        from potluck.engines.native.packing import packing_bytes

        staging += packing_bytes(loaded)
    else:
        staging += max(map(engine.staging_bytes, loaded), default=0)
    has_rope = bool(program.ropes)
    cache_bytes = engine.cache_bytes(program, size.num_blocks)
    held_bytes = engine.cache_bytes(program, size.num_blocks, size.num_states)
    memory = MemoryPlan(
        weights=() if size.is_mapped else by_format,
        mapped=by_format if size.is_mapped else (),
        cache_bytes=cache_bytes,
        state_bytes=held_bytes - cache_bytes,
        rope_bytes=rope_table_bytes(profile.config, size.context_tokens) if has_rope else 0,
        scratch_bytes=engine.scratch_bytes(
            program, size.max_step_tokens, num_threads=size.num_threads, arithmetic=size.arithmetic
        ),
        staging_bytes=staging,
        process_bytes=process_bytes + engine.process_bytes,
        is_on_device=size.is_on_device,
    )
    multiplied = _multiplied(program)
    return StagePlan(
        shard=shard,
        size=size,
        memory=memory,
        read_bytes=sum(info.num_bytes for info in stored),
        remarks=format_remarks(program, stored, size.quantization),
        product_formats=frozenset(
            info.format.label
            for weight, info in zip(program.weights, loaded, strict=True)
            if weight.name in multiplied
        ),
    )


def matrix_formats(loaded: Iterable[TensorInfo]) -> frozenset[TensorFormat]:
    """Return the formats in which matrices and stacks of matrices are loaded."""
    return frozenset(info.format for info in loaded if len(info.shape) > 1)


def _multiplied(program: Program) -> frozenset[str]:
    """Return the names of the matrices that are used in products."""
    names: set[str] = set()
    for op in program.ops:
        if isinstance(op, Linear | HeadLinear | Head):
            if op.weight is not None:
                names.add(op.weight)
        elif isinstance(op, Moe):
            names.update(filter(None, (op.gate, op.up, op.down)))
    return frozenset(names)


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
        own_bytes += _RESULT_TIMES * result_bytes(
            size.max_step_tokens,
            sequences_in_step(size.max_step_tokens),
            profile.config.hidden_size,
        )
    return plan_stage(profile, shard, size, process_bytes=own_bytes, cost=cost)
