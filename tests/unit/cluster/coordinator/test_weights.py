"""Telling nodes from where they get files, and verifying what they got, among played nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster.calls import a_record, changed, stage_on
from support.cluster.node_reports import node_report
from support.cluster.store_files import digests_of
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator.survey import _nodes_with_model
from potluck.cluster.coordinator.upkeep import holders_in_order, verify_files
from potluck.cluster.coordinator.weights import StageNeeds, gather_transfers, prepare_weights
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    AskHoldings,
    ChunkDigests,
    DiscardFile,
    HashRange,
    HashState,
    ModelCheck,
    NodeHoldings,
    NodeSurvey,
    PrepareWeights,
    decode,
    encode,
)
from potluck.errors import CallError, EngineError, ModelFileError
from potluck.kernels import Sha256State
from potluck.placement.links import LinkTable
from potluck.placement.sources import Needs
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    ChunkRuns,
    ChunkSource,
    FileContent,
    HubOrigin,
    Manifest,
    ManifestFile,
    SourceKind,
    Transfer,
)
from potluck.types.deployment import DeploymentState, ModelFingerprint, TransferRecord, Verification
from potluck.types.program import Shard
from potluck.types.speed import NodeSpeeds

A, B, C = (NodeId(letter * 16) for letter in "abc")
DATA = b"".join(bytes([number]) * CHUNK_BYTES for number in range(5)) + b"end"
CONTENT = FileContent(sha256=hashlib.sha256(DATA).hexdigest(), num_bytes=len(DATA))
SHA = CONTENT.sha256
HUB = HubOrigin(repo_id="table/model", commit="0" * 40)
MANIFEST = Manifest(
    kind="gguf", files=(ManifestFile(name="m.gguf", content=CONTENT),), main="m.gguf", hub=HUB
)
RECORD = changed(
    a_record(1, A, state=DeploymentState.LOADING),
    model="table/model:m.gguf",
    model_id="m",
    context_tokens=8,
    cache_tokens=8,
    num_layers=2,
    manifest=MANIFEST,
)
SHARD = Shard.whole(2)


class Nodes:
    """A membership whose nodes hold chunks of ``DATA``, or of other bytes that claim to be it."""

    node_id = A

    def __init__(
        self,
        held: Mapping[NodeId, ChunkRuns],
        *,
        reaching: Sequence[NodeId] = (),
        verified: Sequence[NodeId] = (),
        data: bytes = DATA,
        closed: Sequence[tuple[NodeId, NodeId]] = (),
    ) -> None:
        self._held = held
        self._reaching = reaching
        self._verified = verified
        self._data = data
        self._closed = closed
        self.prepared: list[tuple[NodeId, PrepareWeights]] = []
        self.hashed: list[tuple[NodeId, int, int]] = []
        self.discarded: list[NodeId] = []
        self.verifications: list[tuple[NodeId, ChunkDigests]] = []
        self.num_hub_queries = 0
        self.checks: dict[NodeId, ModelCheck] = {}
        self.transfers: dict[NodeId, Transfer] = {}

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._held) - {A}

    def reachable_nodes(self) -> frozenset[NodeId]:
        return self.nodes() | {A}

    async def call(self, node: NodeId, method: str, payload: bytes, **_: float) -> bytes:
        match method:
            case "weights.holdings":
                query = decode(payload, AskHoldings)
                self.num_hub_queries += query.hub is not None
                runs = self._held[node]
                return encode(
                    NodeHoldings(
                        held={SHA: runs} if runs else {},
                        verified=frozenset({SHA} if node in self._verified else ()),
                        reaches_hub=query.hub is not None and node in self._reaching,
                        host="127.0.0.1",
                        port=ord(node[0]),
                    )
                )
            case "node.speeds":
                unreachable = tuple(other for one, other in self._closed if one == node)
                return encode(NodeSpeeds(node_id=node, unreachable=unreachable))
            case "weights.prepare":
                self.prepared.append((node, decode(payload, PrepareWeights)))
                return b""
            case "weights.hash":
                request = decode(payload, HashRange)
                self.hashed.append((node, request.first, request.end))
                state = Sha256State.restored(request.state) if request.state else Sha256State()
                data = self._data[request.first * CHUNK_BYTES : request.end * CHUNK_BYTES]
                state.update(data)
                return encode(HashState(state=state.save(), digests=digests_of(data)))
            case "weights.verified":
                self.verifications.append((node, decode(payload, ChunkDigests)))
                return b""
            case "weights.discard":
                assert decode(payload, DiscardFile).sha256 == SHA
                self.discarded.append(node)
                return b""
            case "model.check":
                return encode(self.checks[node])
            case "weights.transfer":
                return encode(self.transfers.get(node))
        raise CallError(f"an unknown method: {method}")


class Weights:
    """Every stage needs the same chunks."""

    def __init__(self, needs: Needs) -> None:
        self._needs = StageNeeds(loaded=tuple(needs.items()))

    async def manifest(self, _: object) -> Manifest:
        return MANIFEST

    async def needs(self, _: Manifest, shards: Sequence[Shard]) -> tuple[StageNeeds, ...]:
        return tuple(self._needs for _ in shards)


def run(nodes: Nodes, work: Any, *arguments: object) -> Any:
    async def working() -> Any:
        return await work(cast(Membership, nodes), *arguments)

    return run_in_virtual_time(working())


def prepare(nodes: Nodes, stages: Sequence[NodeId], needs: Needs) -> None:
    lacking = [(node, SHARD) for node in stages]
    run(nodes, prepare_weights, RECORD, Weights(needs), lacking, LinkTable())


def test_only_final_figures_of_transfers_are_gathered() -> None:
    """C's transfer process is late, and reports what it had before the last chunks came."""
    nodes = Nodes({})
    nodes.transfers = {
        B: Transfer(done_bytes=9, total_bytes=9, by_source={A: 9}),
        C: Transfer(done_bytes=4, total_bytes=9, by_source={A: 4}),
    }
    stages = tuple(stage_on(node) for node in (A, B, C))
    record = changed(RECORD, stages=stages, own_files=frozenset({A}))
    assert run(nodes, gather_transfers, record) == (
        TransferRecord(node_id=B, transfer=nodes.transfers[B]),
    )


def test_the_seed_is_told_before_those_that_ask_it() -> None:
    nodes = Nodes({A: (), B: (), C: ((4, 6),)}, reaching=[B])
    prepare(nodes, [A, B], {SHA: ((0, 6),)})
    requests = dict(nodes.prepared)
    assert [node for node, _ in nodes.prepared] == [B, A]
    assert requests[B].sources == (
        ChunkSource(SHA, 0, 4, SourceKind.HUB),
        ChunkSource(SHA, 4, 6, SourceKind.PEER, A),  # C is busy with A
    )
    assert requests[A].sources == (
        ChunkSource(SHA, 0, 4, SourceKind.PEER, B),
        ChunkSource(SHA, 4, 6, SourceKind.PEER, C),
    )
    assert requests[A].peers == {B: ("127.0.0.1", ord("b")), C: ("127.0.0.1", ord("c"))}
    assert requests[A].manifest == MANIFEST


def test_the_hub_is_not_looked_for_where_nodes_have_everything() -> None:
    nodes = Nodes({A: (), B: ((0, 6),)}, reaching=[A], verified=[B])
    prepare(nodes, [A], {SHA: ((0, 6),)})
    assert nodes.num_hub_queries == 0
    ((node, request),) = nodes.prepared
    assert node == A
    assert request.verified_at == {SHA: B}


def test_bytes_that_are_nowhere_prevent_it_with_their_name() -> None:
    nodes = Nodes({A: (), B: ((0, 2),)})
    with pytest.raises(EngineError, match=r"4 MiB of m\.gguf are on no reachable node") as raised:
        prepare(nodes, [A], {SHA: ((0, 6),)})
    assert "hub" in (raised.value.hint or "")
    assert nodes.prepared == []


@pytest.mark.parametrize("closed", [[(A, B)], [(B, A)]])
def test_one_direction_is_enough_to_pass_files_on(closed: list[tuple[NodeId, NodeId]]) -> None:
    nodes = Nodes({A: (), B: ((0, 6),)}, closed=closed)
    prepare(nodes, [A], {SHA: ((0, 6),)})
    ((_, request),) = nodes.prepared
    assert request.sources == (ChunkSource(SHA, 0, 6, SourceKind.PEER, B),)


def test_a_sole_holder_that_cannot_be_connected_with_is_named_with_a_hint() -> None:
    nodes = Nodes({A: (), B: ((0, 6),), C: ()}, reaching=[C], closed=[(A, B), (B, A), (A, C)])
    prepare(nodes, [A], {SHA: ((0, 6),)})
    assert dict(nodes.prepared)[A].sources == (ChunkSource(SHA, 0, 6, SourceKind.PEER, C),)
    nodes = Nodes({A: (), B: ((0, 6),)}, closed=[(A, B), (B, A)])
    with pytest.raises(EngineError) as raised:
        prepare(nodes, [A], {SHA: ((0, 6),)})
    assert raised.value.message == (
        f"m: node {A} needs 6 MiB of m.gguf from node {B}, but neither side can connect to the "
        "other"
    )
    assert "open the cluster's port" in raised.value.hint
    assert nodes.prepared == []


def test_the_state_goes_from_holder_to_holder() -> None:
    nodes = Nodes({A: ((0, 2),), B: ((1, 4),), C: ((3, 6),)})
    assert run(nodes, verify_files, RECORD) is Verification.VERIFIED
    assert nodes.hashed == [(A, 0, 2), (B, 2, 4), (C, 4, 6)]
    assert nodes.discarded == []
    assert sorted(node for node, _ in nodes.verifications) == [A, B, C]
    assert {verification.digests for _, verification in nodes.verifications} == {digests_of(DATA)}


def test_wrong_bytes_are_removed_everywhere() -> None:
    wrong = DATA[:-1] + b"!"
    nodes = Nodes({A: ((0, 3),), B: ((3, 6),)}, data=wrong)
    with pytest.raises(ModelFileError, match=r"m\.gguf of table/model: what was fetched of it"):
        run(nodes, verify_files, RECORD)
    assert sorted(nodes.discarded) == [A, B]
    assert nodes.verifications == []


def test_a_file_of_which_parts_are_nowhere_is_not_verified() -> None:
    nodes = Nodes({A: ((0, 3),), B: ((4, 6),)})
    assert run(nodes, verify_files, RECORD) is Verification.PARTLY
    assert nodes.hashed == []


def test_what_a_node_has_verified_is_not_hashed_again() -> None:
    nodes = Nodes({A: ((0, 3),), B: ((0, 6),)}, verified=[B])
    assert run(nodes, verify_files, RECORD) is Verification.VERIFIED
    assert nodes.hashed == []


@given(
    st.dictionaries(
        st.sampled_from([A, B, C]),
        st.sets(st.integers(0, 5)).map(
            lambda chunks: tuple((chunk, chunk + 1) for chunk in sorted(chunks))
        ),
    )
)
def test_holders_in_order_cover_a_file_once_or_not_at_all(held: dict[NodeId, ChunkRuns]) -> None:
    ranges = holders_in_order(CONTENT, held)
    everything = {first for runs in held.values() for first, _ in runs}
    if ranges is None:
        assert everything < set(range(6))
        return
    assert [chunk for _, first, end in ranges for chunk in range(first, end)] == list(range(6))
    for node, first, end in ranges:
        assert {(chunk, chunk + 1) for chunk in range(first, end)} <= set(held[node])


@pytest.mark.parametrize("gets_files", [True, False])
@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_node_has_the_model_or_can_get_it_or_says_why_not(
    gets_files: bool, is_asked_again: bool
) -> None:
    mine = ModelFingerprint(digest="d", weights="w")
    nodes = Nodes({A: (), B: (), C: ()})
    other = msgspec.structs.replace(mine, weights="v")
    fourth, fifth = NodeId("d" * 16), NodeId("e" * 16)
    nodes.checks = {
        A: ModelCheck(fingerprint=mine),
        B: ModelCheck(fingerprint=None, problem="there is no model at /m"),
        C: ModelCheck(fingerprint=other),
        fourth: ModelCheck(fingerprint=None, problem="no such file", cannot_get="no home"),
        fifth: ModelCheck(fingerprint=None),
    }
    reports = [
        msgspec.structs.replace(node_report(node), units=node_report(node).units)
        for node in nodes.checks
    ]

    surveys = {
        report.node_id: NodeSurvey(
            report=report,
            check=None if is_asked_again else nodes.checks[report.node_id],
            speeds=NodeSpeeds(node_id=report.node_id),
        )
        for report in reports
    }
    if not is_asked_again:
        nodes.checks = {}

    async def ask() -> Any:
        return await _nodes_with_model(
            cast(Membership, nodes), "/m", mine, reports, surveys, gets_files=gets_files
        )

    able, unable, own_files = run_in_virtual_time(ask())
    assert own_files == (A,)
    expected = [A, B, fifth] if gets_files else [A]
    assert [report.node_id for report in able] == expected
    reasons = {each.node_id: each.reason for each in unable}
    if reports[0].units:
        assert "different weights" in reasons[C]
        assert reasons[fourth] == (
            "it cannot read the model: no such file, and it cannot get it: no home"
        )
