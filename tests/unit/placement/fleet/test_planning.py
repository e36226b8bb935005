"""Plans for machines in files, of the demo model and of one that takes no disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models.small_lfm2 import SLOT_BYTES, write_small_lfm2
from support.models.sparse_models import SparseModel
from support.schemas import validate_document

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.fleet.planning import node_id_of, plan_fleet

LARGE = SparseModel(
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    vocab_size=32000,
    max_context_tokens=8192,
    has_tied_head=False,
    stored="Q8_0",
)

FLEET = """
[[machines]]
name = "desktop"
memory = "16 GiB"
cores = 8
read_bandwidth = "50 GB/s"
operations = "600 Gop/s"
[[machines]]
name = "board"
count = 3
memory = "4 GiB"
read_bandwidth = "6 GB/s"
operations = "50 Gop/s"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(LARGE.write(tmp_path_factory.mktemp("model")))


def plan(
    tmp_path: Path, fleet: str, model: str, layout: str | None = None, **params: Any
) -> dict[str, Any]:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet)
    return validate_document(plan_fleet(path, {"model": model, **params}, layout), "plan")


@pytest.mark.slow
def test_the_fast_machine_has_it_all_and_the_others_are_explained(
    tmp_path: Path, model: str
) -> None:
    document = plan(tmp_path, FLEET, model)
    (stage,) = document["stages"]
    assert stage["node_id"] == node_id_of("desktop") == document["coordinator"]
    assert (stage["start_layer"], stage["end_layer"]) == (0, 16)
    assert stage["num_bytes"] < stage["usable_bytes"] == (16 << 30) - (512 << 20)
    assert {each["node_id"] for each in document["rejections"]} == {
        node_id_of(f"board-{index}") for index in (1, 2, 3)
    }
    for each in document["rejections"]:
        assert each["reason"].startswith("would add ")
        assert each["added_seconds"] > 0
    assert document["one_unit_fewer"]["node_id"] == node_id_of("desktop")
    assert not any(stage["is_added"] for stage in document["one_unit_more"]["stages"])


@pytest.mark.slow
def test_a_draft_model_is_planned_first_and_keeps_its_memory(tmp_path: Path) -> None:
    alone = plan(tmp_path, FLEET, "demo", context_tokens=512)
    assert alone["draft"] is None
    document = plan(tmp_path, FLEET, "demo", context_tokens=512, draft="demo")
    (placed,) = document["draft"]["stages"]
    assert (document["draft"]["model"], document["draft"]["is_deployed"]) == ("demo", False)
    assert placed["node_id"] == node_id_of("desktop")
    (before,), (after,) = alone["stages"], document["stages"]
    assert after["usable_bytes"] == before["usable_bytes"] - placed["num_bytes"]
    assert after["num_bytes"] == before["num_bytes"] == placed["num_bytes"]


@pytest.mark.slow
def test_what_nobody_measured_is_not_called_measured(tmp_path: Path, model: str) -> None:
    document = plan(tmp_path, FLEET, model)
    assert document["stages"][0]["predicted"]["basis"] in ("table", "assumed")
    assert document["prediction"]["margin"] > 0.3


def test_a_model_that_fits_on_no_machine_is_divided(tmp_path: Path, model: str) -> None:
    fleet = FLEET.replace('memory = "16 GiB"', 'memory = "16 GiB"\nusable_memory = "900 MiB"')
    size: dict[str, Any] = {"context_tokens": 1024, "cache_tokens": 1024}
    document = plan(tmp_path, fleet, model, **size, tensor_parallel=1)
    assert len(document["stages"]) == 2
    assert document["prediction"]["num_streams"] == 8
    more = document["one_unit_more"]
    assert more["node_id"] == node_id_of("desktop")
    assert any(stage["is_added"] for stage in more["stages"])
    assert more["token_seconds"] < document["prediction"]["token_seconds"]


@pytest.mark.slow
def test_equal_machines_on_wires_divide_matrices(tmp_path: Path, model: str) -> None:
    wired = FLEET.replace('name = "desktop"', 'name = "desktop"\ncount = 2')
    wired += '[links]\nlatency = "0.1 ms"\nbandwidth = "1 Gbit/s"\n'
    document = plan(tmp_path, wired, model)
    assert [stage["part"] for stage in document["stages"]] == [
        {"member": 0, "shares": [1, 1]},
        {"member": 1, "shares": [1, 1]},
    ]
    assert all((each["start_layer"], each["end_layer"]) == (0, 16) for each in document["stages"])
    predicted = [stage["predicted"] for stage in document["stages"]]
    assert all(0 < each["exchange_seconds"] < each["decode_seconds"] for each in predicted)
    alone = plan(tmp_path, wired, model, tensor_parallel=1)
    assert len(alone["stages"]) == 1
    other = document["without_groups"]
    assert other["token_seconds"] == pytest.approx(alone["prediction"]["token_seconds"])
    assert document["prediction"]["token_seconds"] < 0.8 * other["token_seconds"]
    assert document["in_groups"] is alone["without_groups"] is None
    # Not through the air, where the alternative is told.
    far = plan(tmp_path, wired.replace("0.1 ms", "4 ms"), model)
    assert [stage["part"] for stage in far["stages"]] == [None]
    assert far["in_groups"]["token_seconds"] > far["prediction"]["token_seconds"]
    forced = plan(tmp_path, wired.replace("0.1 ms", "4 ms"), model, tensor_parallel=2)
    assert len(forced["stages"]) == 2


def test_memory_is_filled_without_groups(tmp_path: Path, model: str) -> None:
    document = plan(tmp_path, FLEET, model, objective="memory")
    assert all(stage["part"] is None for stage in document["stages"])
    assert document["in_groups"] is None
    with pytest.raises(ParameterError, match="--tensor-parallel cannot be used with --for memory"):
        plan(tmp_path, FLEET, model, objective="memory", tensor_parallel=2)


@pytest.mark.slow
def test_for_throughput_more_machines_may_take_part(tmp_path: Path, model: str) -> None:
    twins = FLEET.replace('name = "desktop"', 'name = "desktop"\ncount = 3')
    latency = plan(tmp_path, twins, model)
    throughput = plan(tmp_path, twins, model, objective="throughput", num_streams=16)
    assert len(latency["stages"]) == 1
    assert len(throughput["stages"]) > 1
    assert throughput["prediction"]["num_streams"] == 16
    assert (
        throughput["prediction"]["total_tokens_per_second"]
        > latency["prediction"]["total_tokens_per_second"]
    )


@pytest.mark.slow
def test_pipelines_side_by_side_can_be_deployed_by_their_layouts(
    tmp_path: Path, model: str
) -> None:
    """Machines so far apart that no pipeline crosses from one to another."""
    twins = FLEET.replace('name = "desktop"', 'name = "desktop"\ncount = 3')
    far = twins + '[links]\nlatency = "50 ms"\nbandwidth = "1 Mbit/s"\n'
    assert plan(tmp_path, far, model)["side_by_side"] is None
    document = plan(tmp_path, far, model, objective="throughput", num_streams=6)
    several = document["side_by_side"]
    assert len(several["pipelines"]) == 3
    alone = document["prediction"]["total_tokens_per_second"]
    assert several["total_tokens_per_second"] > 1.02 * alone
    for each in several["pipelines"]:
        params = {"objective": "throughput", "num_streams": each["num_streams"]}
        deployed = plan(tmp_path, far, model, each["layout"], **params)
        assert deployed["prediction"]["total_tokens_per_second"] == pytest.approx(
            each["total_tokens_per_second"]
        )
        assert deployed["side_by_side"] is None


def test_in_proportion_to_memory_nobody_is_left_out(tmp_path: Path, model: str) -> None:
    document = plan(tmp_path, FLEET, model, objective="memory")
    assert len(document["stages"]) == 4
    assert document["prediction"] is not None
    assert document["one_unit_fewer"] is None


def test_a_layout_is_followed(tmp_path: Path, model: str) -> None:
    document = plan(tmp_path, FLEET, model, "board-2=2,desktop/cpu/native=14")
    ranges = [(each["start_layer"], each["end_layer"]) for each in document["stages"]]
    assert ranges == [(0, 2), (2, 16)]
    assert document["stages"][0]["node_id"] == node_id_of("board-2")
    assert document["has_layout"]
    assert {each["reason"] for each in document["rejections"]} == {"not in the layout"}


def test_a_layout_of_other_layers_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(ParameterError, match="15 layers, but the model has 16"):
        plan(tmp_path, FLEET, model, "board-2=1,desktop=14")


def test_a_gpu_may_stand_beside_its_cpu(tmp_path: Path, model: str) -> None:
    """The card is faster and too small for the model: both hold stages."""
    fleet = """
    [[machines]]
    name = "workstation"
    memory = "32 GiB"
    [[machines.units]]
    read_bandwidth = "50 GB/s"
    operations = "600 Gop/s"
    [[machines.units]]
    backend = "tinygrad:CUDA"
    device_memory = "700 MiB"
    read_bandwidth = "900 GB/s"
    operations = "30 Top/s"
    """
    document = plan(tmp_path, fleet, model, context_tokens=1024, cache_tokens=1024)
    units = {stage["unit_id"]: stage for stage in document["stages"]}
    assert units.keys() == {"cpu/native", "gpu/tinygrad:CUDA"}
    gpu = units["gpu/tinygrad:CUDA"]
    assert gpu["memory"]["is_on_device"]
    assert gpu["usable_bytes"] == 700 * 2**20


@pytest.mark.slow
def test_slow_links_keep_a_model_together(tmp_path: Path, model: str) -> None:
    near = FLEET.replace('memory = "4 GiB"', 'memory = "16 GiB"').replace("board", "other")
    far = near + '[links]\nlatency = "200 ms"\nbandwidth = "1 Mbit/s"\n'
    document = plan(tmp_path, far, model, objective="throughput", num_streams=2)
    assert len(document["stages"]) == 1
    assert document["link_basis"] in (None, "table")


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, model: str) -> None:
    fleet = '[[machines]]\nname = "a"\nmemory = "2 GiB"\nusable_memory = "600 MiB"\n'
    with pytest.raises(InsufficientMemoryError) as raised:
        plan(tmp_path, fleet, model)
    assert "600 MiB" in raised.value.message


@pytest.mark.slow
def test_the_coordinator_may_be_another_machine(tmp_path: Path, model: str) -> None:
    document = plan(tmp_path, 'coordinator = "board"\n' + FLEET, model)
    assert document["coordinator"] == node_id_of("board-1")
    (stage,) = document["stages"]
    assert stage["node_id"] == node_id_of("desktop")
    assert document["prediction"]["entry_seconds"] > 0.0003


@pytest.mark.slow
def test_states_are_planned_and_divided_among_the_stages(tmp_path: Path) -> None:
    stateful = write_small_lfm2(tmp_path / "lfm2")
    layout = "desktop=3,board-1=2"
    document = plan(tmp_path, FLEET, stateful, layout, num_states=6)
    assert document["num_states"] == 6
    of_stages = [stage["memory"]["state_bytes"] for stage in document["stages"]]
    assert of_stages == [6 * SLOT_BYTES * 2 // 3, 6 * SLOT_BYTES // 3]
    assert plan(tmp_path, FLEET, stateful)["num_states"] == 64
    wanted = plan(tmp_path, FLEET, stateful, objective="throughput", num_streams=60)
    assert wanted["num_states"] == 80
    with pytest.raises(
        ParameterError, match="6 state slots are too few: 11 are needed for 8 streams"
    ):
        plan(tmp_path, FLEET, stateful, num_states=6, objective="throughput")
