"""Groups of engines in one process: every member computes in a thread of its own."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from support.models.tensor_sources import MemorySource
from support.reference.engine import ReferenceEngine

from potluck.errors import EngineError
from potluck.models.division import divide_program
from potluck.types.engine import NO_MASKS, Engine, StepResult
from potluck.types.groups import GroupPart
from potluck.types.program import Program
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorInfo, TensorSink
from potluck.weights.divided import DividedSource

if TYPE_CHECKING:
    from support.engines.stages import EngineFactory

    from potluck.types.engine import Exchange, TokenMasks

    Floats = NDArray[np.float32]
    Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0


class Member(Engine, Protocol):
    """An engine that can be in a group."""

    def join_group(self, exchange: Exchange | None) -> None: ...


MakeMember = Callable[[Program, int], Member]
"""Makes the engine of a member's program with a number of cache blocks."""


class Mesh:
    """Queues between the members of a group, one for each ordered pair."""

    def __init__(self, num_members: int) -> None:
        self.num_members = num_members
        self._queues: list[list[queue.SimpleQueue[bytes | None]]] = [
            [queue.SimpleQueue() for _ in range(num_members)] for _ in range(num_members)
        ]
        self.exchanged_bytes = [0] * num_members
        """What each member has sent so far."""
        self.num_exchanges = [0] * num_members

    def exchange_of(self, member: int) -> MeshExchange:
        """The way of one member to the others."""
        return MeshExchange(self, member)

    def send(self, member: int, to: int, data: bytes | None) -> None:
        self._queues[member][to].put(data)

    def receive(self, member: int, sender: int) -> bytes | None:
        try:
            return self._queues[sender][member].get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"member {member} waits for {sender} in vain") from None

    def give_up(self, member: int) -> None:
        """Let those who wait for ``member`` go on."""
        for other in range(self.num_members):
            if other != member:
                self.send(member, other, None)

    def clear(self) -> None:
        """Forget what nobody received."""
        for row in self._queues:
            for each in row:
                while not each.empty():
                    each.get()

    def is_empty(self) -> bool:
        """Whether all that was sent was received."""
        return all(each.empty() for row in self._queues for each in row)


class MeshExchange:
    """See ``Exchange``; sizes that do not match fail."""

    def __init__(self, mesh: Mesh, member: int) -> None:
        self._mesh = mesh
        self._member = member

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        mesh, member = self._mesh, self._member
        assert len(sent) == len(received) == mesh.num_members
        assert sent[member].nbytes == received[member].nbytes == 0
        mesh.num_exchanges[member] += 1
        for to, data in enumerate(sent):
            if to != member:
                mesh.send(member, to, data.tobytes())
                mesh.exchanged_bytes[member] += data.nbytes
        for sender, target in enumerate(received):
            if sender == member:
                continue
            message = mesh.receive(member, sender)
            if message is None:
                raise EngineError(f"member {sender} cannot compute the step")
            assert len(message) == target.nbytes, f"{sender} sent {len(message)} B to {member}"
            if message:
                target.cast("B")[:] = message


class GroupEngine:
    """The members of a group as one ``Engine``; its sink takes whole tensors."""

    def __init__(self, programs: Sequence[Program], engines: Sequence[Member]) -> None:
        self.programs = tuple(programs)
        self.engines = tuple(engines)
        self.mesh = Mesh(len(engines))
        self._threads = ThreadPoolExecutor(len(engines), thread_name_prefix="member")
        for member, engine in enumerate(engines):
            engine.join_group(self.mesh.exchange_of(member))

    def sink(self) -> TensorSink:
        return _GroupSink(self)

    def step(self, step: Step, hidden: Floats | None, masks: TokenMasks = NO_MASKS) -> StepResult:
        def compute(member: int) -> StepResult:
            return self.engines[member].step(step, hidden, masks if member == 0 else NO_MASKS)

        first, *others = self._in_all(compute)
        assert all(each.hidden is None and not each.sampled for each in others)
        return first

    def logits(self, step: Step, hidden: Floats | None) -> Floats:
        return self._in_all(lambda member: self.engines[member].logits(step, hidden))[0]

    def reset(self) -> None:
        for engine in self.engines:
            engine.reset()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self._threads.shutdown()

    def _in_all(self, compute: Callable[[int], Result]) -> list[Result]:
        def guarded(member: int) -> Result:
            try:
                return compute(member)
            except BaseException:
                self.mesh.give_up(member)
                raise

        futures = [self._threads.submit(guarded, each) for each in range(len(self.engines))]
        errors = [error for each in futures if (error := each.exception()) is not None]
        if errors:
            self.mesh.clear()
            # The first to fail is not always the first in order: one that waits fails after it.
            raise next((e for e in errors if "cannot compute the step" not in str(e)), errors[0])
        assert self.mesh.is_empty()
        return [each.result() for each in futures]


class _GroupSink:
    """Hands each member its rows of a tensor when the tensor is whole."""

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._sinks = [engine.sink() for engine in group.engines]
        self._data: dict[str, tuple[TensorInfo, bytearray]] = {}

    def begin(self, info: TensorInfo) -> None:
        self._data[info.name] = (info, bytearray(info.num_bytes))

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        info, whole = self._data[name]
        whole[start_row * info.row_bytes : end_row * info.row_bytes] = data

    def finish(self, name: str) -> None:
        info, whole = self._data.pop(name)
        source = MemorySource({name: (info, bytes(whole))})
        for program, sink in zip(self._group.programs, self._sinks, strict=True):
            specs = [each for each in program.weights if each.name == name]
            assert [each.whole_shape for each in specs] == [info.shape] or not specs
            if specs:
                copy_tensor(DividedSource(source, specs), sink, name)


def copy_tensor(source: DividedSource, sink: TensorSink, name: str, *, rows: int = 5) -> None:
    """Hand a tensor on, some rows at a time."""
    info = source.info(name)
    sink.begin(info)
    for start in range(0, info.num_rows, rows):
        end = min(start + rows, info.num_rows)
        data = bytearray((end - start) * info.row_bytes)
        source.read_rows(name, start, end, memoryview(data))
        sink.write_rows(name, start, end, memoryview(data))
    sink.finish(name)


def divided(program: Program, shares: Sequence[int]) -> tuple[Program, ...]:
    """The programs of all members of a group."""
    return tuple(
        divide_program(program, GroupPart(member=member, shares=tuple(shares)))
        for member in range(len(shares))
    )


def reference_member(program: Program, num_blocks: int) -> Member:
    """A member, or a whole stage, whose bits do not depend on the division."""
    from support.engines.stages import NUM_STATES

    return ReferenceEngine(program, num_blocks=num_blocks, num_states=NUM_STATES, is_row_wise=True)


def group_factory(
    shares: Sequence[int], make_member: MakeMember = reference_member
) -> EngineFactory:
    """What makes a group of engines in the place of one, for ``Stages``."""

    def make(program: Program, num_blocks: int) -> GroupEngine:
        programs = divided(program, shares)
        return GroupEngine(programs, [make_member(each, num_blocks) for each in programs])

    return make


CHUNKS = (5, 1, 1, 9, 1, 3)
"""New tokens of the steps of ``logits_in_steps``: prefills in chunks, and decodes between them."""


def logits_in_steps(engines: Sequence[Engine], vocab_size: int, *, has_state: bool) -> Floats:
    """``[num_tokens, vocab]`` after every token of two sequences, through all stages.

    The second sequence has its steps in another order, so that prefills are beside decodes.
    """
    sequences = (CHUNKS, CHUNKS[::-1])
    starts = [0, 0]
    rows = []
    for number, chunks in enumerate(zip(*sequences, strict=True)):
        slices = []
        for sequence, count in enumerate(chunks):
            start = starts[sequence]
            tokens = [(31 * (start + index) + 7 * sequence) % vocab_size for index in range(count)]
            slices.append(
                SequenceSlice(
                    sequence_id=SequenceId(sequence),
                    tokens=tuple(tokens),
                    start_position=start,
                    block_table=((3, 0), (1, 2))[sequence],
                    sample=False,
                    score_from=0,
                    next_token=0,
                    state=2 - sequence if has_state else None,
                )
            )
            starts[sequence] += count
        step = Step(step_id=StepId(number), slices=tuple(slices))
        hidden = None
        for engine in engines[:-1]:
            hidden = engine.step(step, hidden).hidden
        rows.append(engines[-1].logits(step, hidden))
    return np.concatenate(rows)


NUM_BLOCKS = 4
"""That ``logits_in_steps`` needs."""


def held_bytes(program: Program) -> int:
    """Of the weights of a program as float32."""
    return sum(4 * math.prod(each.shape) for each in program.weights)
