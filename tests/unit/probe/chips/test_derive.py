"""Figures against data sheets: expected values are the makers', not computed by our formulas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.portability.hosts.amd_architectures import gfx_target
from potluck.probe.chips.derive import (
    amd_figures,
    mali_figures,
    merge_figures,
    nvidia_figures,
)
from potluck.types.hardware import Figure, Figures, Origin

MHZ = 1_000_000


def values(figures: Figures) -> tuple[float | None, float | None, float | None, float | None]:
    """Bandwidth, f32, f16 and int8."""
    return (
        figures.read_bytes_per_second.value,
        figures.f32_operations_per_second.value,
        figures.f16_operations_per_second.value,
        figures.int8_operations_per_second.value,
    )


def about(*expected: float | None, rel: float = 1e-3) -> tuple[Any, ...]:
    return tuple(None if value is None else pytest.approx(value, rel=rel) for value in expected)


def is_sound(figure: Figure) -> bool:
    """Known and positive, or unknown with a reason."""
    if figure.origin is Origin.UNKNOWN:
        return figure.value is None and bool(figure.source)
    return figure.value is not None and figure.value > 0 and "×" in figure.source


def all_figures(figures: Figures) -> tuple[Figure, ...]:
    return (
        figures.read_bytes_per_second,
        figures.f32_operations_per_second,
        figures.f16_operations_per_second,
        figures.int8_operations_per_second,
    )


A100: dict[str, Any] = {
    "num_cores": 6912,
    "max_sm_clock_hz": 1410 * MHZ,
    "bus_width_bits": 5120,
    "max_memory_clock_hz": 1215 * MHZ,
    "compute_capability": (8, 0),
}


class TestNvidia:
    def test_an_a100_is_as_its_data_sheet_says(self) -> None:
        """1555 GB/s, 19.5 TFLOPS, 312 TFLOPS with FP16 Tensor Cores, 624 INT8 TOPS."""
        assert values(nvidia_figures(**A100)) == about(1555e9, 19.5e12, 312e12, 624e12)

    @pytest.mark.parametrize(
        ("cores", "clock_mhz", "bits", "memory_mhz", "capability", "gigabytes", "f32", "f16"),
        [
            (5120, 1530, 4096, 877, (7, 0), 900, 15.7e12, 125e12),  # Tesla V100-SXM2
            (3584, 1480, 4096, 715, (6, 0), 732, 10.6e12, None),  # Tesla P100-SXM2
            (2560, 1590, 256, 5001, (7, 5), 320, 8.1e12, None),  # Tesla T4
            (16384, 2520, 384, 10501, (8, 9), 1008, 82.6e12, None),  # GeForce RTX 4090
        ],
    )
    def test_other_cards(
        self,
        cores: int,
        clock_mhz: int,
        bits: int,
        memory_mhz: int,
        capability: tuple[int, int],
        gigabytes: int,
        f32: float,
        f16: float | None,
    ) -> None:
        figures = nvidia_figures(
            num_cores=cores,
            max_sm_clock_hz=clock_mhz * MHZ,
            bus_width_bits=bits,
            max_memory_clock_hz=memory_mhz * MHZ,
            compute_capability=capability,
        )
        assert figures.read_bytes_per_second.value == pytest.approx(gigabytes * 1e9, rel=3e-3)
        assert figures.f32_operations_per_second.value == pytest.approx(f32, rel=6e-3)
        assert figures.f16_operations_per_second.value == (
            None if f16 is None else pytest.approx(f16, rel=6e-3)
        )

    @pytest.mark.parametrize(
        ("name", "cores", "clock_mhz", "capability", "f16", "int8"),
        [
            # Dense rates, as NVIDIA's white papers on GA102, Ada and RTX Blackwell give them.
            ("NVIDIA GeForce RTX 3090", 10496, 1695, (8, 6), 71e12, 284e12),
            ("NVIDIA GeForce RTX 4090", 16384, 2520, (8, 9), 165.2e12, 660.6e12),
            ("NVIDIA GeForce RTX 5090", 21760, 2407, (12, 0), 209.5e12, 838e12),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", 9728, 2040, (8, 9), 79.4e12, 317.5e12),
            ("NVIDIA A10G", 9216, 1710, (8, 6), None, None),
            ("NVIDIA RTX A6000", 10752, 1800, (8, 6), None, None),
            ("NVIDIA GeForce MX570", 2048, 1155, (8, 6), None, None),
            ("NVIDIA GeForce RTX 2080 Ti", 4352, 1545, (7, 5), None, None),
            ("", 16384, 2520, (8, 9), None, None),
        ],
    )
    def test_matrix_units_of_geforce_rtx(
        self,
        name: str,
        cores: int,
        clock_mhz: int,
        capability: tuple[int, int],
        f16: float | None,
        int8: float | None,
    ) -> None:
        figures = nvidia_figures(
            num_cores=cores,
            max_sm_clock_hz=clock_mhz * MHZ,
            bus_width_bits=None,
            max_memory_clock_hz=None,
            compute_capability=capability,
            name=name,
        )
        found = (figures.f16_operations_per_second, figures.int8_operations_per_second)
        for figure, rate in zip(found, (f16, int8), strict=True):
            assert figure.value == (None if rate is None else pytest.approx(rate, rel=6e-3))

    def test_the_formula_is_told(self) -> None:
        figures = nvidia_figures(**A100)
        assert figures.f32_operations_per_second.source == "2 × 6912 cores × 1.41 GHz"
        assert figures.read_bytes_per_second.source.startswith("2 transfers × 5120 bits / 8 × 1.21")
        assert "cluster_info.py" in figures.read_bytes_per_second.source
        assert "2048 operations × 108 multi" in figures.f16_operations_per_second.source

    @pytest.mark.parametrize("missing", [None, 0])
    @pytest.mark.parametrize(
        ("factor", "lost"),
        [
            ("num_cores", {1, 2, 3}),
            ("max_sm_clock_hz", {1, 2, 3}),
            ("bus_width_bits", {0}),
            ("max_memory_clock_hz", {0}),
        ],
    )
    def test_without_a_factor(self, factor: str, lost: set[int], missing: int | None) -> None:
        found = values(nvidia_figures(**(A100 | {factor: missing})))
        assert {index for index, value in enumerate(found) if value is None} == lost

    def test_cores_that_do_not_make_whole_multiprocessors(self) -> None:
        assert values(nvidia_figures(**(A100 | {"num_cores": 6913})))[2:] == (None, None)

    def test_an_unheard_of_capability(self) -> None:
        found = nvidia_figures(**(A100 | {"compute_capability": (99, 0)}))
        assert values(found)[2:] == (None, None)


class TestMali:
    def test_an_rk3588(self) -> None:
        """Mali-G610 MP4 at 1 GHz: 512 GFLOPS by its makers."""
        figures = mali_figures(0xA867, 4, 1000 * MHZ)
        assert values(figures) == (None, 512e9, 1024e9, None)
        assert figures.f32_operations_per_second.source.startswith(
            "2 × 64 multiply-adds × 4 cores of Mali-G610 × 1 GHz; Arm libGPUInfo"
        )

    @pytest.mark.parametrize(
        ("product_id", "num_cores", "multiply_adds", "name"),
        [
            (0x0860, 4, 8, "Mali-T860"),  # RK3399
            (0x6221, 8, 12, "Mali-G72"),
            (0x7211, 10, 24, "Mali-G76"),
            (0x7000, 2, 12, "Mali-G51"),
            (0x7003, 2, 8, "Mali-G31"),
            (0x9091, 4, 32, "Mali-G57"),
            (0xB8A2, 6, 128, "Mali-G615"),
            (0xB8A2, 7, 128, "Mali-G715"),
            (0xB8A2, 11, 128, "Immortalis-G715"),
            (0xC870, 12, 128, "Immortalis-G720"),
            (0xE001, 6, 128, "Mali G1-Premium"),
        ],
    )
    def test_other_models(
        self, product_id: int, num_cores: int, multiply_adds: int, name: str
    ) -> None:
        figure = mali_figures(product_id, num_cores, 500 * MHZ).f32_operations_per_second
        assert figure.value == 2 * multiply_adds * num_cores * 500e6
        assert f" {num_cores} cores of {name} " in figure.source

    @pytest.mark.parametrize(
        ("product_id", "num_cores", "clock_hz", "reason"),
        [
            (0xF00F, 4, 10**9, "id 0xf00f: in no table with 4 cores"),
            (0x0450, 4, 10**9, "id 0x0450"),  # Utgard: lima tells no rates
            (0x7000, 1, 10**9, "with 1 cores"),
            (0xA867, 0, 10**9, "with 0 cores"),
            (0xA867, 4, 0, "clock"),
            (0x7402, 2, 10**9, "several sizes"),  # G52
            (0xA863, 2, 10**9, "several sizes"),  # G510
            (0xA864, 2, 10**9, "several sizes"),  # G310
        ],
    )
    def test_unknown(self, product_id: int, num_cores: int, clock_hz: int, reason: str) -> None:
        figures = mali_figures(product_id, num_cores, clock_hz)
        assert values(figures) == (None, None, None, None)
        assert reason in figures.f16_operations_per_second.source


class TestAmd:
    def test_an_mi100_is_as_its_documentation_says(self) -> None:
        """120 compute units, 1.228 TB/s, 23.1 and 184.6 TFLOPS."""
        figures = amd_figures(
            simd_count=480,
            gfx_target_version=90008,
            max_engine_clock_hz=1502 * MHZ,
            memory_width_bits=4096,
            max_memory_clock_hz=1200 * MHZ,
        )
        assert values(figures) == about(1228e9, 23.1e12, 184.6e12, None, rel=2e-3)

    def test_an_mi300x(self) -> None:
        """304 compute units at 2.1 GHz: 163.4, 1307.4 and 2614.9; its memory's type is not told."""
        figures = amd_figures(
            simd_count=1216,
            gfx_target_version=90402,
            max_engine_clock_hz=2100 * MHZ,
            memory_width_bits=8192,
            max_memory_clock_hz=1300 * MHZ,
        )
        assert values(figures) == about(None, 163.4e12, 1307.4e12, 2614.9e12)
        assert "type of its memory" in figures.read_bytes_per_second.source

    def test_a_radeon_without_dual_issue(self) -> None:
        """RX 7900 XTX, 96 compute units: half of the 61.4 TFLOPS that count dual issue."""
        figures = amd_figures(
            simd_count=192, gfx_target_version=110000, max_engine_clock_hz=2500 * MHZ
        )
        assert values(figures) == about(None, 30.7e12, 122.9e12, 122.9e12)
        assert "96 compute units of gfx1100 × 2.5 GHz" in figures.f32_operations_per_second.source

    @pytest.mark.parametrize(
        ("version", "name"),
        [
            (80003, "gfx803"),
            (90000, "gfx900"),
            (90006, "gfx906"),
            (90010, "gfx90a"),
            (90402, "gfx942"),
            (100300, "gfx1030"),
            (110501, "gfx1151"),
            (120001, "gfx1201"),
            (0, ""),
        ],
    )
    def test_targets(self, version: int, name: str) -> None:
        assert gfx_target(version) == name

    @pytest.mark.parametrize("simds", [None, 0, 191])
    def test_without_whole_units(self, simds: int | None) -> None:
        figures = amd_figures(
            simd_count=simds, gfx_target_version=110000, max_engine_clock_hz=2500 * MHZ
        )
        assert values(figures) == (None, None, None, None)

    @pytest.mark.parametrize("version", [None, 0, 70001, 990000])
    def test_without_a_known_target(self, version: int | None) -> None:
        figures = amd_figures(
            simd_count=192, gfx_target_version=version, max_engine_clock_hz=2500 * MHZ
        )
        assert values(figures) == (None, None, None, None)
        assert "not in any table" in figures.f32_operations_per_second.source


counts = st.one_of(st.none(), st.integers(0, 2**64))


@given(counts, counts, counts, counts, st.tuples(st.integers(0, 20), st.integers(0, 9)))
def test_whatever_nvml_says_a_figure_is_sound(
    cores: int | None,
    clock: int | None,
    width: int | None,
    memory_clock: int | None,
    capability: tuple[int, int],
) -> None:
    figures = nvidia_figures(
        num_cores=cores,
        max_sm_clock_hz=clock,
        bus_width_bits=width,
        max_memory_clock_hz=memory_clock,
        compute_capability=capability,
    )
    assert all(is_sound(figure) for figure in all_figures(figures))


@given(st.integers(0, 0xFFFF), st.integers(0, 64), st.integers(0, 2**40))
def test_whatever_a_mali_says_a_figure_is_sound(
    product_id: int, num_cores: int, clock: int
) -> None:
    figures = mali_figures(product_id, num_cores, clock)
    assert all(is_sound(figure) for figure in all_figures(figures))


@given(counts, st.one_of(counts, st.sampled_from([90008, 110000])), counts, counts, counts)
def test_whatever_kfd_says_a_figure_is_sound(
    simds: int | None,
    version: int | None,
    clock: int | None,
    width: int | None,
    memory_clock: int | None,
) -> None:
    figures = amd_figures(
        simd_count=simds,
        gfx_target_version=version,
        max_engine_clock_hz=clock,
        memory_width_bits=width,
        max_memory_clock_hz=memory_clock,
    )
    assert all(is_sound(figure) for figure in all_figures(figures))


class TestMerge:
    derived = Figure(value=1.0, origin=Origin.DERIVED, source="derived")
    table = Figure(value=2.0, origin=Origin.TABLE, source="table")

    def test_the_first_known_of_each(self) -> None:
        merged = merge_figures(
            Figures(f32_operations_per_second=self.derived),
            Figures(f32_operations_per_second=self.table, f16_operations_per_second=self.table),
        )
        assert merged.f32_operations_per_second is self.derived
        assert merged.f16_operations_per_second is self.table

    def test_what_nobody_knows_has_every_reason_once(self) -> None:
        why, other = Figure(source="no clock"), Figure(source="no row")
        merged = merge_figures(
            Figures(int8_operations_per_second=why),
            Figures(int8_operations_per_second=other),
            Figures(int8_operations_per_second=why),
        )
        assert merged.int8_operations_per_second == Figure(source="no clock; no row")

    def test_nothing(self) -> None:
        assert merge_figures() == Figures()
