from dataclasses import replace

import pytest
from support.models.configs import make_config

from potluck.errors import ParameterError
from potluck.models.layers import with_attention
from potluck.placement.layout import (
    LayoutNode,
    WrittenStage,
    check_layout,
    parse_layout,
    resolve_layout,
    written_layout,
)
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import GroupPart, LayoutStage
from potluck.types.model import AttentionConfig, ModelConfig, PerLayerInputs

A, B, C = (NodeId(letter * 16) for letter in "abc")
CPU, GPU = UnitId("cpu/native"), UnitId("gpu/tinygrad:CUDA")

NODES = (
    LayoutNode(node_id=A, name="desktop", units=(CPU, GPU), serving=(CPU, GPU)),
    LayoutNode(node_id=B, name="board", units=(CPU, GPU), serving=(CPU,)),
    LayoutNode(node_id=C, name="twin", units=(CPU,), serving=(CPU,)),
    LayoutNode(node_id=NodeId("d" * 16), name="twin", units=(CPU,), serving=(CPU,)),
)


def stage(node_id: NodeId, unit_id: UnitId, num_layers: int) -> LayoutStage:
    return LayoutStage(node_id=node_id, unit_id=unit_id, num_layers=num_layers)


def test_nodes_units_and_layers() -> None:
    assert parse_layout("desktop=24, board/cpu/native=8") == (
        WrittenStage(node="desktop", unit_id=None, num_layers=24),
        WrittenStage(node="board", unit_id=CPU, num_layers=8),
    )


@pytest.mark.parametrize(
    "text", ["", "desktop", "=3", "desktop=", "desktop=x", "desktop=-1", "a=1,,b=2", "a/=3", "a=²"]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a stage") as raised:
        parse_layout(text)
    assert "desktop=24,board/cpu/native=8" in raised.value.hint


def test_nodes_are_named_by_id_or_name() -> None:
    layout = resolve_layout(parse_layout(f"desktop/{GPU}=3,{C}=2,board=4"), NODES)
    assert layout == (stage(A, GPU, 3), stage(C, CPU, 2), stage(B, CPU, 4))
    assert resolve_layout(parse_layout("twin-cccc=6"), NODES) == (stage(C, CPU, 6),)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nobody=3", "unknown node nobody", "known nodes: board, desktop, twin"),
        ("twin=3", "2 nodes are named twin", "use one of: twin-cccc, twin-dddd"),
        ("desktop=3", "desktop has 2 usable units", "for example desktop/UNIT=3"),
        ("board/cpu=3", "board has no unit cpu", "its units are cpu/native, gpu/tinygrad:CUDA"),
    ],
)
def test_what_is_not_there_is_named(text: str, message: str, hint: str) -> None:
    with pytest.raises(ParameterError) as raised:
        resolve_layout(parse_layout(text), NODES)
    assert message in raised.value.message
    assert hint in raised.value.hint


def check(layout: list[LayoutStage], config: ModelConfig) -> None:
    check_layout(layout, config.num_layers, config.no_cuts)


def of_layers(num_layers: int) -> ModelConfig:
    return make_config(num_layers=num_layers)


def test_only_the_ends_may_be_without_a_layer() -> None:
    check([stage(A, CPU, 0), stage(B, CPU, 5), stage(C, CPU, 0)], of_layers(5))
    with pytest.raises(ParameterError, match="no layers for bbbbbbbbbbbbbbbb cpu/native"):
        check([stage(A, CPU, 2), stage(B, CPU, 0), stage(C, CPU, 3)], make_config(num_layers=5))


def test_the_layers_are_the_models() -> None:
    with pytest.raises(ParameterError, match="has 7 layers, but the model has 8"):
        check([stage(A, CPU, 3), stage(B, CPU, 4)], of_layers(8))


def test_no_stage_takes_layers_from_another() -> None:
    with pytest.raises(ParameterError, match="fewer than 0 layers"):
        check([stage(A, CPU, 9), stage(B, CPU, -1)], of_layers(8))


def test_a_unit_has_one_stage() -> None:
    check([stage(A, CPU, 3), stage(A, GPU, 4)], of_layers(7))
    with pytest.raises(ParameterError, match="two stages on aaaaaaaaaaaaaaaa cpu/native"):
        check([stage(A, CPU, 3), stage(B, CPU, 1), stage(A, CPU, 4)], make_config(num_layers=8))


def test_layers_that_share_a_cache_are_on_one_stage() -> None:
    def shared(index: int, attention: AttentionConfig) -> AttentionConfig:
        return replace(attention, shared_layer={3: 2, 6: 4}.get(index))

    config = with_attention(make_config(num_layers=8), shared)
    check([stage(A, CPU, 2), stage(B, CPU, 2), stage(C, CPU, 4)], config)
    with pytest.raises(ParameterError, match="begins with layer 3, which uses keys") as caught:
        check([stage(A, CPU, 3), stage(B, CPU, 5)], config)
    assert caught.value.hint == "begin the stage with layer 2 or 4"
    whole = replace(config, per_layer_inputs=PerLayerInputs(width=4))
    check([stage(A, CPU, 8), stage(B, CPU, 0)], whole)
    with pytest.raises(ParameterError, match="begins with layer 0") as caught:
        check([stage(A, CPU, 0), stage(B, CPU, 8)], whole)
    assert caught.value.hint == "put all layers on one unit"


def test_a_layout_is_written_as_short_as_it_is_clear() -> None:
    stages = (stage(A, GPU, 3), stage(B, CPU, 0), stage(B, GPU, 2), stage(C, CPU, 4))
    text = written_layout(stages, NODES)
    assert text == f"desktop/{GPU}=3,board=0,board/{GPU}=2,{C}=4"
    assert resolve_layout(parse_layout(text), NODES) == stages


@pytest.mark.parametrize("name", ["a/b", "a=1", "a,b", "", " a", C])
def test_a_name_that_a_layout_cannot_hold_is_not_written(name: str) -> None:
    nodes = (LayoutNode(node_id=A, name=name, units=(CPU,), serving=(CPU,)), *NODES[2:])
    text = written_layout([stage(A, CPU, 3)], nodes)
    assert text == f"{A}=3"
    assert resolve_layout(parse_layout(text), nodes) == (stage(A, CPU, 3),)


def test_units_that_hold_layers_together_are_joined_by_a_plus() -> None:
    def member(node: str, number: int, *shares: int, unit: UnitId | None = None) -> WrittenStage:
        part = GroupPart(member=number, shares=shares)
        return WrittenStage(node=node, unit_id=unit, num_layers=24, part=part)

    assert parse_layout("desktop/cpu/native*3 + board=24,twin=8") == (
        member("desktop", 0, 3, 1, unit=CPU),
        member("board", 1, 3, 1),
        WrittenStage(node="twin", unit_id=None, num_layers=8),
    )
    assert parse_layout("a+b+c=24") == (
        member("a", 0, 1, 1, 1),
        member("b", 1, 1, 1, 1),
        member("c", 2, 1, 1, 1),
    )


@pytest.mark.parametrize(
    "text", ["a+=3", "+a=3", "a*0+b=3", "a*x+b=3", "a*2=3", "a+b/=3", "a*+b=3"]
)
def test_another_form_of_a_group_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a stage") as raised:
        parse_layout(text)
    assert "desktop*3+board=24" in raised.value.hint


@pytest.mark.parametrize("text", [f"board+{C}=5", f"{C}=2,board*3+desktop/{GPU}*2=3,{A}/{CPU}=1"])
def test_a_layout_with_groups_is_written_as_it_is_read(text: str) -> None:
    stages = resolve_layout(parse_layout(text), NODES)
    assert resolve_layout(parse_layout(written_layout(stages, NODES)), NODES) == stages
    assert written_layout(stages, NODES) == text.replace(A, "desktop")


def member(node_id: NodeId, number: int, num_layers: int, *shares: int) -> LayoutStage:
    part = GroupPart(member=number, shares=shares)
    return LayoutStage(node_id=node_id, unit_id=CPU, num_layers=num_layers, part=part)


def test_the_layers_of_a_group_count_once() -> None:
    check([member(A, 0, 3, 2, 1), member(B, 1, 3, 2, 1), stage(C, CPU, 4)], of_layers(7))
    check([stage(C, CPU, 0), member(A, 0, 7, 2, 1), member(B, 1, 7, 2, 1)], of_layers(7))
    with pytest.raises(ParameterError, match="has 3 layers, but the model has 7"):
        check([member(A, 0, 3, 2, 1), member(B, 1, 3, 2, 1)], of_layers(7))
    with pytest.raises(ParameterError, match="two stages on"):
        check([member(A, 0, 3, 2, 1), member(A, 1, 3, 2, 1)], of_layers(3))
    with pytest.raises(ParameterError, match="and no layers for it"):
        check([member(A, 0, 0, 2, 1), member(B, 1, 0, 2, 1), stage(C, CPU, 3)], of_layers(3))


@pytest.mark.parametrize(
    "stages",
    [
        [member(A, 0, 3, 1, 1)],
        [member(B, 1, 3, 1, 1), member(A, 0, 3, 1, 1)],
        [member(A, 0, 3, 1, 1), member(B, 1, 2, 1, 1)],
        [member(A, 0, 3, 1, 1), member(B, 1, 3, 2, 1)],
        [member(A, 0, 3, 1, 1), stage(B, CPU, 0), member(C, 1, 3, 1, 1)],
    ],
)
def test_a_group_has_all_of_its_members_in_their_order(stages: list[LayoutStage]) -> None:
    with pytest.raises(ParameterError, match="an incomplete group"):
        check(stages, of_layers(3))
