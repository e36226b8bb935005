"""The reference engine: the specification of programs, in plain NumPy float32.

Other engines are tested against it. It is written for readability, not speed: weights are
dequantized to float32 when they are loaded, and the key-value cache is float32. ``reference.ops``
specifies every op, ``reference.sampling`` every sampling parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

import numpy as np
from support.reference import ops
from support.reference.group import ReferenceGroup
from support.reference.sampling import sample, score
from support.reference.weights import ReferenceWeights

from potluck.engines.pooling import StepPooler
from potluck.engines.step_checks import check_masks, check_openings, check_sampled, check_step
from potluck.errors import EngineError
from potluck.types.engine import NO_MASKS, BlockFormat, StepResult
from potluck.types.program import (
    HIDDEN,
    Add,
    AllGather,
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

    from potluck.types.engine import Exchange, TokenMasks
    from potluck.types.program import CacheSpec, Program
    from potluck.types.step import BlockCopy, SamplingParams, SequenceId, SequenceSlice, Step
    from potluck.types.tensor import TensorSink

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]


class ReferenceEngine:
    """One stage (see ``Engine``), with ``num_blocks`` cache blocks and ``num_states`` slots.

    ``is_row_wise``: each result depends only on its row of a matrix, bit for bit, and so does not
    change when a matrix is divided. This is slow.
    """

    def __init__(
        self,
        program: Program,
        *,
        num_blocks: int,
        num_states: int = 0,
        is_row_wise: bool = False,
    ) -> None:
        self._program = program
        self._multiply = ops.row_wise_product if is_row_wise else ops.product
        self._num_blocks = num_blocks
        self._weights = ReferenceWeights(program)
        self._caches = [_Cache(spec, num_blocks) for spec in program.caches]
        self._num_states = num_states
        self._states = [
            np.zeros((num_states, spec.rows, spec.width), np.float32) for spec in program.states
        ]
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._pooler = StepPooler()
        self._group = ReferenceGroup(program.shard.part)

    def sink(self) -> TensorSink:
        """Accepts every format; weights are stored as float32."""
        return self._weights

    def join_group(self, exchange: Exchange | None) -> None:
        """See ``LoadableEngine``."""
        self._group.join(exchange)

    def step(self, step: Step, hidden: Floats | None, masks: TokenMasks = NO_MASKS) -> StepResult:
        """Run the program once (see ``Engine``)."""
        self._check(step, hidden)
        check_masks(self._program, step, masks)
        if self._program.shard.is_led:
            self._logits(step, self._run(step, hidden))
            return StepResult(hidden=None, sampled=())
        if not self._program.shard.has_head:
            return StepResult(hidden=self._run(step, hidden), sampled=())
        check_openings(self._program, step, self._sequences)
        check_sampled(step, self._sequences)
        self._pooler.check(step)
        sequences = self._sequences | _open(self._program, step)
        rows = self._run(step, hidden)
        logits = self._logits(step, rows)
        choices = _choose_all(step, sequences, logits, masks)
        vectors = self._pooler.pool(step, rows)
        self._sequences = _without(sequences, step.closed)
        self._pooler.close(step.closed)
        return StepResult(hidden=None, sampled=choices + vectors)

    def logits(self, step: Step, hidden: Floats | None) -> Floats:
        """Like ``step`` without sampling, so that sequences need not have been opened.

        In a group, only member 0 gets logits; the others get an empty result for each token.
        """
        self._check(step, hidden)
        if not self._program.has_logits:
            raise EngineError(
                "this stage has no head, so it has no logits",
                hint="get the logits from the last stage",
            )
        if self._program.shard.is_led:
            return self._logits(step, self._run(step, hidden))
        check_openings(self._program, step, self._sequences)
        sequences = self._sequences | _open(self._program, step)
        logits = self._logits(step, self._run(step, hidden))
        self._sequences = _without(sequences, step.closed)
        return logits

    @property
    def block_format(self) -> BlockFormat:
        """See ``LoadableEngine``: keys and values of each cache in order, as float32."""
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
                f"blocks have shape {data.shape}, but must have {wanted}",
                hint="this is a defect in Potluck; please report it",
            )
        first = 0
        for cache in self._caches:
            cache.write_blocks(blocks, data[:, first : first + cache.block_bytes])
            first += cache.block_bytes

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``: the state of each op in order, as float32."""
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
                f"states have shape {data.shape}, but must have {wanted}",
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
                hint="load all weights before the first step, and do not use the engine after"
                " close",
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
        """Return the residual stream, or with the head its input."""
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
                    registers[op.out] = self._embed(op, tokens)
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
                        registers[op.x],
                        self._weights[op.weight],
                        self._vector(op.bias),
                        self._multiply,
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
                            e_score_correction_bias=self._vector(op.e_score_correction_bias),
                            expert_scale=self._vector(op.expert_scale),
                            gate_bias=self._vector(op.gate_bias),
                            up_bias=self._vector(op.up_bias),
                            down_bias=self._vector(op.down_bias),
                        ),
                        multiply=self._multiply,
                        exchanged=partial(self._gather, op.expert_widths),
                    )
                case SigmoidGate():
                    registers[op.x] = ops.sigmoid_gate(registers[op.x], registers[op.gate])
                case Scale():
                    registers[op.x] = registers[op.x] * np.float32(op.factor)
                case Multiply():
                    registers[op.x] = registers[op.x] * self._weights[op.weight]
                case AllGather():
                    registers[op.out] = self._gather(op.widths, registers[op.x])
                case Add():
                    registers[op.x] = ops.add(registers[op.x], registers[op.y], op.scale)
                case Head():
                    return registers[op.x]
                case _:
                    assert_never(op)
        return registers[HIDDEN]

    def _logits(self, step: Step, rows: Floats) -> Floats:
        """Return the requested logits for the head's input."""
        head = self._program.head
        if head is None or head.weight is None:
            return np.empty((0, 0), dtype=np.float32)  # the step was checked: none are requested
        wanted = _wanted_rows(step)
        if self._program.shard.is_led and not head.bounds:
            return np.empty((len(wanted), 0), dtype=np.float32)
        logits = ops.head(
            rows, self._weights[head.weight], wanted, head.scale, head.softcap, self._multiply
        )
        if head.bounds and len(wanted):
            return self._group.gather_at_leader(logits, head.bounds)
        return logits

    def _embed(self, op: Embed, tokens: Ints) -> Floats:
        weight = self._weights[op.weight]
        if op.bounds and len(tokens):
            return self._group.embed(weight, tokens, op.bounds)
        return ops.embed(weight, tokens)

    def _gather(self, widths: Sequence[int], x: Floats) -> Floats:
        """Return all columns of a divided register, or ``x`` if it is not divided."""
        if not widths or not len(x):
            return x if not widths else np.empty((0, sum(widths)), np.float32)
        return self._group.gather(x, widths)

    def _rope(self, op: Rope, x: Floats, positions: Ints) -> Floats:
        table = self._program.ropes[op.table]
        return ops.rope(x, table.cos[positions], table.sin[positions], op.num_heads)

    def _vector(self, name: str | None) -> Floats | None:
        return None if name is None else self._weights[name]

    def _wide(self, name: str, registers: dict[str, Floats], num_tokens: int) -> Floats:
        """Return a copy of a register of which an op writes some columns; zeros if it is new."""
        if name in registers:
            return registers[name].copy()
        return np.zeros((num_tokens, self._program.width(name)), np.float32)

    def _head_linear(self, op: HeadLinear, registers: dict[str, Floats]) -> Floats:
        x = registers[op.x]
        out = self._wide(op.out, registers, len(x))
        heads = ops.columns_of(x, op.num_heads, op.columns, op.x_start, op.x_stride)
        target = ops.columns_of(out, op.num_heads, op.rows, op.out_start, op.out_stride)
        target[...] = ops.head_linear(heads, self._weights[op.weight], self._multiply)
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
        """For each sequence: append to the cache, then attend to its contents."""
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
                self._multiply,
            )
        return out.reshape(len(out), op.num_heads * value_dim)


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """The data that sampling needs about an open sequence. ``output_tokens`` grows."""

    sampling: SamplingParams
    prompt_tokens: tuple[int, ...]
    output_tokens: list[int]

    def ends_with(self, position: int, token: int) -> bool:
        """Return whether the most recently sampled token is ``token`` at ``position``."""
        is_last = position == len(self.prompt_tokens) + len(self.output_tokens) - 1
        return is_last and bool(self.output_tokens) and self.output_tokens[-1] == token


class _Cache:
    """Keys and values of one layer: ``[num_blocks, 16, num_kv_heads, width]`` each."""

    def __init__(self, spec: CacheSpec, num_blocks: int) -> None:
        shape = (num_blocks, KV_BLOCK_TOKENS, spec.num_kv_heads)
        self._keys = np.zeros((*shape, spec.head_dim), dtype=np.float32)
        self._values = np.zeros((*shape, spec.value_dim), dtype=np.float32)

    def copy_block(self, copy: BlockCopy) -> None:
        """Copy the source block to the target block."""
        for values in (self._keys, self._values):
            values[copy.target] = values[copy.source]

    @property
    def block_bytes(self) -> int:
        """Return the size of a block as returned by ``read_blocks``."""
        return self._keys[:1].nbytes + self._values[:1].nbytes

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return the keys and values of each block, ``[len(blocks), block_bytes]``."""
        parts = [each[list(blocks)].reshape(len(blocks), -1) for each in (self._keys, self._values)]
        return np.concatenate(parts, 1).view(np.uint8)

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Restore data returned by ``read_blocks``."""
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
        """Return keys and values ``[num_positions, num_kv_heads, width]``, including ``part``."""
        end = part.start_position + len(part.tokens)
        blocks = list(part.block_table[: -(-end // KV_BLOCK_TOKENS)])
        num_positions = len(blocks) * KV_BLOCK_TOKENS
        keys, values = (
            each[blocks].reshape(num_positions, *each.shape[2:])[:end]
            for each in (self._keys, self._values)
        )
        return keys, values


def _open(program: Program, step: Step) -> dict[SequenceId, _Sequence]:
    """Return the sequences that a step opens."""
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
    """Return the sequences that stay open. A closed sequence that was never sampled was never
    opened here.
    """
    return {key: sequence for key, sequence in sequences.items() if key not in closed}


def _choose_all(
    step: Step,
    sequences: dict[SequenceId, _Sequence],
    logits: Floats,
    masks: TokenMasks,
) -> tuple[SampledToken, ...]:
    """Return the tokens after the wanted ones, as far as drafts are right; record sampled tokens.

    If a step fails, nothing is recorded.
    """
    choices: list[SampledToken] = []
    before = {
        part.sequence_id: len(sequences[part.sequence_id].output_tokens)
        for part in step.slices
        if part.wanted
    }
    try:
        row = 0
        for part in step.slices:
            rows = logits[row : row + len(part.wanted)]
            row += len(part.wanted)
            if part.wanted:
                choices += _choose(
                    sequences[part.sequence_id], part, rows, masks.get(part.sequence_id)
                )
    except EngineError:
        for sequence_id, count in before.items():
            del sequences[sequence_id].output_tokens[count:]
        raise
    return tuple(choices)


def _choose(
    sequence: _Sequence,
    part: SequenceSlice,
    logits: Floats,
    masks: NDArray[np.uint32] | None,
) -> Iterator[SampledToken]:
    """Return the tokens after the wanted ones of ``part``, as far as its drafts are right."""
    if part.begins_with_draft and not sequence.ends_with(part.start_position, part.tokens[0]):
        return
    num_scored = len(part.wanted) - 1 - part.num_drafts + part.begins_with_draft
    for row, index in enumerate(part.wanted):
        is_sampled = part.known_after(index) is None
        mask = masks[max(0, row - num_scored)] if masks is not None and is_sampled else None
        choice = _choose_one(sequence, part, index, logits[row], mask)
        yield choice
        if not is_sampled:
            continue
        sequence.output_tokens.append(choice.token)
        if index + 1 < len(part.tokens) and part.tokens[index + 1] != choice.token:
            return


def _choose_one(
    sequence: _Sequence,
    part: SequenceSlice,
    index: int,
    logits: Floats,
    mask: NDArray[np.uint32] | None,
) -> SampledToken:
    """Return the token after the one at ``index`` of ``part``: sampled, or known and scored."""
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
    """Yield every slice, and its rows of the registers."""
    first = 0
    for part in step.slices:
        rows = slice(first, first + len(part.tokens))
        yield part, rows
        first = rows.stop


def _sequence_rows(step: Step, states: Floats) -> Iterator[tuple[slice, Floats]]:
    """Yield the rows of every slice, and its state as a view."""
    for part, rows in _slices_and_rows(step):
        if part.state is not None:  # the step was checked: it exists
            yield rows, states[part.state]


def _positions(part: SequenceSlice) -> Ints:
    """Return the absolute positions of the new tokens."""
    return np.arange(part.start_position, part.start_position + len(part.tokens), dtype=np.int64)


def _wanted_rows(step: Step) -> Ints:
    """Return the rows of the tokens after which logits are requested."""
    rows: list[int] = []
    first = 0
    for part in step.slices:
        rows += [first + index for index in part.wanted]
        first += len(part.tokens)
    return np.array(rows, dtype=np.int64)
