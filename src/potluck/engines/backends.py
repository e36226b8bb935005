"""The backends that this build has. Adding one is two modules and a row here.

Which modules a process imports for a backend is said by this table alone, or by another that
the agent's own configuration names; never by another node, which names units and backends only.
"""

from __future__ import annotations

from collections.abc import Sequence

from potluck.engines.native_abilities import ABILITIES as NATIVE_ABILITIES
from potluck.engines.tinygrad.abilities import ABILITIES as TINYGRAD_ABILITIES
from potluck.engines.tinygrad.environment import AMD, CL, CPU, CUDA, QCOM
from potluck.engines.tinygrad.libraries import LIBRARIES as TINYGRAD_LIBRARIES
from potluck.errors import EngineError
from potluck.types.abilities import BackendAbilities
from potluck.types.hardware import BackendSpec, DeviceKind, Trial
from potluck.types.unit import NATIVE, UnitAddress

_NATIVE = BackendSpec(
    name=NATIVE,
    module="potluck.engines.native_trial",
    engine="potluck.engines.native_backend",
    kinds=frozenset({DeviceKind.CPU}),
    packages=("numpy",),  # its arrays are the core's
    abilities=NATIVE_ABILITIES,
)

_TINYGRAD = "potluck.engines.tinygrad.trial"
_TINYGRAD_ENGINE = "potluck.engines.tinygrad.backend"
_TINYGRAD_PACKAGES = ("tinygrad", "numpy")
_GPU = frozenset({DeviceKind.GPU})

BACKENDS: tuple[BackendSpec, ...] = (
    _NATIVE,
    *(
        BackendSpec(
            name=name,
            module=_TINYGRAD,
            engine=_TINYGRAD_ENGINE,
            kinds=_GPU,
            api=api,
            packages=_TINYGRAD_PACKAGES,
            extra="tinygrad",
            libraries=TINYGRAD_LIBRARIES.get(name, ()),
            abilities=TINYGRAD_ABILITIES,
        )
        for name, api in ((CUDA, "cuda"), (AMD, "kfd"), (QCOM, "kgsl"), (CL, "opencl"))
    ),
    BackendSpec(
        name=CPU,
        module=_TINYGRAD,
        engine=_TINYGRAD_ENGINE,
        kinds=frozenset({DeviceKind.CPU}),
        is_software=True,
        packages=_TINYGRAD_PACKAGES,
        extra="tinygrad",
        abilities=TINYGRAD_ABILITIES,
    ),
)
"""In the order in which they are tried: a maker's own interface before what all have."""


def abilities_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> BackendAbilities:
    """Return what the engines of a backend can do; nothing of one that is not in the table."""
    return next((spec.abilities for spec in backends if spec.name == backend), BackendAbilities())


def engine_module(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> str:
    """The module that computes on units of a backend.

    Raises ``EngineError`` for one that is not in the table, as a node of another version may have.
    """
    for spec in backends:
        if spec.name == backend and spec.engine:
            return spec.engine
    raise EngineError(
        f"this node knows no backend {backend}",
        hint="install the same version of Potluck on every node",
    )


def unit_address(trial: Trial, backends: Sequence[BackendSpec] = BACKENDS) -> UnitAddress:
    """How to reach the unit of a trial that works, with the fastest variant that passed.

    Raises as ``engine_module``.
    """
    return UnitAddress(
        unit_id=trial.unit_id,
        backend=trial.backend,
        engine=engine_module(trial.backend, backends),
        interface=trial.interface,
        variant=trial.variants[-1] if trial.variants else "",
    )


def native_unit(isa: str | None = None) -> UnitAddress:
    """The CPU with the native backend; ``isa`` None is the fastest instruction set there is."""
    return UnitAddress(
        unit_id=f"cpu/{NATIVE}", backend=NATIVE, engine=_NATIVE.engine, variant=isa or ""
    )
