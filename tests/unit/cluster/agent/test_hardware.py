"""What an agent says of the units of its own machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.machines.hardware import report
from support.processes.waiting import until

from potluck.cluster.agent import hardware
from potluck.cluster.agent.hardware import Hardware
from potluck.errors import PotluckError
from potluck.probe.cache import ProbeCache
from potluck.probe.probe import ProbeOptions
from potluck.types.hardware import ProbeReport, Trial

WORKS = Trial(device_id="cpu", backend="native", works=True, variants=("scalar", "avx2"))


def hear(monkeypatch: pytest.MonkeyPatch, *trials: Trial) -> None:
    """Start with a probe that reports the same twice, as one that measures does."""

    def probe(*_: object, on_report: Callable[[ProbeReport], None], **__: object) -> ProbeReport:
        on_report(report(trials=trials))
        on_report(report(trials=trials))
        return report(trials=trials)

    async def start() -> None:
        monkeypatch.setattr(hardware, "probe_node", probe)
        options = ProbeOptions(backends=(), num_threads=1)
        await Hardware.start(options, ProbeCache(None), detectors=())
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


def test_what_is_pending_is_probed_again_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pending = replace(WORKS, works=False, variants=(), reason="it runs", is_pending=True)
    found = [pending, pending, WORKS]

    def probe(
        *_: object, on_report: Callable[[ProbeReport], None] = lambda _: None, **__: object
    ) -> ProbeReport:
        seen = report(trials=(found.pop(0),))
        on_report(seen)
        return seen

    async def start() -> ProbeReport:
        monkeypatch.setattr(hardware, "probe_node", probe)
        monkeypatch.setattr(hardware, "_PAUSES_SECONDS", (0.0, 0.01, 60.0))
        started = await Hardware.start(
            ProbeOptions(backends=(), num_threads=1), ProbeCache(None), detectors=()
        )
        assert started.report.trials == (pending,)
        await until(lambda: started.report.trials == (WORKS,))
        return started.report

    assert asyncio.run(start()).pending == ()
    assert found == []
    assert caplog.messages == ["cpu/native has not been tested yet: it runs"]


@pytest.mark.parametrize("has_reported", [True, False])
def test_a_probe_that_fails_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_reported: bool
) -> None:
    def probe(*_: object, on_report: Callable[[ProbeReport], None], **__: object) -> None:
        if has_reported:
            on_report(report(trials=(WORKS,)))
        raise RuntimeError("nobody expected this")

    async def start() -> ProbeReport:
        monkeypatch.setattr(hardware, "probe_node", probe)
        options = ProbeOptions(backends=(), num_threads=1)
        async with asyncio.timeout(20):
            started = await Hardware.start(options, ProbeCache(None), detectors=())
        await until(lambda: "the probe failed" in caplog.text)
        return started.report

    if has_reported:
        assert asyncio.run(start()).trials == (WORKS,)
    else:
        with pytest.raises(PotluckError, match="could not be probed: RuntimeError: nobody"):
            asyncio.run(start())
