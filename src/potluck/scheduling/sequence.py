"""The mutable state of one live sequence, and which requests a scheduler accepts."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.errors import ParameterError, PromptTooLongError
from potluck.scheduling.checkpoints import PlannedCheckpoint
from potluck.scheduling.prefix_index import HashChain
from potluck.types.sequence import Continuation, SequenceRequest
from potluck.types.step import Pooling, SequenceId, SequenceOpening


@dataclass(slots=True)
class PromptScores:
    """How many scores of a prompt were committed, and the next token whose score is requested."""

    num_committed: int
    next_position: int


@dataclass(slots=True)
class LiveState:
    """The state of a sequence that has blocks, in a slot.

    ``planned`` are the checkpoints that are to be made of it, the next one last. While a step in
    flight verifies drafts, the slot ``snapshot`` holds the state before it. If the sequence
    ``must_roll_back``, a draft was wrong: the state in its own slot is invalid, and what follows
    the snapshot is computed again, from ``num_scheduled`` on.
    """

    slot: int
    planned: list[PlannedCheckpoint]
    snapshot: int | None = None
    must_roll_back: bool = False


@dataclass(slots=True, kw_only=True)
class SequenceState:
    """A live sequence. Mutable, and private to the scheduler.

    ``num_scheduled`` counts the leading tokens whose computation was put into a step with the
    current ``block_table``; ``num_awaited`` steps are in flight that sample for this sequence or
    give its vector. ``is_opened`` says whether the last stage was told of the sequence. It has
    ``scores`` if those of its prompt were requested. One that ``is_alone`` shares no step with
    others, and no other step is in flight at the same time as its own.

    ``num_computed`` counts the leading tokens that the blocks of ``block_table`` hold according to
    completed steps, in whole blocks right after admission; ``num_admissions`` distinguishes one
    block table from the next. ``num_cached_tokens`` of the prompt were in the cache when the
    sequence was first admitted; None before. ``chain`` is that of ``tokens``. ``awaited`` is the
    hash of the last block that it waits for, if any. Its leading ``num_sought_blocks`` were looked
    for on the disks of the stages; None if no more will be.

    If the model has a state, it has a ``state`` while it has blocks, and it ``is_announced`` once
    others may have planned checkpoints for it.

    ``ahead`` are guesses of the tokens that follow ``tokens``, which steps in flight verify:
    ``num_scheduled`` counts them too. When one is wrong they are dropped, the ``generation`` is
    incremented, and steps in flight that were formed for an earlier one give the sequence nothing.
    """

    sequence_id: SequenceId
    request: SequenceRequest
    max_tokens: int
    tokens: list[int]
    chain: HashChain
    scores: PromptScores | None = None
    block_table: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    num_awaited: int = 0
    is_opened: bool = False
    is_alone: bool = False
    num_computed: int = 0
    num_admissions: int = 0
    num_cached_tokens: int | None = None
    awaited: bytes | None = None
    num_sought_blocks: int | None = 0
    state: LiveState | None = None
    is_announced: bool = False
    ahead: list[int] = field(default_factory=list)
    generation: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Return the length of the prompt."""
        return len(self.request.prompt_tokens)

    @property
    def is_only_scored(self) -> bool:
        """Return whether no token is to be generated: nothing need be computed after the last
        one.
        """
        return self.max_tokens == self.num_prompt_tokens

    @property
    def num_to_compute(self) -> int:
        """Return how many known tokens are put into steps: the last of a scored text is not."""
        if self.request.pooling is not None:
            return self.request.last_pooled_position + 1
        return len(self.tokens) - self.is_only_scored

    @property
    def num_unscheduled(self) -> int:
        """Return how many known tokens are in no step yet: more than one during prefill."""
        return max(0, self.num_to_compute - self.num_scheduled)

    @property
    def awaiting_sample(self) -> bool:
        """Return whether a step that samples for it or gives its vector is in flight."""
        return self.num_awaited > 0

    @property
    def most_cached_tokens(self) -> int:
        """Return how many leading tokens may be taken from the cache when it is admitted.

        The last one is always computed, as are all whose successors need a result.
        """
        most = self.num_to_compute - 1
        if self.request.pooling in (Pooling.CLS, Pooling.MEAN):
            return 0
        if self.scores is not None and self.scores.next_position < self.num_prompt_tokens:
            return min(most, self.scores.next_position - 1)
        return most

    @property
    def wants_decode(self) -> bool:
        """Return whether it has finished prefill and has one token to compute, or some to
        recompute.
        """
        if self.num_scheduled < self.num_prompt_tokens:
            return False
        if self.num_unscheduled == 1:
            return True
        return self.state is not None and self.state.must_roll_back

    @property
    def live_state(self) -> LiveState:
        """Return its state; raise ``ValueError`` if it has none."""
        if self.state is None:
            raise ValueError(f"sequence {self.sequence_id} has no state slot")
        return self.state

    def opening(self) -> SequenceOpening:
        """Return what the last stage must know; it has forgotten, or never knew, the sequence."""
        return SequenceOpening(
            sequence_id=self.sequence_id,
            sampling=self.request.sampling,
            prompt_tokens=self.request.prompt_tokens,
            output_tokens=tuple(self.tokens[self.num_prompt_tokens :]),
            grammar=self.request.grammar,
        )

    def take_sample(self, token: int) -> None:
        """Append a sampled token; guesses that it disproves are dropped."""
        self.tokens.append(token)
        if not self.ahead:
            return
        if self.ahead[0] == token:
            del self.ahead[0]
        else:
            self.drop_ahead()

    def drop_ahead(self) -> None:
        """Discard what steps in flight compute beyond the last token: it is computed again."""
        self.ahead.clear()
        self.generation += 1
        self.num_awaited = 0
        self.num_scheduled = min(self.num_scheduled, len(self.tokens) - 1)

    def restart(self) -> None:
        """Forget what was computed; the committed tokens and scores stay."""
        self.block_table = []
        self.state = None
        self.is_announced = False
        self.num_scheduled = 0
        self.num_computed = 0
        self.awaited = None
        self.num_sought_blocks = 0
        self.num_awaited = 0
        self.ahead.clear()
        self.generation += 1
        self.is_opened = False
        if self.scores is not None:
            self.scores.next_position = self.scores.num_committed + 1


def num_new_tokens(
    request: SequenceRequest, continuation: Continuation, context_tokens: int
) -> int:
    """Return the most new tokens that ``request`` is given, including those of ``continuation``.

    Raise ``PromptTooLongError`` if the prompt or its first token does not fit, ``ParameterError``
    for a continuation that does not belong to the request, or that leaves nothing to compute, and
    ``ValueError`` for a request for nothing or for incompatible results.
    """
    num_prompt_tokens = len(request.prompt_tokens)
    if num_prompt_tokens < 1:
        raise ValueError("a prompt must have at least one token")
    if num_prompt_tokens + (request.max_new_tokens != 0) > context_tokens:
        raise PromptTooLongError(num_prompt_tokens, context_tokens)
    room = context_tokens - num_prompt_tokens
    num_new = room if request.max_new_tokens is None else min(request.max_new_tokens, room)
    if num_new < 0 or request.generates_nothing:
        raise ValueError("at least one new token, one score or a vector must be requested")
    if request.pooling is not None and (num_new or request.num_scores):
        raise ValueError("a pooled sequence cannot have new tokens or scores")
    _check_continuation(request, continuation, num_new)
    return num_new


def _check_continuation(request: SequenceRequest, continuation: Continuation, num_new: int) -> None:
    """Raise ``ParameterError`` for a continuation that does not belong to the request, or ends it.

    ``num_new`` is the most new tokens that the request is given.
    """
    outputs, num_scored = continuation.output_tokens, continuation.num_scored
    if not 0 <= num_scored <= request.num_scores:
        raise _no_continuation(
            f"it has {num_scored} scores, but only {request.num_scores} were requested"
        )
    if outputs and num_scored < request.num_scores:
        raise _no_continuation("it has generated tokens but lacks scores of the prompt")
    if len(outputs) > num_new:
        raise _no_continuation(
            f"it has {len(outputs)} generated tokens, but at most {num_new} are allowed"
        )
    is_complete = len(outputs) == num_new and num_scored == request.num_scores
    if any(token in request.stop_tokens for token in outputs) or (
        is_complete and request.pooling is None
    ):
        raise _no_continuation("it has ended")


def _no_continuation(reason: str) -> ParameterError:
    return ParameterError("continuation", f"the sequence cannot be continued: {reason}")
