"""Tests that are skipped while nothing on which they depend has changed since they passed.

They take minutes: wheels are built and tried below the C libraries of other distributions, the
kernels are compiled for other CPUs, tinygrad compiles its own, and models of every family are
computed by ``transformers`` too.

``python -m support.recorded.groups [--but] GROUP…`` prints the modules of these groups, or of all
others, for ``make prove``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.recorded.record import Group, rooms_up_to

ROOT = Path(__file__).parents[3]

_BUILD = ("CMakeLists.txt", "pyproject.toml", "tests/support")
_CORE = (*_BUILD, "cpp")
_WHEELS = (*_BUILD, "Makefile", "tests/portability/conftest.py", "tools/roots")


def _modules(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}.py" for name in names)


_OWN_WHEELS = _modules("portability/test_own_wheels")
_BUILT_WHEELS = _modules(
    "portability/test_wheel_build", "portability/test_run_demo", "portability/test_newcomers"
)
_LOADS = _modules("portability/test_predictions", "portability/test_wheel_plans")
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
        name="kernels of wheels",
        modules=_OWN_WHEELS,
        inputs=(*_CORE, *_WHEELS, "tools/wheels", *rooms_up_to("engines", ROOT), *_OWN_WHEELS),
    ),
    Group(
        name="wheels",
        modules=_BUILT_WHEELS,
        inputs=(*_CORE, *_WHEELS, "tools/wheels", "src", *_BUILT_WHEELS),
    ),
    Group(
        name="loads",
        modules=_LOADS,
        inputs=(
            *_WHEELS,
            *rooms_up_to("portability", ROOT),
            *(f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("wheel_*.*")),
            "benchmarks/circumstances.py",
            *_LOADS,
        ),
    ),
    Group(
        name="emulated kernels",
        modules=_EMULATED,
        inputs=(*_CORE, *rooms_up_to("kernels", ROOT), *_EMULATED),
    ),
    Group(
        name="tinygrad",
        modules=_TINYGRAD,
        inputs=(*_CORE, *rooms_up_to("engines", ROOT), *_TINYGRAD),
    ),
    Group(
        name="parity",
        modules=_PARITY,
        # The Makefile has the versions of published chat templates.
        inputs=(*_CORE, "Makefile", *rooms_up_to("loading", ROOT), "tests/parity"),
        packages=("numpy", "torch", "transformers"),
    ),
)

RECORD = ROOT / "tests/proof.json"
"""What they have shown."""


if __name__ == "__main__":
    is_other = sys.argv[1:2] == ["--but"]
    named = set(sys.argv[1 + is_other :])
    if unknown := named - {group.name for group in GROUPS}:
        sys.exit(f"there is no group {', '.join(sorted(unknown))}")
    print(
        *(name for group in GROUPS if (group.name in named) != is_other for name in group.modules)
    )
