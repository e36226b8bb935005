"""The checks catch a small mistake in any kernel of any instruction set.

The module ``_perturbed`` has the same kernels as the product, and spoils the one whose id is set;
cpp/check/perturb.h says how.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from support.kernels.checks import check_kernel, kernel_names
from support.kernels.instruction_sets import TESTED_ISAS, load_perturbed

IDS = [f"{isa}.{name}" for isa in TESTED_ISAS for name in kernel_names(isa)]


@pytest.fixture(scope="session")
def perturbed_module() -> ModuleType:
    return load_perturbed()


@pytest.fixture
def perturbed(perturbed_module: ModuleType) -> Iterator[ModuleType]:
    yield perturbed_module
    perturbed_module.set_perturbation("")


def test_every_entry_of_the_table_has_an_id_and_a_check(perturbed: ModuleType) -> None:
    """Takes most of a minute on two cores, as it compiles the module."""
    # That the ids cover the table is asserted where they are made, by its size.
    assert sorted(perturbed.perturbation_ids()) == sorted(IDS)


def test_unknown_id_is_refused(perturbed: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no such kernel: avx9\.add"):
        perturbed.set_perturbation("avx9.add")


@pytest.mark.parametrize("id", IDS)
def test_check_catches_a_spoilt_kernel(perturbed: ModuleType, id: str) -> None:
    isa, _, name = id.partition(".")
    kernels, scalar = perturbed.kernels_for(isa), perturbed.kernels_for("scalar")
    check_kernel(name, kernels, scalar)
    perturbed.set_perturbation(id)
    with pytest.raises(AssertionError):
        check_kernel(name, kernels, scalar)
