"""Models whose files are known by their content: the same bits as from a path, and nothing else of
the files is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.cluster.content_files import ContentFolder, ContentService
from support.cluster.hosted_stages import NODE, Node, epoch, node, stage_specs
from support.engines.load_listener import RecordingLoadListener
from support.models.gguf_models import write_gguf_model
from support.models.hub_models import cut_demo
from support.models.random_models import make_random_model

from potluck.catalog import (
    ManifestView,
    ModelDescription,
    describe_model,
    describe_view,
    load_token_list,
    load_tokenizer,
)
from potluck.catalog.needs import stage_needs, text_needs
from potluck.catalog.profile import read_profile
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.wire.worker_messages import Load, Loaded, StageFiles, StageSpec
from potluck.cluster.worker.loading import load_for
from potluck.engines.backends import native_unit
from potluck.engines.loading import PackedCache, Room
from potluck.engines.loading.load import LoadedStage
from potluck.engines.loading.prepare import PreparedStages, plan_stages, prepare_stages
from potluck.errors import PotluckError
from potluck.types.choices import Quantization
from potluck.types.content import Manifest, Transfer
from potluck.types.memory import MemoryLimit
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.step import SamplingParams, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

ROOM = Room(host=MemoryLimit(bytes=2**40, reason="a test"))
GREEDY = SamplingParams(temperature=0.0)
PROMPT = (5, 9, 2, 77, 31, 8)
SIZE = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=32, num_threads=2)


def cut_into(directory: Path) -> Path:
    """The demo with two layers to a file."""
    directory.mkdir()

    def file_of(name: str) -> str:
        layer = name.removeprefix("model.layers.").partition(".")[0]
        return f"model-{1 + int(layer) // 2 if layer.isdecimal() else 0}.safetensors"

    for name, data in cut_demo(file_of).items():
        (directory / name).write_bytes(data)
    return directory


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in several GGUF files, of formats that are computed with and of one that is not."""
    folder = tmp_path_factory.mktemp("gguf")
    settings = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048, "head_dim": 64}
    model = make_random_model("llama", settings, folder / "made")
    vocabulary = [f"<{number}>" for number in range(2048)]
    write_gguf_model(
        folder / "model",
        model,
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": vocabulary,
            "tokenizer.ggml.token_type": [1] * 2048,
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.eos_token_id": 0,
        },
        formats={"attn": TensorFormat.Q8_0, "ffn": TensorFormat.Q4_K},
        split_max_tensors=8,
    )
    (first,) = folder.glob("model-00001-of-*.gguf")
    return first


def viewed(path: Path, home: Path) -> tuple[ContentFolder, Manifest, ModelDescription]:
    folder = ContentFolder()
    manifest = folder.add_model(str(path))
    view = ManifestView(
        manifest, folder, name=str(path), job="j", environ={"XDG_CACHE_HOME": str(home)}
    )
    return folder, manifest, describe_view(view)


def shards_of(description: ModelDescription, boundaries: Sequence[int]) -> list[Shard]:
    num_layers = description.config.num_layers
    ends = [*boundaries, num_layers]
    return [
        Shard(
            start_layer=start,
            end_layer=end,
            num_layers=num_layers,
            has_embedding=start == 0,
            has_head=end == num_layers,
        )
        for start, end in zip([0, *boundaries], ends, strict=True)
    ]


def loaded(
    description: ModelDescription,
    shards: Sequence[Shard],
    *,
    size: StageSize = SIZE,
    cache: Path | None = None,
) -> PreparedStages:
    plan = plan_stages(read_profile(description, shards), shards, size, native_unit(), ROOM)
    return prepare_stages(description, plan, room=lambda: ROOM, cache=PackedCache(cache))


def logits(stages: Sequence[LoadedStage]) -> bytes:
    """The bits of the logits after each token of a prompt; the engines are closed."""
    step = Step(
        step_id=StepId(0),
        slices=(
            SequenceSlice(
                sequence_id=SequenceId(0),
                tokens=PROMPT,
                start_position=0,
                block_table=(2, 0),
                sample=False,
                score_from=0,
                next_token=0,
            ),
        ),
    )
    hidden = None
    for stage in stages[:-1]:
        hidden = stage.engine.step(step, hidden).hidden
    found = stages[-1].engine.logits(step, hidden)
    for stage in stages:
        stage.engine.close()
    assert np.isfinite(found).all()
    return bytes(found.tobytes())


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q4_0])
def test_the_same_bits_as_from_the_path(
    kind: str, quantization: Quantization, gguf: Path, tmp_path: Path
) -> None:
    """Whole and cut, loaded and mapped."""
    path = gguf if kind == "gguf" else cut_into(tmp_path / "cut")
    folder, _, description = viewed(path, tmp_path / "home")
    expected_of = describe_model(str(path))
    assert description.config == expected_of.config
    for boundaries in ((), (1, 2)):
        shards = shards_of(description, boundaries)
        for is_mapped in (False, True):
            size = StageSize(
                context_tokens=64,
                num_blocks=4,
                max_step_tokens=32,
                num_threads=2,
                quantization=quantization,
                is_mapped=is_mapped,
            )
            expected = logits(loaded(expected_of, shards, size=size, cache=tmp_path / "a").stages)
            found = logits(loaded(description, shards, size=size, cache=tmp_path / "b").stages)
            assert found == expected
    assert folder.num_open == 0


def test_packed_weights_are_found_again_without_reading_any(gguf: Path, tmp_path: Path) -> None:
    """The key of a packed file is that of the content, whoever serves it."""
    size = StageSize(
        context_tokens=64, num_blocks=4, max_step_tokens=32, num_threads=1, is_mapped=True
    )
    folder, manifest, description = viewed(gguf, tmp_path / "home")
    shards = shards_of(description, ())
    first = loaded(description, shards, size=size, cache=tmp_path / "packed")
    assert [needs for _, needs, _ in folder.wanted if needs]
    folder.wanted.clear()
    folder.reads.clear()
    again, _, other = viewed(gguf, tmp_path / "another home")
    second = loaded(other, shards, size=size, cache=tmp_path / "packed")
    assert [stage.packed and stage.packed.path for stage in first.stages] == [
        stage.packed and stage.packed.path for stage in second.stages
    ]
    assert not again.wanted
    for stage in (*first.stages, *second.stages):
        stage.engine.close()
    num_bytes = sum(file.content.num_bytes for file in manifest.files)
    assert sum(end - start for _, start, end in again.reads) < num_bytes / 2


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_vocabulary_is_read_when_nobody_serves_any_more(
    kind: str, gguf: Path, tmp_path: Path
) -> None:
    """Grammars are followed long after the weights were loaded."""
    path = gguf if kind == "gguf" else cut_into(tmp_path / "cut")
    folder, _, description = viewed(path, tmp_path / "home")
    expected = load_token_list(describe_model(str(path)).files)
    view = description.files.view
    assert view is not None
    view.fetch_small_files()
    folder.paths.clear()
    assert load_token_list(description.files) == expected
    assert load_tokenizer(description.files).encode("<5>") == load_tokenizer(
        describe_model(str(path)).files
    ).encode("<5>")


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("end", ["embedding", "head"])
def test_a_stage_without_layers_reads_what_it_is_said_to(
    kind: str, end: str, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = gguf if kind == "gguf" else cut_into(tmp_path / "cut")
    folder = ContentFolder()
    manifest = folder.add_model(str(path))
    on_disk = describe_model(str(path))
    num_layers = on_disk.config.num_layers
    layer = 0 if end == "embedding" else num_layers
    shard = Shard(
        start_layer=layer,
        end_layer=layer,
        num_layers=num_layers,
        has_embedding=end == "embedding",
        has_head=end == "head",
    )
    spec = msgspec.structs.replace(
        stage_specs([], epoch(1))[0],
        num_stages=2,
        index=0 if end == "embedding" else 1,
        shard=shard,
        files=StageFiles(manifest=manifest, job="j"),
        model=str(path),
    )
    load = Load(
        spec=spec,
        unit=native_unit(),
        device_free_bytes=None,
        identity=Credentials(
            node_id=NODE, certificate_pem=b"", private_key_pem=b"", authority_pem=b""
        ),
        listen_host="127.0.0.1",
        num_threads=1,
        packed_cache_bytes=None,
    )
    share = load_for(load, RecordingLoadListener(), opener=folder)
    share.stage.engine.close()
    (needs,) = stage_needs(on_disk, manifest, [shard])
    allowed = [*needs, *text_needs(on_disk, manifest)]
    for sha256, start, stop in folder.reads:
        assert any(
            content.sha256 == sha256 and begin <= start and stop <= last
            for content, begin, last in allowed
        )


def specs_by_content(manifest: Manifest, number: int, model: str) -> list[StageSpec]:
    files = StageFiles(manifest=manifest, job="a job")
    return [
        msgspec.structs.replace(spec, files=files, model=model)
        for spec in stage_specs([5], epoch(number))
    ]


def service_of(folder: ContentFolder) -> ContentService:
    return ContentService(folder.paths)


async def generated(of: Node, specs: Sequence[StageSpec]) -> list[int]:
    with await of.serve(specs) as pipeline:
        return await asyncio.to_thread(pipeline.generate, (1, 5, 9), 12, GREEDY)


def test_workers_give_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over their socket; ``model`` is a path that this node does not have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = cut_into(tmp_path / "cut")
    folder = ContentFolder()
    manifest = folder.add_model(str(path))
    service = service_of(folder)

    async def run() -> tuple[list[int], list[int], bool]:
        async with node(tmp_path / "path") as by_path:
            expected = await generated(by_path, stage_specs([5], epoch(1)))
        async with node(tmp_path / "content", worker_socket=service.worker_socket) as by_content:
            specs = specs_by_content(manifest, 1, "/not/on/this/node")
            found = await generated(by_content, specs)
            # At the next epoch the workers are kept, wherever bytes would come from then.
            other = specs_by_content(manifest, 2, "/not/on/this/node")
            moved = StageFiles(manifest=manifest, job="another", keep=False)
            again = [msgspec.structs.replace(each, files=moved) for each in other]
            loaded = await by_content.start(again[0])
            return expected, found, loaded.is_kept

    expected, found, is_kept = asyncio.run(run())
    assert found == expected
    assert len(found) == 12
    assert is_kept
    # Each stage has announced its own weights, and has read the files of its own layers.
    announced = [{content.sha256 for content, _ in want.needs} for want in service.wants]
    by_name = {file.name: file.content.sha256 for file in manifest.files}
    own = [{by_name[f"model-{number}.safetensors"] for number in range(4)}]
    own.append({by_name[f"model-{number}.safetensors"] for number in (0, 3, 4, 5, 6)})
    assert all(any(each == wanted for wanted in announced) for each in own)
    assert {want.job for want in service.wants} == {"a job"}


def test_a_worker_that_waits_for_bytes_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it waits, and who listens hears how far the node is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ContentFolder()
    manifest = folder.add_model("demo")
    service = service_of(folder)
    service.is_held = True
    spec = specs_by_content(manifest, 1, "demo")[0]

    async def run() -> tuple[list[Transfer | None], Loaded]:
        transfers: list[Transfer | None] = []
        async with node(
            tmp_path / "node", worker_socket=service.worker_socket, stall_seconds=4.0
        ) as by_content:
            asyncio.get_running_loop().call_later(7.0, setattr, service, "is_held", False)
            half = Transfer(done_bytes=5, total_bytes=10, by_source={"hub": 5})
            asyncio.get_running_loop().call_later(
                1.0, by_content.host.hosted.note_transfer, "a job", half
            )
            by_content.host.hosted.note_transfer("another job", half)
            async for event in by_content.host.start(spec):
                if isinstance(event, Loaded):
                    return transfers, event
                transfers.append(event.transfer)
        raise AssertionError("the last event is Loaded")

    transfers, loaded = asyncio.run(run())
    assert len(transfers) > 2
    assert transfers[-1] == Transfer(done_bytes=5, total_bytes=10, by_source={"hub": 5})
    assert loaded.read_bytes


@pytest.mark.parametrize("has_service", [True, False])
def test_what_nobody_has_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_service: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ContentFolder()
    manifest = folder.add_model("demo")
    (weights,) = (file for file in manifest.files if file.name.endswith(".safetensors"))
    del folder.paths[weights.content.sha256]
    spec = specs_by_content(manifest, 1, "org/model")[0]

    async def run() -> None:
        worker_socket = service_of(folder).worker_socket if has_service else None
        async with node(tmp_path / "node", worker_socket=worker_socket) as by_content:
            await by_content.start(spec)

    with pytest.raises(PotluckError) as caught:
        asyncio.run(run())
    if has_service:
        assert caught.value.message == "org/model:model.safetensors: nobody has it"
        assert caught.value.hint == "ask somebody else"
    else:
        assert caught.value.message.endswith("cannot fetch files of org/model")


def test_a_hostile_manifest_starts_no_worker(tmp_path: Path) -> None:
    folder = ContentFolder()
    manifest = folder.add_model("demo")
    first, *others = manifest.files
    hostile = msgspec.structs.replace(first, name="../../.ssh/authorized_keys")
    manifest = msgspec.structs.replace(manifest, files=(hostile, *others))
    spec = specs_by_content(manifest, 1, "org/model")[0]

    async def run() -> int:
        async with node(
            tmp_path / "node", worker_socket=service_of(folder).worker_socket
        ) as by_content:
            with pytest.raises(PotluckError, match="is not relative to the model's directory"):
                await by_content.start(spec)
            return len(by_content.workers)

    assert asyncio.run(run()) == 0
