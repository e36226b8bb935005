"""The self-test and measurement of the native backend, which ``probe.trials.running`` runs in a
child process.

Everything uses ``NativeEngine``, and so the kernels, the runner and the threads that serve models.
It prints its results without evaluating them.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from potluck.errors import PotluckError
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from potluck.types.engine import MakeEngine

_TEST_THREADS = 2
"""Number of threads, as dividing work among threads is part of the test."""

_RATE_TOKENS = 128
"""Tokens of a chunk of a prompt."""

_FAST = "fast_bf16_operations_per_second"


def main(arguments: list[str]) -> None:
    """Run one of the commands of ``potluck.probe.trials.running``, and print its result."""
    try:
        document = _document(arguments)
    except ImportError as error:
        document = {"refused": f"{error}"}
    except PotluckError as error:
        document = {"refused": error.message}
    print(json.dumps(document))  # noqa: T201 - the answer of a child process


def _document(arguments: list[str]) -> Mapping[str, object]:
    match arguments:
        case ["variants", _, _]:
            from potluck.kernels import available_isas

            return {"variants": available_isas()}
        case ["self-test", _, _, *isas]:
            from potluck.engines.self_test import self_test
            from potluck.kernels import available_isas

            tested = isas or available_isas()
            return {"results": {isa: self_test(_maker(isa, _TEST_THREADS)) for isa in tested}}
        case ["measure", _, _, isa, num_threads, max_weights_bytes]:
            return _measure(isa, int(num_threads), int(max_weights_bytes))
    return {"refused": f"unknown command: {' '.join(arguments)}"}


def _measure(isa: str, num_threads: int, max_weights_bytes: int) -> Mapping[str, object]:
    from potluck.engines.profiling.measure import MeasurementSetup, measure, print_progress
    from potluck.engines.profiling.rate_program import Stopwatch
    from potluck.host.cores import Throttling, last_level_cache_bytes
    from potluck.host.system import THIS_MACHINE
    from potluck.types.tensor import TensorFormat

    formats = {
        "f32_operations_per_second": TensorFormat.F32,
        "f16_operations_per_second": TensorFormat.BF16,
        "int8_operations_per_second": TensorFormat.Q8_0,
    }
    makers = {}
    *_, arithmetic = arithmetics_with((isa,))
    if TensorFormat.BF16 in arithmetic.fast_formats:
        formats[_FAST] = TensorFormat.BF16
        makers[_FAST] = _maker(isa, num_threads, arithmetic)
    setup = MeasurementSetup(
        make_engine=_maker(isa, num_threads),
        makers=makers,
        formats=formats,
        num_tokens=_RATE_TOKENS,
        cache_bytes=last_level_cache_bytes(),
        ending=f"{format_count(num_threads, 'thread')}, {isa}",
        stopwatch=Stopwatch(num_threads, Throttling(THIS_MACHINE).count),
    )
    return measure(setup, max_weights_bytes, print_progress)


def _maker(isa: str, num_threads: int, arithmetic: Arithmetic = Arithmetic.EXACT) -> MakeEngine:
    """Return a factory of engines that share threads."""
    from potluck.engines.native.engine import NativeEngine
    from potluck.engines.native.pool import make_pool

    return partial(NativeEngine, pool=make_pool(num_threads), isa=isa, arithmetic=arithmetic)


if __name__ == "__main__":
    main(sys.argv[1:])
