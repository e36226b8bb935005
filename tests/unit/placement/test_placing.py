"""Where a model goes: units that serve before those in reserve, each counted as what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from support.cluster.node_reports import node_report, own_pool
from support.engines import reference_backend
from support.models.sparse_models import SparseModel

from potluck.catalog import describe_model, read_profile
from potluck.engines.backends import BACKENDS, cost_of
from potluck.engines.loading.plan import plan_worker
from potluck.engines.loading.sizes import on_unit
from potluck.errors import (
    EngineError,
    InsufficientMemoryError,
    ModelFileError,
    UnsupportedModelError,
)
from potluck.placement.costs import (
    count_offers,
    mixed_cost,
    model_cost,
    most_host_bytes,
    shapes_of,
)
from potluck.placement.model_counting import counting_of
from potluck.placement.offering import units_by_id
from potluck.placement.placing import Placed, Placement
from potluck.placement.planned import planned_stages
from potluck.placement.snapshot import ClusterSnapshot
from potluck.types.backend import ALL_FEATURES, BackendAbilities
from potluck.types.choices import Objective, Quantization
from potluck.types.cluster import NodeId, UnitId
from potluck.types.engine import EngineCost
from potluck.types.memory import MemoryPlan
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import Preferences, Rejection
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat
from potluck.types.unit import NATIVE, Role

GIB = 2**30
NUM_LAYERS = 4
SIZE = StageSize(context_tokens=512, num_blocks=64, max_step_tokens=256, num_threads=2)
costs = partial(cost_of, backends=(*BACKENDS, reference_backend.SPEC))


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> ModelProfile:
    made = SparseModel(
        hidden_size=1024,
        intermediate_size=4096,
        num_layers=NUM_LAYERS,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        vocab_size=8_000,
        max_context_tokens=1024,
        has_tied_head=False,
        stored="BF16",
    )
    return read_profile(describe_model(str(made.write(tmp_path_factory.mktemp("model")))))


def unit(
    name: str,
    usable: int,
    *,
    backend: str = NATIVE,
    role: Role = Role.SERVES,
    is_shared: bool = True,
) -> UnitReport:
    return UnitReport(
        unit_id=UnitId(f"{name}/{backend}"),
        backend=backend,
        description="",
        usable_bytes=usable,
        is_shared=is_shared,
        num_threads=2,
        max_threads=2,
        role=role,
        reason="" if role is Role.SERVES else "slow",
    )


def node(name: str, *units: UnitReport) -> NodeReport:
    return node_report(name, *units, usable_bytes=64 * GIB, pools=(own_pool(name, 64 * GIB),))


def whole(profile: ModelProfile, size: StageSize = SIZE) -> MemoryPlan:
    return plan_worker(profile, Shard.whole(NUM_LAYERS), size, cost=costs(size.backend)).memory


def placed(profile: ModelProfile, *nodes: NodeReport, size: StageSize = SIZE) -> Placed:
    return Placement(counting_of(profile, costs), by_memory(nodes)).of(size, may_quantize=False)


def by_memory(nodes: Sequence[NodeReport]) -> ClusterSnapshot:
    return ClusterSnapshot(
        reports=nodes,
        able=nodes,
        coordinator=NodeId("a"),
        preferences=Preferences(objective=Objective.MEMORY),
    )


def where(result: Placed) -> list[tuple[str, str]]:
    return [(stage.node_id, stage.unit_id) for stage in result.plan.stages]


class Lacking(type(reference_backend.COST)):  # type: ignore[misc]
    """The reference backend, were there something that it does not compute."""

    @property
    def abilities(self) -> BackendAbilities:
        return replace(reference_backend.ABILITIES, features=ALL_FEATURES - {"Rope"})


def test_units_that_do_not_compute_the_model_are_left_out(profile: ModelProfile) -> None:
    def lacking(backend: str) -> EngineCost:
        return Lacking() if backend == "reference" else costs(backend)

    gpu = unit("gpu", 8 * GIB, backend="reference")
    both = (node("a", gpu, unit("cpu", 8 * GIB)),)
    result = Placement(counting_of(profile, lacking), by_memory(both)).of(SIZE, may_quantize=False)
    assert where(result) == [("a", "cpu/native")]
    assert result.rejections == (
        Rejection(
            node_id=NodeId("a"),
            unit_id=UnitId("gpu/reference"),
            reason="the backend reference does not support Rope",
        ),
    )
    alone = (node("a", gpu),)
    with pytest.raises(UnsupportedModelError, match="does not support Rope") as caught:
        Placement(counting_of(profile, lacking), by_memory(alone)).of(SIZE, may_quantize=True)
    assert caught.value.hint.startswith("use the CPU: give --backend native")


class LackingFloats(type(reference_backend.COST)):  # type: ignore[misc]
    """The reference backend, if it had quantized matrices alone."""

    @property
    def abilities(self) -> BackendAbilities:
        quantized = frozenset(each for each in TensorFormat if each.is_quantized)
        return replace(reference_backend.ABILITIES, formats=quantized)


def test_units_that_lack_a_format_are_used_once_the_model_is_quantized(
    profile: ModelProfile,
) -> None:
    def lacking(backend: str) -> EngineCost:
        return LackingFloats() if backend == "reference" else costs(backend)

    gpu, cpu = unit("gpu", 8 * GIB, backend="reference"), unit("cpu", 8 * GIB)
    counting = counting_of(profile, lacking)
    result = Placement(counting, by_memory((node("a", gpu, cpu),))).of(SIZE, may_quantize=False)
    assert where(result) == [("a", "cpu/native")]
    (stored,) = {label for part in profile.layer_bytes for label, _ in part[:1]}
    assert result.rejections[0].reason == (
        f"the backend reference does not support weights in {stored}"
    )
    placement = Placement(counting, by_memory((node("a", gpu),)))
    with pytest.raises(UnsupportedModelError, match=f"weights in {stored}"):
        placement.of(SIZE, may_quantize=False)
    quantized = replace(SIZE, quantization=Quantization.Q8_0)
    assert where(placement.of(quantized, may_quantize=False)) == [("a", "gpu/reference")]


def test_a_gpu_that_lacks_a_format_has_no_part_in_a_plan(profile: ModelProfile) -> None:
    """tinygrad, by the table of backends, and a model in a format of the CPU's alone."""
    lacking = next(
        each for each in COMPUTED_FORMATS if each not in costs("tinygrad:CL").abilities.formats
    )
    stored = replace(
        profile,
        tensors={
            name: replace(info, format=lacking) if len(info.shape) > 1 else info
            for name, info in profile.tensors.items()
        },
    )
    counting = counting_of(stored, costs)
    gpu = unit("gpu", 8 * GIB, backend="tinygrad:CL")
    nodes = (node("a", gpu, unit("cpu", 8 * GIB)),)
    result = Placement(counting, by_memory(nodes)).of(SIZE, may_quantize=True)
    assert where(result) == [("a", "cpu/native")]
    assert result.rejections[0].reason == (
        f"the backend tinygrad:CL does not support weights in {lacking.label}"
    )
    assert shapes_of(counting, SIZE, ["tinygrad:CL"]) == ()
    assert shapes_of(counting, SIZE, ["native"])


def test_a_model_that_lacks_a_tensor_is_refused_by_its_name(profile: ModelProfile) -> None:
    missing = "layers.0.mlp.up.weight"
    tensors = {name: info for name, info in profile.tensors.items() if name != missing}
    assert len(tensors) < len(profile.tensors)
    lacking = replace(profile, tensors=tensors)
    assert shapes_of(counting_of(lacking, costs), SIZE, ["native"]) == ()
    with pytest.raises(ModelFileError, match=r"layers\.0\.mlp\.up_proj\.weight .* is missing"):
        placed(lacking, node("a", unit("cpu", 8 * GIB)))


def test_what_is_in_reserve_is_used_only_where_the_model_does_not_fit_without(
    profile: ModelProfile,
) -> None:
    needed = whole(profile).total_bytes
    slow = unit("cpu", 2 * needed, role=Role.RESERVE)
    roomy = node("a", unit("x", 2 * needed), slow)
    found = placed(profile, roomy)
    assert where(found) == [("a", "x/native")]
    in_reserve = Rejection(node_id=NodeId("a"), unit_id=slow.unit_id, reason="in reserve: slow")
    assert found.rejections == (in_reserve,)
    tight = node("a", unit("x", needed * 3 // 4), slow)
    found = placed(profile, tight)
    assert slow.unit_id in [unit_id for _, unit_id in where(found)]
    assert found.rejections == ()
    # Units in reserve alone are better than nothing.
    assert where(placed(profile, node("a", slow))) == [("a", slow.unit_id)]


def test_reserves_are_used_before_the_model_is_quantized_any_more(
    profile: ModelProfile,
) -> None:
    needed = whole(profile).total_bytes
    tight = node("a", unit("x", needed * 3 // 4), unit("cpu", 2 * needed, role=Role.RESERVE))
    placement = Placement(counting_of(profile, costs), by_memory((tight,)))
    assert placement.of(SIZE, may_quantize=True).quantization is Quantization.NONE
    alone = node("a", unit("x", needed * 3 // 4))
    placement = Placement(counting_of(profile, costs), by_memory((alone,)))
    assert placement.of(SIZE, may_quantize=True).quantization is not Quantization.NONE


def test_what_does_not_fit_in_any_quantization_says_how_much_the_smallest_needs(
    profile: ModelProfile,
) -> None:
    needed = whole(profile).total_bytes
    nodes = (node("a", unit("x", needed // 8)), node("b", unit("y", needed // 8)))
    placement = Placement(counting_of(profile, costs), by_memory(nodes))
    with pytest.raises(InsufficientMemoryError) as stored:
        placement.of(SIZE, may_quantize=False)
    with pytest.raises(InsufficientMemoryError) as quantized:
        placement.of(SIZE, may_quantize=True)
    assert stored.value.message.startswith("the model needs")
    assert quantized.value.message.startswith("even in q4_0, the model needs")
    assert quantized.value.needed_bytes < 0.75 * stored.value.needed_bytes


def test_no_unit_is_given_more_than_a_stage_takes_on_it_whatever_its_backend(
    profile: ModelProfile,
) -> None:
    # The reference keeps float32 of what is bf16: the native unit must not be taken for it.
    native, reference = whole(profile), whole(profile, on_reference())
    assert reference.weights_bytes > 1.9 * native.weights_bytes
    most = reference.total_bytes * 3 // 4
    nodes = (
        node("a", unit("cpu", most)),
        node("b", unit("cpu", most, backend="reference")),
    )
    found = placed(profile, *nodes)
    assert len(found.plan.stages) == 2
    size = replace(SIZE, is_mapped=True)
    for stage in planned_stages(found.plan.stages, size, nodes, counting_of(profile, costs)):
        (own,) = next(each for each in nodes if each.node_id == stage.node_id).units
        assert stage.plan.memory.total_bytes <= own.usable_bytes
        # What can be mapped is, and what cannot is loaded.
        assert bool(stage.plan.memory.mapped) == (own.backend == NATIVE)
        assert stage.plan.size.backend == own.backend


def on_reference(*, is_on_device: bool = False) -> StageSize:
    like = unit("x", 0, backend="reference", is_shared=not is_on_device)
    return on_unit(SIZE, like, costs(like.backend).abilities)


def test_the_cost_of_mixed_units_covers_every_stage_on_every_one_of_them(
    profile: ModelProfile,
) -> None:
    sizes = [SIZE, on_reference(), on_reference(is_on_device=True)]
    each_cost = [model_cost(counting_of(profile, costs), each) for each in sizes]
    cost = mixed_cost(each_cost)
    credits = [cost.stage_bytes - each.stage_bytes for each in each_cost]
    assert min(credits) == 0
    for size, spared in zip(sizes, credits, strict=True):
        for start in range(NUM_LAYERS + 1):
            for end in range(start, NUM_LAYERS + 1):
                shard = Shard(
                    start_layer=start,
                    end_layer=end,
                    num_layers=NUM_LAYERS,
                    has_embedding=start == 0,
                    has_head=end == NUM_LAYERS,
                )
                memory = plan_worker(profile, shard, size, cost=costs(size.backend)).memory
                taken = memory.device_bytes if size.is_on_device else memory.total_bytes
                counted = (
                    sum(cost.layer_bytes[start:end])
                    + shard.has_embedding * cost.embedding_bytes
                    + shard.has_head * cost.head_bytes
                    - (shard.has_embedding and shard.has_head) * cost.shared_bytes
                    + cost.scratch_bytes
                    + cost.process_bytes
                )
                assert taken <= counted - spared
                if (start, end) == (0, 0):
                    assert taken <= cost.lone_embedding_bytes - spared
                    assert cost.lone_embedding_bytes <= counted
                if start == NUM_LAYERS:
                    assert taken <= cost.lone_head_bytes - spared
                    assert cost.lone_head_bytes <= counted


def test_a_unit_pays_for_its_own_process_and_not_for_that_of_others(
    profile: ModelProfile,
) -> None:
    # The reference's process is larger by 8 MiB. What is in the cluster besides must not matter.
    costly = node("b", unit("cpu", 2**20, backend="reference"))
    sized = {
        backend: model_cost(counting_of(profile, costs), size)
        for backend, size in ((NATIVE, SIZE), ("reference", on_reference()))
    }
    mixed = mixed_cost(list(sized.values()))
    assert mixed.stage_bytes == sized["reference"].stage_bytes
    assert mixed.stage_bytes - sized[NATIVE].stage_bytes >= 2**23
    needed = (
        sum(mixed.layer_bytes)
        + mixed.embedding_bytes
        + mixed.head_bytes
        + sized[NATIVE].scratch_bytes
        + sized[NATIVE].process_bytes
    )
    nodes = [node("a", unit("cpu", needed)), costly]
    counted = count_offers(counting_of(profile, costs), nodes, nodes, SIZE, with_reserve=True)
    spared = {each.node_id: each.spared_bytes for each in counted.credited(units_by_id(nodes))}
    assert spared[NodeId("b")] == 0
    assert spared[NodeId("a")] >= 2**23
    found = placed(profile, *nodes)
    assert where(found) == [("a", "cpu/native")]
    assert found.plan.stages[0].num_bytes == needed
    with pytest.raises(InsufficientMemoryError):
        placed(profile, node("a", unit("cpu", needed - 1)), costly)


def test_a_card_holds_weights_and_cache_and_its_machine_the_rest(
    profile: ModelProfile,
) -> None:
    there, here = (
        whole(profile, on_reference(is_on_device=True)),
        whole(profile, on_reference()),
    )
    assert (there.total_bytes, here.device_bytes) == (here.total_bytes, 0)
    assert there.host_bytes == there.staging_bytes + there.process_bytes
    most = most_host_bytes(counting_of(profile, costs), on_reference(is_on_device=True))
    assert there.host_bytes <= most < there.host_bytes + 2**23
    # A card that has exactly what the stage takes of it, in a machine with exactly the rest.
    card = unit("card", there.device_bytes, backend="reference", is_shared=False)
    enough = node("a", card)
    just = msgspec.structs.replace(enough, usable_bytes=most)
    assert where(placed(profile, just)) == [("a", card.unit_id)]
    less = msgspec.structs.replace(enough, usable_bytes=most - 1)
    with pytest.raises(InsufficientMemoryError):
        placed(profile, less)
    smaller = node("a", msgspec.structs.replace(card, usable_bytes=there.device_bytes - 2**24))
    with pytest.raises(InsufficientMemoryError):
        placed(profile, smaller)


def test_units_of_a_backend_that_the_coordinator_does_not_know_are_left_out(
    profile: ModelProfile,
) -> None:
    strange = unit("x", 8 * GIB, backend="strange")
    found = placed(profile, node("a", unit("cpu", 8 * GIB)), node("b", strange))
    assert where(found) == [("a", "cpu/native")]
    assert [(each.node_id, each.unit_id, each.reason) for each in found.rejections] == [
        (
            "b",
            "x/strange",
            "the coordinator cannot compute it: this node does not support the backend strange",
        )
    ]
    with pytest.raises(EngineError, match="does not support the backend strange") as caught:
        placed(profile, node("b", strange))
    assert caught.value.hint == "install the same version of Potluck on every node"
