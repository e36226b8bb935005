"""Drafts by a smaller model, which is loaded and scheduled like any other model.

For every draft, the small model continues the sequence by a few tokens. Its prefix cache contains
nearly all of the text from the previous time, including what it has generated itself, so that
little more than the new tokens is computed. The small model samples with the sequence's own seed at
the same positions: where both models give similar probabilities, they choose the same token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from potluck.errors import PotluckError
from potluck.types.drafting import Drafter
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest, SequenceUpdate
from potluck.types.step import SequenceId

_log = logging.getLogger(__name__)

Post = Callable[[float, Callable[[], None]], None]
"""Call a function, after a delay in seconds, on the thread that uses the small model."""

Start = Callable[[SequenceRequest, OnUpdate], Cancel]
"""Ask the small model, on that thread. An exception ends the guess."""

_FIRST_SECONDS = 10.0
"""Timeout of a sequence's first guess, for which the small model computes the whole prompt."""

_NEXT_SECONDS = 1.0
"""Timeout of each further guess, after which the sequence continues without it."""

_PAUSE_SECONDS = 5.0
"""Pause after the small model has failed or did not respond in time."""

_MEASURE_SHARE = 0.2
"""Weight of one guess in the moving average of the time of guesses."""


class ModelDrafts:
    """Makes drafters that ask a small model. See ``DraftSource``; for several threads.

    ``on_ready`` is called on the thread of ``post`` when a drafter has its answer. ``vocab_size``
    is that of the model that verifies: other tokens are not proposed. ``context_tokens`` is the
    longest sequence of the small model.
    """

    def __init__(
        self,
        start: Start,
        post: Post,
        on_ready: Callable[[], None],
        *,
        vocab_size: int,
        context_tokens: int,
    ) -> None:
        self._start = start
        self._post = post
        self._on_ready = on_ready
        self._vocab_size = vocab_size
        self._context_tokens = context_tokens
        self._lock = threading.Lock()
        self._first_seconds = 0.0
        self._next_seconds = 0.0
        self._paused_until = 0.0

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Drafter | None:
        """See ``DraftSource``. Return None for a sequence that gets a single token, or a vector."""
        if not request.may_be_drafted:
            return None
        return _ModelDrafter(self, request)

    def seconds(self, k: int) -> float:
        """See ``DraftSource``."""
        with self._lock:
            return max(self._first_seconds, self._next_seconds) + (k - 1) * self._next_seconds

    def ask(self, draft: _PendingDraft) -> None:
        """Request a guess, which may yield nothing after the timeout."""

        def ask() -> None:
            if not draft.is_open:
                return
            self._post(draft.patience_seconds, give_up)
            try:
                draft.cancel = self._start(draft.request, on_update)
            except PotluckError as error:
                self._failed(draft, error)

        def on_update(update: SequenceUpdate | Exception) -> None:
            if not draft.is_open:
                return
            if isinstance(update, Exception):
                self._failed(draft, update)
                return
            tokens = update.tokens
            if not draft.tokens:
                draft.first_at = time.monotonic()
            draft.tokens += [each.token for each in tokens]
            if tokens and tokens[-1].finish_reason is not None:
                self._measured(draft)
                self._answered(draft)

        def give_up() -> None:
            if draft.is_open:
                if draft.cancel is not None:
                    draft.cancel()
                self._failed(draft, TimeoutError("it did not respond in time"))

        self._post(0.0, ask)

    def is_paused(self) -> bool:
        """Return whether no request is pending."""
        with self._lock:
            return time.monotonic() < self._paused_until

    def withdraw(self, draft: _PendingDraft) -> None:
        """Stop waiting for a guess."""

        def withdraw() -> None:
            if draft.cancel is not None:
                draft.cancel()

        if draft.is_open:
            draft.is_open = False
            self._post(0.0, withdraw)

    def proposable(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens up to the first one that the verifying model does not have."""
        end = next((i for i, each in enumerate(tokens) if each >= self._vocab_size), len(tokens))
        return tuple(tokens[:end])

    def room(self, num_tokens: int) -> int:
        """Return how many tokens the small model can add to a sequence."""
        return self._context_tokens - num_tokens

    def _answered(self, draft: _PendingDraft) -> None:
        draft.is_open = False
        self._on_ready()

    def _failed(self, draft: _PendingDraft, error: Exception) -> None:
        draft.tokens.clear()
        with self._lock:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
        _log.warning("speculative decoding is paused for %g s: %s", _PAUSE_SECONDS, error)
        self._answered(draft)

    def _measured(self, draft: _PendingDraft) -> None:
        num_next = len(draft.tokens) - 1
        with self._lock:
            if not draft.is_first:  # by then it has computed the whole prompt
                seconds = draft.first_at - draft.requested_at
                self._first_seconds = _moved(self._first_seconds, seconds)
            if num_next > 0:
                seconds = (time.monotonic() - draft.first_at) / num_next
                self._next_seconds = _moved(self._next_seconds, seconds)


def _moved(known: float, measured: float) -> float:
    return known + _MEASURE_SHARE * (measured - known) if known else measured


@dataclass(slots=True, kw_only=True, eq=False)
class _PendingDraft:
    """A guess that is being made of what follows ``num_tokens`` tokens; then the guess.

    Written on the thread that asks, and read by drafters once it is not open any more.
    """

    request: SequenceRequest
    num_tokens: int
    requested_at: float
    is_first: bool
    tokens: list[int]
    first_at: float = 0.0
    cancel: Cancel | None = None
    is_open: bool = True

    @property
    def patience_seconds(self) -> float:
        return _FIRST_SECONDS if self.is_first else _NEXT_SECONDS


class _ModelDrafter:
    """Guesses the tokens of one sequence. See ``Drafter``."""

    def __init__(self, drafts: ModelDrafts, request: SequenceRequest) -> None:
        self._drafts = drafts
        self._request = replace(
            request,
            sampling=replace(request.sampling, logprobs=False, top_logprobs=0),
            score_prompt=False,
            grammar=None,
            prediction=(),
        )
        self._pending: _PendingDraft | None = None
        self._is_first = True

    def chances(self, tokens: Sequence[int], most: int) -> None:
        """See ``Drafter``: the small model is asked only for guesses that are wanted."""

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """See ``Drafter``."""
        draft = self._pending
        if draft is not None and draft.num_tokens == len(tokens):
            if draft.is_open:
                return None
            self._pending = None
            return self._drafts.proposable(draft.tokens[:k])
        self._withdraw()
        k = min(k, self._drafts.room(len(tokens)))
        if k < 1 or self._drafts.is_paused():
            return ()
        self._pending = _PendingDraft(
            request=replace(self._request, prompt_tokens=tuple(tokens), max_new_tokens=k),
            num_tokens=len(tokens),
            requested_at=time.monotonic(),
            is_first=self._is_first,
            tokens=[],
        )
        self._is_first = False
        self._drafts.ask(self._pending)
        return None

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""
        if self._pending is not None and self._pending.num_tokens > num_tokens:
            self._withdraw()

    def close(self) -> None:
        """See ``Drafter``."""
        self._withdraw()

    def _withdraw(self) -> None:
        draft, self._pending = self._pending, None
        if draft is not None:
            self._drafts.withdraw(draft)
