"""Loading one stage in its worker."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from potluck.catalog import ModelDescription, describe_model, open_vocabulary, read_profile
from potluck.cluster.worker.keeping import KeptBlocks, open_keeper
from potluck.cluster.worker.messages import Load
from potluck.cluster.worker.plan import plan_worker
from potluck.engines.opening import open_engine
from potluck.errors import EngineError
from potluck.grammars.limits import grammar_bytes
from potluck.grammars.vocabulary import Vocabulary
from potluck.loading import PackedCache, Room, StageSize, default_packed_folder
from potluck.loading.load import LoadedStage
from potluck.loading.prepare import plan_stages, prepare_stages
from potluck.models.program import weight_specs
from potluck.models.shape import model_shape
from potluck.probe.memory import available_memory, held_bytes
from potluck.quantities import format_bytes, format_seconds
from potluck.types.engine import LoadableEngine
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.types.tensor import TensorFormat
from potluck.weights.report import remark_lines

_log = logging.getLogger(__name__)

_NO_FORMAT = TensorFormat.F32.label


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShare:
    """A stage, the plan that it was loaded by, and what that took.

    ``open_vocabulary`` reads the model's tokens, for grammars.

    ``model_shape`` (see ``types.speed``) says with which models' step times its own compare.
    ``kept_blocks`` is None where no cache blocks are kept on disk.
    """

    stage: LoadedStage
    memory: MemoryPlan
    read_bytes: int
    seconds: float
    model_shape: str
    open_vocabulary: Callable[[], Vocabulary]
    kept_blocks: KeptBlocks | None


def load_for(
    load: Load,
    on_progress: Callable[[int, int], None],
    on_fetch: Callable[[int, int], None],
    on_warm_up: Callable[[], None],
    make_engine: Callable[..., LoadableEngine] = open_engine,
) -> LoadedShare:
    """Make the engine of ``load`` and fill it, from files that are fetched if need be.

    Weights that are to be mapped and cannot be kept packed are loaded, if they fit. Raises a
    ``PotluckError``, also when the memory does not suffice; nothing is left open then.
    """
    started = time.monotonic()
    spec = load.spec
    description = describe_model(spec.model)
    shard = Shard(
        start_layer=spec.start_layer,
        end_layer=spec.end_layer,
        num_layers=description.config.num_layers,
        has_embedding=spec.has_embedding,
        has_head=spec.has_head,
    )
    size = StageSize(
        context_tokens=spec.context_tokens,
        num_blocks=spec.num_blocks,
        num_states=spec.num_states,
        max_step_tokens=spec.max_step_tokens,
        num_threads=load.num_threads,
        quantization=spec.quantization,
        is_mapped=spec.is_mapped,
        arithmetic=spec.arithmetic,
        backend=load.unit.backend,
        is_on_device=load.device_free_bytes is not None,
    )
    profile = read_profile(description, [shard])
    plan = plan_stages(
        profile,
        [shard],
        size,
        load.unit,
        _room(load),
        plan_one=plan_worker,
    )
    prepared = prepare_stages(
        description,
        plan,
        room=lambda: _room(load),
        cache=PackedCache(default_packed_folder(os.environ), load.packed_cache_bytes),
        plan_one=plan_worker,
        make_engine=make_engine,
        on_fetch=on_fetch,
        on_progress=on_progress,
        on_warm_up=lambda _done, _total: on_warm_up(),
        with_key=spec.cache_disk_bytes > 0,
    )
    (stage,) = prepared.stages
    report = stage.report
    _log.info("read %s in %s", format_bytes(report.read_bytes), format_seconds(report.seconds))
    for line in remark_lines(report.remarks):
        _log.info("%s", line)
    kept_blocks = None
    if spec.cache_disk_bytes:
        kept_blocks = open_keeper(description, stage, spec.cache_disk_bytes, os.environ)
    return LoadedShare(
        stage=stage,
        memory=prepared.plan.memory,
        read_bytes=prepared.read_bytes,
        seconds=time.monotonic() - started,
        model_shape=model_shape(
            description.config,
            _dominant_format(description, prepared.plan.profile, shard, spec.quantization),
            spec.arithmetic,
        ),
        open_vocabulary=partial(_open_vocabulary, description, prepared.plan.memory.host_bytes),
        kept_blocks=kept_blocks,
    )


def _dominant_format(
    description: ModelDescription, profile: ModelProfile, shard: Shard, quantization: Quantization
) -> str:
    """Return the label of the format that most bytes of the layers' matrices are loaded in.

    ``placement.work`` says the same of the whole model; its layers hardly differ in that. A stage
    without layers looks at all of them.
    """
    if shard.start_layer == shard.end_layer:
        shard, profile = Shard.whole(shard.num_layers), read_profile(description)
    num_bytes: Counter[str] = Counter()
    for weight in weight_specs(profile.config, shard):
        if weight.layer is not None and len(weight.shape) > 1:
            info = profile.info(weight.name)
            target = quantization.target(weight, info, shard.num_layers)
            num_bytes[target.label] += replace(info, format=target).num_bytes
    return max(num_bytes, key=lambda label: (num_bytes[label], label), default=_NO_FORMAT)


def _room(load: Load) -> Room:
    """What this process may hold: what it may still take and what it has, which plans count too."""
    free = available_memory()
    own = load.device_free_bytes
    return Room(
        host=MemoryLimit(bytes=free.bytes + held_bytes(), reason=free.reason),
        device=None if own is None else MemoryLimit(bytes=own, reason="what is free there"),
    )


def _open_vocabulary(description: ModelDescription, planned_bytes: int) -> Vocabulary:
    """The vocabulary, if there is memory for it besides the ``planned_bytes`` of this process.

    No plan counts what only grammars need: small boards would hold fewer layers for it. Raises
    ``EngineError`` where there is too little, and as ``open_vocabulary``.
    """
    needed = grammar_bytes(description.config.vocab_size)
    available = available_memory().bytes - max(0, planned_bytes - held_bytes())
    if available < needed:
        raise EngineError(
            f"following a grammar takes {format_bytes(needed)} here, and"
            f" {format_bytes(max(0, available))} are free",
            hint="deploy the model with a smaller --cache, or its last layers on another node",
        )
    return open_vocabulary(description)
