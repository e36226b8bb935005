"""What an agent says of the units of its own machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.hardware import report

from potluck.cluster.agent import hardware
from potluck.cluster.agent.hardware import Hardware
from potluck.probe.cache import ProbeCache
from potluck.probe.probe import ProbeOptions
from potluck.types.hardware import ProbeReport, Trial

WORKS = Trial(device_id="cpu", backend="native", works=True, variants=("scalar", "avx2"))


def hear(monkeypatch: pytest.MonkeyPatch, *trials: Trial) -> None:
    """Start with a probe that reports the same twice, as one that measures does."""

    def probe(*_: object, on_report: Callable[[ProbeReport], None], **__: object) -> None:
        on_report(report(trials=trials))
        on_report(report(trials=trials))

    async def start() -> None:
        monkeypatch.setattr(hardware, "probe_node", probe)
        options = ProbeOptions(backends=(), num_threads=1)
        await Hardware.start(options, ProbeCache(None), layers=())
        await asyncio.sleep(0.01)

    asyncio.run(start())


def test_what_works_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hear(monkeypatch, WORKS)
    assert caplog.messages == []


def test_a_variant_that_does_not_work_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hear(monkeypatch, replace(WORKS, reason="amx: died of SIGILL"))
    assert caplog.messages == ["cpu/native works, but for amx: died of SIGILL"]


def test_a_unit_that_does_not_work_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hear(monkeypatch, replace(WORKS, works=False, variants=(), reason="wrong numbers"))
    assert caplog.messages == ["cpu/native cannot be used: wrong numbers"]
