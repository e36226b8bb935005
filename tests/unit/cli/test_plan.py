from __future__ import annotations

from typing import Any

import pytest
from support.schemas import validate_document

from potluck.cli.plan import plan_lines

A, B, C, D = (letter * 16 for letter in "abcd")
GIB = 2**30


def stage(index: int, node_id: str, start: int, end: int, **changes: Any) -> dict[str, Any]:
    prediction = {
        "decode_seconds": 0.0124 + index * 0.0186,
        "exchange_seconds": 0.0,
        "loaded_seconds": 0.05,
        "prefill_seconds_per_token": 0.001,
        "hop_seconds": 0.00052,
        "basis": "measured",
    }
    memory = {
        "weights": {"bf16": 2 * GIB},
        "cache_bytes": GIB,
        "state_bytes": 0,
        "rope_bytes": 0,
        "scratch_bytes": 0,
        "staging_bytes": 0,
        "process_bytes": 64 * 2**20,
        "is_on_device": False,
    }
    return {
        "stage": index,
        "node_id": node_id,
        "unit_id": "cpu/native",
        "start_layer": start,
        "end_layer": end,
        "part": None,
        "num_bytes": 3 * GIB + 64 * 2**20,
        "usable_bytes": 15 * GIB,
        "memory": memory,
        "predicted": prediction,
        **changes,
    }


PREDICTION: dict[str, Any] = {
    "entry_seconds": 0.00006,
    "token_seconds": 0.0445,
    "tokens_per_second": 1 / 0.0445,
    "first_token_seconds": 1.93,
    "prompt_tokens": 512,
    "num_streams": 8,
    "total_tokens_per_second": 61.23,
    "steps_in_flight": 2,
    "bottleneck": 1,
    "margin": 0.35,
    "gap": 0.0,
}


def alternative(node_id: str, token_seconds: float, *, is_added: bool = False) -> dict[str, Any]:
    placed = {
        "node_id": None if is_added else A,
        "unit_id": "cpu/native",
        "start_layer": 0,
        "end_layer": 32,
        "is_added": is_added,
    }
    return {
        "node_id": node_id,
        "unit_id": "cpu/native",
        "stages": [placed],
        "token_seconds": token_seconds,
        "tokens_per_second": 1 / token_seconds,
        "first_token_seconds": 2.0,
        "total_tokens_per_second": 30.615,
    }


def plan(**changes: Any) -> dict[str, Any]:
    names = {A: "desktop", B: "board-1", C: "board-2", D: "board-3"}
    return {
        "model": "m",
        "context_tokens": 4096,
        "cache_tokens": 16384,
        "num_states": 0,
        "num_layers": 32,
        "quantization": "none",
        "is_mapped": False,
        "remarks": [],
        "arithmetic": "exact",
        "arithmetic_note": "",
        "objective": "latency",
        "num_streams": 8,
        "has_layout": False,
        "coordinator": A,
        "nodes": [{"node_id": node_id, "name": name} for node_id, name in names.items()],
        "stages": [stage(0, A, 0, 20), stage(1, B, 20, 32)],
        "prediction": PREDICTION,
        "link_basis": None,
        "one_unit_fewer": None,
        "one_unit_more": None,
        "side_by_side": None,
        "in_groups": None,
        "without_groups": None,
        "draft": None,
        "rejections": [],
        **changes,
    }


def lines(width: int | None = None, **changes: Any) -> list[str]:
    document = plan(**changes)
    validate_document({"schema": "potluck.plan/1", **document})
    return list(plan_lines(document, width))


def test_stages_are_shown_with_hops_from_the_coordinator_on() -> None:
    assert lines()[:5] == [
        "STAGE  NODE     UNIT         LAYERS         MEMORY       STEP ms  HOP ms",
        "       desktop  coordinator                                       0.06",
        "0      desktop  cpu/native   embed [0, 20)  3.06/15 GiB  12.4     0.52",
        "1      board-1  cpu/native   [20, 32) head  3.06/15 GiB  31       0.52",
        "",
    ]


def test_what_is_predicted() -> None:
    shown = lines(
        one_unit_fewer=alternative(B, 0.0689), one_unit_more=alternative(A, 0.0253, is_added=True)
    )
    assert shown[5:14] == [
        "1 stream        22.5 tokens/s, 44.5 ms per token",
        "8 streams       61.2 tokens/s together, 2 steps in flight; stage 1 is the bottleneck",
        "first token     after 1.93 s for a prompt of 512 tokens",
        "accuracy        within 35 %: speeds are measured",
        "one unit fewer  without board-1 cpu/native: 68.9 ms per token (+55 %), "
        "on desktop cpu/native",
        "one unit more   another desktop cpu/native: 25.3 ms per token (-43 %), on it alone",
        "",
        "best for latency: least time per token of one stream",
        "32 layers; the cache is for 16384 tokens",
    ]


def test_a_draft_model_is_shown_with_its_memory() -> None:
    placed = {
        "node_id": B,
        "unit_id": "cpu/native",
        "start_layer": 0,
        "end_layer": 12,
        "part": None,
        "num_bytes": GIB,
    }
    draft = {"model": "small.gguf", "is_deployed": False, "stages": [placed]}
    assert "draft model small.gguf, planned first: 1 GiB on board-1 cpu/native" in lines(
        draft=draft
    )
    assert any(
        line.startswith("draft model small.gguf, deployed already: ")
        for line in lines(draft={**draft, "is_deployed": True})
    )


def in_group(member: int, *shares: int) -> dict[str, Any]:
    whole = stage(member, (A, B, C, D)[member], 0, 32)
    whole["predicted"] |= {"decode_seconds": 0.0445, "exchange_seconds": 0.0089}
    return whole | {"part": {"member": member, "shares": list(shares)}}


def test_the_members_of_a_group_are_shown_with_their_shares() -> None:
    stages = [in_group(member, 2, 1, 1) for member in range(3)]
    shown = lines(stages=stages)
    assert shown[:6] == [
        "STAGE  NODE     UNIT         LAYERS                     MEMORY       STEP ms  HOP ms",
        "       desktop  coordinator                                                   0.06",
        "0      desktop  cpu/native   2/4 of embed [0, 32) head  3.06/15 GiB  44.5     0.52",
        "1      board-1  cpu/native   1/4                        3.06/15 GiB",
        "2      board-2  cpu/native   1/4                        3.06/15 GiB",
        "",
    ]
    line = "exchanges    8.9 ms per token (20 %): a group of 3 units divides the matrices"
    assert line in shown


def test_a_pipeline_of_groups_is_shown() -> None:
    first = [in_group(member, 1, 1) | {"end_layer": 20} for member in range(2)]
    last = [
        in_group(member, 1, 1) | {"stage": 2 + member, "node_id": node, "start_layer": 20}
        for member, node in enumerate((C, D))
    ]
    shown = lines(stages=[*first, *last])
    layers = [line.split("cpu/native")[1].split("3.06")[0].strip() for line in shown[2:6]]
    assert layers == ["1/2 of embed [0, 20)", "1/2", "1/2 of [20, 32) head", "1/2"]
    line = "exchanges    17.8 ms per token (40 %): 2 groups of 2 units divide the matrices"
    assert line in shown


def other(*parts: dict[str, Any] | None, token_seconds: float) -> dict[str, Any]:
    return {
        "stages": [
            {
                "node_id": A,
                "unit_id": "cpu/native",
                "start_layer": 0,
                "end_layer": 32,
                "part": part,
            }
            for part in parts
        ],
        "token_seconds": token_seconds,
        "exchange_seconds": 0.0712 if len(parts) > 1 else 0.0,
        "first_token_seconds": 2.0,
        "total_tokens_per_second": 30.6,
    }


def test_what_groups_would_change_is_told() -> None:
    two = [{"member": member, "shares": [1, 1]} for member in range(2)]
    assert (
        "in groups    89 ms per token (+100 %), on 2 units, 71.2 ms of a token in exchanges"
        in lines(in_groups=other(*two, token_seconds=0.089))
    )
    assert "no groups    89 ms per token (+100 %), on desktop cpu/native" in lines(
        without_groups=other(None, token_seconds=0.089)
    )


def test_for_throughput_alternatives_are_compared_by_it() -> None:
    shown = lines(objective="throughput", one_unit_fewer=alternative(B, 0.0689))
    line = (
        "one unit fewer  without board-1 cpu/native: 30.6 tokens/s together (-50 %), "
        "on desktop cpu/native"
    )
    assert line in shown
    assert "best for throughput: most tokens per second" in shown


def pipeline(*layers: str) -> dict[str, Any]:
    placed = {"node_id": A, "unit_id": "cpu/native", "start_layer": 0, "end_layer": 32}
    return {
        "layout": ",".join(layers),
        "stages": [placed],
        "num_streams": 4,
        "token_seconds": 0.04,
        "first_token_seconds": 2.0,
        "total_tokens_per_second": 60.0,
    }


def side_by_side_lines(*pipelines: dict[str, Any]) -> list[str]:
    several = {"total_tokens_per_second": 183.69, "pipelines": list(pipelines)}
    shown = lines(objective="throughput", side_by_side=several)
    start = next(i for i, line in enumerate(shown) if line.startswith("side by side"))
    assert shown[start + 2] == ""
    return shown[start : start + 2]


def test_pipelines_side_by_side_are_shown_with_their_layouts() -> None:
    assert side_by_side_lines(pipeline("desktop=32"), pipeline("board-1=20", "board-2=12")) == [
        "side by side  2 pipelines: 184 tokens/s together (+200 %), deployed as 2 models",
        "              --layout desktop=32; --layout board-1=20,board-2=12",
    ]


def test_of_many_pipelines_a_few_stages_are_shown() -> None:
    five = [f"n{index}=6" for index in range(5)]
    _, layouts = side_by_side_lines(*[pipeline(*five)] * 30)
    assert layouts.strip() == f"--layout {','.join(five)}; 29 more with --json"
    twenty = [f"n{index}=2" for index in range(20)]
    _, layouts = side_by_side_lines(*[pipeline(*twenty)] * 2)
    assert layouts.strip() == f"--layout {','.join(twenty[:8])},… (12 more); 1 more with --json"


def test_another_unit_may_be_of_no_use() -> None:
    shown = lines(one_unit_more=alternative(A, 0.0445))
    assert "one unit more  another desktop cpu/native would make no difference" in shown


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_streams": 1}, None),
        (
            {"steps_in_flight": 1, "bottleneck": None},
            "8 streams    61.2 tokens/s together, one step at a time; the round trip through all "
            "stages is the bottleneck",
        ),
    ],
)
def test_several_streams(changes: dict[str, Any], line: str | None) -> None:
    shown = [each for each in lines(prediction=PREDICTION | changes) if " streams " in each]
    assert shown == ([] if line is None else [line])


def test_a_gap_is_told() -> None:
    shown = lines(prediction=PREDICTION | {"gap": 0.031})
    aim = "best for latency: least time per token of one stream; no plan is more than 3.1 % better"
    assert aim in shown


def test_what_speeds_rest_on_is_told_by_stage() -> None:
    stages = [stage(0, A, 0, 20), stage(1, B, 20, 30), stage(2, C, 30, 32)]
    for each in stages[1:]:
        each["predicted"]["basis"] = "assumed"
    expected = (
        "accuracy     within 35 %: speeds are measured for stage 0; partly assumed for stages 1, 2"
    )
    assert expected in lines(stages=stages)


def test_what_links_rest_on_is_told_if_it_widens_the_margin() -> None:
    line = "accuracy     within 35 %: speeds are measured; links are configured, not measured"
    assert line in lines(link_basis="table")


def test_no_unit_can_be_missing_from_a_plan_of_one() -> None:
    shown = lines(stages=[stage(0, A, 0, 32)], one_unit_fewer=alternative(A, 0.0689))
    assert not any("fewer" in line for line in shown)


def test_a_unit_may_be_needed() -> None:
    fewer = alternative(B, 0.0689)
    fewer["stages"] = [fewer["stages"][0]] * 2
    line = (
        "one unit fewer  the model does not fit on fewer units; without board-1 cpu/native: "
        "68.9 ms per token (+55 %), on 2 units"
    )
    assert line in lines(one_unit_fewer=fewer)


def test_a_unit_of_a_group_is_not_said_to_be_needed() -> None:
    part = {"member": 0, "shares": [1, 1]}
    stages = [stage(0, A, 0, 32, part=part), stage(1, C, 0, 32, part=part | {"member": 1})]
    fewer = alternative(B, 0.0689)
    fewer["stages"] = [fewer["stages"][0]] * 2
    shown = lines(stages=stages, one_unit_fewer=fewer)
    (line,) = (line for line in shown if line.startswith("one unit fewer"))
    assert line.startswith("one unit fewer  without board-1 cpu/native: 68.9 ms per token")


def test_nodes_of_one_name_are_told_apart_by_digits_of_their_ids() -> None:
    nodes = [{"node_id": A, "name": "vm"}, {"node_id": B, "name": "vm"}]
    assert f" vm-{A[:4]} " in lines(nodes=nodes)[2]


def test_a_stage_on_a_device_is_compared_with_its_own_memory() -> None:
    memory = stage(0, A, 0, 32)["memory"] | {"is_on_device": True}
    (_, _, line, *_) = lines(stages=[stage(0, A, 0, 32, memory=memory, usable_bytes=10 * GIB)])
    assert "embed [0, 32) head  3/10 GiB" in line


def test_a_node_that_no_longer_answers_has_no_usable_memory() -> None:
    assert "  3.06 GiB  " in lines(stages=[stage(0, A, 0, 32, usable_bytes=None)])[2]


def test_unused_units_of_one_reason_are_shown_together() -> None:
    reason = {"unit_id": "cpu/native", "reason": "would add 31 ms per token"}
    rejections = [{"node_id": node, "added_seconds": 0.031, **reason} for node in (B, C, D)]
    rejections.append(rejections[0] | {"reason": "in reserve", "added_seconds": None})
    shown = lines(rejections=rejections)
    assert shown[-2:] == [
        "not used: board-1, board-2, board-3 cpu/native: would add 31 ms per token",
        "not used: board-1 cpu/native: in reserve",
    ]


def test_many_unused_units_are_counted() -> None:
    nodes = [{"node_id": f"{index:016x}", "name": f"n{index}"} for index in range(50)]
    unused = [
        {"node_id": node["node_id"], "unit_id": "u", "reason": "slow", "added_seconds": 1.0}
        for node in nodes
    ]
    shown = lines(nodes=[*plan()["nodes"], *nodes], rejections=unused)
    assert shown[-1] == "not used: n0, n1, n2, n3 and 46 more u: slow"


def test_a_plan_without_a_prediction() -> None:
    stages = [stage(0, A, 0, 32, predicted=None)]
    shown = lines(prediction=None, stages=stages, objective="memory")
    assert shown[0].split() == ["STAGE", "NODE", "UNIT", "LAYERS", "MEMORY"]
    assert "speed  no prediction" in shown
    assert "best for memory: each unit filled in proportion to its memory" in shown


def test_a_layout_is_nobodys_choice() -> None:
    assert "stages as requested with --layout" in lines(has_layout=True)


def test_in_80_columns_everything_fits() -> None:
    shown = lines(
        80,
        arithmetic_note="exact, " + "bit-identical on every CPU, " * 5,
        one_unit_fewer=alternative(B, 0.0689),
    )
    assert max(map(len, shown)) <= 80
    joined = " ".join(" ".join(shown).split())
    assert "stage 1 is the bottleneck" in joined


def test_names_are_not_broken() -> None:
    long = "n" * 60
    nodes = [{"node_id": A, "name": long}, {"node_id": B, "name": "b"}]
    unused = [{"node_id": A, "unit_id": "u", "reason": "slow " * 9, "added_seconds": None}]
    assert any(long in line for line in lines(40, nodes=nodes, rejections=unused)[6:])


def test_state_slots_are_shown_beside_the_cache() -> None:
    stages = [stage(0, A, 0, 20), stage(1, B, 20, 32)]
    for each in stages:
        each["memory"]["state_bytes"] = 250 * 2**20
    shown = lines(stages=stages, num_states=10)
    cache = next(index for index, line in enumerate(shown) if "the cache is for" in line)
    assert shown[cache + 1] == "states: 10 x 50 MiB, 7 of them for live sequences"
    assert "cache 1 GiB, states 250 MiB, process" in shown[cache + 2]
