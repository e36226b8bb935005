"""The HTTP API over a toy gateway, served on a thread of its own, or asked without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from support.http.toy_gateway import ToyGateway

from potluck.api.app import Page
from potluck.api.config import ApiConfig
from potluck.api.server import serve


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApi:
    url: str
    gateway: ToyGateway

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def running_api(
    config: ApiConfig | None = None,
    *,
    step_seconds: float = 0.0,
    gateway: ToyGateway | None = None,
    page: Page | None = None,
) -> Iterator[RunningApi]:
    """Serve until the block is left; afterwards no KV block may be held."""
    gateway = gateway or ToyGateway(step_seconds=step_seconds)
    started = threading.Event()
    url = ""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        nonlocal url
        async with serve(gateway, config or ApiConfig(), page) as url:
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()
            started.set()

    thread = threading.Thread(target=run, name="api")
    thread.start()
    try:
        assert started.wait(20)
        assert url, "the server did not start"
        yield RunningApi(url=url, gateway=gateway)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        gateway.dispatcher.close()
    assert not thread.is_alive()
    assert gateway.num_used_blocks == 0


def ask_app(
    app: Any,
    method: str,
    path: str,
    *,
    url: str = "http://localhost",
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> httpx2.Response:
    """Return what the application answers."""

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=url) as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(ask())
