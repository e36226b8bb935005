"""What a model's files say of its vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.models.configs import make_config

from potluck.catalog.vectors import (
    DEFAULT_EMBEDDING,
    QWEN3_RERANK_TEMPLATE,
    VectorUse,
    gguf_vector_use,
    read_vector_use,
)
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.registry import with_labels
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling

QWEN3 = make_config(family="qwen3", vocab_size=20_000, tied_head=True)
PACKAGE = "sentence_transformers.models"


def module(kind: str, path: str = "") -> dict[str, object]:
    return {"idx": 0, "name": "0", "path": path, "type": f"{PACKAGE}.{kind}"}


def directory(path: Path, modules: object, config: Mapping[str, object] | None = None) -> Path:
    (path / "modules.json").write_text(json.dumps(modules))
    if config is not None:
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return path


def test_files_that_say_nothing_embed_by_the_last_token(tmp_path: Path) -> None:
    found = read_vector_use(tmp_path, QWEN3, name="some/model")
    assert found == (QWEN3, VectorUse(embedding=DEFAULT_EMBEDDING))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Reranker-0.6B@1f", "/models/qwen3-reranker-4b"])
def test_qwen3_reranker_is_known_by_its_name(name: str, tmp_path: Path) -> None:
    config, use = read_vector_use(tmp_path, QWEN3, name=name)
    assert (config.has_logits, config.num_labels, config.tied_head) == (False, 2, True)
    assert config.label_tokens == (9693, 2152)
    assert use.embedding is None
    assert use.rerank == RerankConfig(
        pooling=Pooling.LAST, template=QWEN3_RERANK_TEMPLATE, label_texts=("yes", "no")
    )
    llama = make_config(family="llama")
    assert read_vector_use(tmp_path, llama, name=name)[1].embedding == DEFAULT_EMBEDDING


def test_a_name_tells_the_prompt_of_a_classifier(tmp_path: Path) -> None:
    classifier = with_labels(QWEN3, 1)
    config, use = read_vector_use(tmp_path, classifier, name="Qwen3-Reranker-0.6B-seq-cls")
    assert config == classifier
    assert use.rerank == RerankConfig(pooling=Pooling.LAST, template=QWEN3_RERANK_TEMPLATE)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, Pooling.LAST),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_mean_tokens": True}, Pooling.MEAN),
    ],
)
def test_poolings(config: Mapping[str, object], pooling: Pooling, tmp_path: Path) -> None:
    modules = [module("Transformer"), module("Pooling", "1_Pooling"), module("Normalize", "2")]
    _, use = read_vector_use(directory(tmp_path, modules, config), QWEN3, name="m")
    assert use.embedding == EmbeddingConfig(pooling=pooling, is_normalized=True)


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        ({}, ModelFileError),
        ([3], ModelFileError),
        ([], ModelFileError),
        ([module("Pooling")], ModelFileError),
        ([module("Transformer"), {"type": 3}], ModelFileError),
        ([module("Transformer"), module("Pooling", "../elsewhere")], ModelFileError),
        ([module("Transformer"), module("Pooling", "/etc")], ModelFileError),
        ([module("Transformer")] * 17, ModelFileError),
        ([module("Transformer"), module("Dense")], UnsupportedModelError),
        ([module("Transformer"), module("Normalize"), module("Pooling")], UnsupportedModelError),
    ],
)
def test_modules_that_make_no_sense(
    modules: object, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        read_vector_use(directory(tmp_path, modules, {"pooling_mode": "cls"}), QWEN3, name="m")


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="2 labels"):
        read_vector_use(tmp_path, with_labels(QWEN3, 2), name="m")
    with pytest.raises(UnsupportedModelError, match="labels"):
        with_labels(QWEN3, QWEN3.hidden_size + 1)
    with pytest.raises(UnsupportedModelError, match="vocabulary"):
        with_labels(QWEN3, 2, (1, 20_000))


def gguf(num_labels: int = 0, **changes: Any) -> VectorUse:
    metadata = {
        "general.architecture": "qwen3",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    config = with_labels(QWEN3, num_labels) if num_labels else QWEN3
    return gguf_vector_use(metadata, config, path="a.gguf")


def test_gguf() -> None:
    assert gguf() == gguf(qwen3__pooling_type=0) == VectorUse(embedding=DEFAULT_EMBEDDING)
    mean = EmbeddingConfig(pooling=Pooling.MEAN, is_normalized=True)
    assert gguf(qwen3__pooling_type=1).embedding == mean
    assert gguf(1, qwen3__pooling_type=4).rerank == RerankConfig(pooling=Pooling.LAST)
    labels = {"qwen3__classifier__output_labels": ["no", "yes"]}.items()
    changes = {name.replace("__", "."): value for name, value in labels}
    found = gguf(2, qwen3__pooling_type=4, **changes).rerank
    assert found == RerankConfig(pooling=Pooling.LAST, positive_label=1)


@pytest.mark.parametrize(
    ("num_labels", "changes"),
    [
        (0, {"qwen3__pooling_type": 4}),
        (0, {"qwen3__pooling_type": 5}),
        (2, {"qwen3__pooling_type": 4}),
        (2, {"qwen3.classifier.output_labels": ["a", "b"]}),
        (3, {"qwen3.classifier.output_labels": ["yes", "no", "b"]}),
    ],
)
def test_gguf_that_is_not_computed(num_labels: int, changes: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        gguf(num_labels, **changes)
    with pytest.raises(ModelFileError):
        gguf(qwen3__pooling_type="mean")
