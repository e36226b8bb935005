"""Open engines of any backend through the backends' modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from potluck.types.arithmetic import Arithmetic

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.types.engine import EngineCost, LoadableEngine
    from potluck.types.program import Program
    from potluck.types.unit import UnitAddress


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
