"""Models whose weights are stored in several tensors each, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support.models import encoded_tensors as encoded
from support.models.hub_models import INDEX, SMALL, hub_environment
from support.network.fake_hub import serve_hub
from support.processes.command import assert_refused, run_command

from potluck.catalog.locate import DEMO_DIRECTORY

ARGUMENTS = ("-p", "The fox", "-n", "12", "--temperature", "0")
FP8 = {"quant_method": "fp8", "weight_block_size": [64, 128], "activation_scheme": "dynamic"}


def write_models(plain: Path, quantized: Path) -> None:
    """The demo with matrices in FP8, their scales in another file; and with the same values."""
    values, stored = {}, {}
    index: dict[str, str] = {}
    for name, tensor in load_file(DEMO_DIRECTORY / "model.safetensors").items():
        values[name] = tensor
        stored[name] = tensor
        if name.endswith("_proj.weight"):
            weight = encoded.fp8(tensor.float(), block=(64, 128))
            values[name] = torch.from_numpy(weight.values).to(torch.bfloat16)
            stem = name.removesuffix("weight")
            stored |= {f"{stem}{end}": part for end, part in weight.tensors.items()}
    for directory in (plain, quantized):
        directory.mkdir()
        for file, data in SMALL.items():
            (directory / file).write_bytes(data)
    save_file(values, plain / "model.safetensors")
    for part in (False, True):
        file = f"model-{part:d}.safetensors"
        names = [name for name in stored if name.endswith("_scale_inv") == part]
        save_file({name: stored[name] for name in names}, quantized / file)
        index |= dict.fromkeys(names, file)
    (quantized / INDEX).write_text(json.dumps({"weight_map": index}))
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))


def test_text_of_a_model_in_fp8(tmp_path: Path) -> None:
    """The same bits as of its values in BF16: loaded, mapped, cut, quantized, and from a hub.

    Each is a process that loads the model: ten of them take 20 s on two cores.
    """
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    write_models(plain, quantized)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    expected = run_command("run", str(plain), *ARGUMENTS, env=env)
    assert expected.returncode == 0, expected.stderr
    for options in ((), ("--mmap",), ("--mmap",), ("--stages", "3")):
        done = run_command("run", str(quantized), *ARGUMENTS, *options, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected.stdout
    smaller = run_command("run", str(plain), *ARGUMENTS, "--quant", "q8_0")
    done = run_command("run", str(quantized), *ARGUMENTS, "--quant", "q8_0")
    assert done.stdout == smaller.stdout

    files = {path.name: path.read_bytes() for path in quantized.iterdir()}
    with serve_hub({"org/fox": files}) as hub:
        env = hub_environment(tmp_path / "hub", hub.endpoint)
        checked = json.loads(run_command("check", "org/fox", "--json", env=env).stdout)
        assert checked["runs"]
        assert checked["configuration"]["encoding"] == "fp8"
        assert set(checked["stored_bytes"]) == {"bf16"}
        assert not any(name.endswith(".safetensors") for name in hub.fetched)
        done = run_command("run", "org/fox", *ARGUMENTS, env=env)
        assert done.stdout == expected.stdout
        assert {"model-0.safetensors", "model-1.safetensors"} <= set(hub.fetched)


def test_scales_that_are_missing_are_named(tmp_path: Path) -> None:
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    write_models(plain, quantized)
    index = json.loads((quantized / INDEX).read_text())
    name = "model.layers.2.mlp.up_proj.weight_scale_inv"
    path = quantized / index["weight_map"].pop(name)
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    (quantized / INDEX).write_text(json.dumps(index))
    done = run_command("run", str(quantized), *ARGUMENTS)
    assert_refused(done, 1, "model.layers.2.mlp.up_proj.weight", "damaged")
    checked = run_command("check", str(quantized))
    assert checked.returncode == 1
    assert "model.layers.2.mlp.up_proj.weight" in checked.stdout
