"""What happened in a run, and what must never happen, whatever did.

The checks here know nothing of how the code under test keeps its promises: a stage notes what it
computes, a gateway what its clients are given, and both are held against what was promised.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.types.cluster import DeploymentId, Epoch
from potluck.types.sequence import SequenceRequest

VOCAB_SIZE = 1000


def next_token(seed: int, history: Sequence[int]) -> int:
    """The token that follows, of a model that never forgets."""
    return zlib.crc32(f"{seed}:{history}".encode()) % VOCAB_SIZE


def score(history: Sequence[int], token: int) -> float:
    """What the model says of a token of the prompt."""
    return -float(next_token(token, history))


Token = tuple[int, int, float | None]
"""A position, what stands there, and its log-probability if it is a token of the prompt."""


def undisturbed(request: SequenceRequest) -> list[Token]:
    """What a request is answered with if nothing happens."""
    history = list(request.prompt_tokens)
    answer: list[Token] = []
    if request.score_prompt:
        answer = [
            (position, token, score(history[:position], token))
            for position, token in enumerate(history)
            if position
        ]
    for _ in range(request.max_new_tokens or 0):
        token = next_token(request.sampling.seed, history)
        answer.append((len(history), token, None))
        history.append(token)
    return answer


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one client was given for one request."""

    name: str
    request: SequenceRequest
    requested_at: float
    tokens: list[Token] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    ended_at: float | None = None
    end: str = ""
    num_ends: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether it has everything."""
        return self.end == "complete"


class History:
    """Notes what happens; ``violations`` are sentences about what must not."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.violations: list[str] = []
        self.notes: list[str] = []
        self.worker_numbers = itertools.count(1)
        self._acted: dict[tuple[int, DeploymentId], Epoch] = {}
        self._computed: set[tuple[int, Epoch, int]] = set()
        self.num_dropped_frames = 0
        self.num_skipped_steps = 0
        self.num_steps = 0

    def note(self, now: float, line: str) -> None:
        """For whoever reads what led to a violation."""
        self.notes.append(f"{now:9.4f} {line}")

    def violation(self, line: str) -> None:
        """Something that must not happen has."""
        self.violations.append(line)

    def connected(self, worker: int, deployment: DeploymentId, epoch: Epoch) -> None:
        """A stage obeys ``epoch`` from here on."""
        self._obeys(worker, deployment, epoch, "is connected")

    def computed(self, worker: int, deployment: DeploymentId, epoch: Epoch, step: int) -> None:
        """A stage has computed a step."""
        self.num_steps += 1
        self._obeys(worker, deployment, epoch, f"computes step {step}")
        if (worker, epoch, step) in self._computed:
            self.violation(f"stage {worker} computes step {step} of {_name(epoch)} twice")
        self._computed.add((worker, epoch, step))

    def _obeys(self, worker: int, deployment: DeploymentId, epoch: Epoch, what: str) -> None:
        highest = self._acted.get((worker, deployment), epoch)
        if epoch < highest:
            self.violation(
                f"stage {worker} {what} in {_name(epoch)} after it has obeyed {_name(highest)}"
            )
        self._acted[worker, deployment] = max(highest, epoch)

    def record_request(self, name: str, request: SequenceRequest, now: float) -> Answer:
        """A client sends a request."""
        answer = Answer(name=name, request=request, requested_at=now)
        self.answers.append(answer)
        return answer

    def given(self, answer: Answer, token: Token, epoch: Epoch) -> None:
        """A client receives a token."""
        if answer.num_ends:
            self.violation(f"{answer.name} is given a token after its end")
        answer.tokens.append(token)
        if not answer.epochs or answer.epochs[-1] != epoch:
            if epoch in answer.epochs:
                self.violation(f"{answer.name} is a mixture: {_name(epoch)} comes back to it")
            answer.epochs.append(epoch)

    def ended(self, answer: Answer, end: str, now: float) -> None:
        """A client's answer is over: "complete", or why it is not."""
        answer.num_ends += 1
        answer.ended_at = now
        answer.end = end
        if answer.num_ends > 1:
            self.violation(f"{answer.name} ends more than once")

    def check_answers(self, *, may_fail: bool) -> None:
        """At the end of a run: everybody has an answer, and the right one."""
        for answer in self.answers:
            expected = undisturbed(answer.request)
            if answer.num_ends == 0:
                self.violation(f"{answer.name} never ends, after {len(answer.tokens)} tokens")
            if answer.tokens != expected[: len(answer.tokens)]:
                self.violation(
                    f"{answer.name} is given {answer.tokens} and not {expected}, in"
                    f" {[_name(epoch) for epoch in answer.epochs]}"
                )
            elif answer.is_complete and len(answer.tokens) != len(expected):
                self.violation(
                    f"{answer.name} is complete with {len(answer.tokens)} tokens of {len(expected)}"
                )
            is_failure = answer.num_ends > 0 and not answer.is_complete
            if is_failure and answer.end != "gateway lost" and not may_fail:
                self.violation(f"{answer.name} fails although nothing was missing: {answer.end}")


def _name(epoch: Epoch) -> str:
    return f"epoch {epoch.number} of {epoch.coordinator}"
