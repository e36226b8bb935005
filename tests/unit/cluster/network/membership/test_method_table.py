from __future__ import annotations

import asyncio

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.network.membership import MethodTable
from potluck.errors import CallError


async def _answer(_: bytes) -> bytes:
    return b""


def test_an_incomplete_table_keeps_callers_waiting_for_what_is_not_registered_yet() -> None:
    async def run() -> None:
        methods = MethodTable(is_complete=False)
        methods.register("early", _answer)
        await methods.find("early")
        late = asyncio.ensure_future(methods.find("late"))
        unknown = asyncio.ensure_future(methods.find("unknown"))
        await asyncio.sleep(0.01)
        assert not late.done()
        methods.register("late", _answer)
        methods.complete()
        await late
        with pytest.raises(CallError, match="does not know"):
            await unknown

    run_in_virtual_time(run())


def test_a_complete_table_refuses_unknown_methods_at_once() -> None:
    with pytest.raises(CallError, match="does not know"):
        run_in_virtual_time(MethodTable().find("unknown"))
