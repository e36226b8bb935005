"""The compiled core (cpp/bind). Arrays are taken as they are: C-contiguous, of the dtype named.

Wrong shapes raise ``ValueError``, wrong dtypes and layouts ``TypeError``; the runner raises
``Error`` for all else that it refuses. Calls release the GIL while they compute.
"""

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from potluck.types.engine import Exchange
from potluck.types.program import Op

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]

def available_isas() -> list[str]:
    """Names of the instruction sets that CPU and operating system announce, slowest first."""

def fast_formats(isa: str) -> list[str]:
    """Labels of the formats that ``linear_fast`` takes. ``ValueError`` as for ``kernels_for``."""

def isa_problem(isa: str) -> str:
    """What is wrong with an instruction set that is announced here, in a few words; else nothing.

    AMX is tried in a forked child, which takes milliseconds; all others are trusted.
    ``ValueError`` if it cannot run here.
    """

def kernels_for(isa: str) -> Kernels:
    """The kernels of one instruction set. ``ValueError`` if they cannot run here."""

def format_info(format: str) -> tuple[int, int]:
    """``(columns, bytes)`` of one block of a storage format, by its label."""

PANEL_LAYOUT: int
"Names the bytes that panels have (``kPanelLayout`` of cpp/kernels/kernels.h)."

def panel_bytes(format: str, columns: int) -> int:
    """Bytes of a panel: 16 rows of ``columns`` columns."""

def pack_rows(
    format: str, columns: int, rows: U8, start_row: int, num_rows: int, panels: U8
) -> None:
    """Write stored rows into panels (see cpp/kernels/kernels.h)."""

class Kernels:
    """One instruction set's kernels; cpp/kernels/kernels.h says what each promises."""

    @property
    def isa(self) -> str:
        """The name of the instruction set."""

    def quantize(self, x: F32, q: I8, scales: F32, sums: I32) -> None:
        """``x, q [tokens, columns]``; ``scales, sums [tokens, columns / 32]``."""

    def round_bf16(self, x: F32, out: U16) -> None:
        """The bits of the bf16 nearest to each number; ``x`` and ``out`` are as long."""

    def linear_float(
        self,
        format: str,
        panels: U8,
        x: F32,
        bias: F32 | None,
        out: F32,
        first_panel: int,
        end_panel: int,
    ) -> None:
        """``x [tokens, columns]``, ``out [tokens, rows]``; rows of ``out`` may lie apart."""

    def linear_quantized(
        self,
        format: str,
        panels: U8,
        q: I8,
        scales: F32,
        sums: I32,
        bias: F32 | None,
        out: F32,
        first_panel: int,
        end_panel: int,
    ) -> None:
        """As ``linear_float`` for what ``quantize`` made."""

    def linear_fast(
        self,
        format: str,
        panels: U8,
        x: U16,
        bias: F32 | None,
        out: F32,
        first_panel: int,
        end_panel: int,
    ) -> None:
        """As ``linear_float`` for what ``round_bf16`` made, of formats in ``fast_formats``."""

    def embed(self, format: str, panels: U8, rows: int, row: int, out: F32) -> None:
        """``out [columns]`` is row ``row`` of ``rows``."""

    def widen(self, format: str, stored: U8, out: F32) -> float:
        """Stored numbers of a float format as float32; ``max |x|``, not finite if one is not."""

    def encode(self, format: str, x: F32, out: U8) -> bool:
        """Finite numbers to blocks of ``format``; whether all scales are finite as float16."""

    def rms_norm(self, x: F32, weight: F32 | None, out: F32, epsilon: float) -> None:
        """``x, out [tokens, columns]``; groups are as long as ``weight``, or rows without one."""

    def layer_norm(self, x: F32, weight: F32, out: F32, epsilon: float) -> None:
        """``x, out [tokens, columns]``."""

    def rope(self, x: F32, cos: F32, sin: F32) -> None:
        """``x [heads, head_dim]`` of one token, in place; ``cos`` has a column for each pair."""

    def silu_gate(self, gate: F32, up: F32, out: F32) -> None: ...
    def gelu_gate(self, gate: F32, up: F32, out: F32) -> None: ...
    def clamped_gate(self, gate: F32, up: F32, out: F32) -> None: ...
    def product_gate(self, gate: F32, up: F32, out: F32) -> None: ...
    def relu_squared(self, x: F32, out: F32) -> None: ...
    def add(self, x: F32, y: F32) -> None: ...
    def add_scaled(self, x: F32, y: F32, scale: float) -> None: ...
    def scale(self, x: F32, factor: float) -> None: ...
    def multiply(self, x: F32, y: F32) -> None: ...
    def sigmoid(self, x: F32, out: F32) -> None: ...
    def softcap(self, x: F32, cap: float) -> None: ...
    def append_kv(
        self, k: F32, v: F32 | None, keys: U16, values: U16 | None, block: int, offset: int
    ) -> None:
        """``k [kv_heads, head_dim], v [kv_heads, value_dim]``; the cache as bits of float16."""

    def attention(
        self,
        q: F32,
        keys: U16,
        values: U16 | None,
        block_table: I32,
        position: int,
        window: int | None,
        scale: float,
        out: F32,
        softcap: float = 0.0,
        sinks: F32 | None = None,
        value_start: int = 0,
    ) -> None:
        """``q [tokens, heads, head_dim]`` and ``out [tokens, heads, value_dim]`` of neighbouring
        tokens, the first at ``position``, over all key-value heads. A ``softcap`` of 0 is none;
        ``sinks [heads]``. Without ``values`` they are columns of the keys from ``value_start`` on.
        """

    def attention_in_parts(
        self,
        q: F32,
        keys: U16,
        values: U16 | None,
        block_table: I32,
        position: int,
        window: int | None,
        scale: float,
        out: F32,
        softcap: float = 0.0,
        sinks: F32 | None = None,
        value_start: int = 0,
    ) -> None:
        """The same by key-value heads, and of each the query heads in two halves, by
        ``attention_span``, the last span first, and ``attention_merge``.
        """

    def causal_conv(
        self,
        x: F32,
        weight: F32,
        bias: F32 | None,
        state: F32,
        is_fresh: bool,
        has_silu: bool,
        out: F32,
        first_column: int,
        end_column: int,
    ) -> None: ...
    def delta_inputs(
        self,
        x: F32,
        decay: F32,
        beta: F32,
        rate: F32,
        decay_bias: F32,
        epsilon: float,
        keys: F32,
        products: F32,
        decays: F32,
        betas: F32,
    ) -> None: ...
    def gated_delta(
        self,
        keys: F32,
        products: F32,
        decays: F32,
        betas: F32,
        values: F32,
        state: F32,
        is_tiled: bool,
        is_fresh: bool,
        out: F32,
        first_strip: int,
        end_strip: int,
    ) -> None: ...
    def scan_inputs(
        self,
        step: F32,
        step_bias: F32,
        rate: F32,
        least_step: float,
        largest_step: float,
        steps: F32,
        decays: F32,
    ) -> None: ...
    def state_scan(
        self,
        x: F32,
        steps: F32,
        decays: F32,
        skip: F32,
        num_groups: int,
        state: F32,
        is_fresh: bool,
        out: F32,
        first_strip: int,
        end_strip: int,
    ) -> None: ...
    def exp_sum(self, x: F32, max: float, out: F32) -> float:
        """``out = exp(x - max)``; returns its sum."""

    def copy_allowed(self, logits: F32, mask: U32, out: F32) -> None: ...
    def draw_weights(
        self, logits: F32, largest: float, temperature: float, weights: F32, sums: F64
    ) -> None: ...
    def kept_sums(
        self, logits: F32, weights: F32, least_logit: float, least_weight: float, sums: F64
    ) -> None: ...
    def split_logits(
        self,
        logits: F32,
        weights: F32,
        low: float,
        high: float,
        above: F64,
        num_above: I32,
        within: I32,
        num_within: I32,
    ) -> None: ...

class Error(RuntimeError):
    """A call that was refused."""

class OutOfMemoryError(Error):
    """The operating system gave no memory."""

class NonFiniteError(Error):
    """The model computed something that is not a number."""

class Register:
    def __init__(self, *, name: str, width: int) -> None: ...

class WeightSpec:
    def __init__(self, *, name: str, shape: Sequence[int]) -> None: ...

class CacheSpec:
    def __init__(self, *, num_kv_heads: int, head_dim: int, value_dim: int) -> None: ...

class StateSpec:
    def __init__(self, *, rows: int, width: int) -> None: ...

class Program:
    def __init__(
        self,
        *,
        registers: Sequence[Register],
        ops: Sequence[Op],
        weights: Sequence[WeightSpec],
        caches: Sequence[CacheSpec],
        states: Sequence[StateSpec],
        ropes: Sequence[tuple[F32, F32]],
        hidden_size: int,
        vocab_size: int,
        context_tokens: int,
        has_embedding: bool,
        has_head: bool,
        member: int = 0,
        num_members: int = 1,
    ) -> None: ...

class ThreadPool:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def num_active(self) -> int: ...
    @num_active.setter
    def num_active(self, arg: int, /) -> None: ...

class Pooling(enum.Enum):
    LAST = 0
    CLS = 1
    MEAN = 2

class Slice:
    def __init__(
        self,
        *,
        sequence_id: int,
        tokens: Sequence[int],
        start_position: int,
        block_table: Sequence[int],
        sample: bool,
        score_from: int | None = None,
        next_token: int | None = None,
        pooling: Pooling | None = None,
        ends_pooling: bool = False,
        state: int | None = None,
        num_drafts: int = 0,
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
        has_grammar: bool = False,
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

def pack_rows_on(
    pool: ThreadPool,
    format: str,
    columns: int,
    rows: U8 | memoryview,
    start_row: int,
    num_rows: int,
    panels: U8 | memoryview,
) -> None:
    """``pack_rows`` on all threads of ``pool``; raises ``Error`` for wrong sizes."""

class PooledVector:
    @property
    def sequence_id(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def values(self) -> bytes: ...

class TimedOps:
    """Ops ``[first_op, end_op)`` of a program, which run together (cpp/program/op_timer.h)."""

    @property
    def first_op(self) -> int: ...
    @property
    def end_op(self) -> int: ...
    @property
    def seconds(self) -> float: ...

class Stage:
    def __init__(
        self,
        *,
        program: Program,
        isa: str,
        pool: ThreadPool,
        num_blocks: int,
        num_states: int,
        max_step_tokens: int,
        is_fast: bool,
    ) -> None: ...
    @staticmethod
    def cache_bytes(*, program: Program, num_blocks: int, num_states: int) -> int: ...
    @staticmethod
    def scratch_bytes(
        *, program: Program, max_step_tokens: int, num_threads: int, is_fast: bool
    ) -> int: ...
    def begin_weight(self, name: str, shape: Sequence[int], format: str) -> None: ...
    def write_rows(self, name: str, start_row: int, end_row: int, data: U8) -> None: ...
    def finish_weight(self, name: str) -> None: ...
    def map_weight(self, name: str, shape: Sequence[int], format: str, data: U8) -> None:
        """Keeps ``data``, which holds the weight in panels, and reads it where it is."""

    def step(
        self,
        *,
        slices: Sequence[Slice],
        opened: Sequence[Opening],
        closed: Sequence[int],
        copies: Sequence[tuple[int, int]],
        state_copies: Sequence[tuple[int, int]],
        masks: Sequence[tuple[int, U32]],
        hidden: F32 | None,
        out: F32 | None,
        exchange: Exchange | None = None,
    ) -> tuple[list[SampledToken], list[PooledVector]]: ...
    def logits(
        self,
        *,
        slices: Sequence[Slice],
        opened: Sequence[Opening],
        closed: Sequence[int],
        copies: Sequence[tuple[int, int]],
        state_copies: Sequence[tuple[int, int]],
        hidden: F32 | None,
        out: F32,
        exchange: Exchange | None = None,
    ) -> None: ...
    def read_blocks(self, blocks: Sequence[int], out: U8) -> None: ...
    def write_blocks(self, blocks: Sequence[int], data: U8) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    def read_states(self, states: Sequence[int], out: U8) -> None: ...
    def write_states(self, states: Sequence[int], data: U8) -> None: ...
    @property
    def state_bytes(self) -> int: ...
    def time_ops(self) -> None: ...
    def times(self) -> tuple[list[TimedOps], float]:
        """By ops of the program, and seconds of sampling; since ``time_ops``."""

    @property
    def weights_bytes(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    @property
    def expert_use(self) -> tuple[int, int]: ...

class Sampler:
    def __init__(self, *, vocab_size: int, isa: str, pool: ThreadPool) -> None: ...
    def open(self, openings: Sequence[Opening]) -> None: ...
    def close(self, sequence_id: int) -> None: ...
    def sample(
        self,
        wanted: Sequence[tuple[int, int]],
        logits: F32,
        known: Sequence[int | None] = (),
        masks: Sequence[tuple[int, U32]] = (),
        drafts: Sequence[int | None] = (),
        mask_rows: Sequence[int] = (),
    ) -> list[SampledToken]:
        """``wanted`` are sequences and positions; ``known`` those of their tokens to be scored.

        ``masks`` are of sequences, with the rows ``mask_rows`` (0 where it is empty); see
        ``Engine.step``. ``drafts`` are the tokens before the wanted ones, where they are drafts:
        entries are left out after those that another token than was sampled.
        """

def convert_rows(
    source: U8 | memoryview,
    source_format: str,
    target_format: str,
    num_rows: int,
    num_columns: int,
    out: U8 | memoryview,
    pool: ThreadPool | None,
) -> None:
    """Convert whole stored rows to ``q8_0``, ``q6_k``, ``q4_k`` or ``q4_0``.

    ``source`` holds ``num_rows`` rows of ``num_columns`` columns in any format, ``out`` has exactly
    the room for them in the target's; both are one-dimensional bytes of any alignment, and do not
    overlap. Rows that have the target's format already are copied; other quantized rows are
    dequantized on the way. The bytes depend neither on the instruction set nor on the threads of
    ``pool``; None is this thread alone. Q8_0 and Q4_0 are those of the ``gguf`` package; Q6_K and
    Q4_K minimize each group's squared error by a search.

    Raises ``Error`` if sizes do not match, columns are not whole blocks of both formats, or there
    is no such target; and, naming the first row (from 0), if it has a value that is not finite or
    too large for the target (a scale beyond float16): ``out`` is then not to be used.
    """

class MemoryReader:
    """Touches ``num_bytes``, in whole chunks of 4 MiB; raises ``OutOfMemoryError``."""

    def __init__(self, *, num_bytes: int, pool: ThreadPool) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def read(self) -> float:
        """Seconds in which all threads of the pool read all of it once."""

def peak_instruction(isa: str, operands: str) -> str | None:
    """What ``measure_peak`` repeats; None where ``isa`` has none. ``int8``, ``bf16`` or ``f32``."""

def measure_peak(
    *, pool: ThreadPool, isa: str, operands: str, num_chunks: int, num_rounds: int
) -> float:
    """Multiply-adds per second of all threads of ``pool``, in ``num_chunks`` times ``num_rounds``.

    Raises ``Error`` where ``peak_instruction`` is None.
    """

class Sha256State:
    """SHA-256 of a message that one machine begins and another one ends.

    ``update`` releases the GIL; an object is for one thread at a time.
    """

    def __init__(self) -> None: ...
    @staticmethod
    def restored(saved: bytes) -> Sha256State:
        """The state that was saved. ``ValueError`` if it can be none."""

    def update(self, data: U8 | bytes | bytearray | memoryview) -> None:
        """Append contiguous bytes to the message."""

    def save(self) -> bytes:
        """What ``restored`` takes: 40 bytes, and as many as the message has beyond whole 64."""

    def digest(self) -> bytes:
        """The 32 bytes of the hash of the message so far, which can go on."""

    @property
    def num_bytes(self) -> int:
        """The length of the message so far."""
