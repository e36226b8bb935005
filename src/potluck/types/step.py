"""A step: one pass of a ragged batch of sequences through the stages.

Every sequence of a step brings any number of new tokens: a chunk of its prompt, or the one token
sampled last. Tokens of all sequences lie one after another in one flat list.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

SequenceId = NewType("SequenceId", int)
StepId = NewType("StepId", int)

KV_BLOCK_TOKENS = 16
"""Positions per KV-cache block (DESIGN: blocks of 16 at absolute positions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The defaults are neutral; ``temperature`` 0 is greedy.

    Order of application: repetition, frequency and presence penalties; ``logit_bias``; the mask of
    allowed tokens, if the step has one for the sequence (see ``Engine.step``); temperature;
    ``top_k``; ``top_p``; ``min_p``; one draw from the stream keyed by ``(seed, position)``.
    Log-probabilities are those of the model's own distribution, before penalties, bias, mask and
    temperature.

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


class Pooling(enum.Enum):
    """Which outputs of the last norm become a sequence's one vector.

    ``LAST`` is that of the last token, ``CLS`` that of the first, and ``MEAN`` the sum of all,
    added in the order of positions in float32, divided by their number. Where the model has a
    classifier (``ModelConfig.num_labels``), its outputs take the place of the norm's.
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

    A slot holds what the ops of a sequence keep besides keys and values (``StateSpec``): of a live
    sequence, or a *checkpoint* of one.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedBlock:
    """A cache block for 16 tokens, named by the hash of all tokens of its sequence up to its end.

    ``parent`` is the hash of the block before it, or of no tokens. Equal hashes mean equal content,
    on the same stages with the same weights.
    """

    block: int
    hash: bytes
    parent: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedState:
    """A state slot that holds the state after the tokens with ``hash``, which fill blocks."""

    state: int
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """The part that one sequence has in a step.

    ``tokens`` are its new tokens at positions ``[start_position, start_position + len(tokens))``.
    ``block_table[i]`` is the cache block that holds positions ``[16 i, 16 (i + 1))``, and covers
    all positions up to the last new one. ``state`` is the slot that holds the sequence's state
    after ``start_position`` tokens, and then after all of these; None for models without state. A
    slice from position 0 on begins with zeros, whatever the slot holds.

    The last stage is asked about the tokens that follow some of the new ones. With ``sample`` the
    one after the last is sampled. From the index ``score_from`` on, the tokens that follow are
    known and *scored*: their log-probabilities are wanted. They are the slice's own next ones and,
    after the last (without ``sample``), ``next_token``.

    A slice with ``pooling`` is part of a sequence that is to give a vector, and of which nothing is
    sampled or scored. All of its slices have it, from position 0 on for ``MEAN``, and the last one
    ``ends_pooling``. For ``CLS`` that is the slice that begins at position 0.
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

    @property
    def wanted(self) -> range:
        """Indices of the new tokens after which logits are wanted: some at the end, or none."""
        end = len(self.tokens)
        if self.score_from is not None:
            return range(self.score_from, end)
        return range(end - 1 if self.sample else end, end)

    def known_after(self, index: int) -> int | None:
        """The token that is scored after the wanted one at ``index``; None: one is sampled."""
        return self.tokens[index + 1] if index + 1 < len(self.tokens) else self.next_token


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOpening:
    """What the last stage must know to sample or score for a sequence, sent once, before that.

    ``prompt_tokens`` and ``output_tokens`` seed the penalty history (``output_tokens`` is not
    empty when a sequence is replayed). ``grammar`` is as in ``SequenceRequest``; it has been
    matched by ``output_tokens`` so far.
    """

    sequence_id: SequenceId
    sampling: SamplingParams
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One ragged batch. ``opened`` and ``closed`` are applied before and after the computation.

    First, stages that keep blocks on disk may keep those in ``saves``, whose content earlier steps
    have computed, and the states in ``state_saves``. Then ``copies`` and ``state_copies`` are made
    in order, before anything is computed.

    A step with ``restores`` has nothing else. Every stage puts back what it has kept of them, in
    order, up to the first one that it does not have. If there is a slot ``restored_state``, the
    state after one of these blocks is put there, where all stages have kept one.
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

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences together."""
        return sum(len(part.tokens) for part in self.slices)

    @property
    def num_wanted(self) -> int:
        """Logits that are wanted of all sequences together."""
        return sum(len(part.wanted) for part in self.slices)

    @property
    def results(self) -> tuple[tuple[SequenceId, int], ...]:
        """Sequence and position of each entry that the last stage gives, in order.

        Those of the logits that are wanted come first, then those of vectors.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its natural-log probability."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """What the last stage says of a sequence's ``position``: what it chose to stand there.

    For a token that is scored, the token that is known to stand there. ``logprob`` is None and
    ``top`` empty unless the sampling parameters asked for them; scored tokens have a ``logprob``
    always. For a sequence that is pooled, the last token of its last slice, with its ``vector``:
    little-endian float32. A token that ``is_cut_off`` ends a text whose grammar could not be
    followed any further: the text is not whole.
    """

    sequence_id: SequenceId
    position: int
    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    vector: bytes | None = None
    is_cut_off: bool = False
