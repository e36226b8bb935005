"""Tokens per second through every backend on every device: ``METHODOLOGY.md``, "GPU".

    python benchmarks/gpu.py OUT.json [--shape 1B 8B] [--format bf16 q8_0 q4_k] [--backend NAME …]
                             [--allow-software] [--small | --tiny]

Every unit of this machine that passes its test, the native one too, with models of random weights
in shapes that people run. Each unit and model is measured in a process of its own, so that a crash,
a hang or a lack of memory costs a row, which says so. ``--small`` takes a shape of a hundred
million parameters, ``--tiny`` one that shows only that everything works.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from circumstances import circumstances
from gpu_child import SHAPES, THIN, Case

from potluck.engines.backends import BACKENDS, unit_address
from potluck.host.child import ChildAnswer, run_child
from potluck.host.cores import default_num_threads
from potluck.host.memory import available_memory
from potluck.host.system import THIS_MACHINE
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache
from potluck.probe.probe import Measuring, ProbeOptions, probe_node
from potluck.types.hardware import ProbeReport, Trial

SCHEMA = "potluck.benchmark.gpu/1"
FORMATS = ("bf16", "q8_0", "q4_k")
_PROBE_SECONDS = 120.0
_BUSY_SHARE = 0.25
"""The load average, as a share of the cores, above which figures are marked."""


def main() -> None:
    """Probe, measure every row, print it and write the file after each."""
    arguments = parse_arguments()
    record = {"schema": SCHEMA, **circumstances()}
    # As given, it names a file of this machine.
    record["command"] = ["python", "benchmarks/gpu.py", *sys.argv[2:]]
    num_cores = len(os.sched_getaffinity(0))
    record["is_busy"] = os.getloadavg()[0] > _BUSY_SHARE * num_cores
    record["num_threads"] = arguments.threads
    report = probe_units(arguments)
    rows: list[dict[str, Any]] = []
    record["units"] = [unit_document(report, trial) for trial in report.trials]
    for row in measured_rows(report, arguments):
        rows.append(row)
        print(line(row), flush=True)
        arguments.out.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
    if not rows:
        sys.exit("no unit that was asked for works on this machine")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    names = [name for name in SHAPES if name != THIN]
    parser.add_argument("--shape", nargs="+", default=["1B", "8B"], choices=names)
    parser.add_argument("--format", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--backend", nargs="+", help="only these; all that work otherwise")
    parser.add_argument("--allow-software", action="store_true", help="PoCL, tinygrad:CPU …")
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--row-seconds", type=float, default=1800.0, help="deadline of a row")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="the 100M shape, 128 prompt tokens")
    size.add_argument("--tiny", action="store_true", help="no measurement: that it works")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.shape, arguments.prompt_tokens = ["100M"], 128
    if arguments.tiny:
        arguments.shape, arguments.format = ["tiny"], arguments.format[:1]
        arguments.prompt_tokens, arguments.decode_tokens, arguments.repeats = 40, 3, 1
    return arguments


def probe_units(arguments: argparse.Namespace) -> ProbeReport:
    """Test and measure every unit now, without reading or writing a cache."""
    options = ProbeOptions(
        backends=[
            spec for spec in BACKENDS if arguments.backend is None or spec.name in arguments.backend
        ],
        num_threads=arguments.threads,
        measuring=Measuring.ALWAYS,
        deadline_seconds=_PROBE_SECONDS,
        # Naming a backend includes software implementations of it.
        allow_software=arguments.allow_software or arguments.backend is not None,
    )
    return probe_node(THIS_MACHINE, options, ProbeCache(None), detectors=DETECTORS)


def unit_document(report: ProbeReport, trial: Trial) -> dict[str, object]:
    """Return a trial with the name of its device, and the reason if the trial failed."""
    (device,) = (each for each in report.devices if each.device_id == trial.device_id)
    return {
        "device": device.name or device.reported_name or device.chip,
        "is_software": device.is_software,
        "versions": dict(device.versions),
        **msgspec.to_builtins(trial),
    }


def measured_rows(report: ProbeReport, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the host's time, then every shape in every format, for each unit that works."""
    for trial in report.trials:
        if not trial.works:
            continue
        host = measured(trial, THIN, arguments.format[0], arguments)
        yield host
        for shape in arguments.shape:
            for fmt in arguments.format:
                row = measured(trial, shape, fmt, arguments)
                yield {**row, **shares(row, host, trial)}


def measured(trial: Trial, shape: str, fmt: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a row: the measurements of a child, or why it failed."""
    is_thin = shape == THIN
    case = Case(
        unit=unit_address(trial),
        shape=shape,
        format=fmt,
        num_threads=arguments.threads,
        num_prompt_tokens=16 if is_thin else arguments.prompt_tokens,
        num_decode_tokens=arguments.decode_tokens,
        max_step_tokens=min(512, arguments.prompt_tokens),
        num_repeats=arguments.repeats,
    )
    folder = str(Path(__file__).resolve().parent)
    given = os.environ.get("PYTHONPATH")
    outcome = run_child(
        "gpu_child",
        (msgspec.json.encode(case).decode(),),
        deadline_seconds=arguments.row_seconds,
        max_resident_bytes=available_memory().bytes,
        environment={
            **os.environ,
            "PYTHONPATH": folder if not given else f"{folder}{os.pathsep}{given}",
        },
    )
    row = {"unit": trial.unit_id, "shape": shape, "format": fmt}
    if isinstance(outcome, ChildAnswer):
        return {**row, **outcome.document}
    return {**row, "failed": outcome.reason}


def shares(row: dict[str, Any], host: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """Return the fraction of the unit's bandwidth that decoding reaches, and the fraction of a step
    that is the host's.

    A fraction is None if one of its two figures was not measured.
    """
    if "failed" in row:
        return {}
    rate, read = row["decode_tokens_per_second"], trial.figures.read_bytes_per_second.value
    per_layer = host.get("host_seconds_per_layer")
    num_layers = SHAPES[row["shape"]].num_layers
    return {
        "fraction_of_bandwidth": read and row["stored_bytes_per_token"] * rate / read,
        "host_fraction_of_decode": per_layer and num_layers * per_layer * rate,
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    what = f"{row['unit']:32} {row['shape']:5} {row['format']:5}"
    if "failed" in row:
        return f"{what} failed: {row['failed']}"
    if "host_seconds_per_layer" in row:
        return f"{what} host {1e6 * row['host_seconds_per_layer']:.0f} µs per layer and step"
    return (
        f"{what} decode {row['decode_tokens_per_second']:8.2f}/s, "
        f"{_percent(row['fraction_of_bandwidth'])} of bandwidth, "
        f"host {_percent(row['host_fraction_of_decode'])}; "
        f"prefill {row['prefill_tokens_per_second']:8.1f}/s; "
        f"open {row['open_seconds']:.1f} s, load {row['load_seconds']:.1f}, "
        f"compile {row['compile_seconds']:.1f}"
    )


def _percent(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.0%}"


if __name__ == "__main__":
    main()
