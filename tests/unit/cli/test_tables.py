from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.machines import hardware

from potluck.cli.tables import (
    deployment_lines,
    mapped_text,
    node_lines,
    stage_lines,
    table,
    transfer_lines,
    transfer_text,
)
from potluck.types.hardware import DetectorReport, Figure, Figures, Origin, Trial

A, B, C = "a" * 16, "b" * 16, "c" * 16


def node(node_id: str, version: str = "1.0.0", **changes: Any) -> dict[str, Any]:
    unknown = {"value": None, "origin": "unknown", "source": "not measured"}
    unit = {
        "unit_id": "cpu/native",
        "role": "serves",
        "reason": "",
        "usable_bytes": 3 * 2**30,
        "num_threads": 4,
        "rates": {"decode_tokens_per_second": unknown, "prefill_tokens_per_second": unknown},
    }
    return {
        "node_id": node_id,
        "state": "ready",
        "address": "192.168.100.100:7333",
        "http_address": None,
        "version": version,
        "units": [unit],
        **changes,
    }


def cluster(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"node_id": A, "wire_version": 1, "nodes": list(nodes), "incompatible": []}


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert list(table([("A", "B"), ("long", "x"), ("", "y")])) == ["A     B", "long  x", "      y"]


def test_nodes_fit_in_80_columns_and_the_own_one_is_marked() -> None:
    lines = list(node_lines(cluster(node(A, http_address="http://127.0.0.1:7334"), node(B))))
    assert lines[1] == f"{A} *  ready  192.168.100.100:7333  cpu/native  3 GiB    4"
    assert lines[2].startswith(f"{B}    ready")
    assert lines[3:] == ["version: 1.0.0", f"clients: http://127.0.0.1:7334 at {A}"]
    assert max(map(len, lines)) <= 80


def test_units_are_shown_with_their_role_their_speed_and_the_reason() -> None:
    measured = {"value": 12.345, "origin": "measured", "source": "by hand"}
    (native,) = node(A)["units"]
    rates = native["rates"]
    units = [
        native | {"rates": dict.fromkeys(rates, measured)},
        native | {"unit_id": "a/b", "role": "reserve", "reason": "not measured yet"},
        native
        | {
            "unit_id": "a/c",
            "role": "idle",
            "reason": "slower",
            "rates": rates | {"decode_tokens_per_second": measured | {"value": 1250.0}},
        },
        native | {"unit_id": "a/d", "role": "out", "reason": "it hung"},
    ]
    lines = list(node_lines(cluster(node(A, units=units))))
    assert lines[5:-1] == [
        f"{A} cpu/native: serves (two test layers: decode 12.3 tokens/s, prefill 12.3 tokens/s)",
        f"{A} a/b: in reserve: not measured yet",
        f"{A} a/c: idle: slower (two test layers: decode 1250 tokens/s)",
        f"{A} a/d: out: it hung",
    ]


def test_nodes_on_one_machine_are_named_together() -> None:
    lines = list(node_lines(cluster(node(A, host_id="h"), node(B, host_id="h"), node(C))))
    assert f"on one machine, whose memory they share: {A}, {B}" in lines
    assert not any("share" in line for line in node_lines(cluster(node(A, host_id="h"), node(B))))


def test_versions_that_differ_are_told_apart() -> None:
    lines = list(node_lines(cluster(node(A), node(B, "1.0.1"), node(C))))
    assert lines[-2:] == [f"version: 1.0.0 on {A}, {C}", f"version: 1.0.1 on {B}"]


def test_nodes_that_are_silent_or_refused_are_named() -> None:
    document = cluster(node(A), {"node_id": B, "state": "silent"})
    document["incompatible"] = [{"node_id": C, "wire_version": 7}]
    lines = list(node_lines(document))
    assert f"{B}    silent" in lines
    assert f"refused: {C} speaks wire version 7, and this node 1" in lines


PLAIN: dict[str, Any] = {
    "quantization": "none",
    "remarks": [],
    "rejections": [],
    "arithmetic_note": "",
    "num_states": 0,
    "is_mapped": False,
}
"""Of a deployment or a plan about which there is nothing to say."""


UNDISTURBED: dict[str, Any] = {
    "has_quorum": True,
    "num_recoveries": 0,
    "recovery_seconds": None,
    "num_spares": 0,
    "transfers": [],
    "verification": None,
    "rebalance_note": "",
    "spares": [],
    "slow_stages": [],
}
"""Of a deployment that has lost nothing."""


def stage(index: int, node_id: str, start: int, end: int) -> dict[str, Any]:
    return {
        "stage": index,
        "node_id": node_id,
        "unit_id": "cpu/native",
        "start_layer": start,
        "end_layer": end,
        "part": None,
        "num_bytes": 2**20,
        "memory": {
            "weights": {"bf16": 900 * 2**10, "f32": 24 * 2**10},
            "cache_bytes": 0,
            "state_bytes": 0,
            "rope_bytes": 0,
            "scratch_bytes": 100 * 2**10,
            "staging_bytes": 0,
            "process_bytes": 0,
            "is_on_device": False,
        },
        "read_bytes": None,
        "load_seconds": None,
    }


def test_a_deployment_shows_its_state_its_stages_and_who_got_nothing() -> None:
    document = {
        "model_id": "tales",
        "state": "degraded",
        "reason": "node x was lost",
        "context_tokens": 512,
        "epoch": {"number": 3, "coordinator": A},
        "stages": [stage(0, A, 0, 5), stage(1, B, 5, 9)],
        "refused": [{"node_id": B, "reason": "another tokenizer"}],
        "quantization": "q4_k",
        "remarks": [
            "a and 2 more: q5_0 instead of q4_k, because rows of 96 are not a multiple of the "
            "block size 256"
        ],
        "rejections": [{"node_id": C, "unit_id": "cpu/native", "reason": "too small"}],
        "arithmetic_note": "",
        "num_states": 0,
        "is_mapped": True,
        **UNDISTURBED,
    }
    assert list(deployment_lines(document)) == [
        "tales: degraded (node x was lost)",
        f"context 512 tokens, coordinator {A}, epoch 3",
        f"refuses requests: {B}: another tokenizer",
        "STAGE  NODE              UNIT        LAYERS              BYTES",
        f"0      {A}  cpu/native  embedding + [0, 5)  1 MiB",
        f"1      {B}  cpu/native  [5, 9) + head       1 MiB",
        "stage 0: bf16 weights 900 KiB, f32 weights 24 KiB, scratch 100 KiB",
        "stage 1: bf16 weights 900 KiB, f32 weights 24 KiB, scratch 100 KiB",
        "weights are memory-mapped and do not count as used memory except in stages 0, 1",
        "quant: q4_k",
        "quant: a and 2 more: q5_0 instead of q4_k, because rows of 96 are not a multiple of the "
        "block size 256",
        f"not used: {C} cpu/native: too small",
    ]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        (
            {"has_quorum": False},
            ["partitioned: most nodes that knew of this deployment are unreachable"],
        ),
        (
            {"num_recoveries": 1, "recovery_seconds": 2.34},
            ["recovered 1 time, most recently in 2.3 s"],
        ),
        ({"num_recoveries": 3}, ["recovered 3 times"]),
        (
            {
                "num_spares": 1,
                "spares": [
                    {
                        "node_id": B,
                        "unit_id": "cpu/native",
                        "start_layer": 5,
                        "end_layer": 9,
                        "part": None,
                    }
                ],
            },
            [f"spare: {B} cpu/native holds layers [5, 9) ready"],
        ),
        (
            {
                "num_spares": 1,
                "spares": [
                    {
                        "node_id": B,
                        "unit_id": "cpu/native",
                        "start_layer": 5,
                        "end_layer": 9,
                        "part": {"member": 1, "shares": [3, 1]},
                    }
                ],
            },
            [f"spare: {B} cpu/native holds layers [5, 9), part 2 of 2, ready"],
        ),
        ({"rebalance_note": "moved"}, ["rebalance: moved"]),
        ({"num_spares": 2}, ["spare: no stage has its 2 spares yet"]),
        (
            {"slow_stages": [{"stage": 1, "node_id": B, "slowdown": 4.26}]},
            [f"slow: stage 1 at {B} takes 4.3 times as long as it used to"],
        ),
    ],
)
def test_what_recovery_did_and_what_it_has_ready(changes: dict[str, Any], lines: list[str]) -> None:
    document = {
        "model_id": "tales",
        "state": "ready",
        "reason": "",
        "context_tokens": 512,
        "epoch": {"number": 3, "coordinator": A},
        "stages": [],
        "refused": [],
        **PLAIN,
        **UNDISTURBED,
        **changes,
    }
    assert list(deployment_lines(document))[2:] == lines


def test_what_the_arithmetic_gains_or_costs_is_said() -> None:
    plan = {"stages": [stage(0, A, 0, 9)], **PLAIN, "arithmetic_note": "exact; and so on"}
    assert list(stage_lines(plan))[-1] == "arithmetic: exact; and so on"


def test_what_was_read_is_shown_once_it_is_loaded() -> None:
    loaded = stage(0, A, 0, 9) | {"read_bytes": 3 * 2**20, "load_seconds": 1.25}
    lines = list(stage_lines({"stages": [loaded], **PLAIN}))
    assert lines[-1] == "stage 0: 3 MiB read in 1.2 s"


def test_a_stage_on_a_device_says_what_of_it_is_there() -> None:
    there = stage(0, A, 0, 9)
    there["memory"] |= {"is_on_device": True, "process_bytes": 2**20}
    lines = list(stage_lines({"stages": [there], **PLAIN}))
    assert lines[-1] == (
        "stage 0: bf16 weights 900 KiB, f32 weights 24 KiB, scratch 100 KiB, process 1 MiB; "
        "1 MiB of it on the device"
    )


def test_one_stage_has_both_ends() -> None:
    lines = list(stage_lines({"stages": [stage(0, A, 0, 9)], **PLAIN}))
    assert lines[1] == f"0      {A}  cpu/native  embedding + [0, 9) + head  1 MiB"


def part(member: int, *shares: int) -> dict[str, Any]:
    return {"part": {"member": member, "shares": list(shares)}}


def test_members_of_a_group_show_their_parts_of_the_same_layers() -> None:
    stages = [
        stage(0, A, 0, 4) | part(0, 3, 1),
        stage(1, B, 0, 4) | part(1, 3, 1),
        stage(2, C, 4, 9),
    ]
    lines = [" ".join(line.split()) for line in stage_lines({"stages": stages, **PLAIN})]
    assert lines[1:4] == [
        f"0 {A} cpu/native embedding + [0, 4), 3 of 4 parts 1 MiB",
        f"1 {B} cpu/native embedding + [0, 4), 1 of 4 parts 1 MiB",
        f"2 {C} cpu/native [4, 9) + head 1 MiB",
    ]


def test_weights_that_cannot_be_mapped_are_named_by_their_stages() -> None:
    stages = [stage(index, A, index, index + 1) for index in range(3)]
    plan = {"is_mapped": True, "stages": stages}
    stages[1]["memory"]["weights"] = {}
    assert (
        mapped_text(plan)
        == "weights are memory-mapped and do not count as used memory except in stages 0, 2"
    )
    stages[0]["memory"]["weights"] = {}
    assert (
        mapped_text(plan)
        == "weights are memory-mapped and do not count as used memory except in stage 2"
    )
    stages[2]["memory"]["weights"] = {}
    assert mapped_text(plan) == "weights are memory-mapped and do not count as used memory"
    assert mapped_text({**plan, "is_mapped": False}) == ""
    assert mapped_text({"is_mapped": True, "stages": []}) == ""


def test_without_stages_there_is_no_table() -> None:
    assert list(stage_lines({"stages": [], **PLAIN})) == []


def test_devices_are_listed_with_their_speed_or_why_nothing_runs_on_them() -> None:
    board = hardware.device("soc")
    lame = hardware.device("npu", problem="the driver is not loaded")
    report = hardware.report(
        DetectorReport(detector="x", devices=(board, lame)),
        trials=(
            Trial(
                device_id="cpu",
                backend="native",
                works=True,
                figures=Figures(
                    read_bytes_per_second=Figure(
                        value=13.9e9, origin=Origin.MEASURED, source="by hand"
                    )
                ),
            ),
            Trial(device_id="soc", backend="native", works=False, reason="it hung"),
        ),
    )
    lines = list(node_lines(cluster(node(A, hardware=msgspec.to_builtins(report)))))
    assert lines[2:5] == [
        f"{A} has Acme cpu, reads 13.9 GB/s",
        f"{A} has Acme soc, unused: native: it hung",
        f"{A} has Acme npu, unused: the driver is not loaded",
    ]


def test_state_slots_have_a_line_of_their_own() -> None:
    first, last = stage(0, A, 0, 5), stage(1, B, 5, 9)
    first["memory"]["state_bytes"] = 300 * 2**20
    last["memory"]["state_bytes"] = 200 * 2**20
    document = {**PLAIN, "stages": [first, last], "num_states": 10}
    shown = list(stage_lines(document))
    assert "states: 10 x 50 MiB, 7 of them for live sequences" in shown
    assert (
        "stage 1: bf16 weights 900 KiB, f32 weights 24 KiB, states 200 MiB, scratch 100 KiB"
        in shown
    )


def test_a_model_without_state_has_no_line_of_states() -> None:
    assert not any(
        "states" in line for line in stage_lines({**PLAIN, "stages": [stage(0, A, 0, 5)]})
    )


def transfer(**changes: Any) -> dict[str, Any]:
    return {
        "node_id": "aa",
        "done_bytes": 3 * 2**20,
        "total_bytes": 10 * 2**20,
        "by_source": {"disk": 2**20, "hub": 2 * 2**20, "bb": 0},
        "bytes_per_second": 1.5e6,
        "seconds_left": 5.0,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "3 MiB of 10 MiB: 2 MiB from hub, 1 MiB from its disk; 1.5 MB/s, 5 s left"),
        (
            {"by_source": {}, "seconds_left": None, "bytes_per_second": 0.0},
            "3 MiB of 10 MiB; 0 B/s",
        ),
        ({"done_bytes": 10 * 2**20, "by_source": {"bb": 10 * 2**20}}, "10 MiB: 10 MiB from bb"),
    ],
)
def test_transfers_show_bytes_rate_source_and_time_left(changes: dict[str, Any], text: str) -> None:
    assert transfer_text(transfer(**changes)) == text


def test_what_was_fetched_and_whether_it_was_verified() -> None:
    shown = list(transfer_lines({"transfers": [transfer()], "verification": "verified"}))
    assert shown[0].startswith("files at aa: 3 MiB of 10 MiB")
    assert shown[1] == "files: SHA-256 verified"
    assert list(transfer_lines({"transfers": [], "verification": None})) == []
