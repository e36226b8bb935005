"""The conversion of model files to configurations and tensors, by the family that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.encodings import read_encoding
from potluck.models.family import all_families, families_named, family_of
from potluck.models.fields import Fields, one_line, unsupported
from potluck.models.names import (
    CLASSIFIER,
    EMBEDDING,
    HEAD,
    FileKind,
    NameTable,
    stored_tensor,
    with_prefix,
)
from potluck.models.program import weight_specs, whole_spec
from potluck.types.model import ModelConfig
from potluck.types.program import Shard, WeightSpec
from potluck.types.tensor import StoredTensor, TensorSource

_PREFIXES = (
    ("model.", ""),
    ("", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("backbone.", ""),
)
"""Prefixes of the tensors of a Hugging Face model, and of its head: as in ``…ForCausalLM``, as the
inner model alone, as the text part of multimodal models in newer and older files, and as in Mamba-2
and Nemotron-H."""


def config_from_hugging_face(
    config: Mapping[str, object], *, path: str = "config.json"
) -> ModelConfig:
    """Return the configuration in ``config.json``; ``path`` is for errors.

    Raises ``UnsupportedModelError`` naming an unsupported family or any other unsupported feature
    that changes the arithmetic, and ``ModelFileError`` naming a key that is missing or invalid.
    """
    fields = Fields(values=config, path=path)
    read_encoding(config, path=path)  # rejected because no decoder reads it
    architectures = fields.texts("architectures")
    model_type = fields.text("model_type", "")
    if not architectures and not model_type:
        raise ModelFileError(path, "model_type is missing")
    # A configuration without a type is of any family.
    for family in families_named(model_type) if model_type else all_families():
        fields = dataclasses.replace(fields, family=family.name)
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
    known = [family.architecture for family in all_families()]
    if not architectures:
        raise _unknown_family("type", model_type, known=known)
    aside = f" (model_type {model_type})" if model_type else ""
    raise _unknown_family("architecture", ", ".join(architectures), aside, known=known)


def _text_part(fields: Fields) -> Fields:
    """Return the text part of a multimodal model.

    Whether the head is tied is set for the whole model; it is tied by default.
    """
    text = fields.section("text_config")
    if text is None:
        raise ModelFileError(fields.path, "text_config is missing")
    is_tied = fields.flag("tie_word_embeddings", default=True)
    return text.changed({"tie_word_embeddings": is_tied})


def config_from_gguf(
    metadata: Mapping[str, object], source: TensorSource, *, path: str
) -> ModelConfig:
    """Return the configuration in a GGUF file; ``source`` has the tensors under the file's names.

    The tensors determine the vocabulary's size, which biases exist, whether the head is tied, and
    rope's frequency factors, which are read. Raises as ``config_from_hugging_face``.
    """
    architecture = Fields(values=metadata, path=path).text("general.architecture")
    for family in families_named(architecture):
        if family.from_gguf is not None and architecture in family.gguf_architectures:
            prefix = f"{architecture}."
            values = {
                # No other value is accessed, because reading it could load a whole vocabulary.
                key.removeprefix(prefix): metadata[key]
                for key in metadata
                if key.startswith(prefix)
            }
            fields = Fields(values=values, path=path, prefix=prefix, family=family.name)
            return family.from_gguf(fields, source)
    known = [each for family in all_families() for each in family.gguf_architectures]
    raise _unknown_family("architecture", architecture, known=known)


def stored_weights(
    config: ModelConfig, weights: Iterable[WeightSpec], file_kind: FileKind
) -> tuple[StoredTensor, ...]:
    """Return where a file of ``file_kind`` stores each of ``weights``, in their order.

    For a weight that is some rows of a tensor, this is the location of the whole tensor.
    """
    specs = {weight.name: whole_spec(weight) for weight in weights}
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
    return family_of(config.family).name_table(file_kind)


def _stored_name(config: ModelConfig, canonical_name: str, file_kind: FileKind) -> str:
    return with_prefix(config, _names(config, file_kind).find(canonical_name).name)


def with_stored_head(config: ModelConfig, names: Iterable[str], file_kind: FileKind) -> ModelConfig:
    """Return ``config`` with a separate head if the files have one, without one if they have none,
    and with the variants of names that the files use.

    Embedding models are published as their inner model: their files have no head, whatever
    ``config.json`` says, and their tensors lack the prefix ``model.``.

    A ``config.json`` may say that the head is tied to the embedding although the files contain a
    head. transformers 5 ties the two only if they are equal. Using the stored one gives the same
    logits in any case, and only depends on the names of the tensors, which every node knows.
    ``names`` are the files' own.
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
    """Return ``config`` with the first prefixes under which the files have an embedding."""
    for prefix, head_prefix in _PREFIXES:
        each = dataclasses.replace(config, prefix=prefix, head_prefix=head_prefix)
        if _stored_name(each, EMBEDDING, FileKind.HUGGING_FACE) in stored:
            return each
    return config


def skipped_parts(
    config: ModelConfig, names: Iterable[str], file_kind: FileKind
) -> tuple[str, ...]:
    """Return short descriptions of the parts of the files that Potluck skips, such as a vision
    tower.
    """
    stored = tuple(names)
    skipped = _names(config, file_kind).skipped_by(config)
    return tuple(what for what, is_of_it in skipped.items() if any(map(is_of_it, stored)))


def refuse_unread_tensors(config: ModelConfig, names: Iterable[str], file_kind: FileKind) -> None:
    """Raise ``UnsupportedModelError`` if no program of ``config`` reads some of a file's tensors.

    Such a tensor (for example a bias that is not in the configuration) means that some arithmetic
    would be skipped. ``names`` are the file's own.
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
    """Return ``config`` with the classifier of ``…ForSequenceClassification`` as its head."""
    labels = fields.get("id2label")
    num_labels = (
        len(labels) if isinstance(labels, Mapping) else fields.count("num_labels", 2**16, 2)
    )
    return with_labels(config, num_labels)


def with_labels(
    config: ModelConfig, num_labels: int, label_tokens: tuple[int, ...] = ()
) -> ModelConfig:
    """Return ``config`` with a classifier in place of the head (see ``ModelConfig``).

    Raises ``UnsupportedModelError`` if there are more labels than elements in a hidden state, which
    is the limit for vectors everywhere.
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
    """Return the error for an unknown family; ``kind`` is what was named: an architecture or a
    type.
    """
    named = one_line(name + aside)
    return UnsupportedModelError(
        f"models of the {kind} {named} are not supported",
        missing=(named,),
        hint=f"supported: {', '.join(known)}",
    )
