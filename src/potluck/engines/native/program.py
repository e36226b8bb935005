"""Convert programs and steps to the form of the compiled core, and label ops for timing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from potluck.errors import DEFECT_HINT, EngineError
from potluck.kernels import runner
from potluck.types.program import (
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
    Op,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    StateScan,
)
from potluck.types.step import Pooling, SampledToken, SequenceId, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from potluck.types.engine import TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import SamplingParams, SequenceOpening, SequenceSlice


@contextmanager
def core_errors(hint: str = DEFECT_HINT) -> Iterator[None]:
    """Convert the core's errors to ``EngineError``; ``hint`` says how to fix them."""
    try:
        yield
    except runner.OutOfMemoryError as error:
        raise EngineError(
            str(error), hint="close other programs, or use a smaller model, context or batch"
        ) from error
    except runner.NonFiniteError as error:
        raise EngineError(
            str(error),
            hint="the weights are damaged or overflow: download or convert the model again",
        ) from error
    except runner.Error as error:
        raise EngineError(str(error), hint=hint) from error


def core_program(program: Program) -> runner.Program:
    """Return ``program`` after validating it. Raises ``EngineError`` if it is inconsistent.

    The core reads the ops directly, by their field names.
    """
    part = program.shard.part
    with core_errors():
        return runner.Program(
            registers=[
                runner.Register(name=register.name, width=register.width)
                for register in program.registers
            ],
            ops=program.ops,
            weights=[
                runner.WeightSpec(name=weight.name, shape=list(weight.shape))
                for weight in program.weights
            ],
            caches=[
                runner.CacheSpec(
                    num_kv_heads=cache.num_kv_heads,
                    head_dim=cache.head_dim,
                    value_dim=cache.value_dim,
                )
                for cache in program.caches
            ],
            states=[
                runner.StateSpec(rows=state.rows, width=state.width) for state in program.states
            ],
            ropes=[(rope.cos, rope.sin) for rope in program.ropes],
            hidden_size=program.hidden_size,
            vocab_size=program.vocab_size,
            context_tokens=program.context_tokens,
            has_embedding=program.shard.has_embedding,
            has_head=program.shard.has_head,
            member=0 if part is None else part.member,
            num_members=1 if part is None else len(part.shares),
        )


_POOLINGS = {each: runner.Pooling[each.name] for each in Pooling}


def core_slice(part: SequenceSlice) -> runner.Slice:
    """Convert ``part`` to the core's form."""
    return runner.Slice(
        sequence_id=part.sequence_id,
        tokens=part.tokens,
        start_position=part.start_position,
        block_table=part.block_table,
        sample=part.sample,
        score_from=part.score_from,
        next_token=part.next_token,
        pooling=None if part.pooling is None else _POOLINGS[part.pooling],
        ends_pooling=part.ends_pooling,
        state=part.state,
        num_drafts=part.num_drafts,
    )


def core_opening(opening: SequenceOpening) -> runner.Opening:
    """Convert ``opening`` to the core's form; its parameters have been validated."""
    return runner.Opening(
        sequence_id=opening.sequence_id,
        sampling=_sampling(opening.sampling),
        prompt_tokens=opening.prompt_tokens,
        output_tokens=opening.output_tokens,
        has_grammar=opening.grammar is not None,
    )


def core_masks(masks: TokenMasks) -> list[tuple[int, NDArray[np.uint32]]]:
    """Convert ``masks`` to the core's form; they have passed ``check_masks``."""
    return [(int(sequence), np.ascontiguousarray(rows)) for sequence, rows in masks.items()]


def sampled_token(token: runner.SampledToken) -> SampledToken:
    """Convert ``token`` to the engines' form."""
    return SampledToken(
        sequence_id=SequenceId(token.sequence_id),
        position=token.position,
        token=token.token,
        logprob=token.logprob,
        top=tuple(TokenLogprob(token=one.token, logprob=one.logprob) for one in token.top),
    )


def pooled_token(vector: runner.PooledVector) -> SampledToken:
    """Convert ``vector`` to the engines' form."""
    return SampledToken(
        sequence_id=SequenceId(vector.sequence_id),
        position=vector.position,
        token=vector.token,
        vector=vector.values,
    )


def _sampling(params: SamplingParams) -> runner.SamplingParams:
    return runner.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=params.logit_bias,
        seed=params.seed,
        logprobs=params.logprobs,
        top_logprobs=params.top_logprobs,
    )


_LAYERS = "layers."

_CONVERSION = "rounding"
"""The conversion of a register that is part of the next op: activations to 8 bits or to bf16."""


def label_of(ops: Sequence[Op]) -> str:
    """Return the label of ops that run together; matrices of one part of a layer share its name:
    ``attn.q+k+v``.
    """
    names = list(dict.fromkeys(_name(op) for op in ops))
    if not names:
        return _CONVERSION
    first, dot, _ = names[0].partition(".")
    prefix = first + dot
    if dot and all(name.startswith(prefix) for name in names):
        return prefix + "+".join(name.removeprefix(prefix) for name in names)
    return "+".join(names)


def _name(op: Op) -> str:
    match op:
        case Embed():
            return "embedding"
        case RmsNorm() | LayerNorm():
            return "norms"
        case Linear() | HeadLinear():
            return _role(op.weight)
        case CopyColumns():
            return "copies"
        case CausalConv():
            return "convolution"
        case GatedDelta() | StateScan():
            return "recurrence"
        case Rope():
            return "rope"
        case Attention():
            return "attention"
        case GatedActivation() | SigmoidGate():
            return "activation"
        case Moe():
            return "experts"
        case Add() | Scale() | Multiply():
            return "add"
        case AllGather():
            return "exchange"
        case Head():
            return "head"


def _role(weight: str) -> str:
    """Return the role of a weight: ``layers.3.attn.q.weight`` → ``attn.q``."""
    name = weight.removesuffix(".weight")
    if name.startswith(_LAYERS):
        name = name.removeprefix(_LAYERS).partition(".")[2]
    return name
