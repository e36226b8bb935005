"""Measure what quantizing a real model at load time costs: its perplexity on a fixed text.

    python benchmarks/perplexity.py MODEL.gguf OUT.json [--quant none q8_0 …] [--chunks 8]
    python benchmarks/perplexity.py MODEL.gguf OUT.json --files OTHER.gguf …

MODEL is widened to F16 in a temporary directory first, so that there is something to quantize;
``--files`` are other files of the same model, measured as they are. The text is the repository's
decision records, which do not change (``--text`` for another). It is cut into chunks of ``CHUNK``
tokens, each read alone, and the tokens of a chunk's second half are scored, as llama.cpp's
``llama-perplexity`` does it.

- *Perplexity*: exp of the mean negative log-probability of the scored tokens.
- *Divergence*: mean Kullback-Leibler divergence of the scored distributions from those of the
  model as it was widened, in nats. It tells apart what perplexity on a short text does not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import gguf
import numpy as np
from circumstances import write_result
from numpy.typing import NDArray

from potluck.catalog import describe_model, load_tokenizer, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import load_stage
from potluck.engines.native.pool import make_pool
from potluck.types.choices import Quantization
from potluck.types.engine import Engine, LoadableEngine
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId

SCHEMA = "potluck.benchmark.perplexity/1"
CHUNK = 512
"""The number of tokens of a chunk: the default context of llama-perplexity."""
STEP = 128
"""The number of tokens of a chunk in one prefill step."""
RECORDS = Path(__file__).parents[1] / "docs/adr"
FIRST_RECORD, LAST_RECORD = 1, 22

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def fixed_text() -> str:
    """Return the text of the decision records, in order."""
    paths = sorted(RECORDS.glob("0*.md"))
    chosen = [path for path in paths if FIRST_RECORD <= int(path.name[:4]) <= LAST_RECORD]
    return "\n".join(path.read_text(encoding="utf-8") for path in chosen)


def widen(source: Path, target: Path) -> None:
    """Write ``source`` with all matrices in F16, and everything else as it is."""
    reader = gguf.GGUFReader(str(source))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=element)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        is_matrix = len(tensor.shape) > 1
        writer.add_tensor(tensor.name, values.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def opened(
    model: Path, quantization: Quantization, num_chunks: int, num_threads: int
) -> Iterator[LoadableEngine]:
    """Load the whole model into one engine that has room for all chunks."""
    description = describe_model(str(model))
    shard = Shard.whole(description.config.num_layers)
    size = StageSize(
        context_tokens=CHUNK,
        num_blocks=num_chunks * CHUNK // KV_BLOCK_TOKENS,
        max_step_tokens=STEP,
        num_threads=num_threads,
        quantization=quantization,
    )
    plan = plan_stage(read_profile(description), shard, size)
    with closing(open_weights(description, [shard])) as tensors:
        print(f"{model.name} {quantization.value}: {plan.memory.described()}", flush=True)
        stage = load_stage(
            description, tensors, plan, unit=native_unit(), pool=make_pool(num_threads)
        )
    with closing(stage.engine):
        yield stage.engine


def log_probabilities(engine: Engine, chunks: Sequence[Sequence[int]]) -> Iterator[F32]:
    """Yield the log probabilities of the tokens after the first half, one position at a time, as
    ``[chunks, vocab]``.
    """
    half = CHUNK // 2
    for chunk, tokens in enumerate(chunks):
        for start in range(0, half, STEP):
            part = _slice(chunk, tokens, start, start + STEP, sample=False)
            engine.step(Step(step_id=StepId(start), slices=(part,)), None)
    for position in range(half, CHUNK - 1):
        slices = tuple(
            _slice(chunk, tokens, position, position + 1, sample=True)
            for chunk, tokens in enumerate(chunks)
        )
        logits = engine.logits(Step(step_id=StepId(position), slices=slices), None)
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
        yield shifted - np.log(sums).astype(np.float32)


def _slice(
    chunk: int, tokens: Sequence[int], start: int, end: int, *, sample: bool
) -> SequenceSlice:
    """Return a part of a chunk; every chunk has its own cache blocks."""
    num_blocks = CHUNK // KV_BLOCK_TOKENS
    return SequenceSlice(
        sequence_id=SequenceId(chunk),
        tokens=tuple(tokens[start:end]),
        start_position=start,
        block_table=tuple(range(chunk * num_blocks, (chunk + 1) * num_blocks)),
        sample=sample,
    )


class Exact:
    """The distributions of the widened model, kept on disk: they are larger than memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, position: int, values: F32) -> None:
        """Keep the log-probabilities at one position."""
        np.save(self._folder / f"{position}.npy", values)

    def divergence(self, position: int, values: F32) -> F64:
        """Return the divergence of ``values`` from the stored ones for each row, in nats."""
        exact = np.load(self._folder / f"{position}.npy")
        divergences: F64 = (np.exp(exact) * (exact - values)).sum(axis=1, dtype=np.float64)
        return divergences


def measure(
    engine: Engine, chunks: Sequence[Sequence[int]], exact: Exact, *, is_exact: bool
) -> dict[str, object]:
    """Measure the perplexity of the second halves, and their divergence."""
    started = time.perf_counter()
    losses: list[F32] = []
    divergences: list[F64] = []
    for position, values in enumerate(log_probabilities(engine, chunks), CHUNK // 2):
        if is_exact:
            exact.keep(position, values)
        following = [tokens[position + 1] for tokens in chunks]
        losses.append(-values[np.arange(len(chunks)), following])
        divergences.append(exact.divergence(position, values))
    loss = np.concatenate(losses).astype(np.float64)
    return {
        "perplexity": float(np.exp(loss.mean())),
        "standard_error": float(np.exp(loss.mean()) * loss.std() / np.sqrt(len(loss))),
        "divergence": float(np.concatenate(divergences).mean()),
        "num_scored": len(loss),
        "seconds": time.perf_counter() - started,
    }


def chunks_of(model: Path, text: str, count: int) -> list[list[int]]:
    """Return the text's first ``count`` chunks, each after the BOS token if the model has one."""
    tokenizer = load_tokenizer(describe_model(str(model)).files)
    leading = list(tokenizer.encode(""))
    tokens = list(tokenizer.encode(text, add_bos=False))
    body = CHUNK - len(leading)
    return [
        leading + tokens[start : start + body]
        for start in range(0, min(len(tokens) - body, count * body), body)
    ]


def main() -> None:
    """Measure, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quant", nargs="*", default=[each.value for each in Quantization])
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else fixed_text()
    chunks = chunks_of(arguments.model, text, arguments.chunks)
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        exact = Exact(Path(folder))
        wide = Path(folder) / "wide.gguf"
        widen(arguments.model, wide)
        names = ["none", *(name for name in arguments.quant if name != "none")]
        runs = [(wide, Quantization(name)) for name in names]
        runs += [(path, Quantization.NONE) for path in arguments.files]
        for path, quantization in runs:
            is_exact = path == wide and quantization is Quantization.NONE
            with opened(path, quantization, len(chunks), arguments.threads) as engine:
                figures = measure(engine, chunks, exact, is_exact=is_exact)
                figures["weights_bytes"] = engine.weights_bytes
            file = "widened" if path == wide else path.name
            results.append({"file": file, "quant": quantization.value, **figures})
            print(json.dumps(results[-1]), flush=True)
    found = {
        "model": arguments.model.name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_chunks": len(chunks),
        "chunk_tokens": CHUNK,
        "results": results,
    }
    write_result(arguments.out, SCHEMA, found, indent=1)


if __name__ == "__main__":
    main()
