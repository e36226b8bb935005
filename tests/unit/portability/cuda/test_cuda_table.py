from __future__ import annotations

import pytest

from potluck.portability.cuda.table import CudaTable, numbers, shipped_table
from potluck.portability.shipped_toml import parse_toml


@pytest.fixture(scope="module")
def table() -> CudaTable:
    return shipped_table()


# From the tables of NVIDIA's release notes and compatibility guide, read anew for this test.
@pytest.mark.parametrize(
    ("major", "driver"), [(11, "450.80.02"), (12, "525.60.13"), (13, "580.65.06")]
)
def test_the_least_driver_of_a_generation(table: CudaTable, major: int, driver: str) -> None:
    assert table.least_driver((major, 3)) == driver


def test_a_generation_that_is_not_known_has_no_driver(table: CudaTable) -> None:
    assert table.least_driver((14,)) == ""
    assert table.least_driver((10, 2)) == ""


@pytest.mark.parametrize(
    ("toolkit", "driver"),
    [((12, 4), "550.54.14"), ((13, 2), "595.45.04"), ((12, 7), ""), ((12,), "")],
)
def test_the_driver_that_came_with_a_toolkit(
    table: CudaTable, toolkit: tuple[int, ...], driver: str
) -> None:
    assert table.driver_of(toolkit) == driver


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("535.183.01", (12, 2)),
        ("550.54.14", (12, 4)),
        ("550.54", (12, 3)),
        ("580.95.05", (13, 0)),
        ("470.82", (11, 4)),
        ("390.46", None),
    ],
)
def test_the_cuda_of_a_driver(table: CudaTable, driver: str, cuda: tuple[int, int] | None) -> None:
    assert table.cuda_of_driver(numbers(driver)) == cuda


@pytest.mark.parametrize(
    ("ptx", "cuda"), [((8, 4), (12, 4)), ((8, 6), (12, 8)), ((6, 4), None), ((99, 0), None)]
)
def test_the_cuda_of_a_version_of_ptx(
    table: CudaTable, ptx: tuple[int, int], cuda: tuple[int, int] | None
) -> None:
    assert table.cuda_of_ptx(ptx) == cuda


@pytest.mark.parametrize(
    ("cuda", "ptx", "compiles"),
    [
        ((12, 4), (8, 4), True),
        ((12, 4), (6, 3), True),
        ((12, 4), (8, 5), False),
        ((12, 7), (8, 5), True),
        ((10, 2), (6, 5), None),
        ((99, 0), (99, 0), None),
    ],
)
def test_what_a_driver_compiles(
    table: CudaTable, cuda: tuple[int, int], ptx: tuple[int, int], compiles: bool | None
) -> None:
    assert table.compiles(cuda, ptx) is compiles


def test_tegra_is_told_by_its_capability(table: CudaTable) -> None:
    assert table.is_tegra((8, 7))
    assert not table.is_tegra((8, 6))


@pytest.mark.parametrize(
    ("release", "cuda", "has_own"),
    [
        ((32, 6, 1), None, True),
        ((36, 4), (12, 6), True),
        ((38, 2), (13, 0), False),
        ((39, 2), None, False),
        ((), (12, 6), True),
        ((), (13, 0), False),
        ((), None, None),
    ],
)
def test_jetsons_need_builds_of_their_own_before_jetpack_7(
    table: CudaTable,
    release: tuple[int, ...],
    cuda: tuple[int, int] | None,
    has_own: bool | None,
) -> None:
    assert table.has_own_arm_builds(release, cuda) is has_own


TOML = """
documents = { a = { title = "A", url = "https://a", read = "all" } }
[[generation]]
major = 12
least_driver = "525.60.13"
oldest_capability = "5.0"
document = "a"
capability_document = "a"
[toolkits]
document = "a"
ptx_document = "a"
rows = [
    { cuda = "12.0", driver = "525.60.13", ptx = "8.0" },
    { cuda = "12.1", driver = "530.30.02", ptx = "8.1" },
]
[binary_compatibility]
tegra = ["8.7"]
document = "a"
tegra_document = "a"
[arm_builds]
jetson = ["8.7"]
unified_linux = "38"
unified_cuda = "13.0"
document = "a"
unified_document = "a"
[jetpacks]
document = "a"
rows = [
    { version = "5.0", linux = "34.1", cuda = "11.4" },
    { version = "6.0", linux = "36.2", cuda = "12.2" },
]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('document = "a"', 'document = "b"'),
        ('cuda = "12.1"', 'cuda = "11.8"'),
        ('driver = "530.30.02"', 'driver = "520.00"'),
        ("least_driver", "oldest_driver"),
        ('linux = "36.2"', 'linux = "34.1"'),
        ('cuda = "12.2"', 'cuda = "10.2"'),
        ('jetson = ["8.7"]', 'jetson = ["8.6"]'),
    ],
)
def test_a_wrong_table_is_refused(old: str, new: str) -> None:
    assert parse_toml(TOML, CudaTable).driver_of((12, 1)) == "530.30.02"
    with pytest.raises(ValueError):  # noqa: PT011  which of them it is depends on the case
        parse_toml(TOML.replace(old, new), CudaTable)
