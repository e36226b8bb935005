"""How far a job is, and from whom its chunks are asked."""

from __future__ import annotations

from pathlib import Path

from support.cluster.store_files import content_of
from support.cluster.transfers import file_bytes, from_hub, from_peer, manifest_of

from potluck.cluster.transfer.demand import Demand
from potluck.cluster.transfer.jobs import JobProgress, Jobs
from potluck.cluster.transfer.shared_file import HUB, Origin, Routes, SharedFile
from potluck.store.content_store import ContentStore
from potluck.types.cluster import NodeId
from potluck.types.content import CHUNK_BYTES, ChunkSource, FileContent, HubOrigin, SourceKind

DATA = file_bytes(4 * CHUNK_BYTES, seed=11)
CONTENT = content_of(DATA)
ONE, TWO = NodeId("1" * 16), NodeId("2" * 16)


def test_progress_counts_by_source_and_says_how_long_it_takes(tmp_path: Path) -> None:
    file = SharedFile(ContentStore(tmp_path, 0), CONTENT, "model")
    demand = Demand("job", [(file, 0, 4)], keeps=True)
    progress = JobProgress()
    demand.count(file, 0, "disk")
    first = progress.report("job", [demand], 10.0)
    assert first is not None
    assert (first.transfer.done_bytes, first.transfer.total_bytes) == (CHUNK_BYTES, 4 * CHUNK_BYTES)
    assert first.transfer.seconds_left is None
    assert progress.report("job", [demand], 10.5) is None
    demand.count(file, 1, ONE)
    demand.count(file, 1, TWO)  # again: it is counted once
    second = progress.report("job", [demand], 12.0)
    assert second is not None
    assert second.transfer.by_source == {"disk": CHUNK_BYTES, ONE: CHUNK_BYTES}
    assert second.transfer.bytes_per_second == CHUNK_BYTES / 2
    assert second.transfer.seconds_left == 4.0


def test_progress_keeps_what_came_for_a_reader_that_is_gone(tmp_path: Path) -> None:
    file = SharedFile(ContentStore(tmp_path, 0), CONTENT, "model")
    demand = Demand("job", [(file, 0, 4)], keeps=True)
    progress = JobProgress()
    for chunk in range(3):
        demand.count(file, chunk, ONE)
    progress.keep(demand)
    last = progress.report("job", [], 10.0)
    assert last is not None
    assert last.transfer.done_bytes == last.transfer.total_bytes == 3 * CHUNK_BYTES


def test_a_rate_falls_to_nothing_when_nothing_arrives(tmp_path: Path) -> None:
    file = SharedFile(ContentStore(tmp_path, 0), CONTENT, "model")
    demand = Demand("job", [(file, 0, 4)], keeps=True)
    progress = JobProgress()
    demand.count(file, 0, ONE)
    progress.report("job", [demand], 0.0)
    demand.count(file, 1, ONE)
    progress.report("job", [demand], 1.0)
    reports = [progress.report("job", [demand], float(at)) for at in range(2, 20)]
    assert [each.transfer.bytes_per_second for each in reports if each is not None] == [0.0]


def test_sources_are_tried_in_the_order_given(tmp_path: Path) -> None:
    manifest = manifest_of({"model.gguf": DATA}, hub=HubOrigin("org/model", "0" * 40))
    routes = Routes(
        manifest,
        [
            ChunkSource(CONTENT.sha256, 0, 4, SourceKind.DISK),
            from_peer(CONTENT, TWO, 0, 2),
            from_peer(CONTENT, ONE, 1, 3),
            from_hub(CONTENT, 2, 9),
            ChunkSource("00" * 32, 0, 1, SourceKind.HUB),
        ],
        {},
    )
    assert [routes.origins(CONTENT.sha256, chunk) for chunk in range(4)] == [
        (Origin(TWO),),
        (Origin(TWO), Origin(ONE)),
        (Origin(ONE), HUB),
        (HUB,),
    ]
    assert set(routes.other_peers(CONTENT.sha256)) == {Origin(ONE), Origin(TWO)}
    jobs = Jobs()
    jobs.add("job").routes = routes
    store = ContentStore(tmp_path, 0)
    unknown = SharedFile(store, FileContent("00" * 32, 1), "")
    assert jobs.hub_name(SharedFile(store, CONTENT, "")) == ("org/model", "0" * 40, "model.gguf")
    assert jobs.hub_name(unknown) is None
