"""Sources of chunks, for any holdings, needs and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.placement.links import Link, LinkTable
from potluck.placement.sources import SourcePlan, assign_sources
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    ChunkRuns,
    FileContent,
    Holdings,
    SourceKind,
    runs_of,
)
from potluck.types.placement import Basis

NODES = [NodeId(letter) for letter in "abcde"]
FILES = {
    sha256: FileContent(sha256=sha256, num_bytes=size)
    for sha256, size in (("0" * 64, 40 * CHUNK_BYTES), ("1" * 64, 7 * CHUNK_BYTES + 5))
}

chunk_sets = st.sets(st.integers(0, 39), max_size=40)


def _runs(sha256: str, chunks: set[int]) -> ChunkRuns:
    return runs_of(chunk for chunk in chunks if chunk < FILES[sha256].num_chunks)


@st.composite
def runs_by_file(draw: st.DrawFn) -> dict[str, ChunkRuns]:
    return {
        sha256: _runs(sha256, draw(chunk_sets))
        for sha256 in draw(st.sets(st.sampled_from(sorted(FILES))))
    }


needs_of_nodes = st.dictionaries(st.sampled_from(NODES), runs_by_file(), max_size=5)


@st.composite
def all_holdings(draw: st.DrawFn) -> list[Holdings]:
    return [
        Holdings(node=node, held=draw(runs_by_file()), reaches_hub=draw(st.booleans()))
        for node in sorted(draw(st.sets(st.sampled_from(NODES))))
    ]


@st.composite
def link_tables(draw: st.DrawFn) -> LinkTable:
    pairs = draw(st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=8))
    return LinkTable(
        links={
            pair: Link(
                latency_seconds=1e-4,
                bytes_per_second=draw(st.floats(1e3, 1e10)),
                basis=Basis.MEASURED,
            )
            for pair in sorted(pairs)
        }
    )


def _chunks(runs: ChunkRuns) -> set[int]:
    return {chunk for first, end in runs for chunk in range(first, end)}


def _held(holdings: Sequence[Holdings], node: NodeId, sha256: str) -> set[int]:
    return {
        chunk
        for each in holdings
        if each.node == node
        for chunk in _chunks(each.held.get(sha256, ()))
    }


def _by_kind(plan: SourcePlan, kind: SourceKind) -> dict[tuple[NodeId, str], list[int]]:
    found: dict[tuple[NodeId, str], list[int]] = {}
    for node, sources in plan.sources.items():
        for source in sources:
            if source.kind is kind:
                chunks = found.setdefault((node, source.sha256), [])
                chunks.extend(range(source.first, source.end))
    return found


def _is_provided(
    plan: SourcePlan, holdings: Sequence[Holdings], node: NodeId, sha256: str, chunk: int
) -> bool:
    """Return whether a chunk gets to a node from a holder or a seed, however many pass it on."""
    for _ in NODES:
        if chunk in _held(holdings, node, sha256):
            return True
        sources = [
            each
            for each in plan.of(node)
            if each.sha256 == sha256 and each.first <= chunk < each.end
        ]
        if len(sources) != 1 or sources[0].node is None:
            return [each.kind for each in sources] == [SourceKind.HUB]
        node = sources[0].node
    return False  # a cycle


@pytest.mark.slow
@given(needs_of_nodes, all_holdings(), link_tables(), st.booleans())
def test_every_needed_chunk_has_one_source_that_can_have_it(
    needs: Mapping[NodeId, Mapping[str, ChunkRuns]],
    holdings: list[Holdings],
    links: LinkTable,
    is_on_hub: bool,
) -> None:
    plan = assign_sources(FILES, needs, holdings, links, is_on_hub=is_on_hub)
    reaching = {each.node for each in holdings if each.reaches_hub} if is_on_hub else set()
    from_hub = _by_kind(plan, SourceKind.HUB)
    for node in NODES:
        for sha256 in FILES:
            needed = _chunks(needs.get(node, {}).get(sha256, ()))
            own = _held(holdings, node, sha256)
            missing = _chunks(plan.missing.get(node, {}).get(sha256, ()))
            sourced: list[int] = []
            for source in plan.of(node):
                if source.sha256 != sha256:
                    continue
                assert source.first < source.end <= FILES[sha256].num_chunks
                chunks = range(source.first, source.end)
                sourced.extend(chunks)
                match source.kind:
                    case SourceKind.DISK:
                        assert source.node is None
                        assert own >= set(chunks)
                    case SourceKind.PEER:
                        assert source.node is not None
                        assert source.node != node
                        assert not own & set(chunks), "what is here is not fetched"
                        for chunk in chunks:
                            assert _is_provided(plan, holdings, source.node, sha256, chunk)
                    case SourceKind.HUB:
                        assert source.node is None
                        assert node in reaching
            assert len(sourced) == len(set(sourced)), "a chunk has two sources"
            assert needed - missing <= set(sourced)
            assert not missing & set(sourced)
            for chunk in set(sourced) - needed:  # only a seed gets more than it needs
                assert chunk in from_hub[node, sha256]
            for chunk in missing:
                assert not reaching
                assert not any(chunk in _held(holdings, each, sha256) for each in NODES)


@pytest.mark.slow
@given(needs_of_nodes, all_holdings(), link_tables())
def test_the_hub_is_asked_once_for_what_nobody_holds(
    needs: Mapping[NodeId, Mapping[str, ChunkRuns]], holdings: list[Holdings], links: LinkTable
) -> None:
    plan = assign_sources(FILES, needs, holdings, links, is_on_hub=True)
    downloads: dict[str, list[int]] = {}
    for (_, sha256), chunks in _by_kind(plan, SourceKind.HUB).items():
        downloads.setdefault(sha256, []).extend(chunks)
    reaching = {each.node for each in holdings if each.reaches_hub}
    for sha256 in FILES:
        chunks = downloads.get(sha256, [])
        assert len(chunks) == len(set(chunks)), "two seeds"
        needed = {chunk for files in needs.values() for chunk in _chunks(files.get(sha256, ()))}
        held = {chunk for node in NODES for chunk in _held(holdings, node, sha256)}
        assert set(chunks) == (needed - held if reaching else set())
    # The seed is the first that needs a chunk and reaches the hub, if there is one.
    for (seed, sha256), chunks in _by_kind(plan, SourceKind.HUB).items():
        for chunk in chunks:
            able = [
                node
                for node, files in needs.items()
                if node in reaching and chunk in _chunks(files.get(sha256, ()))
            ]
            assert not able or able[0] == seed


@pytest.mark.slow
@given(needs_of_nodes, all_holdings(), link_tables())
def test_the_bytes_are_counted_once_for_each_way(
    needs: Mapping[NodeId, Mapping[str, ChunkRuns]], holdings: list[Holdings], links: LinkTable
) -> None:
    plan = assign_sources(FILES, needs, holdings, links, is_on_hub=True)
    for (source, target), num_bytes in plan.num_bytes.items():
        kind = SourceKind.HUB if source is None else SourceKind.PEER
        assert num_bytes == sum(
            FILES[each.sha256].chunk_bytes(chunk)
            for each in plan.of(target)
            if (each.kind, each.node) == (kind, source)
            for chunk in range(each.first, each.end)
        )


@pytest.mark.slow
@given(
    needs_of_nodes,
    all_holdings(),
    st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES))),
    st.booleans(),
)
def test_nodes_that_cannot_connect_are_never_sources_of_each_other(
    needs: Mapping[NodeId, Mapping[str, ChunkRuns]],
    holdings: list[Holdings],
    pairs: set[tuple[NodeId, NodeId]],
    is_on_hub: bool,
) -> None:
    silent = {pair for pair in pairs if pair[0] != pair[1]}
    plan = assign_sources(
        FILES, needs, holdings, LinkTable(), is_on_hub=is_on_hub, silent_pairs=silent
    )
    silent |= {pair[::-1] for pair in silent}
    reaching = {each.node for each in holdings if each.reaches_hub} if is_on_hub else set()
    for node in NODES:
        assert not any((source.node, node) in silent for source in plan.of(node))
        for sha256 in FILES:
            needed = _chunks(needs.get(node, {}).get(sha256, ()))
            sourced = [
                chunk
                for source in plan.of(node)
                if source.sha256 == sha256
                for chunk in range(source.first, source.end)
            ]
            missing = _chunks(plan.missing.get(node, {}).get(sha256, ()))
            assert len(sourced) == len(set(sourced)), "a chunk has two sources"
            assert needed - missing <= set(sourced)
            assert not missing & set(sourced)
            for chunk in missing:
                having = {each for each in NODES if chunk in _held(holdings, each, sha256)}
                providing = having | reaching
                assert all((each, node) in silent for each in providing)
                assert providing <= set(plan.out_of_reach.get(node, ()))
