"""Embeddings and scores of documents are those of transformers.

Models are made in the layouts in which embedding models and rerankers are published.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from support.models.gguf_models import write_gguf_model
from support.models.random_models import RandomModel, make_random_model

from potluck import Model
from potluck.catalog import describe_model
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.errors import ParameterError, UnsupportedModelError
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling
from potluck.types.tensor import TensorFormat

VOCAB_SIZE = json.loads((DEMO_DIRECTORY / "config.json").read_text())["vocab_size"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TOLERANCE = 5e-3
"""Of vectors whose numbers are about 1: keys and values are kept in float16."""

TEMPLATE = (
    '{{ (messages | selectattr("role", "eq", "query") | first).content }} ? '
    '{{ (messages | selectattr("role", "eq", "document") | first).content }}'
)
DOCUMENTS = ("The fox is red.", "A kitten", "Once upon a time there was a mouse who lived alone.")

Floats = NDArray[np.float32]


def prompts(lengths: Sequence[int] = (1, 17, 40)) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [[int(token) for token in rng.integers(0, VOCAB_SIZE, length)] for length in lengths]


def make(family: str, directory: Path, **settings: object) -> RandomModel:
    model = make_random_model(
        family,
        {"vocab_size": VOCAB_SIZE, "tie_word_embeddings": True, "head_dim": 32, **settings},
        directory,
    )
    for name in TOKENIZER_FILES:
        shutil.copy(DEMO_DIRECTORY / name, directory)
    return model


def with_modules(
    directory: Path,
    *kinds: str,
    config: Mapping[str, object],
    package: str = "sentence_transformers.models",
) -> None:
    """``modules.json`` as sentence-transformers writes it, and the config of the second module."""
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"{package}.{kind}",
        }
        for index, kind in enumerate(("Transformer", *kinds))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    second = directory / f"1_{kinds[0]}"
    second.mkdir()
    (second / "config.json").write_text(json.dumps(config))


def hidden_states(directory: Path, tokens: Sequence[int]) -> Floats:
    """``[len(tokens), hidden]`` after the last norm, by transformers."""
    import torch
    from transformers import AutoModel

    inner = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        output = inner(torch.tensor([list(tokens)]))
    states: Floats = output.last_hidden_state[0].numpy()
    return states


def expected(states: Floats, pooling: Pooling, *, is_normalized: bool) -> Floats:
    vector = {
        Pooling.LAST: states[-1],
        Pooling.CLS: states[0],
        Pooling.MEAN: states.mean(axis=0, dtype=np.float64),
    }[pooling]
    if is_normalized:
        vector = vector / np.linalg.norm(vector)
    return np.asarray(vector, np.float32)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("pooling", "config"),
    [
        (Pooling.LAST, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}),
        (Pooling.MEAN, {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 96}),
        (Pooling.CLS, {"pooling_mode": "cls"}),
    ],
)
@pytest.mark.parametrize("is_normalized", [False, True])
def test_embeddings(
    family: str,
    pooling: Pooling,
    config: Mapping[str, object],
    is_normalized: bool,
    tmp_path: Path,
) -> None:
    make(family, tmp_path)
    modules = ("Pooling", "Normalize") if is_normalized else ("Pooling",)
    with_modules(tmp_path, *modules, config=config)
    inputs = prompts()
    with Model.open(str(tmp_path), stages=2, num_threads=1) as model:
        actual = model.embed(inputs)
        short = model.embed(inputs, dimensions=24).vectors
    assert actual.num_tokens == sum(map(len, inputs))
    for vector, cut, tokens in zip(actual.vectors, short, inputs, strict=True):
        states = hidden_states(tmp_path, tokens)
        wanted = expected(states, pooling, is_normalized=is_normalized)
        np.testing.assert_allclose(vector, wanted, atol=TOLERANCE)
        of_cut = wanted[:24] / (np.linalg.norm(wanted[:24]) if is_normalized else 1)
        np.testing.assert_allclose(cut, of_cut, atol=TOLERANCE)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_files_of_the_inner_model(architecture: str, is_tied: bool, tmp_path: Path) -> None:
    """As Qwen3-Embedding is published: no head, and names without ``model.``."""
    made = make("qwen3", tmp_path, tie_word_embeddings=is_tied)
    weights = tmp_path / "model.safetensors"
    state = {
        name.removeprefix("model."): values
        for name, values in load_file(weights).items()
        if name != "lm_head.weight"
    }
    save_file(state, weights, metadata={"format": "pt"})
    config = {**made.config, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tokens,) = prompts([30])
    has_logits = is_tied and architecture == "Qwen3ForCausalLM"
    with Model.open(str(tmp_path), num_threads=1) as model:
        (vector,) = model.embed([tokens]).vectors
        if has_logits:
            model.generate(tokens, max_tokens=1).result()
        else:
            with pytest.raises(ParameterError, match="cannot generate text"):
                model.generate(tokens)
            with pytest.raises(ParameterError, match="cannot generate text"):
                model.score(tokens)
    states = hidden_states(tmp_path, tokens)
    wanted = expected(states, Pooling.LAST, is_normalized=True)
    np.testing.assert_allclose(vector, wanted, atol=TOLERANCE)


def scores_of(model: Model) -> list[float]:
    ranked = model.rerank("Who is red?", DOCUMENTS)
    assert [each.score for each in ranked] == sorted((r.score for r in ranked), reverse=True)
    by_index = {each.index: each.score for each in ranked}
    return [by_index[index] for index in range(len(DOCUMENTS))]


def pairs(model: Model) -> list[list[int]]:
    return [model.tokenizer.encode(f"Who is red? ? {text}", add_bos=False) for text in DOCUMENTS]


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_classifier_scores(family: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    made = make(family, tmp_path)
    config = made.torch_model.config
    config.num_labels, config.pad_token_id = 1, 0
    classifier = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    classifier.model.load_state_dict(made.torch_model.model.state_dict())
    head = classifier.score.weight
    with torch.no_grad():
        head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(1)))
    classifier.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    with Model.open(str(tmp_path), stages=2, num_threads=1) as model:
        actual, tokens = scores_of(model), pairs(model)
        with pytest.raises(ParameterError, match="does not support embeddings"):
            model.embed(["a"])
    for score, prompt in zip(actual, tokens, strict=True):
        with torch.no_grad():
            logit = float(classifier(torch.tensor([prompt])).logits[0, 0])
        assert score == pytest.approx(logistic(logit), abs=TOLERANCE)
    assert len({round(score, 3) for score in actual}) == len(actual)


def last_logits(made: RandomModel, tokens: Sequence[int]) -> Any:
    import torch

    with torch.no_grad():
        return made.torch_model(torch.tensor([list(tokens)])).logits[0, -1]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("false_token", [9, None])
def test_a_generative_reranker_scores_by_two_logits(
    is_tied: bool, false_token: int | None, tmp_path: Path
) -> None:
    made = make("qwen3", tmp_path, tie_word_embeddings=is_tied)
    with_modules(
        tmp_path,
        "LogitScore",
        package="sentence_transformers.cross_encoder.modules.logit_score",
        config={"true_token_id": 70, "false_token_id": false_token},
    )
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    with Model.open(str(tmp_path), stages=2, num_threads=1) as model:
        actual, tokens = scores_of(model), pairs(model)
    for score, prompt in zip(actual, tokens, strict=True):
        logits = last_logits(made, prompt)
        logit = float(logits[70] - (0 if false_token is None else logits[false_token]))
        assert score == pytest.approx(logistic(logit), abs=TOLERANCE)


def gguf_tokenizer() -> dict[str, Any]:
    from support.models.text_models import byte_level_metadata
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO_DIRECTORY / "tokenizer.json"))
    metadata = byte_level_metadata(tokenizer, "qwen2", [])
    ends = {f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos")}
    return {**metadata, **ends}


@pytest.mark.parametrize(
    ("number", "pooling"), [(1, Pooling.MEAN), (2, Pooling.CLS), (3, Pooling.LAST)]
)
def test_gguf_embeddings(number: int, pooling: Pooling, tmp_path: Path) -> None:
    made = make("qwen3", tmp_path)
    path = tmp_path / "model.gguf"
    metadata = {**gguf_tokenizer(), "qwen3.pooling_type": number}
    write_gguf_model(path, made, metadata, formats=TensorFormat.F32)
    config = describe_model(str(path)).vectors
    assert config.embedding == EmbeddingConfig(pooling=pooling, is_normalized=True)
    (tokens,) = prompts([30])
    with Model.open(str(path), num_threads=1) as model:
        (vector,) = model.embed([tokens]).vectors
    wanted = expected(hidden_states(tmp_path, tokens), pooling, is_normalized=True)
    np.testing.assert_allclose(vector, wanted, atol=TOLERANCE)


def test_a_gguf_reranker_scores_by_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llama.cpp's converter writes Qwen3-Reranker: rows of the head are a classifier."""
    made = make("qwen3", tmp_path)
    classifier = made.state["model.embed_tokens.weight"][[9, 70]]
    path = tmp_path / "model.gguf"
    metadata = {
        **gguf_tokenizer(),
        "qwen3.pooling_type": 4,
        "qwen3.classifier.output_labels": ["no", "yes"],
        "tokenizer.chat_template.rerank": "{query} ? {document}",
    }
    add_tensor = gguf.GGUFWriter.add_tensor
    has_classifier: list[str] = []

    def add(writer: gguf.GGUFWriter, name: str, *args: Any, **options: Any) -> None:
        add_tensor(writer, name, *args, **options)
        if not has_classifier:
            has_classifier.append(name)
            add_tensor(writer, "cls.output.weight", np.ascontiguousarray(classifier))

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add)
    write_gguf_model(path, made, metadata, formats=TensorFormat.F32)
    description = describe_model(str(path))
    assert description.vectors.rerank == RerankConfig(
        pooling=Pooling.LAST, positive_label=1, template="{query} ? {document}"
    )
    with Model.open(str(path), num_threads=1) as model:
        actual, tokens = scores_of(model), pairs(model)
    for score, prompt in zip(actual, tokens, strict=True):
        logits = last_logits(made, prompt)
        assert score == pytest.approx(logistic(float(logits[70] - logits[9])), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("modules", "config"),
    [
        (("Pooling", "Dense"), {"pooling_mode_mean_tokens": True}),
        (("Pooling",), {"pooling_mode_max_tokens": True}),
        (("Pooling",), {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}),
        (("LogitScore",), {"true_token_id": 0, "module_input_name": "scores"}),
    ],
)
def test_what_is_not_computed_is_refused(
    modules: tuple[str, ...], config: Mapping[str, object], tmp_path: Path
) -> None:
    make("qwen3", tmp_path)
    with_modules(tmp_path, *modules, config=config)
    with pytest.raises(UnsupportedModelError):
        describe_model(str(tmp_path))
