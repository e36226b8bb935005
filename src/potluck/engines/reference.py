"""The reference engine: says what a program means, in plain NumPy float32.

Other engines are tested against it. It is written to be read, not to be fast: weights are
dequantized to float32 when they are loaded, and the key-value cache is float32. ``reference_ops``
says what every op means, ``reference_sampling`` what every sampling parameter means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np

from potluck.engines import reference_ops as ops
from potluck.engines.pooling import StepPooler
from potluck.engines.reference_sampling import sample, score
from potluck.engines.reference_weights import ReferenceWeights
from potluck.engines.step_checks import check_masks, check_openings, check_sampled, check_step
from potluck.errors import EngineError
from potluck.types.engine import NO_MASKS, BlockFormat, StepResult
from potluck.types.program import (
    HIDDEN,
    Add,
    Attention,
    CausalConv,
    CopyColumns,
    Embed,
    GatedActivation,
    GatedDelta,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    StateScan,
)
from potluck.types.sampling import validate_sampling
from potluck.types.step import KV_BLOCK_TOKENS, SampledToken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from potluck.types.engine import TokenMasks
    from potluck.types.program import CacheSpec, Program
    from potluck.types.step import BlockCopy, SamplingParams, SequenceId, SequenceSlice, Step
    from potluck.types.tensor import TensorSink

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]


class ReferenceEngine:
    """One stage (see ``Engine``), with ``num_blocks`` cache blocks and ``num_states`` slots."""

    def __init__(self, program: Program, *, num_blocks: int, num_states: int = 0) -> None:
        self._program = program
        self._num_blocks = num_blocks
        self._weights = ReferenceWeights(program)
        self._caches = [_Cache(spec, num_blocks) for spec in program.caches]
        self._num_states = num_states
        self._states = [
            np.zeros((num_states, spec.rows, spec.width), np.float32) for spec in program.states
        ]
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._pooler = StepPooler()

    def sink(self) -> TensorSink:
        """Takes every format; weights are kept as float32."""
        return self._weights

    def step(self, step: Step, hidden: Floats | None, masks: TokenMasks = NO_MASKS) -> StepResult:
        """Run the program once (see ``Engine``)."""
        self._check(step, hidden)
        check_masks(self._program, step, masks)
        if not self._program.shard.has_head:
            return StepResult(hidden=self._run(step, hidden), sampled=())
        check_openings(self._program, step, self._sequences)
        check_sampled(step, self._sequences)
        self._pooler.check(step)
        sequences = self._sequences | _open(self._program, step)
        rows = self._run(step, hidden)
        logits = self._logits(step, rows)
        wanted = [(part, index) for part in step.slices for index in part.wanted]
        choices = tuple(
            _choose(sequences[part.sequence_id], part, index, row, masks.get(part.sequence_id))
            for (part, index), row in zip(wanted, logits, strict=True)
        )
        for (part, index), choice in zip(wanted, choices, strict=True):
            if part.known_after(index) is None:
                sequences[choice.sequence_id].output_tokens.append(choice.token)
        vectors = self._pooler.pool(step, rows)
        self._sequences = _without(sequences, step.closed)
        self._pooler.close(step.closed)
        return StepResult(hidden=None, sampled=choices + vectors)

    def logits(self, step: Step, hidden: Floats | None) -> Floats:
        """As ``step`` without sampling, so that sequences need not have been opened."""
        self._check(step, hidden)
        if not self._program.has_logits:
            raise EngineError(
                "this stage has no head, and so no logits", hint="ask the last stage for logits"
            )
        check_openings(self._program, step, self._sequences)
        sequences = self._sequences | _open(self._program, step)
        logits = self._logits(step, self._run(step, hidden))
        self._sequences = _without(sequences, step.closed)
        return logits

    @property
    def block_format(self) -> BlockFormat:
        """See ``LoadableEngine``: keys and values of one cache after another, as float32."""
        num_bytes = sum(cache.block_bytes for cache in self._caches)
        state_bytes = sum(spec.num_bytes for spec in self._program.states)
        return BlockFormat(name="reference-1", num_bytes=num_bytes, state_bytes=state_bytes)

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        self._check_blocks(blocks)
        empty = np.empty((len(blocks), 0), np.uint8)
        return np.concatenate([empty, *(cache.read_blocks(blocks) for cache in self._caches)], 1)

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        self._check_blocks(blocks)
        wanted = (len(blocks), self.block_format.num_bytes)
        if data.shape != wanted:
            raise EngineError(
                f"blocks of shape {data.shape} are not {wanted}",
                hint="this is a defect in Potluck; please report it",
            )
        first = 0
        for cache in self._caches:
            cache.write_blocks(blocks, data[:, first : first + cache.block_bytes])
            first += cache.block_bytes

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``: one op after another, as float32."""
        self._check_states(states)
        empty = np.empty((len(states), 0), np.uint8)
        parts = (each[list(states)].reshape(len(states), -1) for each in self._states)
        return np.concatenate([empty, *(part.view(np.uint8) for part in parts)], 1)

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        self._check_states(states)
        wanted = (len(states), self.block_format.state_bytes)
        if data.shape != wanted:
            raise EngineError(
                f"states of shape {data.shape} are not {wanted}",
                hint="this is a defect in Potluck; please report it",
            )
        first = 0
        for each, spec in zip(self._states, self._program.states, strict=True):
            part = np.ascontiguousarray(data[:, first : first + spec.num_bytes])
            each[list(states)] = part.view(np.float32).reshape(-1, spec.rows, spec.width)
            first += spec.num_bytes

    def reset(self) -> None:
        """See ``Engine``."""
        self._sequences.clear()
        self._pooler.reset()

    def close(self) -> None:
        """Free weights and cache."""
        self._weights.clear()
        self._caches.clear()
        self._states.clear()
        self.reset()

    def _check(self, step: Step, hidden: Floats | None) -> None:
        if missing := self._weights.missing():
            raise EngineError(
                f"{len(missing)} weights are not loaded, among them {missing[0]}",
                hint="load the weights before the first step, and none after close",
            )
        check_step(self._program, self._num_blocks, self._num_states, step, hidden)

    def _check_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks if self._caches else ():
            if not 0 <= block < self._num_blocks:
                raise EngineError(
                    f"block {block} is not one of {self._num_blocks}",
                    hint="this is a defect in Potluck; please report it",
                )

    def _check_states(self, states: Sequence[int]) -> None:
        for state in states if self._states else ():
            if not 0 <= state < self._num_states:
                raise EngineError(
                    f"state slot {state} is not one of {self._num_states}",
                    hint="this is a defect in Potluck; please report it",
                )

    def _run(self, step: Step, hidden: Floats | None) -> Floats:
        """The residual stream, or with the head its input."""
        tokens = np.array([token for part in step.slices for token in part.tokens], dtype=np.int64)
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *map(_positions, step.slices)])
        for copy in step.copies:
            for cache in self._caches:
                cache.copy_block(copy)
        for state_copy in step.state_copies:
            for states in self._states:
                states[state_copy.target] = states[state_copy.source]
        for part in step.slices:
            if part.state is not None and part.start_position == 0:
                for states in self._states:
                    states[part.state] = 0
        registers: dict[str, Floats] = {} if hidden is None else {HIDDEN: hidden.copy()}
        for op in self._program.ops:
            match op:
                case Embed():
                    registers[op.out] = ops.embed(self._weights[op.weight], tokens)
                case RmsNorm():
                    registers[op.out] = ops.rms_norm(
                        registers[op.x], self._vector(op.weight), op.group, op.epsilon
                    )
                case LayerNorm():
                    registers[op.out] = ops.layer_norm(
                        registers[op.x], self._weights[op.weight], op.epsilon
                    )
                case Linear():
                    registers[op.out] = ops.linear(
                        registers[op.x], self._weights[op.weight], self._vector(op.bias)
                    )
                case HeadLinear():
                    registers[op.out] = self._head_linear(op, registers)
                case CopyColumns():
                    registers[op.out] = self._copy_columns(op, registers)
                case Rope():
                    registers[op.x] = self._rope(op, registers[op.x], positions)
                case Attention():
                    registers[op.out] = self._attention(op, registers, step)
                case CausalConv():
                    registers[op.out] = self._causal_conv(op, registers, step)
                case GatedDelta():
                    registers[op.out] = self._gated_delta(op, registers, step)
                case StateScan():
                    registers[op.out] = self._state_scan(op, registers, step)
                case GatedActivation():
                    gate = None if op.gate is None else registers[op.gate]
                    up_end = op.up_start + self._program.width(op.out)
                    up = registers[op.up][:, op.up_start : up_end]
                    registers[op.out] = ops.gated_activation(gate, up, op.activation)
                case Moe():
                    registers[op.out] = ops.moe(
                        op,
                        registers[op.x],
                        registers[op.logits],
                        self._vector(op.gate),
                        self._weights[op.up],
                        self._weights[op.down],
                        ops.ExpertVectors(
                            correction=self._vector(op.correction),
                            expert_scale=self._vector(op.expert_scale),
                            gate_bias=self._vector(op.gate_bias),
                            up_bias=self._vector(op.up_bias),
                            down_bias=self._vector(op.down_bias),
                        ),
                    )
                case SigmoidGate():
                    registers[op.x] = ops.sigmoid_gate(registers[op.x], registers[op.gate])
                case Scale():
                    registers[op.x] = registers[op.x] * np.float32(op.factor)
                case Multiply():
                    registers[op.x] = registers[op.x] * self._weights[op.weight]
                case Add():
                    registers[op.x] = ops.add(registers[op.x], registers[op.y], op.scale)
                case Head():
                    return registers[op.x]
                case _:
                    assert_never(op)
        return registers[HIDDEN]

    def _logits(self, step: Step, rows: Floats) -> Floats:
        """The logits that are wanted, of the head's input."""
        head = self._program.head
        if head is None or head.weight is None:
            return np.empty((0, 0), dtype=np.float32)  # the step was checked: none are wanted
        return ops.head(
            rows, self._weights[head.weight], _wanted_rows(step), head.scale, head.softcap
        )

    def _rope(self, op: Rope, x: Floats, positions: Ints) -> Floats:
        table = self._program.ropes[op.table]
        return ops.rope(x, table.cos[positions], table.sin[positions], op.num_heads)

    def _vector(self, name: str | None) -> Floats | None:
        return None if name is None else self._weights[name]

    def _wide(self, name: str, registers: dict[str, Floats], num_tokens: int) -> Floats:
        """A copy of a register of which an op writes some columns; zeros if it is new."""
        if name in registers:
            return registers[name].copy()
        return np.zeros((num_tokens, self._program.width(name)), np.float32)

    def _head_linear(self, op: HeadLinear, registers: dict[str, Floats]) -> Floats:
        x = registers[op.x]
        out = self._wide(op.out, registers, len(x))
        heads = ops.columns_of(x, op.num_heads, op.columns, op.x_start, op.x_stride)
        target = ops.columns_of(out, op.num_heads, op.rows, op.out_start, op.out_stride)
        target[...] = ops.head_linear(heads, self._weights[op.weight])
        return out

    def _copy_columns(self, op: CopyColumns, registers: dict[str, Floats]) -> Floats:
        x = registers[op.x]
        out = self._wide(op.out, registers, len(x))
        target = ops.columns_of(out, op.num_groups, op.count, op.out_start, op.out_stride)
        target[...] = ops.columns_of(x, op.num_groups, op.count, op.x_start, op.x_stride)
        return out

    def _causal_conv(self, op: CausalConv, registers: dict[str, Floats], step: Step) -> Floats:
        x = registers[op.x]
        out = np.empty_like(x)
        weight = self._weights[op.weight].reshape(x.shape[1], op.kernel)
        for rows, state in _sequence_rows(step, self._states[op.state_index]):
            out[rows] = ops.causal_conv(
                x[rows], state, weight, self._vector(op.bias), has_silu=op.has_silu
            )
            state[...] = np.concatenate([state, x[rows]])[len(x[rows]) :]
        return out

    def _gated_delta(self, op: GatedDelta, registers: dict[str, Floats], step: Step) -> Floats:
        x, decay, beta = (registers[each] for each in (op.x, op.decay, op.beta))
        out = np.empty((len(x), op.num_heads * op.value_dim), np.float32)
        for rows, state in _sequence_rows(step, self._states[op.state_index]):
            out[rows] = ops.gated_delta(
                op,
                x[rows],
                decay[rows],
                beta[rows],
                self._weights[op.rate],
                self._weights[op.decay_bias],
                state.reshape(op.num_heads, op.key_dim, op.value_dim),
            )
        return out

    def _state_scan(self, op: StateScan, registers: dict[str, Floats], step: Step) -> Floats:
        x, steps = registers[op.x], registers[op.step]
        out = np.empty((len(x), op.num_heads * op.head_dim), np.float32)
        for rows, state in _sequence_rows(step, self._states[op.state_index]):
            out[rows] = ops.state_scan(
                op,
                x[rows],
                steps[rows],
                self._weights[op.rate],
                self._weights[op.step_bias],
                self._weights[op.skip],
                state.reshape(op.num_heads, op.state_dim, op.head_dim),
            )
        return out

    def _attention(self, op: Attention, registers: dict[str, Floats], step: Step) -> Floats:
        """Sequence by sequence: append to the cache, then attend to what it holds."""
        cache = self._caches[op.cache_index]
        value_dim = op.value_dim or op.head_dim
        q = registers[op.q].reshape(-1, op.num_heads, op.head_dim)
        out = np.empty((len(q), op.num_heads, value_dim), np.float32)
        for part, rows in _slices_and_rows(step):
            if op.k is not None:
                k = registers[op.k].reshape(-1, op.num_kv_heads, op.head_dim)
                v = None
                if op.v is not None:
                    v = registers[op.v].reshape(-1, op.num_kv_heads, value_dim)[rows]
                cache.append(part, k[rows], v)
            keys, values = cache.read(part)
            if op.value_start is not None:
                values = keys[:, :, op.value_start : op.value_start + value_dim]
            out[rows] = ops.attention(
                q[rows],
                keys,
                values,
                _positions(part),
                op.scale,
                op.window,
                op.softcap,
                self._vector(op.sinks),
            )
        return out.reshape(len(out), op.num_heads * value_dim)


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """What sampling must know about an open sequence. ``output_tokens`` grows."""

    sampling: SamplingParams
    prompt_tokens: tuple[int, ...]
    output_tokens: list[int]


class _Cache:
    """Keys and values of one layer: ``[num_blocks, 16, num_kv_heads, width]`` each."""

    def __init__(self, spec: CacheSpec, num_blocks: int) -> None:
        shape = (num_blocks, KV_BLOCK_TOKENS, spec.num_kv_heads)
        self._keys = np.zeros((*shape, spec.head_dim), dtype=np.float32)
        self._values = np.zeros((*shape, spec.value_dim), dtype=np.float32)

    def copy_block(self, copy: BlockCopy) -> None:
        """Make the target hold what the source does."""
        for values in (self._keys, self._values):
            values[copy.target] = values[copy.source]

    @property
    def block_bytes(self) -> int:
        """What ``read_blocks`` gives of one."""
        return self._keys[:1].nbytes + self._values[:1].nbytes

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return the keys and the values of each, ``[len(blocks), block_bytes]``."""
        parts = [each[list(blocks)].reshape(len(blocks), -1) for each in (self._keys, self._values)]
        return np.concatenate(parts, 1).view(np.uint8)

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Put back what ``read_blocks`` gave."""
        both = np.ascontiguousarray(data).view(np.float32)
        keys, values = np.split(both, [self._keys[:1].size], axis=1)
        self._keys[list(blocks)] = keys.reshape(-1, *self._keys.shape[1:])
        self._values[list(blocks)] = values.reshape(-1, *self._values.shape[1:])

    def append(self, part: SequenceSlice, k: Floats, v: Floats | None) -> None:
        """Store ``[num_tokens, num_kv_heads, width]`` at the positions of ``part``."""
        positions = _positions(part)
        blocks = np.array(part.block_table, dtype=np.int64)[positions // KV_BLOCK_TOKENS]
        self._keys[blocks, positions % KV_BLOCK_TOKENS] = k
        if v is not None:
            self._values[blocks, positions % KV_BLOCK_TOKENS] = v

    def read(self, part: SequenceSlice) -> tuple[Floats, Floats]:
        """Keys and values ``[num_positions, num_kv_heads, width]``, ``part`` included."""
        end = part.start_position + len(part.tokens)
        blocks = list(part.block_table[: -(-end // KV_BLOCK_TOKENS)])
        num_positions = len(blocks) * KV_BLOCK_TOKENS
        keys, values = (
            each[blocks].reshape(num_positions, *each.shape[2:])[:end]
            for each in (self._keys, self._values)
        )
        return keys, values


def _open(program: Program, step: Step) -> dict[SequenceId, _Sequence]:
    """The sequences that a step opens."""
    for opening in step.opened:
        validate_sampling(opening.sampling, program.vocab_size)
    return {
        opening.sequence_id: _Sequence(
            sampling=opening.sampling,
            prompt_tokens=opening.prompt_tokens,
            output_tokens=list(opening.output_tokens),
        )
        for opening in step.opened
    }


def _without(
    sequences: dict[SequenceId, _Sequence], closed: tuple[SequenceId, ...]
) -> dict[SequenceId, _Sequence]:
    """What stays open. A closed sequence that was never sampled was never opened here."""
    return {key: sequence for key, sequence in sequences.items() if key not in closed}


def _choose(
    sequence: _Sequence,
    part: SequenceSlice,
    index: int,
    logits: Floats,
    mask: NDArray[np.uint32] | None,
) -> SampledToken:
    """What follows the token at ``index`` of ``part``: sampled, or known and scored."""
    position = part.start_position + index + 1
    known = part.known_after(index)
    if known is None:
        choice = sample(
            logits,
            sequence.sampling,
            prompt_tokens=sequence.prompt_tokens,
            output_tokens=sequence.output_tokens,
            position=position,
            mask=mask,
        )
    else:
        choice = score(logits, known, sequence.sampling.top_logprobs, position=position)
    return SampledToken(
        sequence_id=part.sequence_id,
        position=position,
        token=choice.token,
        logprob=choice.logprob,
        top=choice.top,
    )


def _slices_and_rows(step: Step) -> Iterator[tuple[SequenceSlice, slice]]:
    """Every slice, and which rows of the registers are its."""
    first = 0
    for part in step.slices:
        rows = slice(first, first + len(part.tokens))
        yield part, rows
        first = rows.stop


def _sequence_rows(step: Step, states: Floats) -> Iterator[tuple[slice, Floats]]:
    """The rows of every slice, and its state, which is a view."""
    for part, rows in _slices_and_rows(step):
        if part.state is not None:  # the step was checked: it is there
            yield rows, states[part.state]


def _positions(part: SequenceSlice) -> Ints:
    """Absolute positions of the new tokens."""
    return np.arange(part.start_position, part.start_position + len(part.tokens), dtype=np.int64)


def _wanted_rows(step: Step) -> Ints:
    """Rows of the tokens after which logits are wanted."""
    rows: list[int] = []
    first = 0
    for part in step.slices:
        rows += [first + index for index in part.wanted]
        first += len(part.tokens)
    return np.array(rows, dtype=np.int64)
