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
        "drafted": None,
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
    assert "x/tinygrad:CL does not use the native backend" in lines[-1]


def test_drafts_have_a_row_with_their_gain() -> None:
    drafted = {
        "drafts_per_step": 7,
        "tokens_per_second": [31.0, 50.0, 36.0],
        "num_drafted": 336,
        "num_accepted": 330,
        "gain": [3.1, 1.7, 3.0],
    }
    (row,) = (line for line in bench_lines(document(drafted=drafted)) if "drafted" in line)
    assert row.split()[:5] == ["decode,", "drafted", "36.0", "31.0", "50.0"]
    assert row.endswith("3.00 times; drafted 336, right 330")
    assert not any("drafted" in line for line in bench_lines(document()))


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
