"""The mutable state of one live sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.scheduling.checkpoints import PlannedCheckpoint
from potluck.scheduling.prefix_index import HashChain
from potluck.types.sequence import SequenceRequest
from potluck.types.step import Pooling, SequenceId, SequenceOpening


@dataclass(slots=True, kw_only=True)
class SequenceState:
    """A live sequence. Mutable, and private to the scheduler.

    ``num_scheduled`` counts the leading tokens whose computation was put into a step under the
    present ``block_table``; ``awaiting_sample`` is true while a step that samples for this sequence
    or gives its vector is in flight. ``is_opened`` says whether the last stage was told of the
    sequence. ``num_scored`` counts the scores of the prompt that were committed, and ``next_score``
    is the position of the first token of the prompt whose score no step was asked for yet. One that
    ``is_alone`` shares no step with others, and no other step is in flight beside its own.

    ``num_computed`` counts the leading tokens that the blocks of ``block_table`` hold as far as
    complete steps tell, in whole blocks right after admission; ``num_admissions`` tells one block
    table from the next. ``num_cached_tokens`` of the prompt were in the cache when the sequence was
    admitted first; None before. ``chain`` is of ``tokens``. ``awaited`` is the hash of
    the last block that it waits for, if it does. Its leading ``num_sought_blocks`` were looked for
    on the disks of the stages; none is any more if it ``is_sought``.

    Where the model has a state, ``state`` is its slot while it has blocks, and ``planned`` are the
    checkpoints that are to be made of it, the next one last. It ``is_announced`` once others may
    have planned checkpoints for it.
    """

    sequence_id: SequenceId
    request: SequenceRequest
    max_tokens: int
    tokens: list[int]
    block_table: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    awaiting_sample: bool = False
    is_opened: bool = False
    num_scored: int = 0
    next_score: int = 1
    is_alone: bool = False
    num_computed: int = 0
    num_admissions: int = 0
    num_cached_tokens: int | None = None
    chain: HashChain | None = None
    awaited: bytes | None = None
    num_sought_blocks: int = 0
    is_sought: bool = False
    state: int | None = None
    planned: list[PlannedCheckpoint] = field(default_factory=list)
    is_announced: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_tokens)

    @property
    def is_only_scored(self) -> bool:
        """No token is to be generated: nothing need be computed after the last one."""
        return self.max_tokens == self.num_prompt_tokens

    @property
    def num_to_compute(self) -> int:
        """Known tokens that are put into steps: the last of a text that is scored is not."""
        if self.request.pooling is not None:
            return self.request.last_pooled_position + 1
        return len(self.tokens) - self.is_only_scored

    @property
    def num_unscheduled(self) -> int:
        """Known tokens that no step has taken yet: more than one during prefill."""
        return self.num_to_compute - self.num_scheduled

    @property
    def most_cached_tokens(self) -> int:
        """The most leading tokens that may be taken from the cache when it is admitted.

        The last one is computed in any case, and all after which something is wanted.
        """
        most = self.num_to_compute - 1
        if self.request.pooling in (Pooling.CLS, Pooling.MEAN):
            return 0
        if self.request.score_prompt and self.next_score < self.num_prompt_tokens:
            return min(most, self.next_score - 1)
        return most

    @property
    def wants_decode(self) -> bool:
        """Exactly one token to compute, and prefill is behind it."""
        return self.num_unscheduled == 1 and self.num_scheduled >= self.num_prompt_tokens

    def opening(self) -> SequenceOpening:
        """Return what the last stage must know; it has forgotten, or never knew, the sequence."""
        return SequenceOpening(
            sequence_id=self.sequence_id,
            sampling=self.request.sampling,
            prompt_tokens=self.request.prompt_tokens,
            output_tokens=tuple(self.tokens[self.num_prompt_tokens :]),
            grammar=self.request.grammar,
        )

    def seek_again(self) -> None:
        """Its blocks may be put back from the disks of the stages."""
        self.num_sought_blocks = 0
        self.is_sought = False

    def restart(self) -> None:
        """Forget what was computed; the committed tokens and scores stay."""
        self.block_table = []
        self.state = None
        self.planned = []
        self.is_announced = False
        self.num_scheduled = 0
        self.num_computed = 0
        self.chain = None  # other stages may have another salt
        self.awaited = None
        self.seek_again()
        self.awaiting_sample = False
        self.is_opened = False
        self.next_score = self.num_scored + 1
