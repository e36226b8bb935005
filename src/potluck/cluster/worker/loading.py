"""Loading one stage in its worker."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from potluck.catalog import (
    ContentOpener,
    ManifestView,
    ModelDescription,
    describe_model,
    describe_view,
    open_vocabulary,
    read_profile,
)
from potluck.catalog.needs import sample_shard
from potluck.cluster.wire.worker_messages import Load, StageSpec
from potluck.cluster.worker.block_keeper import KeptBlocks, open_keeper
from potluck.engines.backends import open_engine
from potluck.engines.loading import PackedCache, Room, default_packed_folder
from potluck.engines.loading.load import LoadedStage
from potluck.engines.loading.plan import plan_worker
from potluck.engines.loading.prepare import plan_stages, prepare_stages
from potluck.errors import EngineError, PotluckError
from potluck.grammars.limits import grammar_bytes
from potluck.grammars.vocabulary import Vocabulary
from potluck.host.memory import available_memory, held_bytes
from potluck.models.program import weight_specs
from potluck.models.shape import model_shape
from potluck.types.choices import Quantization
from potluck.types.engine import LoadableEngine
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes, format_seconds
from potluck.types.quantization import target_format
from potluck.types.stage import StageSize
from potluck.types.tensor import TensorFormat
from potluck.weights.load import remark_lines

_log = logging.getLogger(__name__)

_NO_FORMAT = TensorFormat.F32.label


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShare:
    """A stage, its plan, and the cost of loading it.

    ``open_vocabulary`` reads the model's tokens, for grammars. ``model_shape`` (see
    ``types.speed``) says which models have comparable step times. ``kept_blocks`` is None if no
    cache blocks are stored on disk.
    """

    stage: LoadedStage
    memory: MemoryPlan
    read_bytes: int
    seconds: float
    model_shape: str
    open_vocabulary: Callable[[], Vocabulary]
    kept_blocks: KeptBlocks | None


class LoadListener(Protocol):
    """Receives the progress of loading, as bytes done and in total."""

    def fetching(self, done_bytes: int, total_bytes: int) -> None:
        """Note that files are being fetched from the hub."""
        ...

    def loading(self, done_bytes: int, total_bytes: int) -> None:
        """Note that weights are being loaded."""
        ...

    def warming_up(self) -> None:
        """Note that all weights are loaded."""
        ...


def load_for(
    load: Load,
    listener: LoadListener,
    make_engine: Callable[..., LoadableEngine] = open_engine,
    opener: ContentOpener | None = None,
) -> LoadedShare:
    """Make the engine of ``load`` and load its weights, fetching files if necessary.

    ``opener`` opens files of a model that is known by content, now and when a grammar is used.
    Weights that are to be mapped and cannot be stored packed are loaded instead, if they fit. Raise
    a ``PotluckError``, also if the memory does not suffice; nothing is left open then.
    """
    started = time.monotonic()
    spec = load.spec
    description = _describe(spec, opener)
    # As it is now: the file may have changed since the plan was made.
    shard = replace(spec.shard, num_layers=description.config.num_layers)
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
        on_fetch=listener.fetching,
        on_progress=listener.loading,
        on_warm_up=lambda _done, _total: listener.warming_up(),
        with_key=spec.cache_disk_bytes > 0,
    )
    (stage,) = prepared.stages
    report = stage.report
    _log.info("read %s in %s", format_bytes(report.read_bytes), format_seconds(report.seconds))
    for line in remark_lines(report.remarks):
        _log.info("%s", line)
    view = description.files.view
    if view is not None and shard.has_head:
        try:
            view.fetch_small_files()
        except PotluckError as error:
            _log.warning("grammars are not available: %s", error.message)
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


def _describe(spec: StageSpec, opener: ContentOpener | None) -> ModelDescription:
    files = spec.files
    if files is None:
        return describe_model(spec.model)
    if opener is None:
        raise ValueError("the files are known by content, but nothing opens them")
    view = ManifestView(files.manifest, opener, name=spec.model, job=files.job, keep=files.keep)
    return describe_view(view)


def _dominant_format(
    description: ModelDescription, profile: ModelProfile, shard: Shard, quantization: Quantization
) -> str:
    """Return the label of the format in which most bytes of the layers' matrices are loaded.

    ``placement.work`` does the same for the whole model; its layers hardly differ in that. A stage
    without layers checks all of them, or only one if headers of others would have to come from
    another node.
    """
    if shard.start_layer == shard.end_layer:
        is_known_by_content = description.files.view is not None
        whole = Shard.whole(shard.num_layers)
        shard = sample_shard(description.config) if is_known_by_content else whole
        profile = read_profile(description, [shard])
    num_bytes: Counter[str] = Counter()
    for weight in weight_specs(profile.config, shard):
        if weight.layer is not None and len(weight.shape) > 1:
            info = profile.info(weight.name)
            target = target_format(quantization, weight, info, shard.num_layers)
            num_bytes[target.label] += replace(info, format=target).num_bytes
    return max(num_bytes, key=lambda label: (num_bytes[label], label), default=_NO_FORMAT)


def _room(load: Load) -> Room:
    """Return what this process may hold: what it may still take and what it has, as in plans."""
    free = available_memory()
    own = load.device_free_bytes
    return Room(
        host=MemoryLimit(bytes=free.bytes + held_bytes(), reason=free.reason),
        device=None if own is None else MemoryLimit(bytes=own, reason="what is free there"),
    )


def _open_vocabulary(description: ModelDescription, planned_bytes: int) -> Vocabulary:
    """Return the vocabulary, if there is memory for it in addition to the ``planned_bytes``.

    Plans do not count what only grammars need: small boards would hold fewer layers for it. Raise
    ``EngineError`` if there is too little, and the same errors as ``open_vocabulary``.
    """
    needed = grammar_bytes(description.config.vocab_size)
    available = available_memory().bytes - max(0, planned_bytes - held_bytes())
    if available < needed:
        raise EngineError(
            f"using a grammar takes {format_bytes(needed)} here, but only"
            f" {format_bytes(max(0, available))} are free",
            hint="deploy the model with a smaller --cache, or its last layers on another node",
        )
    return open_vocabulary(description)
