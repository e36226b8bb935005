# The compiled core; cpp/bind says what each call checks.
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def available_isas() -> list[str]: ...

# Programs (cpp/bind/program_module.cc)

class Error(RuntimeError): ...
class OutOfMemory(Error): ...

class Embed:
    def __init__(self, *, weight: str, out: str) -> None: ...

class RmsNorm:
    def __init__(self, *, x: str, weight: str, out: str, group: int, epsilon: float) -> None: ...

class Linear:
    def __init__(self, *, x: str, weight: str, out: str, bias: str | None) -> None: ...

class Rope:
    def __init__(self, *, x: str, num_heads: int, head_dim: int) -> None: ...

class Attention:
    def __init__(
        self,
        *,
        q: str,
        k: str,
        v: str,
        out: str,
        cache_index: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int | None,
    ) -> None: ...

class GatedActivation:
    def __init__(self, *, gate: str, up: str, out: str) -> None: ...

class Add:
    def __init__(self, *, x: str, y: str) -> None: ...

class Head:
    def __init__(self, *, x: str, weight: str, vocab_size: int) -> None: ...

Op = Embed | RmsNorm | Linear | Rope | Attention | GatedActivation | Add | Head

class Register:
    def __init__(self, *, name: str, width: int) -> None: ...

class WeightSpec:
    def __init__(self, *, name: str, shape: Sequence[int]) -> None: ...

class CacheSpec:
    def __init__(self, *, num_kv_heads: int, head_dim: int) -> None: ...

class Program:
    def __init__(
        self,
        *,
        registers: Sequence[Register],
        ops: Sequence[Op],
        weights: Sequence[WeightSpec],
        caches: Sequence[CacheSpec],
        rope_cos: NDArray[np.float32] | None,
        rope_sin: NDArray[np.float32] | None,
        hidden_size: int,
        vocab_size: int,
        context_tokens: int,
        has_embedding: bool,
        has_head: bool,
    ) -> None: ...

# Stages (cpp/bind/engine_module.cc)

class ThreadPool:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...

class Slice:
    def __init__(
        self,
        *,
        sequence_id: int,
        tokens: Sequence[int],
        start_position: int,
        block_table: Sequence[int],
        sample: bool,
    ) -> None: ...

class SamplingParams:
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        logit_bias: Sequence[tuple[int, float]],
        seed: int,
        logprobs: bool,
        top_logprobs: int,
    ) -> None: ...

class Opening:
    def __init__(
        self,
        *,
        sequence_id: int,
        sampling: SamplingParams,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
    ) -> None: ...

class TokenLogprob:
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...

class SampledToken:
    @property
    def sequence_id(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top(self) -> list[TokenLogprob]: ...

class Stage:
    def __init__(
        self,
        *,
        program: Program,
        isa: str,
        pool: ThreadPool,
        num_blocks: int,
        max_step_tokens: int,
    ) -> None: ...
    @staticmethod
    def cache_bytes(*, program: Program, num_blocks: int) -> int: ...
    @staticmethod
    def scratch_bytes(*, program: Program, max_step_tokens: int, num_threads: int) -> int: ...
    def begin_weight(self, name: str, shape: Sequence[int], format: str) -> None: ...
    def write_rows(
        self, name: str, start_row: int, end_row: int, data: NDArray[np.uint8]
    ) -> None: ...
    def finish_weight(self, name: str) -> None: ...
    def step(
        self,
        *,
        slices: Sequence[Slice],
        opened: Sequence[Opening],
        closed: Sequence[int],
        hidden: NDArray[np.float32] | None,
        out: NDArray[np.float32] | None,
    ) -> list[SampledToken]: ...
    def logits(
        self,
        *,
        slices: Sequence[Slice],
        opened: Sequence[Opening],
        closed: Sequence[int],
        hidden: NDArray[np.float32] | None,
        out: NDArray[np.float32],
    ) -> None: ...
    @property
    def weights_bytes(self) -> int: ...

class Sampler:
    def __init__(self, *, vocab_size: int, isa: str, pool: ThreadPool) -> None: ...
    def open(self, openings: Sequence[Opening]) -> None: ...
    def close(self, sequence_id: int) -> None: ...
    def sample(
        self, wanted: Sequence[tuple[int, int]], logits: NDArray[np.float32]
    ) -> list[SampledToken]: ...
