"""The self-test and measurement of tinygrad's backends, which ``probe.trials.running`` runs in a
child process.

The interface determines the backend: ``cuda``, ``kfd``, ``kgsl``, ``opencl``, or none for the CPU.
Everything uses ``TinygradEngine``, as in serving. It prints its results without evaluating them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from potluck.engines.tinygrad_environment import (
    AMD,
    CL,
    CPU,
    CUDA,
    QCOM,
    VARIANTS,
    tinygrad_device,
    tinygrad_environment,
)
from potluck.errors import EngineError, PotluckError
from potluck.host.child_environment import child_environment
from potluck.probe.trials.interfaces import read_interface

if TYPE_CHECKING:
    from collections.abc import Mapping

    from potluck.types.engine import MakeEngine
    from potluck.types.unit import Interface

_BACKENDS = {"cuda": CUDA, "kfd": AMD, "kgsl": QCOM, "opencl": CL}
"""Backends, by the interface through which they open a device."""

_RATE_TOKENS = 32
"""Number of tokens that the engine computes at once."""


def main(arguments: list[str]) -> None:
    """Run one of the commands of ``potluck.probe.trials.running``, and print its result."""
    try:
        document = _document(arguments)
    except (ImportError, ValueError) as error:
        document = {"refused": f"{error}"}
    except PotluckError as error:
        document = {"refused": f"{error.message}{': ' + error.hint if error.hint else ''}"}
    print(json.dumps(document))  # noqa: T201 - the answer of a child process


def _document(arguments: list[str]) -> Mapping[str, object]:
    match arguments:
        case ["variants", _, interface]:
            return {"variants": list(VARIANTS[_backend(read_interface(interface))])}
        case ["self-test", _, interface, variant]:
            from potluck.engines.self_test import self_test

            make_engine = _maker(read_interface(interface), variant)
            return {"results": {variant: self_test(make_engine)}}
        case ["self-test", device_id, interface, *variants]:
            variants = variants or list(VARIANTS[_backend(read_interface(interface))])
            if len(variants) == 1:
                return _document(["self-test", device_id, interface, *variants])
            return {"results": _results_of_each(device_id, interface, variants)}
        case ["measure", _, interface, variant, _, max_weights_bytes]:
            return _measure(read_interface(interface), variant, int(max_weights_bytes))
    return {"refused": f"unknown command: {' '.join(arguments)}"}


def _backend(interface: Interface | None) -> str:
    if interface is None:
        return CPU
    if interface.api not in _BACKENDS:
        raise EngineError(f"tinygrad has no backend for {interface.api}")
    return _BACKENDS[interface.api]


def _results_of_each(device_id: str, interface: str, variants: list[str]) -> dict[str, object]:
    """Return the results of all variants that are supported, each from a separate process.

    tinygrad reads its environment, and so the variant, only once. The processes end with this one,
    and if one of them dies of a signal, this one dies of the same. Raises ``EngineError`` if no
    variant is supported.
    """
    results: dict[str, object] = {}
    refusals: list[str] = []
    for variant in variants:
        start = (sys.executable, "-P", "-m", "potluck.host.child_start", str(os.getpid()))
        child = subprocess.run(
            [*start, __spec__.name, "self-test", device_id, interface, variant],
            stdout=subprocess.PIPE,
            env=child_environment(),
            check=False,
        )
        if child.returncode < 0:
            os.kill(os.getpid(), -child.returncode)
        document = json.loads(child.stdout) if child.returncode == 0 else {}
        if "results" in document:
            results.update(document["results"])
        else:
            refusals.append(f"{variant}: {document.get('refused', 'failed')}")
    if not results:
        raise EngineError("; ".join(refusals))
    return results


def _measure(
    interface: Interface | None, variant: str, max_weights_bytes: int
) -> Mapping[str, object]:
    """Measure the device, without f16 if it does not support it, and never in int8.

    The engine multiplies by 8-bit weights as floats.
    """
    make_engine = _maker(interface, variant)
    from potluck.engines.profiling.measure import MeasurementSetup, measure, print_progress
    from potluck.engines.tinygrad.compiled import open_device
    from potluck.host.cores import last_level_cache_bytes
    from potluck.types.tensor import TensorFormat

    backend = _backend(interface)
    device = open_device(tinygrad_device(backend, interface))
    formats = {"f32_operations_per_second": TensorFormat.F32}
    if device.has_f16:
        formats["f16_operations_per_second"] = TensorFormat.F16
    arithmetic = "f16" if device.has_f16 else "f32: the device does not support f16"
    setup = MeasurementSetup(
        make_engine=make_engine,
        formats=formats,
        num_tokens=_RATE_TOKENS,
        cache_bytes=last_level_cache_bytes() if backend == CPU else None,
        ending=f"{backend} ({variant}, {arithmetic})",
    )
    return measure(setup, max_weights_bytes, print_progress)


def _maker(interface: Interface | None, variant: str) -> MakeEngine:
    """Configure this process for the device, before tinygrad is imported."""
    backend = _backend(interface)
    os.environ.update(tinygrad_environment(backend, interface, variant))
    from potluck.engines.tinygrad.engine import TinygradEngine

    return partial(TinygradEngine, device=tinygrad_device(backend, interface))


if __name__ == "__main__":
    main(sys.argv[1:])
