"""Choose the unit of a model in this process, and plan its stages."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from potluck.catalog import ModelDescription, read_profile
from potluck.engines.arithmetic_choice import arithmetic_of_weights, arithmetic_on
from potluck.engines.backends import BACKENDS, abilities_of, native_unit, unit_address
from potluck.engines.loading import Room
from potluck.engines.loading.prepare import LoadPlan, count_stages, plan_stages
from potluck.engines.loading.sizes import quantized_to_fit
from potluck.engines.native.engine import choose_isa
from potluck.errors import ParameterError, UsageError
from potluck.host.cores import default_num_threads, own_usable_cores
from potluck.host.memory import available_memory
from potluck.host.system import THIS_MACHINE
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.choose import check_requested_unit_serves, choose_units
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import MAX_STEP_TOKENS
from potluck.types.choices import ArithmeticChoice, Quantization
from potluck.types.hardware import Device, ProbeReport
from potluck.types.memory import MemoryLimit
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.unit import NATIVE, Role, UnitAddress, backend_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUnit:
    """A unit of this machine; ``memory`` is its own, or None if it uses the machine's memory."""

    address: UnitAddress
    memory: MemoryLimit | None = None


def find_unit(backend: str | None, *, isa: str | None, allow_software: bool = False) -> LocalUnit:
    """Return the first unit of this machine on which ``backend`` works, by default the native one.

    ``backend`` may also be a unit (``pci-0000:01:00.0/tinygrad:CL``). Backends other than the
    native one are tried on the devices that the probe finds, or known from an earlier trial;
    ``isa`` applies to the native backend. Software-emulated devices are used with
    ``allow_software``, or if ``backend`` is their unit. Raise ``ParameterError`` if this build does
    not have the backend, and ``UsageError`` with the reasons if it works on no device.
    """
    name = backend_of(backend or NATIVE)
    if abilities_of(name).is_built_in:
        return LocalUnit(address=native_unit(choose_isa(isa)))
    spec = next((spec for spec in BACKENDS if spec.name == name), None)
    if spec is None:
        raise ParameterError(
            "backend",
            f"unknown backend {name}",
            hint=f"known: {', '.join(spec.name for spec in BACKENDS)}",
        )
    report = probe_node(
        THIS_MACHINE,
        ProbeOptions(
            backends=(spec,),
            num_threads=default_num_threads(),
            allow_software=allow_software,
            requested_backend=name,
        ),
        ProbeCache(default_cache_path(os.environ)),
        detectors=DETECTORS,
    )
    units = choose_units(report, requested=backend, allow_software=allow_software)
    try:
        check_requested_unit_serves(report, units, backend)
    except UsageError as error:
        if report.pending:
            raise
        # The original hint only covers the backends that were tried, which is only this one.
        raise UsageError(error.message, hint=_hint(report, name)) from error
    chosen = next(unit for unit in units if unit.role is Role.SERVES)
    trial = next(trial for trial in report.trials if trial.unit_id == chosen.unit_id)
    device = next(device for device in report.devices if device.device_id == chosen.device_id)
    return LocalUnit(address=unit_address(trial, BACKENDS), memory=_own_memory(device))


def _hint(report: ProbeReport, backend: str) -> str:
    """Return the hint for a backend that works on no device that may be used, for callers in Python
    and on the command line.
    """
    emulated = {device.device_id for device in report.devices if device.is_software}
    trials = [trial for trial in report.trials if trial.device_id in emulated]
    if any(trial.works and trial.backend == backend for trial in trials):
        return "allow_software=True in Python, or --allow-software, enables software emulation"
    return "the CPU is used if no backend is given; potluck probe shows which backends work here"


def _own_memory(device: Device) -> MemoryLimit | None:
    num_bytes = device.own_free_bytes
    if num_bytes is None:
        return None
    return MemoryLimit(
        bytes=num_bytes, reason=f"free on {device.name}, according to {device.memory.source}"
    )


def plan_load(
    description: ModelDescription,
    *,
    num_stages: int,
    context_tokens: int,
    cache_tokens: int,
    num_threads: int | None,
    unit: LocalUnit,
    num_states: int = 0,
    quantization: Quantization | None = Quantization.NONE,
    is_mapped: bool = False,
    arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT,
) -> LoadPlan:
    """Divide the model into stages, and compute their memory on ``unit``; nothing is loaded.

    A ``quantization`` of None uses the most precise one that fits. Mapped weights need no memory.
    Fast arithmetic is only used if ``unit`` supports it. Raise ``InsufficientMemoryError`` if the
    model does not fit, and ``ParameterError``.
    """
    config = description.config
    shards = split_evenly(config.num_layers, num_stages, config.no_cuts)
    size = StageSize(
        context_tokens=context_tokens,
        num_blocks=blocks_for(cache_tokens),
        num_states=num_states,
        max_step_tokens=min(MAX_STEP_TOKENS, context_tokens),
        num_threads=num_threads or own_usable_cores().max_threads,
        quantization=quantization or Quantization.NONE,
        is_mapped=is_mapped,
        arithmetic=arithmetic_on(unit.address, arithmetic),
        backend=unit.address.backend,
        is_on_device=unit.memory is not None,
    )
    room = room_on(unit)
    profile = read_profile(description)

    def count(size: StageSize) -> LoadPlan:
        return count_stages(profile, shards, size, unit.address)

    if quantization is None:
        size = quantized_to_fit(size, lambda other: room.holds(count(other).memory))
    of_weights = arithmetic_of_weights(size.arithmetic, count(size).product_formats)
    size = replace(size, arithmetic=of_weights)
    return plan_stages(profile, shards, size, unit.address, room)


def room_on(unit: LocalUnit) -> Room:
    """Return the memory that is usable now for stages on ``unit``."""
    return Room(host=available_memory(), device=unit.memory)


def split_evenly(
    num_layers: int, num_stages: int, no_cuts: Collection[int] = ()
) -> tuple[Shard, ...]:
    """Return contiguous shards whose numbers of layers differ by at most one, longer ones first.

    A cut that would be before one of the layers in ``no_cuts`` is made at the nearest possible
    layer. Raise ``ParameterError`` unless ``1 <= num_stages <= num_layers``, or if there are too
    few possible cuts.
    """
    if not 1 <= num_stages <= num_layers:
        raise ParameterError(
            "stages",
            f"{num_layers} layers cannot be split into {num_stages} stages",
            hint=f"use a number from 1 to {num_layers}",
        )
    places = [layer for layer in range(1, num_layers) if layer not in no_cuts]
    if len(places) < num_stages - 1:
        most = len(places) + 1
        raise ParameterError(
            "stages",
            f"this model cannot be split into {num_stages} stages, because its layers share "
            "keys and values, or an embedding",
            hint="omit --stages" if most == 1 else f"use a number from 1 to {most}",
        )
    shortest, num_longer = divmod(num_layers, num_stages)
    shards = []
    start = wanted = 0
    for index in range(num_stages):
        wanted += shortest + (index < num_longer)
        end = num_layers
        if num_cuts := num_stages - 1 - index:
            # Leave a possible layer for each of the remaining cuts.
            end = min(places[: len(places) - num_cuts + 1], key=lambda each: abs(each - wanted))
            places = [each for each in places if each > end]
        shards.append(
            Shard(
                start_layer=start,
                end_layer=end,
                num_layers=num_layers,
                has_embedding=index == 0,
                has_head=index == num_stages - 1,
            )
        )
        start = end
    return tuple(shards)
