"""Models from a hub, through the command: what is fetched, what is not, and what errors say."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from support.models.gguf_models import write_gguf_model
from support.models.hub_models import DEMO, cut_demo, hub_environment
from support.models.random_models import make_random_model
from support.models.text_models import (
    LLAMA3_SPECIAL,
    byte_level_metadata,
    llama3_json,
    train_sentence_piece,
)
from support.network.fake_hub import FakeHub, serve_hub
from support.processes.command import assert_refused, run_command
from support.processes.environment import environment
from support.processes.waiting import done_within

from potluck.types.tensor import TensorFormat

ARGUMENTS = ("-p", "The fox", "-n", "8", "--temperature", "0")
# What repositories also hold.
DECOYS = {
    "README.md": b"# A model",
    ".gitattributes": b"*.bin filter=lfs",
    "pytorch_model.bin": b"\x80",
    "onnx/model.onnx": b"\0",
    "original/consolidated.00.pth": b"\0",
    "original/model.safetensors": b"\0",
    "tokenizer.model": b"\0",
}


def dead_endpoint() -> str:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def names(hub: FakeHub) -> set[str]:
    assert len(hub.fetched) == len(set(hub.fetched)), "a file was sent twice"
    return set(hub.fetched)


def demo_text() -> str:
    return run_command("run", "demo", *ARGUMENTS).stdout


def test_a_repository_and_then_its_copy_in_the_cache(tmp_path: Path) -> None:
    with serve_hub({"org/fox": {**DEMO, **DECOYS}}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        first = run_command("run", "org/fox", *ARGUMENTS, env=env)
        assert first.returncode == 0, first.stderr
        assert first.stdout == demo_text()
        assert names(hub) == set(DEMO)
        assert hub.fetched[0] == "config.json"
        assert hub.fetched[-1] == "model.safetensors"
        assert len(first.stderr.splitlines()) == 1, "no progress bars without a terminal"
        again = run_command("run", "org/fox", *ARGUMENTS, env=env)
        assert again.stdout == first.stdout
        assert names(hub) == set(DEMO), "nothing is fetched again"
    for offline in ({"HF_ENDPOINT": dead_endpoint()}, {"HF_HUB_OFFLINE": "1"}):
        with done_within(8):
            cached = run_command("run", "org/fox", *ARGUMENTS, env={**env, **offline})
        assert cached.stdout == first.stdout, cached.stderr


def test_weights_in_several_files(tmp_path: Path) -> None:
    files = cut_demo(lambda name: f"model-0000{1 + len(name) % 2}-of-00002.safetensors")
    with_decoy = {**files, "model-00003-of-00003.safetensors": b"left over from an older upload"}
    with serve_hub({"org/cut": with_decoy}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("run", "org/cut", *ARGUMENTS, env=env)
        assert completed.stdout == demo_text(), completed.stderr
        assert names(hub) == set(files)


@pytest.fixture(scope="module")
def gguf_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One model as one file, and as several."""
    directory = tmp_path_factory.mktemp("gguf")
    model = make_random_model("llama", {"vocab_size": 760}, directory / "hf")
    library = tokenizers.Tokenizer.from_str(llama3_json())
    metadata = byte_level_metadata(library, "llama-bpe", LLAMA3_SPECIAL)
    write_gguf_model(directory / "one.gguf", model, metadata, formats=TensorFormat.Q8_0)
    write_gguf_model(
        directory / "cut.gguf", model, metadata, formats=TensorFormat.Q8_0, split_max_tensors=12
    )
    return {path.name: path.read_bytes() for path in directory.glob("*.gguf")}


def test_gguf_files(tmp_path: Path, gguf_files: dict[str, bytes]) -> None:
    parts = sorted(name for name in gguf_files if name.startswith("cut-"))
    assert len(parts) >= 3
    assert re.fullmatch(r"cut-00001-of-\d{5}\.gguf", parts[0])
    files = {**DECOYS, **gguf_files, "other-Q4_K_M.gguf": b"\0"}
    with serve_hub({"org/model-GGUF": files}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        one = run_command("run", "org/model-GGUF:one.gguf", *ARGUMENTS, env=env)
        assert one.returncode == 0, one.stderr
        assert names(hub) == {"one.gguf"}
        cut = run_command("run", f"org/model-GGUF:{parts[0]}", *ARGUMENTS, env=env)
        assert cut.stdout == one.stdout, cut.stderr
        assert names(hub) == {"one.gguf", *parts}
        unnamed = run_command("run", "org/model-GGUF", *ARGUMENTS, env=env)
        assert_refused(unnamed, 2, "3 GGUF models", f"org/model-GGUF:{parts[0]}")
        assert parts[1] not in unnamed.stderr
        tagged = run_command("run", "hf.co/org/model-GGUF:q4_k_m", *ARGUMENTS, env=env)
        assert_refused(tagged, 1, "other-Q4_K_M.gguf", "")
        missing = run_command("run", "org/model-GGUF:two.gguf", *ARGUMENTS, env=env)
        assert_refused(missing, 2, "two.gguf", "Hub page")
    cached = run_command(
        "run", f"org/model-GGUF:{parts[0]}", *ARGUMENTS, env={**env, "HF_HUB_OFFLINE": "1"}
    )
    assert cached.stdout == one.stdout, cached.stderr


def test_one_gguf_model_needs_no_name(tmp_path: Path, gguf_files: dict[str, bytes]) -> None:
    parts = {name: data for name, data in gguf_files.items() if name.startswith("cut-")}
    files = {**DECOYS, **parts, "mmproj-F16.gguf": b"\0"}
    with serve_hub({"org/model-GGUF": files}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("run", "org/model-GGUF", *ARGUMENTS, env=env)
        assert completed.returncode == 0, completed.stderr
        assert names(hub) == {*parts}


def test_an_adapter_on_the_hub_names_its_base(tmp_path: Path) -> None:
    config = json.dumps({"base_model_name_or_path": "org/base", "peft_type": "LORA"}).encode()
    adapter = {"adapter_config.json": config, "adapter_model.safetensors": b"\0"}
    with serve_hub({"org/adapter": {**adapter, "README.md": b"#"}}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("run", "org/adapter", *ARGUMENTS, env=env)
        assert_refused(completed, 2, "an adapter for org/base", "merge it into org/base")
        assert hub.fetched == ["adapter_config.json"]


def test_a_cache_without_weights_does_not_deny_them(tmp_path: Path) -> None:
    """Another program has fetched the configuration only, and its list of files is not known."""
    with serve_hub({"org/fox": DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        run_command("fetch", "org/fox", env=env)
    for folder in tmp_path.rglob(".potluck"):
        shutil.rmtree(folder)
    for weights in tmp_path.rglob("model.safetensors"):
        weights.unlink()
    completed = run_command("run", "org/fox", *ARGUMENTS, env={**env, "HF_HUB_OFFLINE": "1"})
    assert_refused(completed, 2, "the Hub could not be asked", "HF_HUB_OFFLINE")


def test_a_tokenizer_model_is_fetched_where_there_is_no_other(tmp_path: Path) -> None:
    make_random_model("llama", {"vocab_size": 760}, tmp_path / "hf")
    tokenizer = {"tokenizer.model": train_sentence_piece(), "added_tokens.json": b'{"<new>": 700}'}
    model = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
    with serve_hub({"org/pieces": {**DECOYS, **model, **tokenizer}}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("run", "org/pieces", *ARGUMENTS, env=env)
        assert completed.returncode == 0, completed.stderr
        assert set(tokenizer) < names(hub)


def test_what_cannot_run_is_refused_before_its_weights_are_fetched(tmp_path: Path) -> None:
    unknown = json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}).encode()
    repositories = {
        "org/unknown": {**DEMO, "config.json": unknown},
        "org/mute": {name: data for name, data in DEMO.items() if name != "tokenizer.json"},
        "org/unsafe": {"config.json": DEMO["config.json"], "tokenizer.json": DEMO["tokenizer.json"]}
        | DECOYS,
    }
    with serve_hub(repositories) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("run", "org/unknown", *ARGUMENTS, env=env)
        assert_refused(completed, 1, "mamba", "supported: ")
        assert hub.fetched == ["config.json"]
        completed = run_command("run", "org/mute", *ARGUMENTS, env=env)
        assert_refused(completed, 1, "no tokenizer", "tokenizer.json")
        completed = run_command("run", "org/unsafe", *ARGUMENTS, env=env)
        assert_refused(completed, 2, "pytorch_model.bin, a pickle file", "GGUF")
        completed = run_command("run", "org/nothing", *ARGUMENTS, env=env)
        assert_refused(completed, 2, "org/nothing", "HF_TOKEN")
    assert not {"model.safetensors", "pytorch_model.bin"} & set(hub.fetched)


IMPATIENT = """
import sys
from potluck.catalog import hub_client
from potluck.cli.main import main
hub_client._LISTING_SECONDS = 1.0
main(sys.argv[1:])
"""


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with done_within(10):
            completed = subprocess.run(
                [sys.executable, "-c", IMPATIENT, "run", "org/fox", *ARGUMENTS],
                env=environment(**hub_environment(tmp_path, endpoint)),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert_refused(completed, 2, "timed out", "HF_ENDPOINT")


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_out_of_reach_is_said_at_once(tmp_path: Path, offline: bool) -> None:
    env = hub_environment(tmp_path, dead_endpoint())
    if offline:
        env["HF_HUB_OFFLINE"] = "1"
    with done_within(8):
        completed = run_command("run", "org/fox", *ARGUMENTS, env=env)
    assert_refused(completed, 2, "org/fox is not in the local cache", "HF_ENDPOINT")
