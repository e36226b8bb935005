"""Find or create the packed file of a stage's weights."""

from __future__ import annotations

from potluck import kernels
from potluck.catalog import ModelDescription, canonical_source
from potluck.catalog.needs import announce
from potluck.engines.dequantize import dequantize
from potluck.engines.native.engine import convert_on, loaded_bytes
from potluck.engines.native.packing import PackingSink, packed_info
from potluck.engines.native.pool import ThreadPool
from potluck.formats.packed import packed_layout
from potluck.formats.source import FileTensorSource
from potluck.loading.packed_cache import PackedCache, PackedWeights, Write
from potluck.loading.packed_key import packed_key
from potluck.loading.plan import program_to_count
from potluck.types.stage import StagePlan
from potluck.weights.load import Progress, check_weights, load_weights, loaded_weights


def packed_weights(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: StagePlan,
    *,
    pool: ThreadPool,
    cache: PackedCache,
    on_progress: Progress | None = None,
) -> PackedWeights:
    """Map the packed file of a planned stage, creating it first if there is none.

    Creating it needs the memory that ``plan`` has for staging. Raise ``NotPackedError`` if it
    cannot be stored, and the errors of reading the model.
    """
    path = description.files.label
    quantization = plan.size.quantization
    program = program_to_count(description.config, plan.shard, plan.size.context_tokens)
    source = canonical_source(description, tensors, program, dequantize=dequantize)
    stored = check_weights(program, source, path=path)
    loaded = [packed_info(info) for info in loaded_weights(program, stored, quantization)]
    key = packed_key(description, tensors, program, loaded)
    layout = packed_layout(
        [(info, loaded_bytes(info)) for info in loaded],
        key=key,
        panel_layout=kernels.PANEL_LAYOUT,
    )
    offsets = {tensor.info.name: tensor.offset for tensor in layout.tensors}

    def make(write: Write) -> None:
        announce(description, tensors, program)
        load_weights(
            program,
            source,
            PackingSink(pool, lambda name, offset, data: write(offsets[name] + offset, data)),
            convert=convert_on(pool),
            quantization=quantization,
            path=path,
            on_progress=on_progress,
        )
        tensors.check_unchanged()

    weights = cache.weights(key, layout, make)
    if on_progress is not None:
        on_progress(plan.read_bytes, plan.read_bytes)
    return weights
