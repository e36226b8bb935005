"""Requirements that depend on the chosen variant."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from potluck.portability.planning.release_variants import VariantFacts, resolved_variant_markers

NONE = VariantFacts()
CUDA = VariantFacts(label="cu128", properties=frozenset({("nvidia", "sm_arch", "90_real")}))


@pytest.mark.parametrize(
    ("marker", "of_cuda", "of_none"),
    [
        ('variant_label == "cu128"', True, False),
        ("variant_label == 'cu128'", True, False),
        ('variant_label != "cu128"', False, True),
        ('variant_label == ""', False, True),
        ('"nvidia" in variant_namespaces', True, False),
        ('"nvidia" not in variant_namespaces', False, True),
        ('"nvidia :: sm_arch" in variant_features', True, False),
        ('"nvidia::sm_arch::90_real" in variant_properties', True, False),
        ("'nvidia :: sm_arch :: 80_real' in variant_properties", False, False),
        ('"nvidia" in variant_properties', False, False),
        ('("x" in variant_namespaces or variant_label == "cu128") and os_name == "posix"', 1, 0),
        ('python_version >= "3"', True, True),
    ],
)
def test_markers(marker: str, of_cuda: bool, of_none: bool) -> None:
    for facts, expected in ((CUDA, of_cuda), (NONE, of_none)):
        line = resolved_variant_markers(f"lib[fast]>=1,<2; {marker}", facts)
        requirement = Requirement(line)
        assert requirement.marker is not None
        assert requirement.marker.evaluate() == expected
        assert str(requirement.specifier) == "<2,>=1"


def test_other_requirements_stay_as_they_are() -> None:
    for line in ("lib", "lib>=1", 'lib; extra == "x"', "variant_label"):
        assert resolved_variant_markers(line, CUDA) == line
