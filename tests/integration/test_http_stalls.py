"""What a large body costs others: no long silence, and memory that comes back."""

from __future__ import annotations

import asyncio
import gc
import http.client
import os
import time
from asyncio import Future
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.http.heavy_bodies import heavy_bodies
from support.http.toy_gateway import CONTEXT_TOKENS, MODEL, VOCAB_SIZE, ToyGateway
from support.processes.waiting import until

from potluck.api.config import ApiConfig
from potluck.api.server import serve
from potluck.catalog import load_chat_template, load_tokenizer
from potluck.catalog.locate import DEMO_DIRECTORY, ModelFiles
from potluck.host.allocator import limit_arenas
from potluck.models.names import FileKind
from potluck.text.chat import prompt_chat
from potluck.types.gateway import ServedModel

MAX_STALL_SECONDS = 0.05
"""In which this process computes. What else the machine does in between is not counted."""

MAX_WAIT_SECONDS = 2.0
"""By the clock, on a machine that is busy with other things."""

ATTEMPTS = 5

KINDS = tuple(heavy_bodies(MODEL, 1000))


@pytest.fixture(scope="module")
def served() -> ServedModel:
    files = ModelFiles(name="demo", kind=FileKind.HUGGING_FACE, path=DEMO_DIRECTORY)
    tokenizer, template = load_tokenizer(files), load_chat_template(files)
    return ServedModel(
        model_id=MODEL,
        tokenizer=tokenizer,
        encode_chat=partial(prompt_chat, tokenizer, template, max_tokens=CONTEXT_TOKENS - 1),
        vocab_size=VOCAB_SIZE,
        context_tokens=CONTEXT_TOKENS,
        sampling_defaults={},
    )


@asynccontextmanager
async def serving(served: ServedModel) -> AsyncIterator[tuple[str, int]]:
    gateway = ToyGateway(step_seconds=0.002)
    gateway.served = served
    try:
        async with serve(gateway, ApiConfig()) as url:
            yield "127.0.0.1", int(url.rsplit(":", 1)[1])
    finally:
        gateway.dispatcher.close()


def post(address: tuple[str, int], path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A silence, as far as this process computed in it, and by the clock."""

    busy_seconds: float
    seconds: float

    @property
    def is_short(self) -> bool:
        return self.busy_seconds < MAX_STALL_SECONDS and self.seconds < MAX_WAIT_SECONDS


class Gaps:
    """The longest silences of a coroutine that ticks and of another client's stream."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.longest_busy = self.longest = 0.0

    def longest_yet(self) -> Gap:
        return Gap(busy_seconds=min(self.longest_busy, self.longest), seconds=self.longest)

    async def tick(self) -> None:
        last = now()
        while True:
            await asyncio.sleep(0.001)
            last = self._note(last)

    async def stream(self, address: tuple[str, int]) -> None:
        body = b'{"model": "toy/model", "prompt": "x", "max_tokens": 900, "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        while True:
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(head % len(body) + body)
                last: tuple[float, float] | None = None
                while (line := await reader.readline()) != b"data: [DONE]\n":
                    assert line, "the stream was cut off"
                    if line.startswith(b"data: "):
                        last = now() if last is None else self._note(last)
            finally:
                writer.transport.abort()
                await asyncio.sleep(0)

    def _note(self, last: tuple[float, float]) -> tuple[float, float]:
        latest = now()
        self.longest_busy = max(self.longest_busy, latest[0] - last[0])
        self.longest = max(self.longest, latest[1] - last[1])
        return latest


def now() -> tuple[float, float]:
    return time.process_time(), time.monotonic()


@pytest.mark.timing
@pytest.mark.parametrize("size", [400_000, 4_000_000])
def test_a_large_body_stalls_nobody(served: ServedModel, size: int) -> None:
    bodies = heavy_bodies(MODEL, size)

    async def main() -> dict[str, Gap]:
        too_long: dict[str, Gap] = {}
        async with serving(served) as address:
            gaps = Gaps()
            others = [asyncio.create_task(each) for each in (gaps.tick(), gaps.stream(address))]
            for kind, (path, body) in bodies.items():
                for _ in range(ATTEMPTS):
                    gaps.start()
                    assert await asyncio.to_thread(post, address, path, body) in (200, 400)
                    gap = gaps.longest_yet()
                    if gap.is_short:
                        break
                else:
                    too_long[kind] = gap
            assert not any(task.done() for task in others)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        return too_long

    gc.collect()
    gc.freeze()  # as an agent does: its collections do not look at what is always there
    try:
        assert not asyncio.run(main())
    finally:
        gc.unfreeze()


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.timing
def test_memory_is_bounded_and_comes_back(served: ServedModel) -> None:
    """48 clients with 4 MB each, of every third kind of body; the clients' memory is not theirs."""
    limit_arenas()
    bodies = heavy_bodies(MODEL, 4_000_000)
    chosen = [bodies[kind] for kind in KINDS[::3]]
    statuses: Counter[int] = Counter()
    most = 0.0

    def clients(pool: ThreadPoolExecutor, address: tuple[str, int]) -> Iterator[Future[int]]:
        for number in range(48):
            path, body = chosen[number % len(chosen)]
            yield asyncio.wrap_future(pool.submit(post, address, path, body))

    async def main() -> None:
        nonlocal most
        async with serving(served) as address:
            pool = ThreadPoolExecutor(48)
            await asyncio.to_thread(post, address, *heavy_bodies(MODEL, 100_000)["chat"])
            gc.collect()
            gc.disable()  # nothing large may wait for it
            idle = resident_mebibytes()
            pending = set(clients(pool, address))
            while pending:
                done, pending = await asyncio.wait(pending, timeout=0.01)
                statuses.update(task.result() for task in done)
                most = max(most, resident_mebibytes() - idle)
            pool.shutdown()
            await until(
                lambda: resident_mebibytes() - idle < 30, within=4, what="memory is given back"
            )

    try:
        asyncio.run(main())
    finally:
        gc.enable()
    assert most < 150, statuses
    assert set(statuses) <= {400, 429}
    assert statuses[400] > 0
