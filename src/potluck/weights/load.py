"""From a source to a sink, tensor by tensor, through one small buffer."""

from __future__ import annotations

from collections.abc import Callable

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.types.program import Program, WeightSpec
from potluck.types.tensor import TensorInfo, TensorSink, TensorSource

STAGING_BYTES = 32 * 2**20
"""What loading holds besides the weights. Large enough for a disk to stream, and small beside any
model; a tensor whose single row is larger gets a buffer of one row."""

Progress = Callable[[int, int], None]
"""Called with bytes loaded and bytes in all, from ``(0, total)`` to ``(total, total)``."""


def load_weights(
    program: Program,
    source: TensorSource,
    sink: TensorSink,
    *,
    path: str = "the model",
    on_progress: Progress | None = None,
) -> None:
    """Hand every tensor that ``program`` reads from ``source`` to ``sink``, as it is stored.

    All tensors are checked (see ``check_weights``) before the first byte is read. ``path`` is what
    messages call the model. ``source`` and ``sink`` stay the caller's; after an error from either,
    which is passed on, the last tensor of the sink may be begun and not finished, and nothing
    else refers to the buffer.
    """
    infos = check_weights(program, source, path=path)
    total = sum(info.num_bytes for info in infos)
    report = on_progress or _ignore
    report(0, total)
    done = 0
    staging = bytearray(max((_block_rows(info) * info.row_bytes for info in infos), default=0))
    with memoryview(staging) as view:
        for info in infos:
            sink.begin(info)
            block_rows = _block_rows(info)
            for start in range(0, info.num_rows, block_rows):
                end = min(start + block_rows, info.num_rows)
                with view[: (end - start) * info.row_bytes] as block:
                    source.read_rows(info.name, start, end, block)
                    sink.write_rows(info.name, start, end, block)
                    done += len(block)
                report(done, total)
            sink.finish(info.name)


def check_weights(
    program: Program, source: TensorSource, *, path: str = "the model"
) -> tuple[TensorInfo, ...]:
    """What ``source`` has for each of the program's weights, in the program's order.

    Raises ``ModelFileError`` when a tensor is missing, has another shape than the program's, or
    has rows that are not whole blocks of its format: the first such is named and the others are
    counted. Raises ``UnsupportedModelError`` when a tensor's type cannot be used, also for a
    vector in blocks: norms and biases are added and multiplied as numbers.
    """
    infos: list[TensorInfo] = []
    problems: list[str] = []
    for spec in program.weights:
        try:
            info = source.info(spec.name)
        except KeyError:
            problems.append(f"the tensor {spec.name} {list(spec.shape)} is missing")
            continue
        problem = _contradiction(spec, info)
        if problem:
            problems.append(problem)
        elif info.format.is_quantized and len(info.shape) == 1:
            raise UnsupportedModelError(
                f"{path}: the vector {spec.name} is stored as {info.format.label}",
                missing=(f"{info.format.label} vectors",),
                hint="choose a file whose norms and biases are F32, F16 or BF16",
            )
        else:
            infos.append(info)
    if problems:
        others = f" (and {len(problems) - 1} more such)" if len(problems) > 1 else ""
        raise ModelFileError(
            path,
            problems[0] + others,
            hint="the file is damaged, or not of this model: get it again",
        )
    return tuple(infos)


def _contradiction(spec: WeightSpec, info: TensorInfo) -> str:
    """Why the tensor cannot be what the program expects, or nothing."""
    if info.shape != spec.shape:
        return (
            f"the tensor {spec.name} has the shape {list(info.shape)}, and the model's "
            f"configuration says {list(spec.shape)}"
        )
    if info.num_columns % info.format.block_elements:
        return (
            f"the tensor {spec.name} has rows of {info.num_columns}, which are not whole "
            f"{info.format.label} blocks of {info.format.block_elements}"
        )
    return ""


def _block_rows(info: TensorInfo) -> int:
    """Rows that pass through the buffer at once."""
    return max(1, min(info.num_rows, STAGING_BYTES // max(1, info.row_bytes)))


def _ignore(done_bytes: int, total_bytes: int) -> None:
    pass
