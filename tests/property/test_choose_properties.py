"""Whatever the machine: each unit has one role, and no two that are used draw on one memory."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines.hardware import CPU, device, report

from potluck.probe.choose import choose_units
from potluck.types.hardware import DetectorReport, Figure, Origin, ProbeReport, Rates, Trial
from potluck.types.unit import Role

BACKENDS = ("native", "tinygrad:CL", "tinygrad:CUDA")
RATES = st.none() | st.sampled_from([1.0, 9.5, 10.0, 10.9, 11.0, 12.0, 100.0])


def figure(value: float | None) -> Figure:
    return Figure() if value is None else Figure(value=value, origin=Origin.MEASURED, source="x")


@st.composite
def machines(draw: st.DrawFn) -> ProbeReport:
    devices = [CPU]
    for number in range(draw(st.integers(0, 3))):
        gpu = device(f"pci-{number}")
        memory = replace(gpu.memory, is_shared=draw(st.booleans()))
        devices.append(replace(gpu, memory=memory, is_software=draw(st.booleans())))
    trials = []
    for one in devices:
        for backend in draw(st.sets(st.sampled_from(BACKENDS))):
            works = draw(st.booleans())
            rates = Rates(
                decode_tokens_per_second=figure(draw(RATES)),
                prefill_tokens_per_second=figure(draw(RATES)),
            )
            reason = "" if works else "no"
            trials.append(
                Trial(
                    device_id=one.device_id,
                    backend=backend,
                    works=works,
                    reason=reason,
                    rates=rates,
                )
            )
    return report(DetectorReport(detector="gpus", devices=tuple(devices[1:])), trials=tuple(trials))


@pytest.mark.slow
@settings(max_examples=300)
@given(
    machine=machines(),
    requested=st.none() | st.sampled_from([*BACKENDS, "pci-0/tinygrad:CL"]),
    allow_software=st.booleans(),
    num_out=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_roles(
    machine: ProbeReport, requested: str | None, allow_software: bool, num_out: int, seed: int
) -> None:
    shuffled = list(machine.trials)
    random.Random(seed).shuffle(shuffled)
    out = {trial.unit_id: "hung" for trial in shuffled[:num_out]}
    units = choose_units(machine, requested=requested, allow_software=allow_software, out=out)
    reordered = replace(machine, trials=tuple(shuffled), detectors=machine.detectors[::-1])
    assert units == choose_units(
        reordered, requested=requested, allow_software=allow_software, out=out
    )

    trials = {trial.unit_id: trial for trial in machine.trials}
    assert Counter(unit.unit_id for unit in units) == Counter(list(trials))
    devices = {one.device_id: one for one in machine.devices}
    used = [unit for unit in units if unit.role in (Role.SERVES, Role.RESERVE)]
    memories = [
        "the machine's"
        if devices[unit.device_id].memory.is_shared or devices[unit.device_id].is_software
        else unit.device_id
        for unit in used
    ]
    serving = [
        place for unit, place in zip(used, memories, strict=True) if unit.role is Role.SERVES
    ]
    assert len(set(serving)) == len(serving)
    # Software has the CPU's cores, so that only one of the two is ever used.
    on_cores = [each for each in used if devices[each.device_id].is_software]
    assert not on_cores or memories.count("the machine's") == 1
    for unit in units:
        assert (unit.role is Role.OUT) == (not trials[unit.unit_id].works or unit.unit_id in out)
        assert unit.role is Role.SERVES or unit.reason
        assert "\n" not in unit.reason
        if unit in used and not allow_software and devices[unit.device_id].is_software:
            assert unit.unit_id == requested
    if requested is None and any(unit.role is not Role.OUT for unit in units) and allow_software:
        assert used

    # What serves by itself is in its memory at most a tenth slower than any other that works.
    for unit, memory in zip(used, memories, strict=True):
        decode = trials[unit.unit_id].rates.decode_tokens_per_second.value or 0.0
        for other in units:
            is_rival = other.role is Role.IDLE and allow_software and requested is None
            is_rival = is_rival and unit.role is Role.SERVES
            own = devices[other.device_id]
            place = "the machine's" if own.memory.is_shared or own.is_software else own.device_id
            if is_rival and place == memory:
                rival = trials[other.unit_id].rates.decode_tokens_per_second.value or 0.0
                assert rival <= decode * 1.1 * 1.1
