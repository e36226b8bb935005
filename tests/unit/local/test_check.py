"""What ``check_model`` says of models that run and of such that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.demo_copies import change_config, copied_demo
from support.formats.safetensors_bytes import safetensors_bytes, tensor_entry
from support.models.small_lfm2 import SLOT_BYTES, write_small_lfm2
from support.models.sparse_models import SparseModel
from support.schemas import validate_document

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.cli.check import check_lines
from potluck.errors import ModelNotFoundError, ParameterError
from potluck.local.check import check_model
from potluck.local.check_document import CheckDocument, Part, StateMemory
from potluck.types.choices import Quantization
from potluck.types.memory import MemoryLimit

PLENTY = MemoryLimit(bytes=2**40, reason="plenty")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return copied_demo(tmp_path / "model")


def stops(checked: CheckDocument) -> list[tuple[Part, str]]:
    return [(each.part, each.problem) for each in checked.findings if each.stops]


def check(model: Path | str, **options: Any) -> CheckDocument:
    return check_model(str(model), **{"limit": PLENTY, **options})


def test_a_model_that_runs() -> None:
    checked = check("demo")
    assert checked.runs
    assert checked.findings == ()
    assert checked.configuration is not None
    assert checked.configuration.family == "llama"
    header = (DEMO_DIRECTORY / "model.safetensors").read_bytes()
    tensors = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    stored = sum(
        each["data_offsets"][1] - each["data_offsets"][0]
        for name, each in tensors.items()
        if name != "__metadata__"
    )
    assert checked.stored_bytes == {"bf16": stored}
    assert checked.configuration.num_parameters == stored // 2
    assert checked.tokenizer_tokens == checked.configuration.vocab_size
    assert checked.has_chat_template
    assert checked.backends[0].name == "native"
    assert checked.backends[0].computes
    assert not checked.backends[0].problem
    (context,) = checked.memory
    assert context.context_tokens == 2048
    assert context.weights_bytes >= stored
    config = json.loads((DEMO_DIRECTORY / "config.json").read_text())
    layers, width = checked.configuration.num_layers, 2 * 2  # keys and values, f16
    kv_heads = config["num_key_value_heads"]
    head_dim = config["head_dim"]
    assert context.cache_bytes == layers * width * kv_heads * head_dim * 2048


def test_states_are_not_given_to_a_model_without() -> None:
    assert check("demo", default_states=12).states is None
    with pytest.raises(ParameterError, match="have no state slots"):
        check("demo", num_states=12)


def test_states_of_a_model_are_counted_in_its_memory(tmp_path: Path) -> None:
    stateful = write_small_lfm2(tmp_path / "lfm2")
    few, many = (check(stateful, num_states=each) for each in (4, 100))
    assert few.runs
    assert few.states is not None
    assert many.states is not None
    assert (few.states.slot_bytes, few.states.num_states) == (SLOT_BYTES, 4)
    memory = few.memory[0]
    assert memory.state_bytes == 4 * SLOT_BYTES
    assert many.memory[0].total_bytes - memory.total_bytes == 96 * SLOT_BYTES
    assert few.states.num_fitting == many.states.num_fitting
    limit = MemoryLimit(bytes=memory.total_bytes + SLOT_BYTES // 2, reason="as the test says")
    tight = check(stateful, num_states=4, limit=limit)
    assert tight.states is not None
    assert (tight.runs, tight.states.num_fitting) == (True, 4)
    (finding,) = [
        each for each in check(stateful, num_states=8, limit=limit).findings if each.stops
    ]
    assert "--states 4" in finding.hint


def test_what_states_take_is_told_in_text_and_in_json() -> None:
    mib = 2**20
    plain = check("demo")
    states = StateMemory(slot_bytes=50 * mib, num_states=10, num_fitting=214)
    checked = msgspec.structs.replace(plain, states=states)
    shown = [line for line in check_lines(checked) if line.startswith("states")]
    assert [line.split(None, 1)[1] for line in shown] == [
        "10 x 50 MiB, 7 of them for live sequences; 214 fit with the shortest context"
    ]
    for each in (plain, checked):
        validate_document(each)
    assert validate_document(checked)["states"] == {
        "slot_bytes": 50 * mib,
        "num_states": 10,
        "num_fitting": 214,
    }
    assert not any(line.startswith("states") for line in check_lines(plain))


def test_longer_contexts_take_more(tmp_path: Path) -> None:
    path = SparseModel(
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=500,
        max_context_tokens=40_000,
        has_tied_head=True,
        stored="BF16",
    ).write(tmp_path)
    contexts = check(path).memory
    assert [each.context_tokens for each in contexts] == [4096, 16_384, 40_000]
    totals = [each.total_bytes for each in contexts]
    assert totals == sorted(set(totals))
    limit = MemoryLimit(bytes=totals[1], reason="as the test says")
    checked = check(path, limit=limit)
    assert [each.fits for each in checked.memory] == [True, True, False]
    assert [each.context_tokens for each in check(path, context_tokens=100).memory] == [100]


def test_all_that_stands_in_the_way_is_named_at_once(model: Path) -> None:
    change_config(
        model,
        sliding_window=128,
        quantization_config={"quant_method": "bitsandbytes"},
    )
    (model / "tokenizer.json").write_text("{")
    checked = check(model)
    assert not checked.runs
    assert checked.configuration is None
    assert checked.memory == ()
    named = stops(checked)
    assert [part for part, _ in named] == [Part.CONFIGURATION, Part.CONFIGURATION, Part.TOKENIZER]
    assert "quantization_config=bitsandbytes" in named[0][1]
    assert "sliding_window=128" in named[1][1]
    assert checked.findings[0].missing == ("quantization_config=bitsandbytes",)


def test_a_family_that_is_not_known(model: Path) -> None:
    change_config(model, architectures=["MambaForCausalLM"], model_type="mamba")
    checked = check(model)
    ((part, problem),) = stops(checked)
    assert part is Part.CONFIGURATION
    assert "MambaForCausalLM" in problem
    assert checked.tokenizer_tokens == 2048, "what does not depend on the family is examined"


def test_a_broken_configuration(model: Path) -> None:
    (model / "config.json").write_text("[1]")
    part, problem = stops(check(model))[0]
    assert part is Part.CONFIGURATION
    assert "config.json" in problem


def test_tensors_that_cannot_be_read(tmp_path: Path) -> None:
    path = SparseModel(
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=500,
        max_context_tokens=256,
        has_tied_head=True,
        stored="BF16",
    ).write(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"BF16"', b'"I16" ')
    file.write_bytes(content[:8] + header + content[8 + length :])
    named = [problem for part, problem in stops(check(path)) if part is Part.TENSORS]
    assert len(named) == 4
    assert "stored as I16" in named[0]
    assert named[3] == "17 more tensors cannot be read"


def test_a_tensor_that_is_missing(model: Path) -> None:
    file = model / "model.safetensors"
    content = file.read_bytes()
    header = content[8:].replace(b"layers.3.mlp.up_proj", b"layers.3.mlp.xx_proj")
    file.write_bytes(content[:8] + header)
    ((part, problem),) = stops(check(model))
    assert part is Part.CONFIGURATION
    assert "model.layers.3.mlp.xx_proj.weight" in problem


def test_a_file_without_tensors(model: Path) -> None:
    (model / "model.safetensors").write_bytes(
        safetensors_bytes({"model.norm.weight": tensor_entry("F32", [1], 0, 4)}, b"\0" * 4)
    )
    checked = check(model)
    assert not checked.runs
    assert [part for part, _ in stops(checked)] == [Part.TENSORS]


def test_a_chat_template_is_not_needed(model: Path) -> None:
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("chat_template")
    path.write_text(json.dumps(settings))
    checked = check(model)
    assert checked.runs
    assert not checked.has_chat_template
    assert [each.part for each in checked.findings] == [Part.CHAT_TEMPLATE]
    path.write_text(json.dumps({**settings, "chat_template": "{% if %}"}))
    checked = check(model)
    assert checked.runs
    assert not checked.has_chat_template
    assert "template" in checked.findings[0].problem


def test_memory_that_lacks() -> None:
    needed = check("demo").memory[0].total_bytes
    checked = check("demo", limit=MemoryLimit(bytes=needed - 1, reason="as the test says"))
    ((part, problem),) = stops(checked)
    assert part is Part.MEMORY
    assert "as the test says" in problem
    assert checked.findings[-1].hint.endswith(
        "--quant q8_0 or --mmap would fit (--mmap: given enough disk space); "
        "--mmap is an option of potluck run"
    )
    assert check("demo", limit=MemoryLimit(bytes=needed, reason="")).runs


def test_the_quantization_that_fits_is_chosen() -> None:
    quantized = check("demo", quantization=Quantization.Q8_0).memory[0].total_bytes
    limit = MemoryLimit(bytes=quantized, reason="as the test says")
    checked = check("demo", limit=limit, quantization=None)
    assert checked.runs
    assert checked.configuration is not None
    assert checked.configuration.quantization is Quantization.Q8_0
    nothing = check("demo", limit=MemoryLimit(bytes=1, reason="nothing"), quantization=None)
    assert not nothing.runs


def test_what_is_asked_wrongly_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="2048"):
        check("demo", context_tokens=4096)
    for number in (-1, 0, 1):
        with pytest.raises(ParameterError, match=f"context is {number}, but must be an integer"):
            check("demo", context_tokens=number)
    with pytest.raises(ModelNotFoundError):
        check(tmp_path / "absent")
