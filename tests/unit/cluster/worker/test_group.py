"""What the members of a group exchange, and what becomes of a step that one of them gives up."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from support.engines.group_edges import at_once, frame, mesh, node, tcp_pair
from support.processes.waiting import done_within

from potluck.cluster.network.edges.edge import MAX_SLICE_BYTES
from potluck.cluster.network.edges.frames import FrameKind
from potluck.cluster.wire.steps import (
    RestoreRequest,
    decode_restore_request,
    encode_failure,
    encode_restore_request,
)
from potluck.cluster.worker.group import Group, Spinner
from potluck.errors import EdgeClosedError, EdgeError, EngineError
from potluck.types.step import HashedBlock, StepId

STEP = partial(frame, FrameKind.STEP)


def exchanged(group: Group, member: int, sizes: Sequence[Sequence[int]], seed: int = 0) -> bytes:
    """What ``member`` gets if ``sizes[a][b]`` bytes go from ``a`` to ``b``."""
    size = len(sizes)
    received = [bytearray(sizes[other][member]) for other in range(size)]
    received[member] = bytearray()
    group.exchange(
        [memoryview(data(member, other, sizes, seed)) for other in range(size)],
        [memoryview(each) for each in received],
    )
    return b"".join(received)


def data(sender: int, receiver: int, sizes: Sequence[Sequence[int]], seed: int = 0) -> bytes:
    if sender == receiver:
        return b""
    generator = np.random.default_rng((seed, sender, receiver))
    return generator.bytes(sizes[sender][receiver])


def wanted(member: int, sizes: Sequence[Sequence[int]], seed: int = 0) -> bytes:
    return b"".join(data(each, member, sizes, seed) for each in range(len(sizes)))


LARGE = 3 * MAX_SLICE_BYTES + 7


@pytest.mark.parametrize(
    "sizes",
    [
        [[0, 8192], [8192, 0]],
        [[0, 1], [0, 0]],
        [[0, 0], [MAX_SLICE_BYTES, 0]],
        [[0, MAX_SLICE_BYTES + 1], [1, 0]],
        [[0, LARGE], [LARGE, 0]],
        [[0, 100, 200], [300, 0, 400], [0, 0, 0]],
        [[0, LARGE, LARGE], [5, 0, 5], [2 * LARGE, LARGE, 0]],
    ],
)
def test_slices_reach_whom_they_are_for(sizes: list[list[int]]) -> None:
    with mesh([1] * len(sizes)) as groups:
        groups[0].begin(STEP(4))
        for group in groups[1:]:
            group.begin(group.receive())
        for seed in range(3):
            found = at_once(
                *(partial(exchanged, group, m, sizes, seed) for m, group in enumerate(groups))
            )
            assert found == [wanted(member, sizes, seed) for member in range(len(sizes))]


def test_large_slices_need_no_room_for_all_of_them() -> None:
    """All members send far more than the kernel would hold before any of them has read."""
    sizes = [[0, 2**24], [2**24, 0]]
    with mesh([1, 1]) as groups:
        groups[0].begin(STEP(0))
        groups[1].begin(groups[1].receive())
        found = at_once(*(partial(exchanged, group, m, sizes) for m, group in enumerate(groups)))
        assert found == [wanted(0, sizes), wanted(1, sizes)]


@pytest.mark.parametrize("sizes", [[[0, 64, 64]] * 3, [[0, LARGE, LARGE]] * 3])
@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("num_before", [0, 1])
def test_a_step_that_a_member_gives_up_fails_on_all_and_the_next_does_not(
    sizes: list[list[int]], culprit: int, num_before: int
) -> None:
    sizes = [[each[(b - a) % 3] for b in range(3)] for a, each in enumerate(sizes)]

    def compute(group: Group, member: int) -> bytes:
        if not group.is_leader:
            group.begin(group.receive())
        for seed in range(num_before):
            exchanged(group, member, sizes, seed)
        error = EngineError("it cannot", hint="do otherwise")
        if member != culprit:
            with pytest.raises(EngineError) as caught:
                exchanged(group, member, sizes, 7)
            assert (caught.value.message, caught.value.hint) == (error.message, error.hint)
        group.give_up(group.step_id, encode_failure(error))
        if group.is_leader:
            group.begin(STEP(group.step_id + 1))
        else:
            group.begin(group.receive())
        return exchanged(group, member, sizes, 9)

    with mesh([1, 1, 1]) as groups:
        for first in (0, 2):
            groups[0].begin(STEP(first))
            found = at_once(*(partial(compute, group, m) for m, group in enumerate(groups)))
            assert found == [wanted(member, sizes, 9) for member in range(3)]


def test_a_member_that_gives_up_what_the_leader_has_sent_on_ends_the_group() -> None:
    sizes = [[0, 8], [8, 0]]
    with mesh([1, 1]) as (leader, other):
        leader.begin(STEP(0))
        other.begin(other.receive())
        at_once(partial(exchanged, leader, 0, sizes), partial(exchanged, other, 1, sizes))
        other.give_up(StepId(0), encode_failure(EngineError("late")))
        leader.begin(STEP(1))
        other.begin(other.receive())
        found = at_once(partial(exchanged, leader, 0, sizes), partial(exchanged, other, 1, sizes))
        assert isinstance(found[0], EdgeError)
        assert "abandoned step 0, which has a result" in found[0].message


def test_a_leader_may_fail_after_the_last_exchange() -> None:
    sizes = [[0, 8], [8, 0]]
    with mesh([1, 1]) as (leader, other):
        leader.begin(STEP(0))
        other.begin(other.receive())
        at_once(partial(exchanged, leader, 0, sizes), partial(exchanged, other, 1, sizes))
        leader.give_up(StepId(0), encode_failure(EngineError("no token is allowed")))
        leader.begin(STEP(1))
        other.begin(other.receive())
        found = at_once(partial(exchanged, leader, 0, sizes), partial(exchanged, other, 1, sizes))
        assert found == [wanted(0, sizes), wanted(1, sizes)]


def test_a_member_that_is_gone_ends_the_exchange() -> None:
    sizes = [[0, 8], [8, 0]]
    with mesh([1, 1]) as (leader, other):
        leader.begin(STEP(0))
        other.begin(other.receive())
        for peer in other._peers:
            peer.outgoing.close()
        with pytest.raises(EdgeClosedError, match=f"connection to node {node(1)}"):
            exchanged(leader, 0, sizes)


@pytest.mark.parametrize(
    ("sizes", "number"),
    [([[0, 8], [9, 0]], 0), ([[0, 8], [8, 0]], 1)],
    ids=["another size", "another number"],
)
def test_slices_that_do_not_match_end_the_exchange(sizes: list[list[int]], number: int) -> None:
    with mesh([1, 1]) as (leader, other):
        leader.begin(STEP(3))
        other.begin(other.receive())
        other._peers[0].next_sent = number
        other._peers[0].outgoing.send_slice(StepId(3), number, memoryview(bytes(sizes[1][0])))
        with pytest.raises(EdgeError, match=f"slice {number} of step 3 with {sizes[1][0]} bytes"):
            exchanged(leader, 0, [[0, 8], [8, 0]])


def test_what_the_leader_passes_on_reaches_all() -> None:
    with mesh([3, 2, 1]) as groups:
        groups[0].begin(STEP(5, b"header", b"payload"))
        groups[0].pass_on(FrameKind.FAILURE, StepId(6), b"why")
        for group in groups[1:]:
            step = group.receive()
            assert (step.kind, step.step_id) == (FrameKind.STEP, 5)
            assert (bytes(step.header), bytes(step.payload)) == (b"header", b"payload")
            assert bytes(group.receive().header) == b"why"


BLOCKS = tuple(
    HashedBlock(block=index, hash=bytes([index]) * 32, parent=bytes(32)) for index in range(4)
)


def answer(group: Group, count: int | None) -> RestoreRequest:
    """Put back the first ``count`` blocks of what is asked, or fail."""
    request = group.receive()
    if count is None:
        failure = encode_failure(EngineError("the disk is gone"))
        group.answer(FrameKind.FAILURE, request.step_id, failure)
        return RestoreRequest(())
    read = decode_restore_request(request.header)
    group.answer(
        FrameKind.RESTORE,
        request.step_id,
        encode_restore_request(RestoreRequest(read.blocks[:count])),
    )
    return read


def test_blocks_are_put_back_as_far_as_all_members_have_them() -> None:
    for counts in itertools.product((1, 3, 4), repeat=2):
        with mesh([1, 1, 1]) as (leader, *others):
            found = at_once(
                partial(leader.restored, StepId(2), RestoreRequest(BLOCKS[:3])),
                *(
                    partial(answer, other, count)
                    for other, count in zip(others, counts, strict=True)
                ),
            )
            assert found[0] == RestoreRequest(BLOCKS[: min(3, *counts)])
            assert found[2] == RestoreRequest(BLOCKS[: min(3, counts[0])])


def test_a_member_that_cannot_put_back_blocks_fails_the_step_when_all_have_answered() -> None:
    with mesh([1, 1, 1]) as (leader, *others):
        found = at_once(
            partial(leader.restored, StepId(2), RestoreRequest(BLOCKS)),
            partial(answer, others[0], None),
            partial(answer, others[1], 4),
        )
        assert isinstance(found[0], EngineError)
        assert found[0].message == "the disk is gone"
        assert found[2] == RestoreRequest(())


def test_totals_count_what_was_exchanged() -> None:
    sizes = [[0, 80], [50, 0]]
    with mesh([1, 1]) as (leader, other):
        leader.begin(STEP(0))
        other.begin(other.receive())
        for _ in range(2):
            at_once(partial(exchanged, leader, 0, sizes), partial(exchanged, other, 1, sizes))
        totals = leader._totals
        assert (totals.num_exchanges, totals.num_sent_bytes) == (2, 160)
        assert totals.seconds > 0
        assert totals.waiting_since == 0


def test_spinning_ends_when_something_has_come() -> None:
    one, other = tcp_pair()
    with one, other:
        one.send(b"x")
        select.select([other], [], [], 20)
        with done_within(5):
            Spinner(60.0)(other.fileno())


def test_spinning_that_is_of_no_use_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = time.perf_counter_ns, itertools.count()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock() + 0 * next(looks))
    one, other = tcp_pair()
    with one, other:
        spinner = Spinner(0.01)

        def spun(count: int) -> int:
            """Return how many calls looked at the clock."""
            number = 0
            for _ in range(count):
                before = next(looks)
                spinner(other.fileno())
                number += next(looks) > before + 1
            return number

        assert spun(40) <= 6
        assert spun(200) <= 4
        one.send(b"x")
        select.select([other], [], [], 20)
        for _ in range(70):
            spinner(other.fileno())
        other.recv(1)
        assert spun(1) == 1  # it was of use the last time
