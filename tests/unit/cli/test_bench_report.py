"""The table of ``potluck bench``, made from its document."""

from __future__ import annotations

from typing import Any

from potluck.cli.bench_report import bench_lines


def document(**changes: Any) -> dict[str, Any]:
    """Of a unit that is not native: no limits, and no times by op."""
    return {
        "unit_id": "x/tinygrad:CL",
        "prefill_mode": "exact",
        "prefill_tokens_per_second": [100.0, 300.0, 120.0],
        "decode_tokens_per_second": [10.0, 30.0, 12.0],
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
    assert "x/tinygrad:CL is not native" in lines[-1]


def test_a_fast_prefill_is_called_so() -> None:
    lines = "\n".join(bench_lines(document(prefill_mode="fast"))).splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["prefill, fast", "decode"]
