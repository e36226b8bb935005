"""The stages that this node computes: their workers, started and stopped for coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.calls import ConnectStage, StageLost, StageScope, StageStats
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Identity, Load, Loaded, Progress, StageSpec
from potluck.errors import EngineError, PotluckError
from potluck.types.cluster import DeploymentId, Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    epoch: Epoch
    worker: WorkerProcess


class StageHost:
    """Runs workers. ``report_lost`` tells the coordinator of a worker that ended by itself."""

    def __init__(
        self,
        credentials: Credentials,
        state: StateDirectory,
        *,
        listen_host: str,
        num_threads: int,
        isa: str | None,
        report_lost: Callable[[StageLost], Awaitable[None]],
    ) -> None:
        self._credentials = credentials
        self._state = state
        self._listen_host = listen_host
        self._num_threads = num_threads
        self._isa = isa
        self._report_lost = report_lost
        self._stages: dict[tuple[DeploymentId, int], _Running] = {}
        self._highest: dict[DeploymentId, Epoch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, spec: StageSpec) -> AsyncGenerator[Progress | Loaded, None]:
        """Start a worker for a stage and load it; the last answer is ``Loaded``.

        Whatever this node has of the deployment at lower epochs is stopped first. Raises
        ``EngineError`` for an epoch lower than one seen, and what the worker met. If the caller
        goes away before the stage is loaded, its worker is stopped.
        """
        highest = self._highest.get(spec.deployment)
        if highest is not None and spec.epoch < highest:
            raise EngineError(f"epoch {spec.epoch.number} of {spec.deployment} is superseded")
        self._highest[spec.deployment] = spec.epoch
        await self._stop(lambda key, epoch: key[0] == spec.deployment and epoch < spec.epoch)
        key = (spec.deployment, spec.index)
        worker = await WorkerProcess.start(lambda error: self._ended(key, spec.epoch, error))
        self._stages[key] = _Running(epoch=spec.epoch, worker=worker)
        self._state.remember_worker(worker.pid)
        events: asyncio.Queue[Progress] = asyncio.Queue()
        load = Load(
            spec=spec,
            identity=Identity(
                node_id=self._credentials.node_id,
                certificate_pem=self._credentials.certificate_pem,
                private_key_pem=self._credentials.private_key_pem,
                authority_pem=self._credentials.authority_pem,
            ),
            listen_host=self._listen_host,
            num_threads=self._num_threads,
            isa=self._isa,
        )
        loading = asyncio.create_task(
            worker.load(
                load,
                lambda done, total: events.put_nowait(Progress(done_bytes=done, total_bytes=total)),
            )
        )
        is_loaded = False
        try:
            while not loading.done():
                waiting = asyncio.create_task(events.get())
                await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    yield waiting.result()
                else:
                    waiting.cancel()
            loaded = await loading
            is_loaded = True
            yield loaded
        finally:
            if not is_loaded:
                loading.cancel()
                await self._stop(lambda other, epoch: other == key and epoch == spec.epoch)

    async def connect(self, request: ConnectStage) -> None:
        """Have a loaded stage open its edges."""
        running = self._stages.get((request.deployment, request.index))
        if running is None or running.epoch != request.epoch:
            raise EngineError(f"stage {request.index} of {request.deployment} is not loaded here")
        await running.worker.connect(request.connect)

    async def stop(self, scope: StageScope) -> None:
        """Stop this node's stages of a deployment, up to an epoch."""
        await self._stop(lambda key, epoch: key[0] == scope.deployment and epoch <= scope.epoch)

    async def stop_all(self) -> None:
        """Stop everything: the agent ends."""
        await self._stop(lambda key, epoch: True)
        for task in self._tasks:
            task.cancel()

    def stats(self, scope: StageScope) -> StageStats:
        """Totals of this node's stages of a deployment."""
        return StageStats(
            stages={
                index: running.worker.stats
                for (deployment, index), running in self._stages.items()
                if deployment == scope.deployment and running.worker.stats is not None
            }
        )

    async def _stop(self, concerns: Callable[[tuple[DeploymentId, int], Epoch], bool]) -> None:
        stopping = [
            (key, running) for key, running in self._stages.items() if concerns(key, running.epoch)
        ]
        for key, _ in stopping:
            del self._stages[key]
        await asyncio.gather(*(running.worker.stop() for _, running in stopping))
        for _, running in stopping:
            self._state.forget_worker(running.worker.pid)

    def _ended(self, key: tuple[DeploymentId, int], epoch: Epoch, error: PotluckError) -> None:
        running = self._stages.get(key)
        if running is None or running.epoch != epoch:
            return
        del self._stages[key]
        self._state.forget_worker(running.worker.pid)
        lost = StageLost(
            deployment=key[0],
            epoch=epoch,
            index=key[1],
            node_id=self._credentials.node_id,
            message=error.message,
        )
        task = asyncio.ensure_future(self._report_lost(lost))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def encode_event(event: Progress | Loaded) -> bytes:
    """An answer of ``stage.start``."""
    return msgspec.msgpack.encode(event)


decode_event = msgspec.msgpack.Decoder(Progress | Loaded).decode
