"""What a model in this process computes on, by what was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from support.engines import reference_backend
from support.machines import hardware

from potluck.engines.backends import BACKENDS, native_unit
from potluck.engines.native.engine import available_isas
from potluck.errors import ParameterError, UsageError
from potluck.local import Model, loading
from potluck.local.loading import find_unit
from potluck.probe.probe import ProbeOptions
from potluck.types.hardware import DetectorReport, Device, ProbeReport, Trial
from potluck.types.unit import NATIVE, Interface

GIB = 2**30
CL = "tinygrad:CL"
THERE = Interface(api="opencl", address="some.icd#0:0")

Probed = Callable[..., list[ProbeOptions]]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> Probed:
    """Has this machine have these devices and trials; what was asked of the probe."""

    def of(devices: tuple[Device, ...], trials: tuple[Trial, ...]) -> list[ProbeOptions]:
        requests: list[ProbeOptions] = []

        def probe_node(_: object, options: ProbeOptions, *__: object, **___: object) -> ProbeReport:
            requests.append(options)
            return hardware.report(DetectorReport(detector="pci", devices=devices), trials=trials)

        monkeypatch.setattr(loading, "probe_node", probe_node)
        return requests

    return of


def trial(device_id: str, *, works: bool = True, reason: str = "") -> Trial:
    return Trial(
        device_id=device_id,
        backend=CL,
        works=works,
        reason=reason,
        variants=("opencl",) if works else (),
        interface=THERE,
    )


def test_the_native_backend_needs_no_probing(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POTLUCK_ISA", raising=False)
    requests = probed((), ())
    fastest = available_isas()[-1]
    for backend in (None, NATIVE, "cpu/native"):
        assert find_unit(backend, isa=None).address == native_unit(fastest)
    assert find_unit(None, isa="scalar").address == native_unit("scalar")
    assert find_unit(None, isa=None).memory is None
    assert requests == []


def test_the_first_device_where_it_works_is_taken_with_its_memory(probed: Probed) -> None:
    devices = (hardware.device("one"), hardware.device("two"), hardware.device("three"))
    trials = (trial("one", works=False, reason="it hung"), trial("two"), trial("three"))
    requests = probed(devices, trials)
    # In the order of their ids: nothing was measured.
    found = find_unit(CL, isa=None)
    assert (found.address.unit_id, found.address.interface) == ("three/tinygrad:CL", THERE)
    assert found.address.variant == "opencl"
    assert found.memory is not None
    assert found.memory.bytes == 6 * GIB
    assert [spec.name for spec in requests[0].backends] == [CL]
    chosen = find_unit("two/tinygrad:CL", isa=None)
    assert chosen.address.unit_id == "two/tinygrad:CL"


def test_memory_of_the_machine_is_counted_with_the_machine(probed: Probed) -> None:
    board = hardware.device("soc")
    shared = dataclasses.replace(board, memory=dataclasses.replace(board.memory, is_shared=True))
    probed((shared,), (trial("soc"),))
    assert find_unit(CL, isa=None).memory is None


def test_what_does_not_work_is_refused_with_the_reason(probed: Probed) -> None:
    probed((hardware.device("one"),), (trial("one", works=False, reason="it hung"),))
    with pytest.raises(UsageError) as caught:
        find_unit(CL, isa=None)
    assert caught.value.message == (
        "tinygrad:CL does not work on any device of this machine (one/tinygrad:CL: it hung)"
    )
    assert caught.value.hint == (
        "the CPU is used if no backend is given; potluck probe shows which backends work here"
    )
    with pytest.raises(ParameterError, match="unknown backend tinygrad:METAL"):
        find_unit("tinygrad:METAL", isa=None)


def test_what_is_not_tested_yet_is_refused_for_now(probed: Probed) -> None:
    pending = dataclasses.replace(trial("one", works=False, reason="it runs"), is_pending=True)
    probed((hardware.device("one"),), (pending,))
    with pytest.raises(UsageError) as caught:
        find_unit(CL, isa=None)
    assert caught.value.message == (
        "tinygrad:CL has not been tested on this machine yet (one/tinygrad:CL: it runs)"
    )
    assert "potluck probe --wait" in (caught.value.hint or "")


def test_software_is_used_only_if_it_is_allowed(probed: Probed) -> None:
    pocl = dataclasses.replace(hardware.device("pocl"), is_software=True)
    requests = probed((pocl,), (trial("pocl"),))
    with pytest.raises(UsageError, match="--allow-software") as caught:
        find_unit(CL, isa=None)
    assert caught.value.hint.startswith("allow_software=True in Python, or --allow-software,")
    found = find_unit(CL, isa=None, allow_software=True)
    assert found.address.unit_id == "pocl/tinygrad:CL"
    assert found.memory is None
    assert [options.allow_software for options in requests] == [False, True]


@pytest.mark.slow
def test_a_model_computes_on_the_unit_that_was_found(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BACKENDS", (*BACKENDS, reference_backend.SPEC))
    probed((), (Trial(device_id="cpu", backend="reference", works=True),))

    def text(backend: str | None) -> str:
        with Model.open("demo", context_tokens=64, backend=backend) as model:
            unit_id = model.plan.unit.unit_id
            assert unit_id == f"cpu/{backend or NATIVE}"
            return model.generate("Once upon a time", max_tokens=12, temperature=0).result().text

    assert len(text(None)) > 10
    assert text("reference") == text(None)
