"""A step: one pass of a ragged batch of sequences through the stages.

Every sequence of a step has any number of new tokens: a chunk of its prompt, or the last sampled
token. The tokens of all sequences are concatenated into one flat list.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import msgspec

SequenceId = NewType("SequenceId", int)
StepId = NewType("StepId", int)

KV_BLOCK_TOKENS = 16
"""Positions per KV-cache block (DESIGN: blocks of 16 at absolute positions)."""


def num_common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common prefix of tokens or blocks."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is sampled. The defaults are neutral; ``temperature`` 0 is greedy.

    Order of application: repetition, frequency and presence penalties; ``logit_bias``; the mask of
    allowed tokens, if the step has one for the sequence (see ``Engine.step``); temperature;
    ``top_k``; ``top_p``; ``min_p``; one draw from the stream keyed by ``(seed, position)``.
    Log-probabilities are those of the model's own distribution, before penalties, bias, mask and
    temperature.

    ``repetition_penalty`` (Keskar et al. 2019) divides positive and multiplies negative logits of
    tokens in the prompt or the output; ``frequency_penalty`` and ``presence_penalty`` (OpenAI)
    count only the output. ``top_logprobs`` is the number of alternatives to return in addition to
    the token itself.
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


class Pooling(enum.Enum):
    """Which outputs of the last norm become a sequence's vector.

    ``LAST`` uses the output of the last token, and ``CLS`` that of the first. ``MEAN`` is the sum
    of all outputs, added in the order of positions in float32, divided by their number. If the
    model has a classifier (``ModelConfig.num_labels``), its outputs are used instead of the norm's.
    """

    LAST = "last"
    CLS = "cls"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """The cache block ``target`` becomes a copy of ``source``, in every layer of every stage."""

    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """The state slot ``target`` becomes a copy of ``source``, on every stage.

    A slot holds the state that ops keep for a sequence in addition to keys and values
    (``StateSpec``): that of a live sequence, or a *checkpoint* of one.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedBlock:
    """A cache block for 16 tokens, identified by the hash of its sequence's tokens up to its end.

    ``parent`` is the hash of the previous block, or of no tokens. On the same stages with the same
    weights, equal hashes mean equal content.
    """

    block: int
    hash: bytes
    parent: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedState:
    """A state slot that holds the state after the tokens with ``hash``, which fill whole blocks."""

    state: int
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """One sequence's part of a step.

    ``tokens`` are its new tokens at positions ``[start_position, start_position + len(tokens))``.
    ``block_table[i]`` is the cache block that holds positions ``[16 i, 16 (i + 1))``, and covers
    all positions up to the last new one. ``state`` is the slot that holds the sequence's state
    after ``start_position`` tokens before the step, and after all of these tokens afterwards; None
    for models without state. A slice that starts at position 0 starts with zeros, whatever the slot
    holds.

    The last stage samples or scores the tokens that follow some of the new ones. With ``sample``,
    the token after the last one is sampled. From the index ``score_from`` on, the following tokens
    are known and *scored*, which means that their log-probabilities are returned. They are the next
    tokens of the slice itself and, after its last token (without ``sample``), ``next_token``.

    The last ``num_drafts`` tokens of a slice with ``sample`` are *drafts*: guesses of the tokens
    that are sampled at their positions (Leviathan et al. 2023). The token after each draft is
    sampled too, in order, as long as the drafts are right: up to and including the first sample
    that differs from the draft at its position. The contents of the cache from that position on are
    invalid, and later slices overwrite them. If all tokens are drafts, the first one guesses the
    last token that an earlier step, possibly still in flight, samples for the sequence. If that
    step samples another token, or none at that position, nothing is sampled for this slice. A slice
    with drafts is computed as a decode and has no scores. ``state`` has the state after all of its
    tokens: a caller that may have to discard drafts must keep a copy of the state before them.

    A slice with ``pooling`` is part of a sequence that computes a vector, and for which nothing is
    sampled or scored. It is set in all slices of the sequence (from position 0 on for ``MEAN``),
    and the last one has ``ends_pooling``; for ``CLS`` that is the slice that starts at position 0.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...]
    start_position: int
    block_table: tuple[int, ...]
    sample: bool
    score_from: int | None = None
    next_token: int | None = None
    pooling: Pooling | None = None
    ends_pooling: bool = False
    state: int | None = None
    num_drafts: int = 0

    @property
    def begins_with_draft(self) -> bool:
        """Whether all tokens are drafts; an earlier step determines whether the first is right."""
        return self.num_drafts == len(self.tokens)

    @property
    def wanted(self) -> range:
        """The indices of the new tokens whose logits are needed: some at the end, or none."""
        end = len(self.tokens)
        if self.score_from is not None:
            return range(self.score_from, end)
        return range(max(0, end - 1 - self.num_drafts) if self.sample else end, end)

    def known_after(self, index: int) -> int | None:
        """Return the token that is scored after the one at ``index``; None if it is sampled."""
        if self.num_drafts:
            return None
        return self.tokens[index + 1] if index + 1 < len(self.tokens) else self.next_token


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOpening:
    """The data that the last stage needs to sample or score for a sequence, sent once beforehand.

    ``prompt_tokens`` and ``output_tokens`` seed the penalty history (``output_tokens`` is not empty
    if a sequence is replayed). ``grammar`` is as in ``SequenceRequest``; ``output_tokens`` match
    the beginning of it.
    """

    sequence_id: SequenceId
    sampling: SamplingParams
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One ragged batch. ``opened`` and ``closed`` are applied before and after the computation.

    First, stages that keep blocks on disk may save the blocks in ``saves``, whose contents earlier
    steps have computed, and the states in ``state_saves``. Then ``copies`` and ``state_copies`` are
    performed in order, before anything is computed.

    A step with ``restores`` has nothing else. Every stage restores the blocks that it has saved, in
    order, up to the first one that it does not have. If ``restored_state`` is a slot, the state
    after one of these blocks for which all stages have saved a state is restored to it.

    ``cancels`` are steps that were submitted before this one and whose results are no longer
    needed, because their drafts were wrong. A stage that has not computed them yet skips them and
    reports that to the stages after it, which skip them too. Only steps that open, close, copy and
    save nothing are cancelled.
    """

    step_id: StepId
    slices: tuple[SequenceSlice, ...]
    opened: tuple[SequenceOpening, ...] = ()
    closed: tuple[SequenceId, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    saves: tuple[HashedBlock, ...] = ()
    restores: tuple[HashedBlock, ...] = ()
    state_copies: tuple[StateCopy, ...] = ()
    state_saves: tuple[HashedState, ...] = ()
    restored_state: int | None = None
    cancels: tuple[StepId, ...] = ()

    @property
    def can_be_skipped(self) -> bool:
        """Whether it may be cancelled, since it only verifies drafts that follow other drafts."""
        slices = self.slices
        if not slices or not all(part.num_drafts and part.begins_with_draft for part in slices):
            return False
        does_more = (
            self.opened
            or self.closed
            or self.copies
            or self.saves
            or self.state_copies
            or self.state_saves
            or any(part.state is not None for part in slices)
        )
        return not does_more

    @property
    def num_tokens(self) -> int:
        """The number of new tokens of all sequences."""
        return sum(len(part.tokens) for part in self.slices)

    @property
    def num_wanted(self) -> int:
        """The number of rows of logits that are needed for all sequences."""
        return sum(len(part.wanted) for part in self.slices)

    @property
    def results(self) -> tuple[tuple[SequenceId, int], ...]:
        """The sequence and position of each result of the last stage, in order.

        Sampled and scored tokens come first, then vectors. If drafts are wrong, the last results of
        a slice, or all of them, are missing (see ``SequenceSlice``).
        """
        wanted = tuple(
            (part.sequence_id, part.start_position + index + 1)
            for part in self.slices
            for index in part.wanted
        )
        return wanted + tuple(
            (part.sequence_id, part.start_position + len(part.tokens) - 1)
            for part in self.slices
            if part.ends_pooling
        )


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


class SampledToken(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The last stage's result for a sequence's ``position``: the sampled or scored token.

    ``logprob`` is None and ``top`` empty unless the sampling parameters request them; scored tokens
    always have a ``logprob``. For a pooled sequence it is the last token of its last slice, with
    the ``vector`` in little-endian float32. A token with ``is_cut_off`` ends an incomplete text,
    whose grammar could not be followed any further.
    """

    sequence_id: SequenceId
    position: int
    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    vector: bytes | None = None
    is_cut_off: bool = False
