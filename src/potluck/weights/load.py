"""Copy tensors from a source to a sink, through one small buffer."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

from potluck.errors import EngineError, ModelFileError, UnsupportedModelError
from potluck.types.choices import Quantization
from potluck.types.profile import ModelProfile
from potluck.types.program import Program, WeightSpec
from potluck.types.quantization import target_format, wanted_format
from potluck.types.stage import TensorRemark
from potluck.types.tensor import TensorFormat, TensorInfo, TensorSink, TensorSource
from potluck.weights.divided import DividedSource

STAGING_BYTES = 32 * 2**20
"""The total memory that loading uses in addition to the weights. It is large enough for streaming
from a disk, and small compared to any model; a tensor with larger rows gets buffers of one row.
"""

BUFFER_BYTES = 5 * 2**20
"""The size of each buffer into which rows are read, and of the one for converted rows. The rest of
``STAGING_BYTES`` is for undoing an interleaving (``UNDOING_BYTES``)."""

_ROWS_TOGETHER = 256
"""A block with at least this many rows ends at a multiple of it, so that no panel of an engine is
written twice, and no head (of 64, 128 or 256 rows) with interleaved halves is read twice."""
_NUM_READ_BUFFERS = 4
"""One buffer that the sink reads, and three to read ahead: with only one of these, each of the two
threads would wait whenever the other is delayed by the disk or by other processes.
"""

Progress = Callable[[int, int], None]
"""Called with the loaded and the total bytes, from ``(0, total)`` to ``(total, total)``."""

Convert = Callable[[memoryview, TensorFormat, memoryview, TensorFormat, int, int], None]
"""Converts rows to another format. The arguments are the source and its format, the target and its
format, the number of rows, and the number of columns."""

UNDOING_BYTES = 2**20
"""The memory for undoing an interleaving (or one pair of rows, if larger)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of loading: bytes of ``weights`` by format (label, bytes), and the ``read_bytes``
    from the source.
    """

    read_bytes: int
    seconds: float
    weights: tuple[tuple[str, int], ...]
    remarks: tuple[TensorRemark, ...] = ()


def load_weights(
    program: Program,
    source: TensorSource,
    sink: TensorSink,
    *,
    convert: Convert | None = None,
    quantization: Quantization = Quantization.NONE,
    path: str = "the model",
    on_progress: Progress | None = None,
) -> LoadReport:
    """Copy every tensor that ``program`` reads from ``source`` to ``sink``.

    ``source`` has whole tensors; if the program needs only some rows (``WeightRows``), only these
    are read. A separate thread reads the next rows while the sink processes the previous ones. The
    report's ``weights`` are the bytes passed to the sink.

    A ``quantization`` other than NONE requires ``convert``, and so does a router that is not stored
    in float32. All tensors are checked (see ``check_weights``) before the first byte is read.
    ``path`` is the model's name in messages. The caller owns ``source`` and ``sink``. Errors of
    either are propagated; the sink's last tensor may then be incomplete, but nothing refers to the
    buffers any more.
    """
    started = time.perf_counter()
    infos = check_weights(program, source, path=path)
    tensors = _tensors(infos, loaded_weights(program, infos, quantization))
    if convert is None and any(tensor.is_converted for tensor in tensors):
        raise ValueError("weights need conversion, but no conversion function is given")
    blocks = [block for tensor in tensors for block in tensor.blocks()]
    total = sum(block.num_bytes for block in blocks)
    report = on_progress or _ignore
    report(0, total)
    buffer_bytes, converted_bytes = _buffer_bytes(blocks)
    parts = DividedSource(source, program.weights)
    buffers = [memoryview(bytearray(buffer_bytes)) for _ in range(_NUM_READ_BUFFERS)]
    converted = memoryview(bytearray(converted_bytes))

    def read(index: int) -> memoryview:
        block = blocks[index]
        out = buffers[index % _NUM_READ_BUFFERS][: block.num_bytes]
        parts.read_rows(block.tensor.stored.name, block.start_row, block.end_row, out)
        return out

    done = 0
    with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
        ahead = deque(reader.submit(read, i) for i in range(min(_NUM_READ_BUFFERS, len(blocks))))
        for index, block in enumerate(blocks):
            tensor = block.tensor
            if block.start_row == 0:
                sink.begin(tensor.loaded)
            rows = ahead.popleft().result()
            if convert is not None and tensor.is_converted:
                target = converted[: block.loaded_bytes]
                stored, loaded = tensor.stored, tensor.loaded
                num_rows = block.end_row - block.start_row
                try:
                    convert(
                        rows, stored.format, target, loaded.format, num_rows, stored.num_columns
                    )
                except EngineError as error:
                    name = _name_in_files(source, stored.name)
                    problem = f"{name}, rows from {block.start_row}: {error.message}"
                    raise ModelFileError(path, problem, hint=error.hint) from error
                rows = target
            sink.write_rows(tensor.loaded.name, block.start_row, block.end_row, rows)
            if index + _NUM_READ_BUFFERS < len(blocks):
                ahead.append(reader.submit(read, index + _NUM_READ_BUFFERS))
            if block.end_row == tensor.stored.num_rows:
                sink.finish(tensor.loaded.name)
            done += block.num_bytes
            report(done, total)
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[tensor.loaded.format.label] += tensor.loaded.num_bytes
    return LoadReport(
        read_bytes=done,
        seconds=time.perf_counter() - started,
        weights=tuple(weights.most_common()),
    )


def loaded_weights(
    program: Program, stored: Iterable[TensorInfo], quantization: Quantization
) -> tuple[TensorInfo, ...]:
    """Return the program's weights as they are loaded; ``stored`` are the same weights in the
    files, in the program's order.
    """
    num_layers = program.shard.num_layers
    return tuple(
        dataclasses.replace(info, format=target_format(quantization, weight, info, num_layers))
        for weight, info in zip(program.weights, stored, strict=True)
    )


def format_remarks(
    program: Program, stored: Sequence[TensorInfo], quantization: Quantization
) -> tuple[TensorRemark, ...]:
    """Return remarks about weights whose format differs from the one that ``quantization``
    specifies.

    These are matrices whose rows are not whole blocks of it, or that are stored in a format without
    kernels; ``stored`` is as in ``loaded_weights``.
    """
    num_layers = program.shard.num_layers
    remarks = []
    for weight, info in zip(program.weights, stored, strict=True):
        wanted = wanted_format(quantization, weight, info, num_layers)
        loaded = target_format(quantization, weight, info, num_layers)
        if loaded is not wanted:
            remark = (
                f"{loaded.label} instead of {wanted.label}, because rows of {info.num_columns} "
                f"are not a multiple of the block size {wanted.block_elements}"
            )
            remarks.append(TensorRemark(name=info.name, remark=remark))
        elif not info.format.has_kernels:
            remark = f"{loaded.label}, because there are no kernels for {info.format.label}"
            remarks.append(TensorRemark(name=info.name, remark=remark))
    return tuple(remarks)


def remark_lines(remarks: Iterable[TensorRemark]) -> Iterator[str]:
    """Yield each remark once for messages, with the number of tensors concerned.

    A tensor that is on several stages counts once.
    """
    distinct = tuple(dict.fromkeys(remarks))
    count = Counter(each.remark for each in distinct)
    for remark, num_tensors in count.items():
        first = next(each for each in distinct if each.remark == remark)
        others = f" and {num_tensors - 1} more" if num_tensors > 1 else ""
        yield f"{first.name}{others}: {remark}"


def staging_bytes(stored: Iterable[TensorInfo], loaded: Iterable[TensorInfo]) -> int:
    """Return the memory that ``load_weights`` uses for these tensors, without the sink's."""
    # No block of a tensor is larger than its first.
    first = [b for each in _tensors(stored, loaded) for b in islice(each.blocks(), 1)]
    buffer_bytes, converted_bytes = _buffer_bytes(first)
    undoing = min(buffer_bytes, UNDOING_BYTES)
    return _NUM_READ_BUFFERS * buffer_bytes + converted_bytes + undoing


def check_weights(
    program: Program, source: TensorSource | ModelProfile, *, path: str = "the model"
) -> tuple[TensorInfo, ...]:
    """Check and return the stored tensor of each of the program's weights, in the program's order.

    ``source`` has whole tensors by their canonical names, or is the profile of such a source. If
    the program reads only some rows of a tensor, the part with these rows is returned. Raise
    ``ModelFileError`` if a tensor is missing, has a different shape than in the program, or has
    rows that are not whole blocks of its format; the error names the first such tensor and counts
    the others. Raise ``UnsupportedModelError`` if a tensor's type cannot be used, or if a vector is
    stored in blocks, since norms and biases must be plain numbers.
    """
    infos: list[TensorInfo] = []
    problems: list[str] = []
    for spec in program.weights:
        name = _name_in_files(source, spec.name)
        try:
            info = source.info(spec.name)
        except KeyError:
            problems.append(f"the tensor {name} {list(spec.whole_shape)} is missing")
            continue
        problem = _contradiction(name, spec, info)
        if problem:
            problems.append(problem)
        elif info.format.is_quantized and (len(info.shape) == 1 or _has_some_columns(spec)):
            raise UnsupportedModelError(
                f"{path}: the vector {name} is stored as {info.format.label}",
                missing=(f"{info.format.label} vectors",),
                hint="choose a file that stores norms and biases as F32, F16 or BF16",
            )
        else:
            infos.append(dataclasses.replace(info, shape=spec.shape))
    if problems:
        others = f" (and {len(problems) - 1} similar problems)" if len(problems) > 1 else ""
        raise ModelFileError(
            path,
            problems[0] + others,
            hint="the file is damaged, or belongs to another model: download it again",
        )
    return tuple(infos)


@runtime_checkable
class _KnowsFileNames(Protocol):
    """A ``CanonicalSource`` or a profile; importing the former would load NumPy."""

    def name_in_files(self, name: str) -> str: ...


def _name_in_files(source: TensorSource | ModelProfile, name: str) -> str:
    if isinstance(source, _KnowsFileNames):
        return source.name_in_files(name)
    return name


def _has_some_columns(spec: WeightSpec) -> bool:
    """Return whether the weight is a part of the vectors of several experts."""
    return spec.rows is not None and spec.rows.axis == len(spec.shape) - 1


def _contradiction(name: str, spec: WeightSpec, info: TensorInfo) -> str:
    """Return how the tensor contradicts the program, or empty."""
    if info.shape != spec.whole_shape:
        return (
            f"the tensor {name} has shape {list(info.shape)}, but the model's "
            f"configuration requires {list(spec.whole_shape)}"
        )
    if info.num_columns % info.format.block_elements:
        return (
            f"the tensor {name} has rows of {info.num_columns}, which are not a "
            f"multiple of the {info.format.label} block size {info.format.block_elements}"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor as it is stored and as it is loaded."""

    stored: TensorInfo
    loaded: TensorInfo

    @property
    def is_converted(self) -> bool:
        return self.stored.format is not self.loaded.format

    def blocks(self) -> Iterator[_Block]:
        """Yield all rows in blocks, as many at a time as fit into a buffer."""
        row_bytes = max(self.stored.row_bytes, self.loaded.row_bytes, 1)
        num_rows = self.stored.num_rows
        step = max(1, BUFFER_BYTES // row_bytes)
        if step > _ROWS_TOGETHER:
            step -= step % _ROWS_TOGETHER
        for start in range(0, num_rows, step):
            yield _Block(tensor=self, start_row=start, end_row=min(start + step, num_rows))


def _tensors(stored: Iterable[TensorInfo], loaded: Iterable[TensorInfo]) -> list[_Tensor]:
    return [
        _Tensor(stored=before, loaded=after) for before, after in zip(stored, loaded, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Rows that are copied through a buffer at once."""

    tensor: _Tensor
    start_row: int
    end_row: int

    @property
    def num_bytes(self) -> int:
        return (self.end_row - self.start_row) * self.tensor.stored.row_bytes

    @property
    def loaded_bytes(self) -> int:
        return (self.end_row - self.start_row) * self.tensor.loaded.row_bytes


def _buffer_bytes(blocks: Sequence[_Block]) -> tuple[int, int]:
    """Return the sizes of each read buffer, and of the buffer for converted rows."""
    return (
        max((block.num_bytes for block in blocks), default=0),
        max((block.loaded_bytes for block in blocks if block.tensor.is_converted), default=0),
    )


def _ignore(done_bytes: int, total_bytes: int) -> None:
    pass
