"""Requests to an application without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2


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
