"""Packed files are known by what they were made from: what must not, and what may, change a key."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from potluck.catalog import canonical_source, describe_model, open_headers, read_profile
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.engines.loading import plan_stage
from potluck.engines.loading.packed_key import packed_key
from potluck.models.program import program_to_count
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.weights.load import check_weights, loaded_weights

MIDDLE = Shard(start_layer=2, end_layer=4, num_layers=12, has_embedding=False, has_head=False)
NEXT = Shard(start_layer=3, end_layer=5, num_layers=12, has_embedding=False, has_head=False)


def key_of(
    path: Path, shard: Shard = MIDDLE, quantization: Quantization = Quantization.NONE
) -> str:
    description = describe_model(str(path))
    program = program_to_count(description.config, shard, context_tokens=64)
    with closing(open_headers(description)) as tensors:
        stored = check_weights(program, canonical_source(description, tensors, program))
        loaded = loaded_weights(program, stored, quantization)
        return packed_key(description, tensors, program, loaded)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "model"))


def test_the_same_files_have_the_same_key(model: Path) -> None:
    assert key_of(model) == key_of(model)


def test_what_is_made_of_them_counts(model: Path) -> None:
    keys = {
        key_of(model),
        key_of(model, NEXT),
        key_of(model, quantization=Quantization.Q8_0),
        key_of(model, quantization=Quantization.Q4_K),
        key_of(DEMO_DIRECTORY),
    }
    assert len(keys) == 5


def test_versions_count(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(model)
    monkeypatch.setattr("potluck.kernels.PANEL_LAYOUT", 99)
    after = key_of(model)
    monkeypatch.setattr("potluck.formats.packed.VERSION", 99)
    assert len({before, after, key_of(model)}) == 3


def test_a_change_within_the_weights_is_seen_even_if_the_time_is_set_back(model: Path) -> None:
    path = model / "model.safetensors"
    before, times = key_of(model), path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert key_of(model) != before


def test_the_context_does_not_count(model: Path) -> None:
    description = describe_model(str(model))
    sizes = [
        StageSize(context_tokens=context, num_blocks=4, max_step_tokens=8, num_threads=1)
        for context in (64, 128)
    ]
    plans = [plan_stage(read_profile(description), MIDDLE, size) for size in sizes]
    with closing(open_headers(description)) as tensors:
        keys = set()
        for plan in plans:
            program = program_to_count(description.config, plan.shard, plan.size.context_tokens)
            infos = check_weights(program, canonical_source(description, tensors, program))
            keys.add(packed_key(description, tensors, program, infos))
    assert len(keys) == 1


def hub_copy(directory: Path, blob: str) -> Path:
    """The demo model as huggingface_hub's cache keeps it, its weights under the name ``blob``."""
    repository = directory / "models--org--demo"
    snapshot = repository / "snapshots" / "0123"
    shutil.copytree(DEMO_DIRECTORY, snapshot)
    (repository / "blobs").mkdir()
    weights = snapshot / "model.safetensors"
    shutil.move(weights, repository / "blobs" / blob)
    weights.symlink_to(f"../../blobs/{blob}")
    return snapshot


def test_a_file_of_the_hub_is_known_by_its_hash(tmp_path: Path) -> None:
    one, other = hub_copy(tmp_path / "a", "ab" * 32), hub_copy(tmp_path / "b", "ab" * 32)
    assert key_of(one) == key_of(other), "another copy of the same"
    assert key_of(hub_copy(tmp_path / "c", "cd" * 32)) != key_of(one)


def test_a_file_that_only_looks_like_the_hubs(tmp_path: Path) -> None:
    """No hash for a name; a copy has another inode and another time."""
    one, other = hub_copy(tmp_path / "a", "weights"), hub_copy(tmp_path / "b", "weights")
    assert key_of(one) != key_of(other)


def test_a_blob_of_the_hub_with_another_header(tmp_path: Path) -> None:
    snapshot = hub_copy(tmp_path, "ab" * 32)
    before = key_of(snapshot)
    path = snapshot / "model.safetensors"
    stored = path.read_bytes()
    length = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + length])
    text = json.dumps(dict(reversed(header.items())), separators=(",", ":")).encode()
    path.write_bytes(stored[:8] + text.ljust(length) + stored[8 + length :])
    assert key_of(snapshot) != before
