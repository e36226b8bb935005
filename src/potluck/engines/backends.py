"""The backends of this build, what they support, what memory they need, and how engines are opened.

Adding one takes two modules and a row here. Only this table, or another one in the agent's own
configuration, determines which modules a process imports for a backend. Other nodes only name units
and backends. Importing it loads neither the compiled core nor NumPy nor tinygrad: the probe and
planning use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from potluck.engines.abilities import NATIVE_ABILITIES, TINYGRAD_ABILITIES
from potluck.engines.tinygrad_environment import AMD, CL, CPU, CUDA, QCOM
from potluck.engines.tinygrad_environment import LIBRARIES as TINYGRAD_LIBRARIES
from potluck.errors import EngineError, UnsupportedModelError
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendAbilities, BackendSpec, DeviceKind
from potluck.types.cluster import SAME_VERSION
from potluck.types.unit import NATIVE, UnitAddress

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.types.engine import EngineCost, LoadableEngine
    from potluck.types.hardware import Trial
    from potluck.types.program import Program
    from potluck.types.tensor import TensorFormat

_NATIVE = BackendSpec(
    name=NATIVE,
    module="potluck.engines.native.trial",
    engine="potluck.engines.native.backend",
    kinds=frozenset({DeviceKind.CPU}),
    packages=("numpy",),  # because it uses the core's arrays
    abilities=NATIVE_ABILITIES,
)

_TINYGRAD = BackendSpec(
    name=CPU,
    module="potluck.engines.tinygrad.trial",
    engine="potluck.engines.tinygrad.backend",
    kinds=frozenset({DeviceKind.CPU}),
    is_software=True,
    packages=("tinygrad", "numpy"),
    extra="tinygrad",
    abilities=TINYGRAD_ABILITIES,
)

BACKENDS: tuple[BackendSpec, ...] = (
    _NATIVE,
    *(
        replace(
            _TINYGRAD,
            name=name,
            kinds=frozenset({DeviceKind.GPU}),
            is_software=False,
            api=api,
            libraries=TINYGRAD_LIBRARIES.get(name, ()),
        )
        for name, api in ((CUDA, "cuda"), (AMD, "kfd"), (QCOM, "kgsl"), (CL, "opencl"))
    ),
    _TINYGRAD,
)
"""In the order in which they are tried: vendor-specific interfaces before general ones."""


class EngineModule(Protocol):
    """The interface of a module that ``BackendSpec.engine`` names.

    ``COST`` is also used on machines without the backend: the module must not import the backend's
    drivers or libraries before ``open_engine`` is called.
    """

    @property
    def COST(self) -> EngineCost:  # noqa: N802 - the constant of a module
        """The memory requirements of its engines."""
        ...

    def open_engine(
        self,
        address: UnitAddress,
        program: Program,
        *,
        num_blocks: int,
        max_step_tokens: int,
        num_threads: int,
        arithmetic: Arithmetic,
        pool: ThreadPool | None,
        num_states: int = 0,
    ) -> LoadableEngine:
        """Open an engine on a unit of this backend; see :func:`open_engine`."""
        ...


def module_named(engine: str) -> EngineModule:
    """Import the module of a backend. Raises ``EngineError`` if it does not work at all."""
    return cast(EngineModule, import_module(engine))


CostOf = Callable[[str], "EngineCost"]
"""``cost_of`` with a table of backends."""


def abilities_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> BackendAbilities:
    """Return what the engines of a backend support; empty for one that is not in the table."""
    return next((spec.abilities for spec in backends if spec.name == backend), BackendAbilities())


def engine_module(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> str:
    """Return the module that computes on units of a backend.

    Raises ``EngineError`` if it is not in the table, for example because a node has another
    version.
    """
    for spec in backends:
        if spec.name == backend and spec.engine:
            return spec.engine
    raise EngineError(
        f"this node does not support the backend {backend}",
        hint=SAME_VERSION,
    )


def unit_address(trial: Trial, backends: Sequence[BackendSpec] = BACKENDS) -> UnitAddress:
    """Return how to access a unit whose trial passed, with the fastest variant that passed.

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
    """Return the CPU with the native backend; if ``isa`` is None, use the fastest one."""
    return UnitAddress(
        unit_id=f"cpu/{NATIVE}", backend=NATIVE, engine=_NATIVE.engine, variant=isa or ""
    )


def cost_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> EngineCost:
    """Return the memory requirements of engines of ``backend``, on this node or another.

    Raises ``EngineError`` for an unknown backend, and for ``native`` if the compiled core cannot be
    loaded.
    """
    return module_named(engine_module(backend, backends)).COST


def check_backend(
    backend: str, cost: EngineCost, program: Program, formats: Iterable[TensorFormat] = ()
) -> None:
    """Raise ``UnsupportedModelError`` if engines of ``backend`` do not support ``program``.

    ``formats`` are the formats in which its matrices are loaded. ``missing`` names the unsupported
    ops and their options, or the formats.
    """
    if missing := cost.abilities.missing_features(program):
        problem = f"does not support {', '.join(missing)}"
    elif missing := cost.abilities.missing_formats(formats):
        problem = f"does not support weights in {', '.join(missing)}"
    else:
        return
    raise UnsupportedModelError(
        f"the backend {backend} {problem}",
        missing=missing,
        hint=f"use the CPU: give --backend {NATIVE} to run, bench or potluck up",
    )


def open_engine(
    address: UnitAddress,
    program: Program,
    *,
    num_blocks: int,
    max_step_tokens: int,
    num_threads: int,
    arithmetic: Arithmetic = Arithmetic.EXACT,
    pool: ThreadPool | None = None,
    num_states: int = 0,
) -> LoadableEngine:
    """Open the engine of one stage on a unit, without its weights.

    ``num_blocks`` cache blocks and ``num_states`` state slots are allocated with it. A backend that
    is configured by the environment sets this process's before it imports its library.
    ``arithmetic`` is one that the unit supports (``engines.arithmetic_choice``), and is ignored by
    backends other than the native one. Engines that compute with threads of this process share
    ``pool``; without one, such an engine creates its own with ``num_threads``. The caller must
    close the engine. Raises ``EngineError`` if the unit cannot be used, and ``UnitFaultError`` if
    it failed.
    """
    return module_named(address.engine).open_engine(
        address,
        program,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        num_threads=num_threads,
        arithmetic=arithmetic,
        pool=pool,
        num_states=num_states,
    )
