"""Models that cannot be run: one line that says why, one hint, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.demo_copies import change_config, copied_demo
from support.formats.gguf_bytes import Gguf
from support.processes.command import assert_refused, run_command
from support.processes.confinement import control_group, inside
from support.processes.environment import environment

from potluck.cli.main import main


def run_here(
    capfd: pytest.CaptureFixture[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """The command in this process: a process of its own takes most of a second to begin."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(arguments, ended.value.code, out, err)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return copied_demo(tmp_path / "model")


def truncate(model: Path, num_bytes: int) -> None:
    os.truncate(model / "model.safetensors", num_bytes)


def overwrite_header(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 100)


def replace_by_directory(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").mkdir()


def replace_by_pipe(model: Path) -> None:
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")


def replace_by_link_to(target: str) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        (model / "model.safetensors").unlink()
        (model / "model.safetensors").symlink_to(target)

    return replace


def index_of(file_name: str) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        (model / "model.safetensors").unlink()
        index = {"weight_map": {"model.norm.weight": file_name}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))

    return replace


def rename_tensor(old: str, new: str) -> Callable[[Path], None]:
    """``new`` is as long as ``old``."""

    def rename(model: Path) -> None:
        path = model / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode(), 1))

    return rename


def repeat_key(model: Path) -> None:
    path = model / "config.json"
    path.write_text(path.read_text().replace("{", '{"hidden_size": 9999,', 1))


SPOILED: tuple[tuple[str, Callable[[Path], object], str, str], ...] = (
    ("truncated weights", lambda m: truncate(m, 1_000_000), "truncated", "again"),
    ("truncated header", lambda m: truncate(m, 100), "truncated", "again"),
    ("empty weights", lambda m: truncate(m, 0), "truncated", "again"),
    ("corrupt header", overwrite_header, "model.safetensors", "again"),
    ("weights are a directory", replace_by_directory, "not a regular file", "file"),
    ("weights are a pipe", replace_by_pipe, "not a regular file", "file"),
    ("weights are a device", replace_by_link_to("/dev/zero"), "not a regular file", "file"),
    ("a loop of links", replace_by_link_to("model.safetensors"), "Too many levels", "disk"),
    ("outside the model", index_of("../../x.safetensors"), "outside the model", "again"),
    ("a missing file", index_of("m.safetensors"), "m.safetensors, which it names", "again"),
    (
        "a name with a NUL",
        rename_tensor("model.norm.weight", "model.norm\\u0000t"),
        r"'model.norm\x00t' is not a valid tensor name",
        "again",
    ),
    (
        "a missing tensor",
        rename_tensor("model.norm.weight", "model.nora.weight"),
        "model.nora.weight",
        "another model",
    ),
    (
        "a tensor twice",
        rename_tensor("layers.0.input_layernorm", "layers.1.input_layernorm"),
        "two tensors named 'model.layers.1.input_layernorm.weight'",
        "again",
    ),
    ("a key twice", repeat_key, "has 'hidden_size' twice", "again"),
    (
        "a config of several MB",
        lambda m: change_config(m, x=[[]] * 10**6),
        "larger than 1048576 bytes",
        "again",
    ),
    (
        "a number beyond all floats",
        lambda m: change_config(m, rms_norm_eps=10**400),
        "rms_norm_eps must be finite",
        "again",
    ),
    ("lines in a name", lambda m: change_config(m, model_type="a\nb" * 99), "a?ba?b", "supported"),
    (
        "another width",
        lambda m: change_config(m, hidden_size=512),
        "configuration requires",
        "again",
    ),
    ("another depth", lambda m: change_config(m, num_hidden_layers=13), "is missing", "again"),
    ("unread layers", lambda m: change_config(m, num_hidden_layers=11), "model.layers.11", ""),
    ("unknown family", lambda m: change_config(m, model_type="mamba"), "mamba", "supported: "),
    ("experts", lambda m: change_config(m, num_local_experts=8), "num_local_experts", ""),
    ("odd heads", lambda m: change_config(m, num_attention_heads=7, head_dim=None), "7", ""),
    ("config is a list", lambda m: (m / "config.json").write_text("[]"), "JSON object", "again"),
    ("config is cut", lambda m: os.truncate(m / "config.json", 50), "not a JSON", "again"),
    ("no tokenizer", lambda m: (m / "tokenizer.json").unlink(), "no tokenizer", "tokenizer.json"),
    (
        "half a tokenizer",
        lambda m: os.truncate(m / "tokenizer.json", 1000),
        "tokenizer.json",
        "again",
    ),
    (
        "no head, and none that is tied",
        lambda m: change_config(m, tie_word_embeddings=False),
        "the tensor lm_head.weight [",
        "again",
    ),
    (
        "a recommendation that makes no sense",
        lambda m: (m / "generation_config.json").write_text('{"do_sample": true, "top_k": 1.5}'),
        "top_k is 1.5",
        "line",
    ),
)


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [case[1:] for case in SPOILED],
    ids=[case[0] for case in SPOILED],
)
def test_a_spoiled_directory(
    model: Path,
    spoil: Callable[[Path], object],
    message: str,
    hint: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spoil(model)
    assert_refused(run_here(capfd, "run", str(model), "-p", "x"), 1, message, hint)


def test_a_directory_without_weights(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (model / "model.safetensors").unlink()
    refused = run_here(capfd, "run", str(model), "-p", "x")
    assert_refused(refused, 2, "no weights", "model.safetensors")


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", 1, "truncated"),
        (b"GGUF", 1, "truncated"),
        (b"GGUF\3\0\0\0" + b"\xff" * 16, 1, ""),
        (b"no model at all, and long enough to be read", 1, "not a GGUF file"),
        (Gguf().build(), 1, ""),
        (None, 2, "no config.json"),
    ],
    ids=["empty", "magic", "huge counts", "text", "no architecture", "directory"],
)
def test_a_gguf_file_that_is_none(
    tmp_path: Path,
    content: bytes | None,
    code: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model.gguf"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert_refused(run_here(capfd, "run", str(path), "-p", "x"), code, message, "")


def without_override() -> tuple[str, ...]:
    """A prefix under which modes of files hold also for root."""
    if os.getuid() != 0:
        return ()
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_unreadable_file(model: Path, name: str) -> None:
    (model / name).chmod(0)
    completed = run_command("run", str(model), "-p", "x", prefix=without_override())
    assert_refused(completed, 1, "Permission denied", "")
    assert name in completed.stderr


def test_a_read_only_directory_is_enough(model: Path) -> None:
    for file in model.iterdir():
        file.chmod(0o444)
    model.chmod(0o555)
    completed = run_command("run", str(model), "-p", "x", "-n", "2", prefix=without_override())
    model.chmod(0o755)
    assert completed.returncode == 0, completed.stderr


def test_no_address_space(model: Path) -> None:
    change_config(model, max_position_embeddings=2**24)
    completed = run_command(
        *("run", str(model), "-p", "x", "--context", str(2**20)),
        prefix=("sh", "-c", 'ulimit -v 3000000; exec "$@"', "sh"),
    )
    assert_refused(completed, 1, "ulimit -v", "--context")


def test_more_than_the_machine_has(model: Path) -> None:
    change_config(model, max_position_embeddings=2**24)
    completed = run_command("run", str(model), "-p", "x", "--context", str(2**24))
    assert_refused(completed, 1, "memory are needed", "--context")


def test_a_control_group_without_room(model: Path) -> None:
    change_config(model, max_position_embeddings=2**24)
    path = Path(f"/sys/fs/cgroup/memory/potluck-test-{os.getpid()}")
    with control_group(path, {"memory.limit_in_bytes": str(300 * 2**20)}) as group:
        enter = inside(group)
        completed = run_command("run", str(model), "-p", "x", "--context", str(2**18), prefix=enter)
        assert_refused(completed, 1, "control group", "--context")
        completed = run_command("run", str(model), "-p", "x", "-n", "2", prefix=enter)
        assert completed.returncode == 0, completed.stderr


def test_a_missing_core_is_said() -> None:
    """As in a checkout in which nothing was built."""
    script = (
        "import sys; sys.modules['potluck.kernels._core'] = None\n"
        "from potluck.cli.main import main; main(['run', 'demo', '-p', 'x'])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert_refused(completed, 1, "compiled core", "pip")
