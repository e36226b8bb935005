"""``potluck probe``: this machine's devices, which of them work, and how fast they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

import potluck
from potluck.cli.addresses import parse_size
from potluck.cli.options import (
    AllowSoftwareOption,
    BackendOption,
    JsonOption,
    MemoryLimitOption,
    ThreadsOption,
    WaitOption,
    resolve_backend,
    seconds_to_wait,
    settings,
)
from potluck.cli.output import emit_json, print_lines, progress_bar
from potluck.cli.tables import not_tested_reason, table
from potluck.probe.choose import choose_units
from potluck.types.backend import DeviceKind
from potluck.types.document import Document, document_of
from potluck.types.hardware import (
    CpuFacts,
    DetectorReport,
    Device,
    DeviceMemory,
    Figure,
    Figures,
    ProbeReport,
    Trial,
)
from potluck.types.memory import MemoryFacts, MemoryLimit
from potluck.types.quantities import format_bytes, format_number, format_rate
from potluck.types.unit import ChosenUnit, Interface, backend_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from potluck.probe.node_host import NodeHost
    from potluck.probe.probe import OnProgress


def probe(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure every unit again; takes seconds per unit.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Retry tests that crashed or hung before.")
    ] = False,
    wait: WaitOption = False,
    backend: BackendOption = None,
    allow_software: AllowSoftwareOption = False,
    memory_limit: MemoryLimitOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Show this machine's devices, which of them work, and which are used."""
    limit = None if memory_limit is None else parse_size(memory_limit)
    chosen = settings()
    requested = resolve_backend(backend, chosen)
    allow_software = allow_software or chosen.allow_software
    report = probed(
        requested=requested,
        allow_software=allow_software,
        num_threads=threads or chosen.threads,
        is_measured=measure,
        retry=retry,
        wait_seconds=None if wait or measure or retry else seconds_to_wait(),
    )
    if limit is not None:
        report = _limited(report, limit)
    units = choose_units(report, requested=requested, allow_software=allow_software)
    if json:
        from potluck.probe.node_host import describe_node

        emit_json(probe_document(report, units, describe_node(report)))
        return
    print_lines(report_lines(report, units))


def probed(
    *,
    requested: str | None = None,
    allow_software: bool = False,
    num_threads: int | None = None,
    is_measured: bool = False,
    retry: bool = False,
    wait_seconds: float | None = None,
) -> ProbeReport:
    """Probe this machine with the backends of this build; a progress bar where it is measured.

    ``requested`` is the backend or the unit that is to be used. What has not ended after
    ``wait_seconds`` is pending in the report; None waits for everything.
    """
    from potluck.engines.backends import BACKENDS
    from potluck.host.cores import default_num_threads
    from potluck.host.system import THIS_MACHINE
    from potluck.probe.all_detectors import DETECTORS
    from potluck.probe.cache import ProbeCache, default_cache_path
    from potluck.probe.probe import Measuring, ProbeOptions, probe_node

    options = ProbeOptions(
        backends=BACKENDS,
        num_threads=num_threads or default_num_threads(),
        measuring=Measuring.ALWAYS if is_measured else Measuring.NEVER,
        retry=retry,
        wait_seconds=wait_seconds,
        allow_software=allow_software,
        requested_backend=None if requested is None else backend_of(requested),
    )
    with _bar(is_shown=is_measured) as on_progress:
        cache = ProbeCache(default_cache_path(os.environ))
        return probe_node(
            THIS_MACHINE, options, cache, detectors=DETECTORS, on_progress=on_progress
        )


_HOST_SCHEMA = {"required": ["schema"], "properties": {"schema": {"const": "potluck.host/1"}}}


class ProbeDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck probe --json``."""

    schema: Literal["potluck.probe/1"] = "potluck.probe/1"
    version: str
    host_name: str
    kernel: str
    container: str
    """The kind of container that this is in; may be empty."""
    cpu: CpuFacts
    memory: MemoryFacts
    detectors: Annotated[tuple[DetectorReport, ...], msgspec.Meta(min_length=1)]
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(min_length=1)]
    is_complete: bool
    """False while slow detectors are still running."""
    units: tuple[ChosenUnit, ...]
    """The unit of each trial, those that serve first."""
    host: Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_HOST_SCHEMA)] | None
    """The machine as builds see it (``host.json``)."""
    host_problem: str
    """Why there is no ``host``; empty if there is one."""


def probe_document(
    report: ProbeReport, units: Sequence[ChosenUnit], host: NodeHost
) -> ProbeDocument:
    """Return the report, the units chosen from it, and the machine as builds see it."""
    return document_of(
        ProbeDocument,
        report,
        version=potluck.__version__,
        units=tuple(units),
        host=host.document,
        host_problem=host.problem,
    )


def report_lines(report: ProbeReport, units: Sequence[ChosenUnit]) -> Iterator[str]:
    """Yield the report as text: the node, every device and what it can do, and the units in use."""
    place = f" in {report.container}" if report.container else ""
    cpu, memory = report.cpu, report.memory
    yield from table(
        [
            ("node", f"{report.host_name}, Linux {report.kernel}{place}"),
            ("CPU", f"{cpu.name}, {cpu.architecture}"),
            (
                "cores",
                f"{cpu.num_usable_cores} of {cpu.num_cores} usable"
                + (f" ({cpu.usable_reason})" if cpu.usable_reason else ""),
            ),
            (
                "memory",
                f"{format_bytes(memory.total_bytes)}, {format_bytes(memory.free_bytes)} free",
            ),
            ("", f"{format_bytes(memory.usable.bytes)} usable: {memory.usable.reason}"),
        ]
    )
    for device in report.devices:
        yield ""
        yield from _device_lines(
            device, [trial for trial in report.trials if trial.device_id == device.device_id]
        )
    if units:
        yield ""
        rows = [("UNIT", "ROLE", "REASON"), *((u.unit_id, u.role.value, u.reason) for u in units)]
        yield from table(rows)
    problems = [
        f"{detector.detector}: {problem}"
        for detector in report.detectors
        for problem in detector.problems
    ]
    if problems:
        yield ""
        yield from problems
    if report.pending:
        yield ""
        yield (
            f"still testing: {', '.join(report.pending)} (potluck probe --wait waits for the "
            "result)"
        )


def _device_lines(device: Device, trials: Sequence[Trial]) -> Iterator[str]:
    name = device.name or device.reported_name or device.chip or "unknown model"
    yield f"{device.device_id}: {name} ({device.kind.value.upper()})"
    rows = []
    details = [
        *([f"chip {device.chip}"] if device.chip else []),
        *([f"driver {device.driver}"] if device.driver else []),
        *(f"{what} {version}" for what, version in device.versions),
        *device.device_files,
    ]
    if details:
        rows.append(("device", ", ".join(details)))
    if device.is_software:
        rows.append(("kind", "software emulation on the CPU"))
    rows += [(interface.api, _interface_text(interface)) for interface in device.interfaces]
    if device.kind is not DeviceKind.CPU:  # the machine's, which stands above
        rows.append(("memory", _memory_text(device.memory)))
    if device.problem:
        rows.append(("problem", device.problem))
    for trial in trials:
        rows.append((trial.backend, _trial_text(trial)))
    if not trials and not device.problem:
        rows.append(("backend", f"unused: {not_tested_reason(is_software=device.is_software)}"))
    for line in table(rows):
        yield f"  {line}"
    for line in table([*_figure_rows(device.figures, [trial.figures for trial in trials])]):
        yield f"  {line}"


def _memory_text(memory: DeviceMemory) -> str:
    if memory.is_shared:
        return "shared with the CPU"
    if memory.total_bytes is None:
        return f"unknown size ({memory.source})"
    free = "" if memory.free_bytes is None else f", {format_bytes(memory.free_bytes)} free"
    return f"{format_bytes(memory.total_bytes)}{free} ({memory.source})"


def _interface_text(interface: Interface) -> str:
    parts = [interface.address, f"({interface.description})" if interface.description else ""]
    return " ".join(part for part in parts if part) or "yes"


def _trial_text(trial: Trial) -> str:
    if trial.is_pending:
        return f"not tested yet: {trial.reason}"
    if not trial.works:
        return f"does not work: {trial.reason}"
    variants = f": {', '.join(trial.variants)}" if trial.variants else ""
    rates = "".join(
        f"; {format_number(rate.value)} tokens/s {phase}"
        for phase, rate in (
            ("decode", trial.rates.decode_tokens_per_second),
            ("prefill", trial.rates.prefill_tokens_per_second),
        )
        if rate.value is not None
    )
    return f"works{variants}{rates}" + (f" ({trial.reason})" if trial.reason else "")


_FAST = "bf16, fast"
_FIGURES = (
    ("reads", "read_bytes_per_second", "B/s"),
    ("f32", "f32_operations_per_second", "FLOP/s"),
    ("16 bit", "f16_operations_per_second", "FLOP/s"),
    ("int8", "int8_operations_per_second", "OP/s"),
    (_FAST, "fast_bf16_operations_per_second", "FLOP/s"),
)
_ADDRESS = re.compile(r" \(https?://[^()]*\)")


def _figure_rows(
    of_device: Figures, of_trials: Sequence[Figures]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the figures measured through each backend, else those known of the device.

    Unknown figures with one reason have one row. Addresses of sources are in the JSON only.
    """
    unknown: dict[str, list[str]] = {}
    for label, field, unit in _FIGURES:
        figures: list[Figure] = [getattr(figures, field) for figures in of_trials]
        known = [figure for figure in figures if figure.value is not None]
        for figure in known or [getattr(of_device, field)]:
            source = _ADDRESS.sub("", figure.source)
            if figure.value is None:
                if label != _FAST:  # most have none
                    unknown.setdefault(source, []).append(label)
            else:
                yield label, format_rate(figure.value, unit), figure.origin.value, source
    for source, labels in unknown.items():
        yield ", ".join(labels), "", "unknown", source


def _limited(report: ProbeReport, limit_bytes: int) -> ProbeReport:
    if limit_bytes >= report.memory.usable.bytes:
        return report
    usable = MemoryLimit(bytes=limit_bytes, reason="--memory-limit")
    return replace(report, memory=replace(report.memory, usable=usable))


@contextmanager
def _bar(*, is_shown: bool) -> Iterator[OnProgress]:
    """Show a progress bar for each unit that is measured."""
    if not is_shown:
        yield lambda unit_id, done: None
        return
    tasks: dict[str, TaskID] = {}
    with progress_bar() as bar:

        def advance(unit_id: str, done: float) -> None:
            if unit_id not in tasks:
                tasks[unit_id] = bar.add_task(f"measuring {unit_id}", total=1.0)
            bar.update(tasks[unit_id], completed=done)

        yield advance
