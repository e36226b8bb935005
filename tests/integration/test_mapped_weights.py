"""``--mmap``: the same tokens, a quick second start, and a model that is larger than the memory."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_shapes import SHAPES, Experts
from random_gguf import write_gguf
from support.kernels.build import not_shown
from support.models.large_models import make_large_model
from support.processes.command import assert_refused, run_command
from support.processes.confinement import control_group, inside
from support.processes.environment import environment

from potluck import Model
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.formats.source import FileTensorSource
from potluck.local import LoadProgress
from potluck.types.choices import Quantization
from potluck.types.engine import NO_EXPERTS

MIB = 2**20
PROMPT = ("-p", "Once upon a time", "-n", "12", "--temperature", "0", "--threads", "2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed files, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "potluck" / "packed"


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """285 MB of weights, in layers of 14 MB."""
    directory = tmp_path_factory.mktemp("large") / "model"
    make_large_model(directory, num_layers=20)
    return directory


def logprobs(model: Model) -> list[tuple[int, float | None]]:
    generation = model.generate(
        "Once upon a time", max_tokens=12, temperature=0.0, logprobs=True, ignore_eos=True
    )
    return [(piece.token, piece.logprob) for piece in generation.result().pieces]


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q4_K])
def test_the_same_numbers(cache: Path, quantization: Quantization) -> None:
    """As with loaded weights, when they were just packed and when they are found, in stages."""
    with Model.open("demo", num_threads=2, quantization=quantization) as loaded:
        expected = logprobs(loaded)
        in_memory = loaded.plan.memory
    for num_stages in (1, 1, 3):
        with Model.open(
            "demo", stages=num_stages, num_threads=2, quantization=quantization, mmap=True
        ) as mapped:
            assert logprobs(mapped) == expected
            plan = mapped.plan.memory
        assert plan.weights_bytes == 0
        if num_stages == 1:  # others have the tied head twice
            assert plan.mapped == in_memory.weights
            assert plan.total_bytes < in_memory.total_bytes - in_memory.weights_bytes + 2 * MIB
    assert len(list(cache.iterdir())) == 4


@pytest.mark.timing
def test_the_second_start_reads_headers_only(
    cache: Path, large_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes_read: list[int] = []
    close = FileTensorSource.close

    def counting_close(source: FileTensorSource) -> None:
        num_bytes_read.append(source.num_bytes_read)
        close(source)

    monkeypatch.setattr(FileTensorSource, "close", counting_close)
    size = (large_model / "model.safetensors").stat().st_size
    seconds, read, reports = [], [], []
    for _ in range(2):
        num_bytes_read.clear()
        progress: list[LoadProgress] = []
        started = time.perf_counter()
        with Model.open(
            str(large_model),
            num_threads=2,
            mmap=True,
            on_progress=progress.append,
        ):
            seconds.append(time.perf_counter() - started)
        read.append(sum(num_bytes_read))
        reports.append(progress)
    assert size <= read[0] < size + MIB
    assert read[1] < 100_000
    assert seconds[1] < 0.5 * seconds[0]
    assert reports[0][0].done_bytes == 0
    assert reports[0][-1] == reports[1][-1]
    assert len([each for each in reports[1] if not each.is_warming_up]) == 1


RSS = """
import json, sys
from potluck import Model
from potluck.local import LoadProgress
with Model.open(sys.argv[1], mmap=True, num_threads=2, context_tokens=256) as model:
    result = model.generate([5, 6, 7], max_tokens=4, temperature=0.0, ignore_eos=True).result()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(json.dumps({
        "tokens": [piece.token for piece in result.pieces],
        "anonymous": int(status["RssAnon"].split()[0]) * 1024,
        "files": int(status["RssFile"].split()[0]) * 1024,
        "plan": model.plan.memory.total_bytes,
        "mapped": model.plan.memory.mapped_bytes,
    }))
"""


def measured(model: Path, *prefix: str) -> dict[str, Any]:
    completed = subprocess.run(
        [*prefix, sys.executable, "-c", RSS, str(model)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


def test_weights_are_no_memory_of_the_process(cache: Path, large_model: Path) -> None:
    for _ in range(2):  # also where it packs them first
        found = measured(large_model)
        assert found["mapped"] > 200 * MIB
        assert found["files"] > found["mapped"], "they were all read"
        assert found["anonymous"] < found["plan"] + 48 * MIB + 64 * MIB
        assert found["anonymous"] < found["mapped"] / 2


def kills(group: Path) -> int:
    lines = (group / "memory.oom_control").read_text().splitlines()
    return int(dict(line.split() for line in lines)["oom_kill"])


def test_a_model_larger_than_the_memory(cache: Path, large_model: Path) -> None:
    """It is packed and computed with in less memory than it has weights."""
    expected = measured(large_model)
    for path in cache.iterdir():
        path.unlink()
    limit = 180 * MIB
    own = Path(f"/sys/fs/cgroup/memory/potluck-test-{os.getpid()}")
    with control_group(own, {"memory.limit_in_bytes": str(limit)}) as group:
        enter = inside(group)
        for _ in range(2):
            found = measured(large_model, *enter)
            assert found["tokens"] == expected["tokens"]
            assert found["mapped"] > limit
        assert kills(group) == 0
        assert int((group / "memory.max_usage_in_bytes").read_text()) <= limit
        refused = run_command("run", str(large_model), "-p", "x", prefix=enter)
        assert_refused(refused, 1, "control group", "")
        (path,) = cache.iterdir()
        os.truncate(path, 0)
        refused = run_command(
            *("run", str(large_model), "-p", "x", "--mmap", "--context", "256"),
            env={"POTLUCK_PACKED_CACHE_BYTES": "1000"},
            prefix=enter,
        )
        assert_refused(refused, 1, "weights cannot be memory-mapped (", "--quant")
        assert "control group" in refused.stderr


def assert_loaded_instead(completed: subprocess.CompletedProcess[str], reason: str) -> None:
    """The text is there all the same, and one line says why nothing was mapped."""
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == run_command("run", "demo", *PROMPT).stdout
    warning, _figures = completed.stderr.splitlines()
    assert "weights are loaded instead of memory-mapped" in warning
    assert reason in warning


def in_own_mounts(script: str) -> tuple[str, ...]:
    """A prefix that runs ``script`` in a mount namespace of its own, and then what follows."""
    trial = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode != 0:
        not_shown(f"file systems cannot be mounted here: {trial.stderr.strip()}")
    return ("unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh")


def test_a_full_disk(cache: Path) -> None:
    cache.mkdir(parents=True)
    listing = cache.parent / "listing"
    prefix = in_own_mounts(f"mount -t tmpfs -o size=4M none {cache}")
    keep_listing = ("sh", "-c", f'"$@"; code=$?; ls {cache} > {listing}; exit $code', "sh")
    completed = run_command(
        *("run", "demo", "--mmap", *PROMPT),
        env={"POTLUCK_PACKED_CACHE_BYTES": str(2**30)},
        prefix=(*prefix, *keep_listing),
    )
    assert_loaded_instead(completed, "No space left on device")
    assert listing.read_text() == ""
    completed = run_command("run", "demo", "--mmap", *PROMPT, prefix=prefix)
    assert_loaded_instead(completed, "packed_cache_bytes")


def test_a_read_only_folder(cache: Path) -> None:
    """What is there is used, what is not cannot be made."""
    cache.mkdir(parents=True)
    prefix = in_own_mounts(f"mount --bind {cache} {cache}; mount -o remount,ro,bind {cache}")
    completed = run_command("run", "demo", "--mmap", *PROMPT, prefix=prefix)
    assert_loaded_instead(completed, "Read-only file system")
    made = run_command("run", "demo", "--mmap", *PROMPT)
    found = run_command("run", "demo", "--mmap", *PROMPT, prefix=prefix)
    for completed in (made, found):
        assert completed.returncode == 0
        assert len(completed.stderr.splitlines()) == 1
    assert found.stdout == made.stdout


def test_a_changed_model_is_packed_again(cache: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "model"))
    with Model.open(str(model), mmap=True) as opened:
        before = logprobs(opened)
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-200_000, os.SEEK_END)
        file.write(bytes(100_000))
    with Model.open(str(model)) as opened:
        expected = logprobs(opened)
    with Model.open(str(model), mmap=True) as opened:
        after = logprobs(opened)
    assert after == expected != before
    assert len(list(cache.iterdir())) == 2


def test_experts_that_are_not_in_memory_are_counted(cache: Path, tmp_path: Path) -> None:
    """The first token after a start finds them on the disk, later ones in memory."""
    shape = dataclasses.replace(
        SHAPES["Qwen3-30B-A3B-4-layers"],
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        experts=Experts(num_experts=16, num_experts_per_token=4, intermediate_size=512),
        vocab_size=None,
    )
    path = tmp_path / "experts.gguf"
    write_gguf(shape, path, "Q8_0")
    with Model.open(str(path)) as loaded:
        expected = logprobs(loaded)
        assert loaded.expert_use == NO_EXPERTS
    with Model.open(str(path), mmap=True) as mapped:
        assert logprobs(mapped) == expected
    (packed,) = cache.iterdir()
    del mapped
    gc.collect()  # what is mapped stays in memory
    with packed.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with Model.open(str(path), mmap=True) as mapped:
        first = mapped.expert_use
        assert first.num_used == 0
        assert logprobs(mapped) == expected
        cold = mapped.expert_use
        assert (
            cold.num_used >= 12 * 2 * 3 * 4
        )  # of each token in each layer, three matrices of four
        if cold.num_in_memory == cold.num_used:
            not_shown("the file system keeps all of a file in memory")
        assert logprobs(mapped) == expected
        warm = mapped.expert_use
    assert warm.num_in_memory - cold.num_in_memory == warm.num_used - cold.num_used
