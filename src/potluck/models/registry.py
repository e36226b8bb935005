"""The supported families, and the way from a model file to a configuration and to its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.encodings import read_encoding
from potluck.models.cohere2 import COHERE2
from potluck.models.deepseek_v2 import DEEPSEEK_V2
from potluck.models.deepseek_v3 import DEEPSEEK_V3
from potluck.models.ernie4_5 import ERNIE4_5
from potluck.models.ernie4_5_moe import ERNIE4_5_MOE
from potluck.models.exaone4 import EXAONE4
from potluck.models.falcon_h1 import FALCON_H1
from potluck.models.family import Family
from potluck.models.fields import Fields, one_line, unsupported
from potluck.models.gemma2 import GEMMA2
from potluck.models.gemma3 import GEMMA3
from potluck.models.gemma4 import GEMMA4, GEMMA4_UNIFIED
from potluck.models.glm4 import GLM4
from potluck.models.glm4_moe import GLM4_MOE
from potluck.models.glm4_moe_lite import GLM4_MOE_LITE
from potluck.models.gpt_oss import GPT_OSS
from potluck.models.granite import GRANITE
from potluck.models.granite_hybrid import GRANITE_HYBRID
from potluck.models.granite_moe import GRANITE_MOE, GRANITE_MOE_SHARED
from potluck.models.hunyuan_dense import HUNYUAN_DENSE
from potluck.models.lfm2 import LFM2
from potluck.models.lfm2_moe import LFM2_MOE
from potluck.models.llama import LLAMA
from potluck.models.mamba2 import MAMBA2
from potluck.models.minimax_m2 import MINIMAX_M2
from potluck.models.ministral3 import MINISTRAL3
from potluck.models.mistral import MISTRAL
from potluck.models.mixtral import MIXTRAL
from potluck.models.names import (
    CLASSIFIER,
    EMBEDDING,
    HEAD,
    FileKind,
    NameTable,
    stored_tensor,
    with_prefix,
)
from potluck.models.nemotron_h import NEMOTRON_H
from potluck.models.olmo2 import OLMO2, OLMO3
from potluck.models.olmoe import OLMOE
from potluck.models.phi3 import PHI3
from potluck.models.program import weight_specs
from potluck.models.qwen2 import QWEN2
from potluck.models.qwen2_moe import QWEN2_MOE
from potluck.models.qwen3 import QWEN3
from potluck.models.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from potluck.models.qwen3_moe import QWEN3_MOE
from potluck.models.qwen3_next import QWEN3_NEXT
from potluck.models.seed_oss import SEED_OSS
from potluck.models.smollm3 import SMOLLM3
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard, WeightSpec
from potluck.types.tensor import StoredTensor, TensorSource

_PREFIXES = (
    ("model.", ""),
    ("", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("backbone.", ""),
)
"""Of the tensors of a Hugging Face model, and of its head: as ``…ForCausalLM`` has them, as the
inner model alone, as models that also see have their text part, in newer and older files, and as
Mamba-2 and Nemotron-H have them."""

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GEMMA4_UNIFIED,
    PHI3,
    MINISTRAL3,
    SMOLLM3,
    GRANITE,
    GRANITE_HYBRID,
    GLM4,
    SEED_OSS,
    HUNYUAN_DENSE,
    ERNIE4_5,
    COHERE2,
    EXAONE4,
    OLMO2,
    OLMO3,
    GPT_OSS,
    GLM4_MOE,
    QWEN2_MOE,
    MIXTRAL,
    MINIMAX_M2,
    OLMOE,
    GRANITE_MOE,
    GRANITE_MOE_SHARED,
    ERNIE4_5_MOE,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE_LITE,
    LFM2,
    LFM2_MOE,
    MAMBA2,
    NEMOTRON_H,
    FALCON_H1,
)


def config_from_hugging_face(
    config: Mapping[str, object], *, path: str = "config.json"
) -> ModelConfig:
    """What ``config.json`` says, ``path`` being what errors call it.

    Raises ``UnsupportedModelError`` naming a family, or anything else that changes the arithmetic,
    which is not supported, and ``ModelFileError`` naming the key that is missing or makes no sense.
    """
    fields = Fields(values=config, path=path)
    read_encoding(config, path=path)  # which refuses what no decoder reads
    architectures = fields.texts("architectures")
    model_type = fields.text("model_type", "")
    if not architectures and not model_type:
        raise ModelFileError(path, "model_type is missing")
    for family in FAMILIES:
        wrapper = family.wrappers.get(model_type)
        if wrapper is not None and architectures in ((wrapper,), ()):
            text = _text_part(fields)
            if text.text("model_type", family.name) == family.name:
                return family.from_hugging_face(text)
        alias = family.aliases.get(model_type)
        if alias is not None and architectures in ((alias,), ()):
            return family.from_hugging_face(fields)
        if model_type not in (family.name, ""):
            continue
        if architectures in ((family.architecture,), ()):
            return family.from_hugging_face(fields)
        if architectures == (family.headless_architecture,):
            headed = family.from_hugging_face(fields)
            return dataclasses.replace(headed, has_logits=False, tied_head=False)
        if architectures == (family.classifier_architecture,):
            return _classifier(family.from_hugging_face(fields), fields)
    known = [family.architecture for family in FAMILIES]
    if not architectures:
        raise _unknown_family("type", model_type, known=known)
    aside = f" (model_type {model_type})" if model_type else ""
    raise _unknown_family("architecture", ", ".join(architectures), aside, known=known)


def _text_part(fields: Fields) -> Fields:
    """The text part of a model that also sees or hears.

    Whether the head is tied is said of the whole model; without a word it is.
    """
    text = fields.section("text_config")
    if text is None:
        raise ModelFileError(fields.path, "text_config is missing")
    is_tied = fields.flag("tie_word_embeddings", default=True)
    return dataclasses.replace(text, values={**text.values, "tie_word_embeddings": is_tied})


def config_from_gguf(
    metadata: Mapping[str, object], source: TensorSource, *, path: str
) -> ModelConfig:
    """What a GGUF file's metadata and its tensors say; ``source`` has them under the file's names.

    The tensors tell the vocabulary's size, which biases there are, whether the head is tied, and
    rope's frequency factors, which are read. Raises as ``config_from_hugging_face``.
    """
    architecture = Fields(values=metadata, path=path).text("general.architecture")
    for family in FAMILIES:
        if family.from_gguf is not None and architecture in family.gguf_architectures:
            prefix = f"{architecture}."
            values = {
                # No other value is got: it may be a whole vocabulary, which is read then.
                key.removeprefix(prefix): metadata[key]
                for key in metadata
                if key.startswith(prefix)
            }
            return family.from_gguf(Fields(values=values, path=path, prefix=prefix), source)
    known = [each for family in FAMILIES for each in family.gguf_architectures]
    raise _unknown_family("architecture", architecture, known=known)


def stored_tensors(
    config: ModelConfig, program: Program, file_kind: FileKind
) -> tuple[StoredTensor, ...]:
    """Where a file of ``file_kind`` keeps every tensor that ``program`` reads, in its order."""
    return stored_weights(config, program.weights, file_kind)


def stored_weights(
    config: ModelConfig, weights: Iterable[WeightSpec], file_kind: FileKind
) -> tuple[StoredTensor, ...]:
    """Where a file of ``file_kind`` keeps each of ``weights``, in their order."""
    specs = {weight.name: weight for weight in weights}
    table = _names(config, file_kind)
    head = _stored_name(config, EMBEDDING if config.tied_head else HEAD, file_kind)
    stored: list[StoredTensor] = []
    for weight in specs.values():
        each = stored_tensor(config, table, weight, specs)
        if weight.name == CLASSIFIER and config.label_tokens:
            rows = tuple(range(token, token + 1) for token in config.label_tokens)
            each = dataclasses.replace(each, stored_names=(head,), rows=rows)
        stored.append(each)
    return tuple(stored)


def _names(config: ModelConfig, file_kind: FileKind) -> NameTable:
    (family,) = (family for family in FAMILIES if family.name == config.family)
    return family.names[file_kind]


def _stored_name(config: ModelConfig, canonical_name: str, file_kind: FileKind) -> str:
    return with_prefix(config, _names(config, file_kind).find(canonical_name).name)


def with_stored_head(config: ModelConfig, names: Iterable[str], file_kind: FileKind) -> ModelConfig:
    """``config``, with a head of its own if the files have one, and without one if they have none,
    and with the variants of names that the files have.

    Embedding models are published as their inner model: their files have no head, whatever
    ``config.json`` says, and their tensors lack the prefix ``model.``.

    A ``config.json`` may say that the head is tied to the embedding, beside files that hold a head.
    transformers 5 ties the two only where they are equal. Using the one that is stored gives the
    same logits, whatever it holds, and is decided by the names of the tensors alone, which every
    node knows. ``names`` are the files' own.
    """
    stored = frozenset(names)
    if file_kind is FileKind.HUGGING_FACE:
        config = _with_prefixes(config, stored)
    variants = _names(config, file_kind).found_variants(config, stored)
    if variants:
        config = dataclasses.replace(config, name_variants=variants)
    has_head = _stored_name(config, HEAD, file_kind) in stored
    if config.num_labels and not config.label_tokens:
        return config
    if has_head:
        return dataclasses.replace(config, tied_head=False, has_logits=not config.num_labels)
    if config.prefix == "" and not config.tied_head and not config.label_tokens:
        return dataclasses.replace(config, has_logits=False)
    return config


def _with_prefixes(config: ModelConfig, stored: frozenset[str]) -> ModelConfig:
    """``config`` with the first prefixes under which the files have an embedding."""
    for prefix, head_prefix in _PREFIXES:
        each = dataclasses.replace(config, prefix=prefix, head_prefix=head_prefix)
        if _stored_name(each, EMBEDDING, FileKind.HUGGING_FACE) in stored:
            return each
    return config


def skipped_parts(
    config: ModelConfig, names: Iterable[str], file_kind: FileKind
) -> tuple[str, ...]:
    """What the files hold and Potluck leaves out, such as a vision tower, in a few words each."""
    stored = tuple(names)
    skipped = _names(config, file_kind).skipped_by(config)
    return tuple(what for what, is_of_it in skipped.items() if any(map(is_of_it, stored)))


def refuse_unread_tensors(config: ModelConfig, names: Iterable[str], file_kind: FileKind) -> None:
    """Raise ``UnsupportedModelError`` if a file has tensors that no program of ``config`` reads.

    Such a tensor (a bias that the configuration does not announce, say) means arithmetic that
    would be left out. ``names`` are the file's own.
    """
    read = {
        name
        for each in stored_weights(
            config, weight_specs(config, Shard.whole(config.num_layers)), file_kind
        )
        for name in each.stored_names
    }
    table = _names(config, file_kind)
    left_out: list[Callable[[str], object]] = [
        table.ignored.fullmatch,
        *table.skipped_by(config).values(),
    ]
    unread = sorted(
        name for name in names if name not in read and not any(is_it(name) for is_it in left_out)
    )
    if unread:
        more = () if len(unread) <= 3 else (f"{len(unread) - 3} more tensors",)
        raise unsupported(*(f"the tensor {name}" for name in unread[:3]), *more)


def _classifier(config: ModelConfig, fields: Fields) -> ModelConfig:
    """``config`` with the classifier of ``…ForSequenceClassification`` in the place of the head."""
    labels = fields.get("id2label")
    num_labels = (
        len(labels) if isinstance(labels, Mapping) else fields.count("num_labels", 2**16, 2)
    )
    return with_labels(config, num_labels)


def with_labels(
    config: ModelConfig, num_labels: int, label_tokens: tuple[int, ...] = ()
) -> ModelConfig:
    """``config`` with a classifier in the place of the head (see ``ModelConfig``).

    Raises ``UnsupportedModelError`` for more labels than a hidden state has numbers: vectors are
    bounded by that everywhere.
    """
    if not 1 <= num_labels <= config.hidden_size:
        raise unsupported(f"a classifier of {num_labels} labels")
    if any(token >= config.vocab_size for token in label_tokens):
        raise unsupported(f"labels {list(label_tokens)} in a vocabulary of {config.vocab_size}")
    tied_head = config.tied_head and bool(label_tokens)
    return dataclasses.replace(
        config,
        has_logits=False,
        tied_head=tied_head,
        num_labels=num_labels,
        label_tokens=label_tokens,
    )


def _unknown_family(
    kind: str, name: str, aside: str = "", *, known: Iterable[str]
) -> UnsupportedModelError:
    """``kind`` says what is named: an architecture or a type."""
    named = one_line(name + aside)
    return UnsupportedModelError(
        f"models of the {kind} {named} are not supported",
        missing=(named,),
        hint=f"supported are {', '.join(known)}",
    )
