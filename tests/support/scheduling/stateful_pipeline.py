"""A pipeline of stages with state that computes nothing but notices every wrong state.

Each stage remembers which token was written at which position of which block, as
``toy_pipeline``, and in each state slot how many tokens it has seen and a hash of them. A token is
that of ``expected_tokens`` only if the blocks and the slots of all stages show the same history.
So it is wrong for a slot that was overwritten, copied too early, too late or from elsewhere, and
for one that a step wrote which has failed on one of the stages.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.scheduling.toy_pipeline import as_far_as_right, next_token, toy_score

from potluck.types.step import KV_BLOCK_TOKENS, SampledToken, SequenceSlice, Step, StepId

State = tuple[int, int]
"""How many tokens were seen, and their hash."""

_NOTHING: State = (0, 0)
_UNKNOWN: State = (-1, 0)


def state_after(tokens: Sequence[int], before: State = _NOTHING) -> State:
    """Return the state after ``tokens``."""
    count, digest = before
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return count + len(tokens), zlib.crc32(packed, digest)


@dataclass
class ToyStage:
    """One stage: what its cache blocks and its state slots hold."""

    rows: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)

    def copy(self, step: Step) -> None:
        """Make the copies of a step."""
        for copy in step.copies:
            for offset in range(KV_BLOCK_TOKENS):
                row = self.rows.get((copy.source, offset))
                if row is not None:
                    self.rows[copy.target, offset] = row
        for state_copy in step.state_copies:
            self.states[state_copy.target] = self.states.get(state_copy.source, _UNKNOWN)

    def compute(self, part: SequenceSlice) -> dict[int, list[int] | None]:
        """Write a slice; return the history after each token after which something is wanted.

        None where blocks and state do not show the same one.
        """
        table, start = part.block_table, part.start_position
        for position, token in enumerate(part.tokens, start):
            place = table[position // KV_BLOCK_TOKENS], position % KV_BLOCK_TOKENS
            self.rows[place] = (position, token)
        history: list[int] = []
        for position in range(start + len(part.tokens)):
            place = table[position // KV_BLOCK_TOKENS], position % KV_BLOCK_TOKENS
            written, token = self.rows.get(place, (-1, 0))
            if written != position:
                break
            history.append(token)
        assert part.state is not None
        before = _NOTHING if start == 0 else self.states.get(part.state, _UNKNOWN)
        seen: dict[int, list[int] | None] = {}
        for index in part.wanted:
            known = history[: start + index + 1]
            is_right = state_after(known) == state_after(part.tokens[: index + 1], before)
            seen[index] = known if is_right else None
        self.states[part.state] = state_after(part.tokens, before)
        return seen


class StatefulPipeline:
    """Takes steps and runs them, oldest first, when asked."""

    def __init__(self, num_states: int, num_stages: int = 2) -> None:
        self.num_states = num_states
        self.stages = [ToyStage() for _ in range(num_stages)]
        self.num_computed = 0
        """Tokens of all steps that were run."""
        self.num_state_copies = 0
        self._steps: deque[Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: Step) -> None:
        """Queue a step, and check what it writes."""
        copied = [copy.target for copy in step.state_copies]
        own = [part.state for part in step.slices]
        assert None not in own
        assert len(set(copied)) == len(copied), "a slot is copied to twice in one step"
        assert len(set(own)) == len(own), "two sequences of one step have one slot"
        for copy in step.state_copies:
            part = next((each for each in step.slices if each.state == copy.target), None)
            assert part is None or part.start_position > 0, "what begins with zeros is restored"
        used = {*own, *copied, *(copy.source for copy in step.state_copies)}
        assert used <= set(range(self.num_states))
        self._steps.append(step)

    @property
    def oldest(self) -> Step:
        """The step that is run next."""
        return self._steps[0]

    def run_oldest(self, fails_at: int | None = None) -> tuple[StepId, tuple[SampledToken, ...]]:
        """Run the oldest step; from the stage ``fails_at`` on it is not computed."""
        step = self._steps.popleft()
        self.num_computed += step.num_tokens
        self.num_state_copies += len(step.state_copies)
        sampled: list[SampledToken] = []
        for stage in self.stages[:fails_at]:
            stage.copy(step)
        for part in step.slices:
            seen = [stage.compute(part) for stage in self.stages[:fails_at]]
            if fails_at is None:
                sampled += as_far_as_right(
                    part,
                    (
                        _follows(part, index, [each[index] for each in seen])
                        for index in part.wanted
                    ),
                )
        return step.step_id, tuple(sampled)


def _follows(part: SequenceSlice, index: int, seen: list[list[int] | None]) -> SampledToken:
    history = seen[0]
    is_right = history is not None and all(each == history for each in seen)
    known = part.known_after(index)
    if history is None or not is_right:
        token, score = (1000 if known is None else known), 1.0  # no such token or score exists
    elif known is None:
        token, score = next_token(history), None
    else:
        token, score = known, toy_score(history, known)
    return SampledToken(
        sequence_id=part.sequence_id,
        position=part.start_position + index + 1,
        token=token,
        logprob=None if known is None else score,
    )


@dataclass
class Disk:
    """What a stage keeps: rows of blocks and states, by their hashes."""

    blocks: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    states: dict[bytes, State] = field(default_factory=dict)


class StatefulDiskPipeline(StatefulPipeline):
    """Stages that keep blocks and states on ``disks``, one each, which may lose any.

    A disk keeps something only if ``keeps`` says so. ``num_restored`` and ``state_end`` are those
    of the last step.
    """

    def __init__(self, num_states: int, disks: Sequence[Disk], keeps: Callable[[], bool]) -> None:
        super().__init__(num_states, len(disks))
        self._disks = disks
        self._keeps = keeps
        self.num_restored = 0
        self.state_end = 0

    def run_oldest(self, fails_at: int | None = None) -> tuple[StepId, tuple[SampledToken, ...]]:
        """Run the oldest step; what it restores and saves goes from and to the disks."""
        step = self.oldest
        assert not step.restores or step == Step(
            step_id=step.step_id,
            slices=(),
            restores=step.restores,
            restored_state=step.restored_state,
        )
        for stage, disk in zip(self.stages, self._disks, strict=True):
            self._save(step, stage, disk)
        count = len(step.restores)
        has_state = step.restored_state is not None
        ends = list(range(1, count + 1)) if has_state else []
        for stage, disk in zip(self.stages, self._disks, strict=True):
            while any(each.hash not in disk.blocks for each in step.restores[:count]):
                count -= 1
            for index, each in enumerate(step.restores):
                for offset in range(KV_BLOCK_TOKENS):
                    row = disk.blocks[each.hash][offset] if index < count else (-1, -1)
                    stage.rows[each.block, offset] = row
            hashes = {end: step.restores[end - 1].hash for end in ends if end <= count}
            ends = sorted((end for end, each in hashes.items() if each in disk.states))[-1:]
            if step.restored_state is not None:
                found = disk.states[hashes[ends[0]]] if ends else _UNKNOWN
                stage.states[step.restored_state] = found
        self.num_restored, self.state_end = count, max(ends, default=0)
        return super().run_oldest(fails_at)

    def _save(self, step: Step, stage: ToyStage, disk: Disk) -> None:
        for each in step.saves:
            rows = [stage.rows[each.block, offset] for offset in range(KV_BLOCK_TOKENS)]
            assert disk.blocks.get(each.hash, rows) == rows, "two contents have one name"
            if self._keeps():
                disk.blocks[each.hash] = rows
        for saved in step.state_saves:
            state = stage.states[saved.state]
            assert disk.states.get(saved.hash, state) == state, "two states have one name"
            if self._keeps():
                disk.states[saved.hash] = state
