"""Measure the cost of coarser scales of quantized activations: METHODOLOGY, "Activation scales".

    PYTHONPATH=.:tests python benchmarks/activation_scales.py OUT.json [--documents 200]

Products with quantized weights take activations of 8 bits. Potluck gives every 32 of them a scale
(ADR 4); a matrix unit would rather have one for 256, or one for a whole row. Both are tried here in
the reference engine's arithmetic: on the loss of the demo model on text that it was not trained on,
and on the output of one layer whose activations have heavy tails.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from circumstances import circumstances
from command_line import documented_parser
from numpy.typing import NDArray
from support.reference import ops as reference_ops
from support.reference.engine import ReferenceEngine

from potluck.catalog.description import (
    canonical_source,
    describe_model,
    load_tokenizer,
    open_weights,
)
from potluck.engines.dequantize import dequantize
from potluck.kernels import convert_rows
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.program import Shard
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo
from tools.demo_model.documents import HELD_OUT_DOCUMENTS, HELD_OUT_SEED, document

SCHEMA = "potluck.benchmark.activation_scales/1"
FORMATS = (TensorFormat.Q8_0, TensorFormat.Q4_0, TensorFormat.Q4_K)
GROUPS: Mapping[str, int | None] = {"32": 32, "256": 256, "row": None}
"""The number of columns that share a scale; None means all of them."""

_MOST = 127
_NUM_TOKENS, _NUM_ROWS, _NUM_COLUMNS = 64, 256, 8192
_CONTEXT_TOKENS = 2048

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Draw = Callable[[np.random.Generator], F32]


def quantized(x: F32, group: int | None) -> F32:
    """Round ``x [tokens, columns]`` to 8 bits, with a scale for every ``group`` columns, whose
    largest value becomes 127, as the kernels do. The last group may be shorter.
    """
    size = x.shape[1] if group is None else group
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % size)))
    groups = padded.reshape(len(x), -1, size)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(_MOST)
    values = np.rint(groups / np.where(scales > 0, scales, np.float32(1))) * scales
    return np.ascontiguousarray(values.reshape(len(x), -1)[:, : x.shape[1]], np.float32)


def converted(stored: bytes, info: TensorInfo, target: TensorFormat) -> bytearray:
    """Return all rows of a tensor in another format."""
    out = bytearray(target.row_bytes(info.num_columns) * info.num_rows)
    convert_rows(
        memoryview(stored),
        info.format.label,
        target.label,
        info.num_rows,
        info.num_columns,
        memoryview(out),
        None,
    )
    return out


class DemoModel:
    """The demo model in the reference engine, with matrices in ``fmt`` (None: unchanged)."""

    def __init__(self, fmt: TensorFormat | None) -> None:
        description = describe_model("demo")
        rope = rope_tables(description.config, _CONTEXT_TOKENS)
        shard = Shard.whole(description.config.num_layers)
        program = build_program(
            description.config, shard, context_tokens=_CONTEXT_TOKENS, ropes=rope
        )
        self._tokenizer = load_tokenizer(description.files)
        num_blocks = _CONTEXT_TOKENS // KV_BLOCK_TOKENS
        self._engine = ReferenceEngine(program, num_blocks=num_blocks)
        self._num_blocks = num_blocks
        sink = self._engine.sink()
        with closing(open_weights(description, [shard])) as files:
            source = canonical_source(description, files, program)
            for weight in program.weights:
                info = source.info(weight.name)
                stored = bytearray(info.num_bytes)
                source.read_rows(weight.name, 0, info.num_rows, memoryview(stored))
                if fmt is not None and len(info.shape) > 1:
                    stored = converted(bytes(stored), info, fmt)
                    info = TensorInfo(name=info.name, shape=info.shape, format=fmt)
                sink.begin(info)
                sink.write_rows(info.name, 0, info.num_rows, memoryview(stored))
                sink.finish(info.name)

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a document that has its special tokens spelt out."""
        return tuple(self._tokenizer.encode(text, add_bos=False, parse_special=True))

    def logits(self, number: int, tokens: Sequence[int]) -> F32:
        """Return ``[len(tokens), vocabulary]`` for a new sequence; ``number`` must be unique."""
        part = SequenceSlice(
            sequence_id=SequenceId(number),
            tokens=tuple(tokens),
            start_position=0,
            block_table=tuple(range(-(-len(tokens) // KV_BLOCK_TOKENS))),
            sample=True,
        )
        step = Step(step_id=StepId(number), slices=(part,), opened=(), closed=(SequenceId(number),))
        return self._engine.logits(step, None)


@contextlib.contextmanager
def activations_in_groups(rounded: Callable[[F32], F32]) -> Iterator[None]:
    """Let products of the reference engine take ``rounded`` activations, and the head return the
    logits of all tokens.
    """
    linear = reference_ops.linear

    def rounded_linear(
        x: F32,
        weight: F32,
        bias: F32 | None,
        multiply: reference_ops.Product = reference_ops.product,
    ) -> F32:
        return linear(rounded(x), weight, bias, multiply)

    def rounded_head(
        x: F32,
        weight: F32,
        wanted: NDArray[np.int64],
        scale: float,
        softcap: float | None,
        multiply: reference_ops.Product = reference_ops.product,
    ) -> F32:
        logits = np.float32(scale) * linear(rounded(x), weight, None, multiply)
        return reference_ops.cap(logits, softcap)

    with (
        mock.patch.object(reference_ops, "linear", rounded_linear),
        mock.patch.object(reference_ops, "head", rounded_head),
    ):
        yield


def log_softmax(logits: F32) -> F64:
    """Return the log-softmax over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    totals = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    difference: F64 = shifted - totals
    return difference


@dataclass(slots=True)
class Loss:
    """Sums over predicted tokens: of the loss, and of the divergence from float activations."""

    num_tokens: int = 0
    nats: float = 0.0
    divergence: float = 0.0

    def add(self, predicted: F64, exact: F64, tokens: Sequence[int]) -> None:
        """Log probabilities ``[tokens - 1, vocabulary]`` after all tokens but the last."""
        following = np.array(tokens[1:])
        self.num_tokens += len(following)
        self.nats -= float(predicted[np.arange(len(following)), following].sum())
        self.divergence += float((np.exp(exact) * (exact - predicted)).sum())


def demo_losses(fmt: TensorFormat | None, num_documents: int) -> dict[str, dict[str, float]]:
    """Return, by scale (``float`` is none), nats per token, perplexity, and the mean divergence
    from float activations with the same weights.
    """
    model = DemoModel(fmt)
    ways: dict[str, Callable[[F32], F32]] = {"float": lambda x: x}
    if fmt is not None:
        ways |= {name: partial(quantized, group=group) for name, group in GROUPS.items()}
    losses = {name: Loss() for name in ways}
    number = 0
    for index in range(num_documents):
        tokens = model.tokens(document(HELD_OUT_SEED, index))
        predicted: dict[str, F64] = {}
        for name, rounded in ways.items():
            number += 1
            with activations_in_groups(rounded):
                predicted[name] = log_softmax(model.logits(number, tokens)[:-1])
            losses[name].add(predicted[name], predicted["float"], tokens)
    return {
        name: {
            "num_tokens": loss.num_tokens,
            "nats_per_token": loss.nats / loss.num_tokens,
            "perplexity": math.exp(loss.nats / loss.num_tokens),
            "divergence_nats_per_token": loss.divergence / loss.num_tokens,
        }
        for name, loss in losses.items()
    }


def normal(rng: np.random.Generator) -> F32:
    """Draw activations without a tail."""
    return rng.standard_normal((_NUM_TOKENS, _NUM_COLUMNS), np.float32)


def student(rng: np.random.Generator, *, degrees: float) -> F32:
    """Draw from Student's t: the fewer degrees of freedom, the heavier the tail."""
    return rng.standard_t(degrees, (_NUM_TOKENS, _NUM_COLUMNS)).astype(np.float32)


def outlier_columns(rng: np.random.Generator) -> F32:
    """Draw activations with six columns twenty times as large in every token, as Dettmers et al.
    2022 (LLM.int8(), section 4) found in models of 6.7 billion weights.
    """
    x = normal(rng)
    x[:, rng.choice(_NUM_COLUMNS, 6, replace=False)] *= 20
    return x


def massive_activation(rng: np.random.Generator) -> F32:
    """Draw activations with one column a thousand times as large, as Sun et al. 2024 ("Massive
    Activations in Large Language Models") found at some tokens; here at all tokens.
    """
    x = normal(rng)
    x[:, rng.integers(_NUM_COLUMNS)] = 1000
    return x


DRAWS: Mapping[str, Draw] = {
    "normal": normal,
    "t, 4 degrees": partial(student, degrees=4.0),
    "t, 3 degrees": partial(student, degrees=3.0),
    "t, 2.5 degrees": partial(student, degrees=2.5),
    "6 columns × 20": outlier_columns,
    "1 column of 1000": massive_activation,
}


def layer_errors(draw: Draw, fmt: TensorFormat) -> dict[str, float]:
    """Return the root mean square error of a layer's output relative to that of the output, by
    scale.

    ``weights`` is the error of quantizing the weights alone, which no scale of activations avoids.
    Only the part of outputs and errors that differs between tokens counts: a column that is huge in
    all of them adds the same to every token's output, and carries no information.
    """
    rng = np.random.default_rng(1)
    exact = rng.standard_normal((_NUM_ROWS, _NUM_COLUMNS), np.float32) * np.float32(0.02)
    info = TensorInfo(name="weight", shape=exact.shape, format=TensorFormat.F32)
    weights = dequantize(memoryview(converted(exact.tobytes(), info, fmt)), fmt, _NUM_COLUMNS)
    x = draw(rng)
    output = reference_ops.linear(x, weights, None)
    errors = {"weights": reference_ops.linear(x, exact, None) - output}
    for name, group in GROUPS.items():
        errors[name] = reference_ops.linear(quantized(x, group), weights, None) - output
    norm = _deviation(output)
    return {name: _deviation(error) / norm for name, error in errors.items()}


def _deviation(x: F32) -> float:
    """Return the root mean square deviation of rows from their mean."""
    return float(np.sqrt(np.mean(np.square(x - x.mean(axis=0), dtype=np.float64))))


def main() -> None:
    """Compute both, write and print them."""
    parser = documented_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=HELD_OUT_DOCUMENTS)
    arguments = parser.parse_args()
    document = {
        "schema": SCHEMA,
        **circumstances(),
        "num_documents": arguments.documents,
        "layer_errors": {
            fmt.name: {name: layer_errors(draw, fmt) for name, draw in DRAWS.items()}
            for fmt in FORMATS
        },
        "demo": {
            "BF16" if fmt is None else fmt.name: demo_losses(fmt, arguments.documents)
            for fmt in (None, *FORMATS)
        },
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: document[key] for key in ("layer_errors", "demo")}, indent=1))


if __name__ == "__main__":
    main()
