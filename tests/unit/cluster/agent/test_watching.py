"""Watchers: told everything in order, or cut off."""

from __future__ import annotations

import asyncio

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.observation import MAX_NOTICES, MAX_WATCHERS, Watchers
from potluck.errors import OverloadedError
from potluck.types.console import Notice


def notice(kind: str, text: str) -> Notice:
    return Notice(kind=kind, data=text.encode())


def test_a_watcher_is_told_what_was_before_and_what_comes() -> None:
    async def watch() -> list[bytes]:
        watchers = Watchers(lambda: None)
        watcher = watchers.add([notice("event", "old")])
        first = await watcher.take(1.0)
        asyncio.get_running_loop().call_soon(watchers.notify, notice("event", "new"))
        second = await watcher.take(5.0)
        assert await watcher.take(0.01) == []
        return [each.data for each in (*first, *second)]

    assert run_in_virtual_time(watch()) == [b"old", b"new"]


def test_of_the_cluster_only_the_latest_view_waits() -> None:
    async def watch() -> list[bytes]:
        watchers = Watchers(lambda: None)
        watcher = watchers.add([])
        for text in ("1", "2", "3"):
            watchers.notify(notice("cluster", text))
        watchers.notify(notice("sample", "s"))
        return [each.data for each in await watcher.take(1.0)]

    assert run_in_virtual_time(watch()) == [b"3", b"s"]


def test_one_that_takes_nothing_is_cut_off_and_the_others_are_not() -> None:
    async def watch() -> None:
        watchers = Watchers(lambda: None)
        slow, quick = watchers.add([]), watchers.add([])
        for number in range(MAX_NOTICES + 1):
            watchers.notify(notice("sample", str(number)))
            assert len(await quick.take(1.0)) == 1
        with pytest.raises(OverloadedError, match="not read fast enough"):
            await slow.take(1.0)

    run_in_virtual_time(watch())


def test_watchers_are_bounded_and_the_first_is_noticed() -> None:
    async def watch() -> None:
        firsts: list[int] = []
        watchers = Watchers(lambda: firsts.append(1))
        held = [watchers.add([]) for _ in range(MAX_WATCHERS)]
        with pytest.raises(OverloadedError, match="are already watching the cluster"):
            watchers.add([])
        for each in (*held, held[0]):
            each.close()
        assert len(watchers) == 0
        watchers.add([])
        assert firsts == [1, 1]

    run_in_virtual_time(watch())
