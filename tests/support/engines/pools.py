"""Thread pools that use all their threads, however many cores the machine has."""

from __future__ import annotations

from potluck.engines.native.pool import ThreadPool, make_pool
from potluck.host.cores import CoreWatch, UsableCores


def pool_of(num_threads: int) -> ThreadPool:
    """Return a pool for which as many cores as it has threads are usable."""
    return make_pool(num_threads, CoreWatch(lambda: cores_of(num_threads)))


def cores_of(num_cores: int, *, num_affine_cores: int | None = None) -> UsableCores:
    """Return that so many cores are usable: by a quota if more are in the affinity."""
    affine = num_affine_cores or num_cores
    return UsableCores(
        num_cores=num_cores,
        reason="all" if affine == num_cores else "a quota",
        core_seconds_per_second=float(num_cores),
        num_affine_cores=affine,
        period_seconds=None if affine == num_cores else 0.1,
    )
