"""A node's report in a scheduler's words: nodes by hand, with what must be said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
from support.machines.hardware import CPU, GIB, device, report

import potluck.capabilities
from potluck.capabilities.ask import unknown_node
from potluck.capabilities.describe import describe_node
from potluck.probe.choose import choose_units
from potluck.types.backend import DeviceKind
from potluck.types.capabilities import DeviceCapabilities, Flops, Source
from potluck.types.hardware import (
    DetectorReport,
    Figure,
    Figures,
    Origin,
    ProbeReport,
    Rates,
    Trial,
)
from potluck.types.unit import Role

SCHEMA = json.loads((Path(potluck.capabilities.__file__).parent / "schema.json").read_text())
CARD = replace(
    device("pci-0000:01:00.0"),
    figures=Figures(
        f32_operations_per_second=Figure(
            value=82.5e12, origin=Origin.DERIVED, source="cores times clock"
        ),
        f16_operations_per_second=Figure(value=165e12, origin=Origin.TABLE, source="a document"),
    ),
)
MALI = replace(
    device("of-fb000000.gpu"), memory=replace(device("of-fb000000.gpu").memory, is_shared=True)
)


def trial(device_id: str, backend: str, decode: float | None, **figures: float) -> Trial:
    def measured(value: float | None) -> Figure:
        if value is None:
            return Figure()
        return Figure(value=value, origin=Origin.MEASURED, source="by hand")

    return Trial(
        device_id=device_id,
        backend=backend,
        works=True,
        figures=Figures(**{name: measured(value) for name, value in figures.items()}),
        rates=Rates(decode_tokens_per_second=measured(decode)),
    )


def described(node: ProbeReport, requested: str | None = None) -> DeviceCapabilities:
    """As a scheduler gets it; what it becomes as JSON must be of the schema."""
    units = choose_units(node, requested=requested, allow_software=False)
    capabilities = describe_node(node, "Acme Board", units)
    document = json.loads(json.dumps(capabilities.to_dict()))
    jsonschema.validate(document, SCHEMA)
    assert len(document["devices"]) == len(node.devices)
    return capabilities


def node(*trials: Trial, devices: Sequence[object] = (CARD,)) -> ProbeReport:
    return report(DetectorReport(detector="cards", devices=tuple(devices)), trials=trials)  # type: ignore[arg-type]


def test_a_card_that_is_faster_than_the_cpu() -> None:
    on_cpu = trial("cpu", "native", 12.0, f32_operations_per_second=0.25e12)
    on_card = trial(CARD.device_id, "tinygrad:CL", 40.0, f32_operations_per_second=60e12)
    card = described(node(on_cpu, on_card))
    assert (card.model, card.chip) == ("Acme Board", "Acme pci-0000:01:00.0")
    assert (card.device_id, card.kind) == (CARD.device_id, DeviceKind.GPU)
    assert (card.backend, card.role, card.reason) == ("tinygrad:CL", Role.SERVES, "")
    assert card.f16
    assert "f32" in card.f16.reason
    assert (card.memory, card.total_memory) == (6 * 1024, 8 * 1024)
    # What was measured comes before what was derived.
    assert card.flops == Flops(fp32=60.0, fp16=165.0, int8=None)
    assert card.sources.fp32 == Source(origin=Origin.MEASURED, text="by hand")
    assert card.sources.fp16 == Source(origin=Origin.TABLE, text="a document")
    assert card.sources.int8.origin is Origin.UNKNOWN
    cpu, again = card.devices
    assert again == replace(card, devices=())
    assert cpu.flops == Flops(fp32=0.25)
    assert (cpu.backend, cpu.role) == ("native", Role.RESERVE)
    assert cpu.reason
    assert cpu.f16
    assert cpu.int8


def test_a_card_that_is_slower_than_the_cpu() -> None:
    slow = trial(CARD.device_id, "tinygrad:CL", 3.1)
    cpu = described(node(trial("cpu", "native", 12.0), slow))
    assert (cpu.chip, cpu.backend, cpu.role) == (CPU.name, "native", Role.SERVES)
    # What may be used of the machine, and not of it what is free.
    assert (cpu.memory, cpu.total_memory) == (5 * 1024, 8 * 1024)
    card = cpu.devices[1]
    assert card.role is Role.RESERVE
    assert card.reason == "slower than the CPU: 3.1 against 12 tokens/s"


def test_the_faster_of_two_cards_stands_for_the_node() -> None:
    second = replace(CARD, device_id="pci-0000:02:00.0", name="Acme Two")
    trials = [trial(CARD.device_id, "tinygrad:CL", 40.0), trial(second.device_id, "b", 50.0)]
    card = described(node(trial("cpu", "native", 12.0), *trials, devices=(CARD, second)))
    assert card.chip == "Acme Two"
    assert not card.f16  # of a backend that this build knows nothing of
    assert [each.role for each in card.devices] == [Role.RESERVE, Role.SERVES, Role.SERVES]


def test_a_backend_that_was_asked_for() -> None:
    trials = (trial("cpu", "native", 12.0), trial(CARD.device_id, "tinygrad:CL", 40.0))
    assert described(node(*trials), "native").device_id == "cpu"


def test_a_backend_that_fails() -> None:
    wrong = Trial(device_id=CARD.device_id, backend="b", works=False, reason="wrong numbers")
    cpu = described(node(trial("cpu", "native", None), wrong))
    assert (cpu.device_id, cpu.role) == ("cpu", Role.SERVES)
    card = cpu.devices[1]
    assert (card.backend, card.role, card.reason) == ("", Role.OUT, "wrong numbers")
    assert not card.f16
    assert card.f16.reason == "wrong numbers"
    # What the hardware is stays true.
    assert card.flops.fp32 == 82.5


def test_nothing_works() -> None:
    broken = replace(MALI, problem="no permission to use /dev/mali0")
    trials = (Trial(device_id="cpu", backend="native", works=False, reason="no core"),)
    cpu = described(node(*trials, devices=(broken,)))
    assert (cpu.device_id, cpu.backend, cpu.reason) == ("cpu", "", "no core")
    assert (cpu.memory, cpu.total_memory) == (5 * 1024, 8 * 1024)
    mali = cpu.devices[1]
    assert (mali.role, mali.reason) == (Role.OUT, "no permission to use /dev/mali0")
    assert (mali.memory, mali.total_memory) == (5 * 1024, 8 * 1024)


def test_software_that_plays_a_card() -> None:
    played = replace(MALI, is_software=True)
    card = described(node(devices=(played,))).devices[1]
    assert card.is_software
    assert (card.role, card.reason) == (
        Role.OUT,
        "software-emulated: use allow_software to enable it",
    )
    card = described(node(devices=(CARD,))).devices[1]
    assert not card.is_software
    assert card.reason == "no backend in this build supports it"


def test_a_card_that_was_not_tried_in_time() -> None:
    found = node(trial("cpu", "native", 12.0))
    units = choose_units(found, requested=None, allow_software=False)
    cpu = describe_node(found, "Acme Board", units, {CARD.device_id})
    assert cpu.role is Role.SERVES
    assert (cpu.devices[1].role, cpu.devices[1].reason) == (Role.OUT, "not tried yet")


def test_memory_that_nobody_tells() -> None:
    memory = replace(CARD.memory, total_bytes=24 * GIB, free_bytes=None, source="the bus")
    card = described(node(devices=(replace(CARD, memory=memory),))).devices[1]
    assert (card.memory, card.total_memory) == (None, 24 * 1024)
    assert card.sources.memory == Source(origin=Origin.UNKNOWN, text="the bus")


def test_a_device_without_a_name() -> None:
    bare = replace(CARD, name="", reported_name="", chip="10de:2fff")
    assert described(node(devices=(bare,))).devices[1].chip == "10de:2fff"


def test_a_node_of_which_nothing_is_known() -> None:
    unknown = unknown_node("it was too slow")
    jsonschema.validate(json.loads(json.dumps(unknown.to_dict())), SCHEMA)
    assert (unknown.memory, unknown.flops, unknown.backend) == (None, Flops(), "")
    assert unknown.sources.memory.text == unknown.reason == "it was too slow"
