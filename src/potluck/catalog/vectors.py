"""Read from a model's files how its vectors are used: as embeddings, or as scores of documents.

In directories in Hugging Face layout, ``modules.json`` lists the modules after the transformer, in
the format of sentence-transformers. GGUF files have ``pooling_type`` in their metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.catalog.file_names import MODULES
from potluck.errors import ModelFileError
from potluck.formats.json_reader import read_document, read_json
from potluck.models.fields import MAX_VOCAB, Fields, unsupported
from potluck.models.registry import with_labels
from potluck.types.model import EmbeddingConfig, ModelConfig, RerankConfig
from potluck.types.step import Pooling

_MAX_JSON_BYTES = 2**16
_MAX_MODULES = 16

_POOLINGS: Mapping[str, Pooling] = {
    "cls": Pooling.CLS,
    "mean": Pooling.MEAN,
    "lasttoken": Pooling.LAST,
}
"""Poolings by their names in ``pooling_mode``."""

_POOLING_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Poolings by their names in older files."""

_GGUF_NONE, _GGUF_RANK = 0, 4
_GGUF_POOLINGS: Mapping[int, Pooling] = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
"""``LLAMA_POOLING_TYPE_*`` of llama.cpp's ``llama.h``."""

_QWEN3_RERANKER = re.compile(r"qwen3-reranker", re.IGNORECASE)
_QWEN3_LABELS = ("yes", "no")
_QWEN3_LABEL_TOKENS = (9693, 2152)
"""The model card of Qwen3-Reranker compares the logits of ``yes`` and ``no``, which have these ids
in the vocabulary of Qwen 3. They are checked where the tokenizer is loaded (``label_texts``)."""

QWEN3_RERANK_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt in that model card; it is not in the model's files."""

DEFAULT_EMBEDDING = EmbeddingConfig(pooling=Pooling.LAST, is_normalized=True)
"""The default for models whose files specify none: the last token has attended to all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorUse:
    """The use of a model's vectors; exactly one of the two fields is set."""

    embedding: EmbeddingConfig | None = None
    rerank: RerankConfig | None = None


def read_vector_use(
    directory: Path, config: ModelConfig, *, name: str
) -> tuple[ModelConfig, VectorUse]:
    """Return a directory's use of vectors, and ``config`` with the classifier for scores, if any.

    ``name`` is the user's name for the model: only the name distinguishes a Qwen3-Reranker, as
    originally published, from a chat model. Raise ``UnsupportedModelError`` for unsupported
    modules, and ``ModelFileError``.
    """
    modules = _read_modules(directory)
    if scoring := modules.get("LogitScore"):
        labels = _label_tokens(scoring / "config.json")
        return (
            with_labels(config, len(labels), labels),
            VectorUse(rerank=RerankConfig(pooling=Pooling.LAST)),
        )
    is_reranker = _QWEN3_RERANKER.search(name) is not None and config.family == "qwen3"
    template = QWEN3_RERANK_TEMPLATE if is_reranker else None
    if config.num_labels:
        if config.num_labels > 1:
            raise unsupported(f"a classifier of {config.num_labels} labels")
        return config, VectorUse(rerank=RerankConfig(pooling=Pooling.LAST, template=template))
    if is_reranker:
        rerank = RerankConfig(pooling=Pooling.LAST, template=template, label_texts=_QWEN3_LABELS)
        return with_labels(config, 2, _QWEN3_LABEL_TOKENS), VectorUse(rerank=rerank)
    if pooling := modules.get("Pooling"):
        embedding = EmbeddingConfig(
            pooling=_read_pooling(pooling / "config.json"),
            is_normalized="Normalize" in modules,
        )
        return config, VectorUse(embedding=embedding)
    return config, VectorUse(embedding=DEFAULT_EMBEDDING)


def gguf_vector_use(metadata: Mapping[str, object], config: ModelConfig, *, path: str) -> VectorUse:
    """Return a GGUF file's use of vectors. Embeddings are normalized, as in llama.cpp's server.

    Raise ``UnsupportedModelError`` for an unknown pooling or unknown labels, and
    ``ModelFileError``.
    """
    architecture = metadata.get("general.architecture")
    fields = Fields(values=metadata, path=path)
    kind = fields.count(f"{architecture}.pooling_type", 2**16, _GGUF_NONE, minimum=0)
    if config.num_labels or kind == _GGUF_RANK:
        template = metadata.get("tokenizer.chat_template.rerank")
        if template is not None and not isinstance(template, str):
            raise fields.error("tokenizer.chat_template.rerank", "must be a string")
        if not config.num_labels:
            raise unsupported("pooling_type=4 without a classifier")
        return VectorUse(
            rerank=RerankConfig(
                pooling=Pooling.LAST,
                positive_label=_positive_label(
                    metadata.get(f"{architecture}.classifier.output_labels"), config.num_labels
                ),
                template=template,
            )
        )
    if kind == _GGUF_NONE:
        return VectorUse(embedding=DEFAULT_EMBEDDING)
    if kind not in _GGUF_POOLINGS:
        raise unsupported(f"pooling_type={kind}")
    return VectorUse(embedding=EmbeddingConfig(pooling=_GGUF_POOLINGS[kind], is_normalized=True))


def _positive_label(labels: object, num_labels: int) -> int:
    if num_labels == 1:
        return 0
    if isinstance(labels, Iterable) and not isinstance(labels, str):
        names = [str(label).lower() for label in labels]
        if len(names) == num_labels == 2 and "yes" in names:
            return names.index("yes")
    raise unsupported(f"a classifier of {num_labels} labels")


def _read_modules(directory: Path) -> dict[str, Path]:
    """Return the directories of the modules after the first one, the transformer, by kind."""
    path = directory / MODULES
    if not path.is_file():
        return {}
    listed = read_json(path, _MAX_JSON_BYTES)
    if not isinstance(listed, list) or len(listed) > _MAX_MODULES:
        raise ModelFileError(str(path), f"not a list of at most {_MAX_MODULES} modules")
    modules = [_read_module(path, entry) for entry in listed]
    if not modules or modules[0][0] != "Transformer":
        raise ModelFileError(str(path), "its first module must be a Transformer")
    order = tuple(kind for kind, _ in modules[1:])
    if order not in ((), ("Pooling",), ("Pooling", "Normalize"), ("LogitScore",)):
        raise unsupported(f"the modules {', '.join(order)}")
    return dict(modules[1:])


def _read_module(path: Path, entry: object) -> tuple[str, Path]:
    if not isinstance(entry, Mapping):
        raise ModelFileError(str(path), "an entry is not an object")
    fields = Fields(values=entry, path=str(path))
    where = PurePosixPath(fields.text("path", ""))
    if where.is_absolute() or ".." in where.parts:
        raise fields.error("path", "must be within the model's directory")
    return fields.text("type").rpartition(".")[2], path.parent / where


def _label_tokens(path: Path) -> tuple[int, ...]:
    fields = Fields(values=read_document(path, _MAX_JSON_BYTES), path=str(path))
    if fields.text("module_input_name", "causal_logits") != "causal_logits":
        raise unsupported(f"module_input_name={fields.get('module_input_name')}")
    labels = [fields.count("true_token_id", MAX_VOCAB, minimum=0)]
    if fields.get("false_token_id") is not None:
        labels.append(fields.count("false_token_id", MAX_VOCAB, minimum=0))
    return tuple(labels)


def _read_pooling(path: Path) -> Pooling:
    fields = Fields(values=read_document(path, _MAX_JSON_BYTES), path=str(path))
    modes = [mode for key, mode in _POOLING_FLAGS.items() if fields.get(key) is True]
    if fields.get("pooling_mode") is not None:
        modes = [fields.text("pooling_mode")]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise unsupported(f"pooling by {' and '.join(modes) or 'nothing'}")
    return _POOLINGS[modes[0]]
