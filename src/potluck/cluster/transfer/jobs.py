"""The jobs of a node, and the routes that they define for files and chunks."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from potluck.cluster.transfer.demand import Demand, Reader
from potluck.cluster.transfer.messages import Progress
from potluck.cluster.transfer.shared_file import HUB, Origin, Routes, SharedFile
from potluck.types.cluster import NodeId
from potluck.types.content import FileContent, Transfer

OWN_READER_SECONDS = 3.0
"""A node starts to fetch for its peers what its own readers do not want this long after it was told
of the job: before that, readers may still start, and say that nothing is to be stored."""

_RATE_SECONDS = 5.0
"""The period over which the rate is measured."""


class JobProgress:
    """The progress of one job: bytes, their sources, the rate, and the time left.

    For use with the board's lock held.
    """

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()
        self._samples: deque[tuple[float, int]] = deque()
        self._reported: tuple[int, int, bool] | None = None

    def keep(self, demand: Demand) -> None:
        """Keep counting what arrived for a reader that is gone."""
        self._past += demand.by_label

    def report(self, name: str, demands: Sequence[Demand], now: float) -> Progress | None:
        """Return the report on the job ``name``; None if nothing changed."""
        if not demands and not self._past:
            return None
        past = self._past.total()
        done = past + sum(each.done_bytes for each in demands)
        total = past + sum(each.total_bytes for each in demands)
        self._samples.append((now, done))
        while len(self._samples) > 1 and self._samples[0][0] < now - _RATE_SECONDS:
            self._samples.popleft()
        first_at, first_done = self._samples[0]
        rate = max(0.0, (done - first_done) / (now - first_at)) if now > first_at else 0.0
        if self._reported == (done, total, rate == 0):
            return None
        self._reported = (done, total, rate == 0)
        by_label = sum((each.by_label for each in demands), self._past)
        left = max(0, total - done) / rate if rate > 0 else None
        transfer = Transfer(
            done_bytes=done,
            total_bytes=total,
            by_source=dict(by_label),
            bytes_per_second=rate,
            seconds_left=left,
        )
        return Progress(name, transfer)


@dataclass(slots=True)
class Job:
    """The state of a job. ``failure`` is why its readers cannot continue. ``ahead`` requests the
    chunks that they will want, until they have started.
    """

    routes: Routes | None = None
    failure: tuple[str, str] | None = None
    since: float = 0.0
    progress: JobProgress = field(default_factory=JobProgress)
    ahead: Reader | None = None


class Jobs:
    """All jobs by name. For use with the board's lock held."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def add(self, name: str) -> Job:
        """Return a job, which is created if it was unknown."""
        return self._jobs.setdefault(name, Job(since=time.monotonic()))

    def get(self, name: str) -> Job | None:
        """Return a job; None if it is unknown."""
        return self._jobs.get(name)

    def remove(self, name: str) -> None:
        """Forget a job."""
        self._jobs.pop(name, None)

    def items(self) -> list[tuple[str, Job]]:
        """Return all jobs with their names."""
        return list(self._jobs.items())

    def peer_address(self, node: NodeId) -> tuple[str, int] | None:
        """Return where a peer listens, according to the latest job that names it."""
        latest_first = reversed([*self._routes()])
        return next((each.peers[node] for each in latest_first if node in each.peers), None)

    def hub_name(self, file: SharedFile) -> tuple[str, str, str] | None:
        """Return repository, commit and name of a file on the hub; None if no job says that it is
        there.
        """
        for routes in reversed([*self._routes()]):
            name, hub = routes.name(file.content.sha256), routes.manifest.hub
            if name is not None and hub is not None:
                return hub.repo_id, hub.commit, name
        return None

    def label(self, sha256: str) -> str:
        """Return the name of a file in the first job that has it; empty if none has."""
        names = (routes.name(sha256) for routes in self._routes())
        return next((name for name in names if name), "")

    def names(self, content: FileContent) -> bool:
        """Return whether the manifest of any job has a file of this content."""
        return any(
            each.content == content for routes in self._routes() for each in routes.manifest.files
        )

    def naming(self, file: SharedFile) -> dict[str, Job]:
        """Return the jobs with routes that name a file."""
        return {
            name: job
            for name, job in self._jobs.items()
            if job.routes is not None and job.routes.name(file.content.sha256) is not None
        }

    def origins(self, file: SharedFile, chunk: int) -> list[Origin]:
        """Return the possible origins of a chunk: those named for it, then all other peers of the
        file.

        Of those named by all jobs the hub comes last: what one job gets from a peer would cross the
        uplink twice if another, which knew of no peer, got it from the hub.
        """
        named: dict[Origin, None] = {}
        others: dict[Origin, None] = {}
        for routes in self._routes():
            named |= dict.fromkeys(routes.origins(file.content.sha256, chunk))
            others |= dict.fromkeys(routes.other_peers(file.content.sha256))
        return [
            *sorted(named, key=lambda each: each is HUB),
            *(each for each in others if each not in named),
        ]

    def is_named(self, origin: Origin, file: SharedFile, chunk: int) -> bool:
        """Return whether an origin was named for a chunk, rather than for others of the file."""
        return any(
            origin in routes.origins(file.content.sha256, chunk) for routes in self._routes()
        )

    def is_routed_to_others(self, file: SharedFile, chunk: int, nodes: tuple[NodeId, ...]) -> bool:
        """Return whether the hub, or a node that is not among ``nodes``, was named for a chunk."""
        return any(
            origin.node not in nodes or origin is HUB
            for routes in self._routes()
            for origin in routes.origins(file.content.sha256, chunk)
        )

    def age(self, job: Job) -> float:
        """Return how many seconds ago this node was told of a job."""
        return time.monotonic() - job.since

    def is_overdue(self, file: SharedFile) -> bool:
        """Return whether the jobs that name a file have had no reader here for a while."""
        return all(self.age(job) >= OWN_READER_SECONDS for job in self.naming(file).values())

    def _routes(self) -> Iterator[Routes]:
        return (job.routes for job in self._jobs.values() if job.routes is not None)
