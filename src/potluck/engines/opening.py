"""Engines of any backend, made by the modules that backends name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from potluck.types.arithmetic import Arithmetic

if TYPE_CHECKING:
    from potluck.kernels.runner import ThreadPool
    from potluck.types.engine import EngineCost, LoadableEngine
    from potluck.types.program import Program
    from potluck.types.unit import UnitAddress


class EngineModule(Protocol):
    """What a module has that ``BackendSpec.engine`` names.

    ``COST`` is asked where the backend itself need not be: the module must not import a driver or
    a library of it before ``open_engine`` is called.
    """

    @property
    def COST(self) -> EngineCost:  # noqa: N802 - the constant of a module
        """What its engines take."""
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
        """Make an engine on a unit of this backend; see :func:`open_engine`."""
        ...


def module_named(engine: str) -> EngineModule:
    """The module of a backend, imported. Raises ``EngineError`` where it cannot work at all."""
    return cast(EngineModule, import_module(engine))


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
    """Make the engine of one stage on a unit, without its weights.

    ``num_blocks`` cache blocks and ``num_states`` state slots are allocated with it.
    A backend that is set up by the environment sets this process's before it imports its library.
    ``arithmetic`` is one that the unit has (``engines.arithmetic_choice``), and says nothing to
    backends other than the native one. ``pool`` is shared by
    engines that compute with threads of this process; without one such an engine makes its own of
    ``num_threads``. The engine is the caller's to close. Raises ``EngineError`` where the unit
    cannot be used, as ``UnitFaultError`` where it failed.
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
