from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from potluck.portability.shipped_toml import parse_toml
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.table import ChipTable, shipped_table
from potluck.types.hardware import Figure, Figures, Origin

# The Mali models of libGPUInfo whose ids the probe must know.
MALI_IDS = [
    *(0x6000, 0x6001, 0x7001, 0x7002, 0x9000, 0x9001, 0x9002, 0x9003, 0x9004, 0xA002, 0xA007),
    *(0xB002, 0xB003, 0xC000, 0xC001, 0xD000, 0xD001, 0xE000, 0xE001, 0xE003),
]


def figures_of(figures: Figures) -> dict[str, Figure]:
    return {
        "bandwidth": figures.read_bytes_per_second,
        "f32": figures.f32_operations_per_second,
        "f16": figures.f16_operations_per_second,
        "int8": figures.int8_operations_per_second,
    }


def tera(figures: Figures) -> dict[str, float]:
    """The figures that are known, in 10^12 per second."""
    values = {name: figure.value for name, figure in figures_of(figures).items()}
    return {name: value / 1e12 for name, value in values.items() if value is not None}


class TestTheShippedTable:
    def test_has_the_rows_that_were_promised(self) -> None:
        table = shipped_table()
        assert len(table.chip) >= 20
        assert set(MALI_IDS) <= {core.product_id for core in table.mali}
        several_sizes = {core.name for core in table.mali if core.multiply_adds_per_core is None}
        assert several_sizes == {"Mali-G52", "Mali-G510", "Mali-G310"}

    def test_rates_of_a_row_are_of_one_kind_of_machine(self) -> None:
        """A slipped power of ten, or a sparse rate, would stand out."""
        for row in shipped_table().chip:
            bandwidth, f32, f16, int8 = (
                None if rate is None else rate.value
                for rate in (
                    row.read_bytes_per_second,
                    row.f32_operations_per_second,
                    row.f16_operations_per_second,
                    row.int8_operations_per_second,
                )
            )
            assert bandwidth is None or 1e11 <= bandwidth <= 1e13, row.names
            assert f32 is None or 1e12 <= f32 <= 2e14, row.names
            if f16 and f32:
                assert 1 <= f16 / f32 <= 16.1, row.names
            if f16 and int8:
                assert 0.45 <= int8 / f16 <= 4.1, row.names

    def test_a_name_has_no_company_in_front(self) -> None:
        for row in shipped_table().chip:
            assert not row.names[0].startswith(("NVIDIA", "AMD", "Intel"))


@pytest.mark.parametrize(
    ("reported", "known"),
    [
        (
            "NVIDIA A100-SXM4-40GB",
            {"bandwidth": 1.555, "f32": 19.5, "f16": 312.0, "int8": 624.0},
        ),
        ("NVIDIA A100-SXM4-80GB", {"bandwidth": 2.039, "f16": 312.0, "int8": 624.0}),
        ("NVIDIA A100 80GB PCIe", {"bandwidth": 1.935, "f16": 312.0, "int8": 624.0}),
        ("NVIDIA A100-PCIE-40GB", {"bandwidth": 1.555, "f16": 312.0, "int8": 624.0}),
        ("Tesla V100-SXM2-32GB", {"bandwidth": 0.9, "f32": 15.7, "f16": 125.0, "int8": 62.0}),
        ("AD102GL [L40S] (rev a1)", {"bandwidth": 0.864}),
        ("NVIDIA H200", {"bandwidth": 4.8}),
    ],
)
def test_figures_by_name(reported: str, known: dict[str, float]) -> None:
    found = tera(table_figures(reported))
    assert {name: found[name] for name in known} == pytest.approx(known)


def test_a_figure_says_where_it_is_from() -> None:
    figure = table_figures("NVIDIA A100-SXM4-40GB").f16_operations_per_second
    assert figure.origin is Origin.TABLE
    assert figure.source.startswith("at 1410 MHz, NVIDIA Ampere Architecture In-Depth, table 3")
    assert "https://developer.nvidia.com/" in figure.source


def test_a_chip_comes_before_a_name() -> None:
    assert tera(table_figures("", chip="gfx908")) == pytest.approx(
        {"bandwidth": 1.228, "f32": 23.1, "f16": 184.6}
    )
    assert table_figures("NVIDIA L4", chip="gfx908") == table_figures("AMD Instinct MI100")


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A100-SXM4",  # two memories are sold under it
        "NVIDIA A40-8Q",  # a share of an A40 in a virtual machine
        "NVIDIA Graphics Device",
        "Mali-G610",
    ],
)
def test_what_has_no_row_is_unknown(reported: str) -> None:
    for figure in figures_of(table_figures(reported, chip="10de:ffff")).values():
        assert figure == Figure(source="not in any table; not measured")


def test_a_slice_has_not_the_figures_of_the_whole() -> None:
    slice_figures = table_figures("NVIDIA A100-SXM4-40GB MIG 1g.5gb", chip="gfx908")
    assert tera(slice_figures) == {}
    assert "slice" in slice_figures.f16_operations_per_second.source


def test_what_a_row_leaves_out_is_unknown() -> None:
    figure = table_figures("NVIDIA GeForce GTX 1080 Ti").f16_operations_per_second
    assert (figure.value, figure.origin) == (None, Origin.UNKNOWN)
    assert "GTX 1080 Ti" in figure.source


def test_a_machine_without_a_gpu_does_not_read_the_table() -> None:
    code = (
        "import sys; from potluck.probe.chips import derive, lookup, names\n"
        "print({'tomllib', 'potluck.probe.chips.table'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


VALID = """
mali_document = "data_sheet"
amd = []

[documents.data_sheet]
title = "Data sheet"
url = "https://example.org/sheet"
read = "the page"

[nvidia_memory]
value = 2
document = "data_sheet"
where = "page 1"

[[chip]]
names = ["Chip 1 8GB"]
chips = ["1234:5678"]
f32_operations_per_second = { value = 1e12, document = "data_sheet", where = "page 2" }

[[mali]]
name = "Mali-G1"
product_id = 0x6000
mask = 0xf00f
multiply_adds_per_core = 12

[[nvidia]]
capability = "8.0"
cores = 64
"""
SECOND = '\n[[chip]]\nnames = ["{name}"]\nchips = ["{chip}"]\nf32_operations_per_second = '
RATE = '{ value = 1e12, document = "data_sheet", where = "page 2" }'


def test_the_form_accepts_a_correct_table() -> None:
    assert (
        len(parse_toml(VALID + SECOND.format(name="Chip 1 4GB", chip="x") + RATE, ChipTable).chip)
        == 2
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("value = 1e12", "value = 0", "float` > 0.0"),
        ("value = 1e12", "value = -1e12", "float` > 0.0"),
        ("value = 1e12", "value = nan", "float` > 0.0"),
        ("value = 1e12", 'value = "1e12"', "Expected `float`"),
        ("value = 1e12,", "", "missing required field `value`"),
        (', document = "data_sheet", where = "page 2" }', " }", "missing required field"),
        ('where = "page 2"', 'where = ""', "length >= 1"),
        ('document = "data_sheet", where = "page 2"', 'document = "b", where = "c"', "documents"),
        ('read = "the page"', "", "missing required field `read`"),
        ("https://example.org/sheet", "page 7", "matching regex"),
        ("f32_operations_per_second = {", "f32 = {", "unknown field `f32`"),
        ("[[nvidia]]", "[[nvidea]]", "unknown field `nvidea`"),
        ("f32_operations_per_second", "# ", "no figure"),
        ('names = ["Chip 1 8GB"]', "names = []", "length >= 1"),
        ("multiply_adds_per_core = 12", "multiply_adds_per_core = 0", "int` >= 1"),
        ('capability = "8.0"', 'capability = "8"', "matching regex"),
    ],
)
def test_the_form_refuses(old: str, new: str, complaint: str) -> None:
    assert old in VALID
    with pytest.raises(msgspec.ValidationError, match=complaint):
        parse_toml(VALID.replace(old, new), ChipTable)


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        (SECOND.format(name="chip-1-8GB", chip="x") + RATE, "duplicate name: chip 1 8gb"),
        (SECOND.format(name="Chip 2", chip="1234:5678") + RATE, "duplicate chip: 1234:5678"),
        (VALID[VALID.index("[[mali]]") : VALID.index("[[nvidia]]")], "duplicate Mali"),
        (VALID[VALID.index("[[nvidia]]") :], "duplicate capability: 8.0"),
        (
            '[documents.b]\ntitle = "b"\nurl = "https://example.org/b"\nread = "b"',
            "not cited: b",
        ),
    ],
)
def test_the_form_refuses_what_is_there_twice_or_never_cited(addition: str, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        parse_toml(VALID + addition, ChipTable)


@pytest.mark.slow
def test_threads_may_be_the_first_to_read_the_table_together() -> None:
    """As those of two makes of GPU do. msgspec crashed in most of such processes."""
    code = """
import sys, threading
sys.setswitchinterval(1e-6)
from potluck.probe.chips.table import shipped_table
together = threading.Barrier(6)
def read():
    together.wait()
    shipped_table()
threads = [threading.Thread(target=read) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    for _ in range(4):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
