"""Tests that are skipped while nothing on which they depend has changed since they passed.

They take minutes: wheels are built and tried below the C libraries of other distributions, the
kernels are compiled for other CPUs, tinygrad compiles its own, and models of every family are
computed by ``transformers`` too.

``python -m support.recorded.groups [GROUP…]`` runs these groups, or all, and writes the record; it
is ``make prove``. With ``--on-record`` it exits with 0 if they are on record, and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.recorded.record import PROVES, Group, Record, rooms_up_to, this_machine

ROOT = Path(__file__).parents[3]

_BUILD = ("CMakeLists.txt", "pyproject.toml")
_CORE = (
    *_BUILD,
    *(
        f"cpp/{name}"
        for name in ("bind", "dispatch", "hashing", "kernels", "measure", "program", "simd")
    ),
)
_WHEELS = (
    *_CORE,
    "Makefile",
    "tests/portability/conftest.py",
    "tests/support",
    "tools/roots",
    "tools/wheels",
)


def _modules(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}.py" for name in names)


def _support(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/support/{name}" for name in names)


_OWN_WHEELS = _modules("portability/test_own_wheels")
_BUILT_WHEELS = _modules(
    "portability/test_wheel_build", "portability/test_run_demo", "portability/test_newcomers"
)
_LOADS = _modules("portability/test_predictions", "portability/test_wheel_plans")
_MODELS = _support("engines", "formats", "kernels", "models", "reference", "text")
_EMULATED = _modules(
    "kernel/test_kernel_check", "kernel/test_amx_products", "kernel/test_amx_emulator"
)
_PARITY = tuple(
    f"tests/parity/{path.name}" for path in sorted((ROOT / "tests/parity").glob("test_*.py"))
)
_TINYGRAD = _modules(
    "kernel/test_tinygrad_weights",
    "integration/test_tinygrad_against_reference",
    "integration/test_tinygrad_names",
    "integration/probe/test_tinygrad_trial",
)

GROUPS = (
    Group(
        name="wheel-kernels",
        modules=_OWN_WHEELS,
        inputs=(*_WHEELS, *rooms_up_to("engines", ROOT), *_OWN_WHEELS),
    ),
    Group(
        name="wheels",
        modules=_BUILT_WHEELS,
        inputs=(*_WHEELS, "src", *_BUILT_WHEELS),
    ),
    Group(
        name="loads",
        modules=_LOADS,
        inputs=(
            "pyproject.toml",
            "tests/portability/conftest.py",
            *_support("kernels", "portability", "processes"),
            "tools/roots",
            *rooms_up_to("portability", ROOT),
            *(f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("wheel_*.*")),
            "benchmarks/circumstances.py",
            "benchmarks/command_line.py",
            *_LOADS,
        ),
        is_for_any_cpu=True,
    ),
    Group(
        name="emulated-kernels",
        modules=_EMULATED,
        inputs=(
            *_CORE,
            "cpp/check",
            *_support("kernels"),
            *rooms_up_to("kernels", ROOT),
            *_EMULATED,
        ),
        # Other kernel tests run every instruction set that a CPU has.
        is_for_any_cpu=True,
    ),
    Group(
        name="tinygrad",
        modules=_TINYGRAD,
        inputs=(
            *_CORE,
            *_MODELS,
            *_support("machines", "processes", "tinygrad"),
            *rooms_up_to("engines", ROOT),
            "tests/integration/conftest.py",
            *_TINYGRAD,
        ),
        # test_tinygrad_loading, which always runs, compiles products for the CPU at hand.
        is_for_any_cpu=True,
    ),
    Group(
        name="parity",
        modules=_PARITY,
        inputs=(*_CORE, *_MODELS, *rooms_up_to("local", ROOT), "tests/parity"),
        packages=("numpy", "torch", "transformers"),
        # Kernel tests compare the results of all instruction sets bit for bit.
        is_for_any_cpu=True,
    ),
)

RECORD = ROOT / "tests/proof.json"
"""What they have shown."""


def main() -> int:
    """Run the groups that are named, or all, as many at a time as there are cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [group.name for group in GROUPS]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(names))
    parser.add_argument("--on-record", action="store_true", help="exit with 0 if they are")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - set(names):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    groups = [group for group in GROUPS if not arguments.groups or group.name in arguments.groups]
    if arguments.on_record:
        record = Record(RECORD, ROOT, GROUPS, this_machine)
        return int(any(record.reason_to_skip(group.modules[0], ()) is None for group in groups))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = list(pool.map(_prove, groups))
    return int(any(codes))


def _prove(group: Group) -> int:
    """Run the group in a process of its own, so that it imports what it needs and nothing else."""
    from tools.gate import ONE_THREAD  # no test that imports this module depends on it

    environment = {**os.environ, **ONE_THREAD, PROVES: "1"}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *group.modules)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, text=True
    )
    print(f"{group.name}:\n{done.stdout}", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
