"""What placement counts with, against what the stages are then planned with, and the worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines.load_listener import RecordingLoadListener
from support.models.sparse_models import SparseModel

from potluck.catalog import describe_model, read_profile
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.wire.worker_messages import Load, StageSpec
from potluck.cluster.worker import loading
from potluck.cluster.worker.loading import load_for
from potluck.engines.backends import cost_of, native_unit
from potluck.engines.loading.plan import plan_worker
from potluck.errors import InsufficientMemoryError
from potluck.placement.costs import model_cost
from potluck.placement.model_counting import counting_of
from potluck.placement.planned import PlannedModel, PlannedStage, plan_record
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.memory import MemoryLimit
from potluck.types.node import CPU_UNIT
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes
from potluck.types.stage import StagePlan, StageSize

NODE = NodeId("a" * 16)
NUM_LAYERS = 3


def model(
    directory: Path, stored: str, *, has_tied_head: bool, hidden_size: int = 512
) -> ModelProfile:
    made = SparseModel(
        hidden_size=hidden_size,
        intermediate_size=1536,
        num_layers=NUM_LAYERS,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=9_000,
        max_context_tokens=4096,
        has_tied_head=has_tied_head,
        stored=stored,
    )
    return read_profile(describe_model(str(made.write(directory))))


def a_size(quantization: Quantization = Quantization.NONE) -> StageSize:
    return StageSize(
        context_tokens=1024,
        num_blocks=100,
        max_step_tokens=512,
        num_threads=2,
        quantization=quantization,
    )


def planned(profile: ModelProfile, shard: Shard, size: StageSize) -> StagePlan:
    return plan_worker(profile, shard, size)


@pytest.mark.slow
@pytest.mark.parametrize("has_tied_head", [False, True])
@pytest.mark.parametrize(
    ("stored", "quantization"),
    [("BF16", Quantization.NONE), ("F32", Quantization.Q4_K), ("Q4_K", Quantization.NONE)],
)
def test_no_stage_takes_more_than_placement_counts(
    tmp_path: Path, stored: str, quantization: Quantization, has_tied_head: bool
) -> None:
    profile = model(tmp_path, stored, has_tied_head=has_tied_head)
    size = a_size(quantization)
    cost = model_cost(counting_of(profile, cost_of), size)
    for start in range(NUM_LAYERS + 1):
        for end in range(start, NUM_LAYERS + 1):
            for embedding in {False, start == 0}:
                for head in {False, end == NUM_LAYERS}:
                    if not (end > start or embedding or head):
                        continue
                    shard = Shard(
                        start_layer=start,
                        end_layer=end,
                        num_layers=NUM_LAYERS,
                        has_embedding=embedding,
                        has_head=head,
                    )
                    taken = planned(profile, shard, size).memory.total_bytes
                    counted = (
                        sum(cost.layer_bytes[start:end])
                        + embedding * cost.embedding_bytes
                        + head * cost.head_bytes
                        - (cost.shared_bytes if embedding and head else 0)
                        + cost.scratch_bytes
                        + cost.process_bytes
                    )
                    assert taken <= counted <= 1.2 * taken + 25 * 2**20
                    if start == end and embedding and not head:
                        assert taken == cost.lone_embedding_bytes
                    if start == end and head and not embedding:
                        assert taken == cost.lone_head_bytes


def test_weights_of_another_format_are_named_once(tmp_path: Path) -> None:
    """The two ends of a tied model have the same tensor."""
    profile = model(tmp_path, "BF16", has_tied_head=True, hidden_size=96)
    shards = (
        Shard(start_layer=0, end_layer=1, num_layers=3, has_embedding=True, has_head=False),
        Shard(start_layer=1, end_layer=3, num_layers=3, has_embedding=False, has_head=True),
    )
    size = a_size(Quantization.Q4_K)
    stages = tuple(
        PlannedStage(node_id=NODE, unit_id=CPU_UNIT, plan=planned(profile, shard, size))
        for shard in shards
    )
    made = PlannedModel(
        quantization=Quantization.Q4_K,
        arithmetic=Arithmetic.EXACT,
        arithmetic_note="",
        stages=stages,
        rejections=(),
    )
    # Of three layers the last has more bits. The rows of attn.o and mlp.down are multiples of 256.
    assert plan_record(made).remarks == (
        "embed.weight and 1 more: q8_0 instead of q6_k, because rows of 96 are not a multiple of "
        "the block size 256",
        "layers.0.attn.q.weight and 13 more: q5_0 instead of q4_k, because rows of 96 are not a "
        "multiple of the block size 256",
    )


def test_a_worker_refuses_with_the_numbers_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = model(tmp_path, "BF16", has_tied_head=False)
    size = a_size()
    shard = Shard(
        start_layer=1, end_layer=2, num_layers=NUM_LAYERS, has_embedding=False, has_head=False
    )
    memory = planned(profile, shard, size).memory
    spec = StageSpec(
        deployment=DeploymentId("d"),
        epoch=Epoch(number=1, coordinator=NODE),
        index=1,
        num_stages=3,
        unit_id=UnitId("cpu/native"),
        model=str(tmp_path),
        shard=shard,
        context_tokens=size.context_tokens,
        num_blocks=size.num_blocks,
        max_step_tokens=size.max_step_tokens,
        max_step_sequences=8,
        quantization=size.quantization,
        is_mapped=False,
        num_bytes=memory.total_bytes,
        device_bytes=0,
        arithmetic=Arithmetic.EXACT,
    )
    load = Load(
        spec=spec,
        unit=native_unit(),
        device_free_bytes=None,
        identity=Credentials(
            node_id=NODE, certificate_pem=b"", private_key_pem=b"", authority_pem=b""
        ),
        listen_host="127.0.0.1",
        num_threads=size.num_threads,
        packed_cache_bytes=None,
    )
    listener = RecordingLoadListener()

    def may_take(num_bytes: int) -> None:
        monkeypatch.setattr(
            loading, "available_memory", lambda: MemoryLimit(bytes=num_bytes, reason="a test")
        )
        # What the process holds already is a part of what it may hold.
        monkeypatch.setattr(loading, "held_bytes", lambda: 1000)

    may_take(memory.total_bytes - 1001)
    with pytest.raises(InsufficientMemoryError) as caught:
        load_for(load, listener)
    assert caught.value.message.startswith(
        f"{format_bytes(memory.total_bytes)} of memory are needed ({memory.described()}), but only "
    )
    assert listener.progress == []

    may_take(memory.total_bytes - 1000)
    loaded = load_for(load, listener)
    loaded.stage.engine.close()
    assert loaded.memory == memory
    done, total = listener.progress[-1]
    assert done == total == planned(profile, shard, size).read_bytes
    assert loaded.read_bytes > total  # and the headers
