"""A step: one pass of a ragged batch of sequences through the stages.

Every sequence of a step brings any number of new tokens: a chunk of its prompt, or the one token
sampled last. Tokens of all sequences lie one after another in one flat list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

SequenceId = NewType("SequenceId", int)
StepId = NewType("StepId", int)

KV_BLOCK_TOKENS = 16
"""Positions per KV-cache block (DESIGN: blocks of 16 at absolute positions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The defaults are neutral; ``temperature`` 0 is greedy.

    Order of application: repetition, frequency and presence penalties; ``logit_bias``;
    temperature; ``top_k``; ``top_p``; ``min_p``; one draw from the stream keyed by
    ``(seed, position)``. Log-probabilities are those of the model's own distribution, before
    penalties, bias and temperature.

    ``repetition_penalty`` (Keskar et al. 2019) divides positive and multiplies negative logits of
    tokens in the prompt or the output; ``frequency_penalty`` and ``presence_penalty`` (OpenAI)
    count the output only. ``top_logprobs`` asks for that many alternatives besides the token's own.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """The part that one sequence has in a step.

    ``tokens`` are its new tokens at positions ``[start_position, start_position + len(tokens))``.
    ``block_table[i]`` is the cache block that holds positions ``[16 i, 16 (i + 1))``, and covers
    all positions up to the last new one. With ``sample`` the token after the last one is sampled.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...]
    start_position: int
    block_table: tuple[int, ...]
    sample: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOpening:
    """What the last stage must know to sample for a sequence, sent once, before its first sample.

    ``prompt_tokens`` and ``output_tokens`` seed the penalty history (``output_tokens`` is not
    empty when a sequence is replayed).
    """

    sequence_id: SequenceId
    sampling: SamplingParams
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One ragged batch. ``opened`` and ``closed`` are applied before and after the computation."""

    step_id: StepId
    slices: tuple[SequenceSlice, ...]
    opened: tuple[SequenceOpening, ...] = ()
    closed: tuple[SequenceId, ...] = ()

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences together."""
        return sum(len(part.tokens) for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its natural-log probability."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """What the last stage chose for a sequence at ``position`` (where the token will stand).

    ``logprob`` is None and ``top`` empty unless the sampling parameters asked for them.
    """

    sequence_id: SequenceId
    position: int
    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
