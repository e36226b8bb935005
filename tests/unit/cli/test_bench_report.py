"""The table of ``potluck bench``, made from its document."""

from __future__ import annotations

from typing import Any

from potluck.cli.bench_report import bench_lines


def document(**changes: Any) -> dict[str, Any]:
    """Of a unit that is not native: no limits, and no times by op."""
    return {
        "unit_id": "x/tinygrad:CL",
        "arithmetic": None,
        "fast_arithmetic": None,
        "prefill_tokens_per_second": [100.0, 300.0, 120.0],
        "decode_tokens_per_second": [10.0, 30.0, 12.0],
        "sampling": {"temperature": 0.8, "top_p": 0.95},
        "sampled_tokens_per_second": [9.0, 29.0, 11.0],
        "limits": None,
        "prefill": None,
        "decode": None,
        **changes,
    }


def test_medians_stand_beside_the_least_and_the_most() -> None:
    lines = "\n".join(bench_lines(document())).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["prefill", "120.0", "100.0", "300.0"],
        ["decode", "12.0", "10.0", "30.0"],
    ]
    assert lines[3].split()[:5] == ["decode,", "sampled", "11.0", "9.0", "29.0"]
    assert lines[3].endswith("temperature 0.8, top-p 0.95")
    assert "x/tinygrad:CL is not native" in lines[-1]


def test_the_arithmetic_is_said_and_what_would_be_faster() -> None:
    assert not any("arithmetic" in line for line in bench_lines(document()))  # it has its own
    exact = list(bench_lines(document(arithmetic="exact")))
    assert "arithmetic: exact, bit-identical on every CPU" in exact
    assert not any(line.startswith("faster") for line in exact)
    could_be = document(arithmetic="exact", fast_arithmetic="avx512_bf16")
    assert "faster for these weights: avx512_bf16 (--arithmetic fast)" in list(
        bench_lines(could_be)
    )
    fast = list(bench_lines(document(arithmetic="avx512_bf16")))
    assert "arithmetic: avx512_bf16, bit-identical on CPUs that have it" in fast
