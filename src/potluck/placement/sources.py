"""The sources from which each node gets the parts of files that its stages need. Pure.

A chunk on a node's own disk is read there. A chunk that peers hold comes from a peer, chosen such
that all chunks are predicted to arrive soonest: several holders share the work. A chunk that nobody
holds is downloaded from the hub by one node, its seed, so that it crosses the uplink once. Nodes
that get a chunk pass it on to others as it arrives: from a single holder or seed, the header that
all stages of a model need would occupy its link as many times as there are stages.

Two nodes are never source and receiver if neither can connect to the other. A node that nothing
from a holder or seed can reach gets the chunk from a further seed; then the chunk crosses the
uplink once for each seed. Every node gets a chunk from one that got its source first, so sources
never form a cycle.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from potluck.placement.links import LinkTable
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    ChunkRuns,
    ChunkSource,
    FileContent,
    Holdings,
    SourceKind,
    joined,
    limited,
    without,
)

Needs = Mapping[str, ChunkRuns]
"""Chunks of files, by the SHA-256 of the file."""

_PIECE_CHUNKS = 16
"""The piece size of a run that several holders share: files are read from the front with a
read-ahead of 16 MiB if nothing is stored, so that larger pieces would come from one holder at a
time."""

_MOST_PIECES = 128
"""The maximum number of pieces of one run: sources are sent to the nodes, at some 100 bytes each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """The sources of each node, in the order of files and chunks, and the chunks without a source.

    A node that is the seed of chunks which it does not need itself has sources as well.
    ``out_of_reach`` are, by node with ``missing`` chunks, the nodes that could provide some of them
    if one of the two could connect to the other. ``num_bytes`` is keyed by sender (None is the hub)
    and receiver.
    """

    sources: Mapping[NodeId, tuple[ChunkSource, ...]]
    missing: Mapping[NodeId, Needs] = field(default_factory=dict)
    out_of_reach: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    num_bytes: Mapping[tuple[NodeId | None, NodeId], int] = field(default_factory=dict)

    def of(self, node: NodeId) -> tuple[ChunkSource, ...]:
        """Return the sources of one node; none if it needs nothing."""
        return self.sources.get(node, ())


def assign_sources(
    contents: Mapping[str, FileContent],
    needs: Mapping[NodeId, Needs],
    holdings: Sequence[Holdings],
    links: LinkTable,
    *,
    is_on_hub: bool,
    silent_pairs: Collection[tuple[NodeId, NodeId]] = (),
) -> SourcePlan:
    """Return the source of every chunk that a node of ``needs`` needs.

    ``needs`` are in the order of the stages: the seed of a chunk is the first node that needs it
    and reaches the hub. If none of them does, it is the node that reaches the hub with the fastest
    ``links`` to those that need it. ``contents`` has every file of ``needs``. Nodes without
    ``holdings`` hold nothing and do not reach the hub. ``silent_pairs`` are pairs of nodes, in any
    order, of which neither can connect to the other; seeds are chosen so that few are needed.
    """
    silent = {pair for one, other in silent_pairs for pair in ((one, other), (other, one))}
    work = _Assigning(contents, needs, holdings, links, silent, is_on_hub=is_on_hub)
    for sha256 in sorted({sha256 for wanted in needs.values() for sha256 in wanted}):
        work.assign(sha256)
    return work.plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """When the first and the last chunk of a run are at a node, in seconds."""

    begins: float
    ends: float


class _Assigning:
    def __init__(
        self,
        contents: Mapping[str, FileContent],
        needs: Mapping[NodeId, Needs],
        holdings: Sequence[Holdings],
        links: LinkTable,
        silent: Collection[tuple[NodeId, NodeId]],
        *,
        is_on_hub: bool,
    ) -> None:
        self._contents = contents
        self._needs = needs
        self._holdings = {each.node: each for each in holdings}
        self._links = links
        self._silent = silent
        reaching = [each.node for each in holdings if each.reaches_hub] if is_on_hub else []
        self._reaching = frozenset(reaching)
        # When each sender will have finished what it was assigned so far.
        self._sending: dict[NodeId, float] = defaultdict(float)
        self._sources: dict[NodeId, list[ChunkSource]] = defaultdict(list)
        self._missing: dict[NodeId, dict[str, ChunkRuns]] = defaultdict(dict)
        self._out_of_reach: dict[NodeId, set[NodeId]] = defaultdict(set)
        self._num_bytes: dict[tuple[NodeId | None, NodeId], int] = defaultdict(int)

    def plan(self) -> SourcePlan:
        """Return the assigned sources."""
        return SourcePlan(
            sources={node: _merged(each) for node, each in self._sources.items()},
            missing={node: dict(files) for node, files in self._missing.items()},
            out_of_reach={
                node: tuple(sorted(others)) for node, others in self._out_of_reach.items()
            },
            num_bytes=dict(self._num_bytes),
        )

    def assign(self, sha256: str) -> None:
        """Find the sources of all chunks of one file."""
        content = self._contents[sha256]
        wanted = {
            node: limited(joined(files.get(sha256, ())), 0, content.num_chunks)
            for node, files in self._needs.items()
        }
        held = {
            node: limited(joined(each.held.get(sha256, ())), 0, content.num_chunks)
            for node, each in self._holdings.items()
        }
        lacking: dict[NodeId, ChunkRuns] = {}
        for node, runs in wanted.items():
            lacking[node] = without(runs, held.get(node, ()))
            for first, end in without(runs, lacking[node]):
                self._sources[node].append(ChunkSource(sha256, first, end, SourceKind.DISK))
        for first, end in _cut([*lacking.values(), *held.values()]):
            needing = [node for node, runs in lacking.items() if _has(runs, first)]
            holding = sorted(node for node, runs in held.items() if _has(runs, first))
            if not needing:
                continue
            left = needing
            if holding:
                pieces = [(first, end)] if len(holding) == 1 else _pieces(first, end)
                for part in pieces:
                    left = self._spread(content, *part, holding, needing)
            while left and (seed := self._seed(left, first, end)) is not None:
                left = self._from_hub(content, first, end, seed, left)
            for node in left:
                runs = self._missing[node].get(sha256, ())
                self._missing[node][sha256] = joined(runs, ((first, end),))
                if others := {*holding, *self._reaching}:
                    self._out_of_reach[node] |= others

    def _from_hub(
        self, content: FileContent, first: int, end: int, seed: NodeId, needing: Sequence[NodeId]
    ) -> list[NodeId]:
        """Assign a seed; return the nodes that nothing from it can reach."""
        self._sources[seed].append(ChunkSource(content.sha256, first, end, SourceKind.HUB))
        self._num_bytes[None, seed] += _num_bytes(content, first, end)
        return self._spread(content, first, end, [seed], [node for node in needing if node != seed])

    def _spread(
        self,
        content: FileContent,
        first: int,
        end: int,
        sources: Sequence[NodeId],
        needing: Sequence[NodeId],
    ) -> list[NodeId]:
        """Assign the sources of a run, and the nodes that get it in turn; return unreached nodes.

        Nodes near to a source come first, since they pass the run on soonest.
        """
        arrivals = dict.fromkeys(sources, _Arrival(begins=0.0, ends=0.0))

        def distance(node: NodeId) -> float:
            usable = [each for each in sources if self._can_pass(each, node)]
            return min((self._seconds(each, node, first, end) for each in usable), default=math.inf)

        left = sorted(needing, key=distance)
        reached = True
        while left and reached:
            reached = False
            for node in tuple(left):
                usable = {
                    each: self._arrival(each, node, first, end, arrivals[each])
                    for each in arrivals
                    if self._can_pass(each, node)
                }
                if usable:
                    source = min(usable, key=lambda each: usable[each].ends)
                    arrivals[node] = usable[source]
                    self._sending[source] = usable[source].ends
                    self._num_bytes[source, node] += _num_bytes(content, first, end)
                    passed_on = ChunkSource(content.sha256, first, end, SourceKind.PEER, source)
                    self._sources[node].append(passed_on)
                    left.remove(node)
                    reached = True
        return left

    def _seed(self, needing: Sequence[NodeId], first: int, end: int) -> NodeId | None:
        """Return the node that downloads for as many of ``needing`` as possible; None for none."""
        usable: dict[NodeId, list[NodeId]] = {}
        for each in self._reaching:
            takers = [node for node in needing if self._can_pass(each, node)]
            if takers:
                usable[each] = takers
        if not usable:
            return None
        most = max(map(len, usable.values()))
        best = {each for each, takers in usable.items() if len(takers) == most}
        own = next((node for node in needing if node in best), None)
        return own or min(
            best,
            key=lambda each: (
                sum(self._seconds(each, node, first, end) for node in usable[each]),
                each,
            ),
        )

    def _can_pass(self, source: NodeId, target: NodeId) -> bool:
        """Return whether a node can send to another, or is the same."""
        return (source, target) not in self._silent

    def _arrival(
        self, source: NodeId, target: NodeId, first: int, end: int, at_source: _Arrival
    ) -> _Arrival:
        """Return when a run arrives if its source sends it after everything assigned to it before,
        and each chunk as soon as it has it.

        Receivers are assumed not to be the bottleneck, as each receives from several sources at a
        time.
        """
        starts = max(self._sending[source], at_source.begins)
        one_chunk = self._seconds(source, target, first, first + 1)
        return _Arrival(
            begins=starts + one_chunk,
            ends=max(
                starts + self._seconds(source, target, first, end), at_source.ends + one_chunk
            ),
        )

    def _seconds(self, source: NodeId, target: NodeId, first: int, end: int) -> float:
        return self._links.link(source, target).hop_seconds((end - first) * CHUNK_BYTES)


def _cut(several: Sequence[ChunkRuns]) -> Iterator[tuple[int, int]]:
    """Yield the runs between any two neighbouring ends of the runs in ``several``."""
    ends = sorted({end for runs in several for run in runs for end in run})
    yield from pairwise(ends)


def _has(runs: ChunkRuns, chunk: int) -> bool:
    index = bisect_left(runs, (chunk + 1,))  # of the first run that begins after it
    return index > 0 and chunk < runs[index - 1][1]


def _pieces(first: int, end: int) -> Iterator[tuple[int, int]]:
    size = max(_PIECE_CHUNKS, -(-(end - first) // _MOST_PIECES))
    for start in range(first, end, size):
        yield start, min(end, start + size)


def _merged(sources: Sequence[ChunkSource]) -> tuple[ChunkSource, ...]:
    """Return sources in order, with neighbours of one kind from one node merged."""
    merged: list[ChunkSource] = []
    for source in sorted(sources, key=lambda each: (each.sha256, each.first)):
        following = (source.sha256, source.first, source.kind, source.node)
        last = merged[-1] if merged else None
        if last is not None and (last.sha256, last.end, last.kind, last.node) == following:
            merged[-1] = msgspec.structs.replace(last, end=source.end)
        else:
            merged.append(source)
    return tuple(merged)


def _num_bytes(content: FileContent, first: int, end: int) -> int:
    return min(end * CHUNK_BYTES, content.num_bytes) - first * CHUNK_BYTES
