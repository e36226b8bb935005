"""The supported families, and the way from a model file to a configuration and to its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.family import Family
from potluck.models.fields import Fields, one_line, unsupported
from potluck.models.llama import LLAMA
from potluck.models.mistral import MISTRAL
from potluck.models.names import (
    CLASSIFIER,
    EMBEDDING,
    HEAD,
    HUGGING_FACE_PREFIX,
    FileKind,
    is_ignored,
    stored_name,
    stored_tensor,
)
from potluck.models.program import weight_specs
from potluck.models.qwen2 import QWEN2
from potluck.models.qwen3 import QWEN3
from potluck.models.qwen3_moe import QWEN3_MOE
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard, WeightSpec
from potluck.types.tensor import StoredTensor, TensorSource

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE)


def config_from_hugging_face(
    config: Mapping[str, object], *, path: str = "config.json"
) -> ModelConfig:
    """What ``config.json`` says, ``path`` being what errors call it.

    Raises ``UnsupportedModelError`` naming a family, or anything else that changes the arithmetic,
    which is not supported, and ``ModelFileError`` naming the key that is missing or makes no sense.
    """
    fields = Fields(values=config, path=path)
    architectures = fields.texts("architectures")
    model_type = fields.text("model_type", "")
    if not architectures and not model_type:
        raise ModelFileError(path, "model_type is missing")
    for family in FAMILIES:
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


def config_from_gguf(
    metadata: Mapping[str, object], source: TensorSource, *, path: str
) -> ModelConfig:
    """What a GGUF file's metadata and its tensors say; ``source`` has them under the file's names.

    The tensors tell the vocabulary's size, which biases there are, whether the head is tied, and
    rope's frequency factors, which are read. Raises as ``config_from_hugging_face``.
    """
    architecture = Fields(values=metadata, path=path).text("general.architecture")
    for family in FAMILIES:
        if family.from_gguf is not None and family.gguf_architecture == architecture:
            prefix = f"{architecture}."
            values = {
                # No other value is got: it may be a whole vocabulary, which is read then.
                key.removeprefix(prefix): metadata[key]
                for key in metadata
                if key.startswith(prefix)
            }
            return family.from_gguf(Fields(values=values, path=path, prefix=prefix), source)
    known = (family.gguf_architecture for family in FAMILIES if family.gguf_architecture)
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
    (family,) = (family for family in FAMILIES if family.name == config.family)
    head = stored_name(EMBEDDING if config.tied_head else HEAD, file_kind)
    interleaved: dict[str, int] = {}
    if file_kind is FileKind.GGUF and family.gguf_interleaves_heads:
        interleaved = {"q": config.num_heads, "k": config.num_kv_heads}
    stored: list[StoredTensor] = []
    for weight in weights:
        each = stored_tensor(weight, file_kind)
        if weight.name == CLASSIFIER and config.label_tokens:
            each = dataclasses.replace(each, stored_names=(head,), rows=config.label_tokens)
        if config.has_bare_names:
            names = tuple(name.removeprefix(HUGGING_FACE_PREFIX) for name in each.stored_names)
            each = dataclasses.replace(each, stored_names=names)
        # "layers.0.attn.q.weight" and its bias: the last name but one.
        heads = interleaved.get(weight.name.split(".")[-2])
        stored.append(dataclasses.replace(each, interleaved_heads=heads))
    return tuple(stored)


def with_stored_head(config: ModelConfig, names: Iterable[str], file_kind: FileKind) -> ModelConfig:
    """``config``, with a head of its own if the files have one, and without one if they have none.

    Embedding models are published as their inner model: their files have no head, whatever
    ``config.json`` says, and their tensors lack the prefix ``model.``.

    A ``config.json`` may say that the head is tied to the embedding, beside files that hold a head.
    transformers 5 ties the two only where they are equal. Using the one that is stored gives the
    same logits, whatever it holds, and is decided by the names of the tensors alone, which every
    node knows. ``names`` are the files' own.
    """
    stored = frozenset(names)
    has_head = stored_name(HEAD, file_kind) in stored
    if file_kind is FileKind.HUGGING_FACE:
        prefixed = stored_name(EMBEDDING, file_kind)
        bare = prefixed.removeprefix(HUGGING_FACE_PREFIX)
        if bare in stored and prefixed not in stored:
            config = dataclasses.replace(config, has_bare_names=True)
    if config.num_labels and not config.label_tokens:
        return config
    if has_head:
        return dataclasses.replace(config, tied_head=False, has_logits=not config.num_labels)
    if config.has_bare_names and not config.tied_head and not config.label_tokens:
        return dataclasses.replace(config, has_logits=False)
    return config


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
    unread = sorted(name for name in names if name not in read and not is_ignored(name, file_kind))
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
