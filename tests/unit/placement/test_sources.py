"""Who fetches which chunks from whom."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from potluck.placement.links import Link, LinkTable
from potluck.placement.sources import assign_sources
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    ChunkSource,
    FileContent,
    Holdings,
    SourceKind,
)
from potluck.types.placement import Basis

A, B, C, D = (NodeId(letter) for letter in "abcd")
SHA = "0" * 64
NUM_CHUNKS = 640
CONTENTS = {SHA: FileContent(sha256=SHA, num_bytes=NUM_CHUNKS * CHUNK_BYTES)}
WHOLE = {SHA: ((0, NUM_CHUNKS),)}
SAME = LinkTable()


def holding(node: NodeId, *runs: tuple[int, int], hub: bool = False) -> Holdings:
    return Holdings(node=node, held={SHA: runs} if runs else {}, reaches_hub=hub)


def link(bytes_per_second: float) -> Link:
    return Link(latency_seconds=1e-4, bytes_per_second=bytes_per_second, basis=Basis.MEASURED)


def test_sources_of_files_in_many_pieces_are_found_soon() -> None:
    """Agents find them in their event loops."""
    num_chunks = 8000
    contents = {SHA: FileContent(sha256=SHA, num_bytes=num_chunks * CHUNK_BYTES)}
    holders = [
        holding(node, *((chunk, chunk + 1) for chunk in range(index, num_chunks, 2)))
        for index, node in enumerate((A, B))
    ]
    started = time.thread_time()
    plan = assign_sources(contents, {A: {SHA: ((0, num_chunks),)}}, holders, SAME, is_on_hub=False)
    assert time.thread_time() - started < 1  # 0.1 s; if all pieces are looked through 4 s
    assert len(plan.of(A)) == num_chunks
    assert not plan.missing


def test_the_own_disk_then_a_peer_then_the_hub() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE},
        [holding(A, (0, 10), hub=True), holding(B, (5, 30))],
        SAME,
        is_on_hub=True,
    )
    assert plan.of(A) == (
        ChunkSource(SHA, 0, 10, SourceKind.DISK),
        ChunkSource(SHA, 10, 30, SourceKind.PEER, B),
        ChunkSource(SHA, 30, NUM_CHUNKS, SourceKind.HUB),
    )
    assert plan.num_bytes == {(B, A): 20 * CHUNK_BYTES, (None, A): 610 * CHUNK_BYTES}


def test_the_first_stage_that_reaches_the_hub_is_the_seed() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: {SHA: ((0, 10),)}, B: {SHA: ((0, 20),)}, C: {SHA: ((0, 30),)}},
        [holding(A), holding(B, hub=True), holding(C, hub=True)],
        SAME,
        is_on_hub=True,
    )
    assert plan.of(A) == (ChunkSource(SHA, 0, 10, SourceKind.PEER, B),)
    assert plan.of(B) == (ChunkSource(SHA, 0, 20, SourceKind.HUB),)
    assert plan.of(C) == (
        ChunkSource(SHA, 0, 10, SourceKind.PEER, A),  # B is busy with A
        ChunkSource(SHA, 10, 20, SourceKind.PEER, B),
        ChunkSource(SHA, 20, 30, SourceKind.HUB),
    )


@pytest.mark.parametrize("is_on_hub", [True, False])
def test_a_chunk_that_all_need_spreads_like_a_tree(is_on_hub: bool) -> None:
    nodes = [NodeId(f"{number:02}") for number in range(16)]
    first = holding(nodes[0], hub=True) if is_on_hub else holding(nodes[0], (0, 1))
    plan = assign_sources(
        CONTENTS,
        {node: {SHA: ((0, 1),)} for node in nodes},
        [first, *map(holding, nodes[1:])],
        SAME,
        is_on_hub=is_on_hub,
    )
    sent = Counter(each.node for node in nodes for each in plan.of(node) if each.node is not None)
    assert sum(sent.values()) == 15
    assert sorted(sent.values(), reverse=True)[0] <= 4, "the number doubles each time"


def test_a_slow_node_is_not_between_others() -> None:
    slow = link(1e6)
    links = LinkTable(links={pair: slow for each in (A, C, D) for pair in ((B, each), (each, B))})
    plan = assign_sources(
        CONTENTS,
        {B: WHOLE, C: WHOLE, D: WHOLE},
        [holding(A, (0, NUM_CHUNKS))],
        links,
        is_on_hub=False,
    )
    assert not any(each.node == B for node in (C, D) for each in plan.of(node))


def test_a_node_without_a_stage_is_the_seed_where_no_other_reaches_the_hub() -> None:
    links = LinkTable(links={(C, A): link(1e6), (D, A): link(1e8)})
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE},
        [holding(A), holding(C, hub=True), holding(D, hub=True)],
        links,
        is_on_hub=True,
    )
    assert plan.of(D) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.HUB),)
    assert plan.of(A) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, D),)


@pytest.mark.parametrize(("speed", "share"), [(1e8, 0.5), (3e8, 0.75)])
def test_holders_share_the_work_by_their_links(speed: float, share: float) -> None:
    # Two nodes want different halves, and the holders' links are those that are slow.
    links = LinkTable(links={(B, A): link(speed), (C, A): link(1e8)})
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE},
        [holding(A), holding(B, (0, NUM_CHUNKS)), holding(C, (0, NUM_CHUNKS))],
        links,
        is_on_hub=False,
    )
    assert plan.num_bytes[B, A] / (NUM_CHUNKS * CHUNK_BYTES) == pytest.approx(share, abs=0.05)


def test_what_nobody_has_is_missing_with_its_runs() -> None:
    plan = assign_sources(
        CONTENTS, {A: WHOLE}, [holding(B, (4, 8)), holding(C, hub=True)], SAME, is_on_hub=False
    )
    assert plan.missing == {A: {SHA: ((0, 4), (8, NUM_CHUNKS))}}
    assert plan.of(A) == (ChunkSource(SHA, 4, 8, SourceKind.PEER, B),)


def test_a_holder_that_cannot_be_connected_with_is_no_source() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE, D: WHOLE},
        [holding(A), holding(B, (0, NUM_CHUNKS)), holding(C, (0, NUM_CHUNKS)), holding(D)],
        LinkTable(links={(B, A): link(1e9), (C, A): link(1e6)}),
        is_on_hub=False,
        silent_pairs=[(A, B)],
    )
    assert {each.node for each in plan.of(D)} == {B, C}
    assert plan.of(A) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, D),), "C is slow"
    assert plan.missing == {}
    assert plan.out_of_reach == {}


@pytest.mark.parametrize("pair", [(A, B), (B, A)])
def test_a_sole_holder_that_cannot_be_connected_with_is_named(pair: tuple[NodeId, NodeId]) -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE},
        [holding(A), holding(B, (0, NUM_CHUNKS)), holding(C)],
        SAME,
        is_on_hub=False,
        silent_pairs=[pair],
    )
    assert plan.missing == {A: WHOLE}
    assert plan.out_of_reach == {A: (B,)}
    assert plan.of(A) == ()


def test_a_node_that_gets_chunks_passes_them_on_to_one_that_no_holder_can_connect_with() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE, C: WHOLE, D: WHOLE},
        [holding(A), holding(B, (0, NUM_CHUNKS)), holding(C), holding(D)],
        SAME,
        is_on_hub=False,
        silent_pairs=[(A, B), (B, C), (A, D)],
    )
    assert plan.of(D) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, B),)
    assert plan.of(C) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, D),)
    assert plan.of(A) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, C),)
    assert plan.missing == {}


def test_the_hub_replaces_a_holder_that_cannot_be_connected_with() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE},
        [holding(A, hub=True), holding(B, (0, NUM_CHUNKS))],
        SAME,
        is_on_hub=True,
        silent_pairs=[(A, B)],
    )
    assert plan.of(A) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.HUB),)


def test_the_seed_is_one_that_can_pass_on_to_all() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE, B: WHOLE, C: WHOLE},
        [holding(A, hub=True), holding(B, hub=True), holding(C)],
        SAME,
        is_on_hub=True,
        silent_pairs=[(A, C)],
    )
    assert plan.num_bytes[None, B] == NUM_CHUNKS * CHUNK_BYTES
    assert (None, A) not in plan.num_bytes
    assert plan.of(A) == plan.of(C) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, B),)


def test_there_are_several_seeds_where_none_can_pass_on_to_all() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE, B: WHOLE, C: WHOLE, D: WHOLE},
        [holding(A, hub=True), holding(B), holding(C, hub=True), holding(D)],
        SAME,
        is_on_hub=True,
        silent_pairs=[(A, C), (A, D), (B, C), (B, D)],
    )
    assert plan.of(B) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, A),)
    assert plan.of(D) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.PEER, C),)
    for seed in (A, C):
        assert plan.of(seed) == (ChunkSource(SHA, 0, NUM_CHUNKS, SourceKind.HUB),)
    assert plan.missing == {}


def test_a_node_that_no_seed_can_pass_on_to_is_named_with_all_of_them() -> None:
    plan = assign_sources(
        CONTENTS,
        {A: WHOLE, B: WHOLE},
        [holding(A), holding(B), holding(C, hub=True), holding(D, hub=True)],
        SAME,
        is_on_hub=True,
        silent_pairs=[(B, C), (D, B), (A, B)],
    )
    assert plan.missing == {B: WHOLE}
    assert plan.out_of_reach == {B: (C, D)}
    assert plan.num_bytes[None, C] == plan.num_bytes[C, A] == NUM_CHUNKS * CHUNK_BYTES
