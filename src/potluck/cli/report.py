"""The statistics of a finished text: one line, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from potluck.types.document import Amount, Count, Document, document_of
from potluck.types.engine import NO_EXPERTS, ExpertUse
from potluck.types.quantities import format_bytes, format_count, format_seconds
from potluck.types.sampling import default_sampling
from potluck.types.sequence import FinishReason

if TYPE_CHECKING:
    from potluck.local import Generation, LoadPlan, Model, Timings
    from potluck.types.memory import MemoryPlan


def stage_lines(plan: LoadPlan) -> Iterator[str]:
    """Yield a line per stage: its layers and its bytes."""
    for index, stage in enumerate(plan.stages):
        shard = stage.shard
        parts = [f"layers [{shard.start_layer}, {shard.end_layer})"]
        if shard.has_embedding:
            parts.insert(0, "embedding")
        if shard.has_head:
            parts.append("head")
        yield (
            f"stage {index}: {' + '.join(parts)}, "
            f"{_weights(stage.memory)}, "
            f"cache {format_bytes(stage.memory.cache_bytes)}{_states(stage.memory)}"
        )


def _states(memory: MemoryPlan) -> str:
    return f", states {format_bytes(memory.state_bytes)}" if memory.state_bytes else ""


def _weights(memory: MemoryPlan) -> str:
    if memory.mapped_bytes:
        return f"mapped weights {format_bytes(memory.mapped_bytes)}"
    return f"weights {format_bytes(memory.weights_bytes)}"


def sampling_line(values: Mapping[str, object]) -> str:
    """Describe how tokens are chosen: ``values`` are ``default_sampling`` with the requested ones.

    Neutral values are left out.
    """
    if values["temperature"] == 0:
        return "sampling: greedy (temperature 0)"
    neutral = default_sampling({})
    parts = [
        f"{name.replace('_', '-')} {value}"
        for name, value in values.items()
        if name == "temperature" or (name in neutral and value != neutral[name])
    ]
    return f"sampling: {', '.join(parts)}"


def figures_line(
    timings: Timings, *, load_seconds: float | None, experts: ExpertUse = NO_EXPERTS
) -> str:
    """Return tokens, seconds and rates on one line, and loading unless ``load_seconds`` is None.

    Rates count no tokens that were in the cache.

    The first new token comes out of prefill: decode has a time and a rate from the second on.
    """
    parts = [] if load_seconds is None else [f"load {format_seconds(load_seconds)}"]
    cached = f", {timings.num_cached_tokens} cached," if timings.num_cached_tokens else ""
    parts.append(
        f"prefill {format_count(timings.num_prompt_tokens, 'token')}{cached} in "
        f"{format_seconds(timings.prefill_seconds)} "
        f"({timings.prefill_tokens_per_second:.1f} tokens/s)"
    )
    parts.append(f"decode {format_count(timings.num_new_tokens, 'token')}")
    if timings.decode_tokens_per_second is not None:
        parts[-1] += (
            f" in {format_seconds(timings.decode_seconds)} "
            f"({timings.decode_tokens_per_second:.1f} tokens/s)"
        )
    if timings.num_drafted_tokens:
        parts.append(
            f"drafted {format_count(timings.num_drafted_tokens, 'token')}, "
            f"{timings.num_accepted_tokens} of them right "
            f"({timings.tokens_per_step or 1:.2f} tokens per step)"
        )
    if experts.num_used:
        share = experts.num_in_memory / experts.num_used
        parts.append(f"{share:.1%} of the experts used were in memory")
    return "; ".join(parts)


class TokenProbability(Document, frozen=True, kw_only=True):
    """A token and its probability."""

    id: Count
    logprob: Annotated[float, msgspec.Meta(le=0)]
    """Natural logarithm of the probability."""


class GeneratedToken(TokenProbability, frozen=True, kw_only=True):
    """A new token."""

    bytes: tuple[Annotated[int, msgspec.Meta(ge=0, le=255)], ...]
    """The token's text in UTF-8; possibly only a part of a character."""
    top: tuple[TokenProbability, ...]
    """The most probable tokens; ``--top-logprobs`` is their number."""


class SamplingDocument(Document, frozen=True, kw_only=True):
    """How tokens were chosen."""

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    """The value for ``--seed`` that results in the same text again."""


class Remark(Document, frozen=True, kw_only=True):
    """A tensor that was not loaded in the requested format, and why."""

    tensor: str
    remark: str


class LoadDocument(Document, frozen=True, kw_only=True):
    """The result of loading a stage."""

    read_bytes: Count
    """Bytes read from the model's files."""
    seconds: Amount
    weights_bytes: Mapping[str, Count]
    """Planned bytes of weights by format."""
    remarks: tuple[Remark, ...]


class LoadedStageDocument(Document, frozen=True, kw_only=True):
    """A stage: the layers from ``start_layer`` to the one before ``end_layer``."""

    start_layer: Count
    end_layer: Count
    weights_bytes: Count
    """Weights in memory, without mapped ones."""
    mapped_bytes: Count
    cache_bytes: Count
    state_bytes: Count
    """Size of all state slots; 0 for a model without state."""
    load: LoadDocument


class TimingsDocument(Document, frozen=True, kw_only=True):
    """Times of loading, of prefill up to the first new token, and of decode after it."""

    load_seconds: Amount
    prefill_seconds: Amount
    prefill_tokens_per_second: Amount
    """Rate of prefill without cached tokens."""
    decode_seconds: Amount
    decode_tokens_per_second: Amount | None
    """Rate of decode; null for fewer than two new tokens."""
    num_cached_tokens: Count
    """Tokens of the prompt that were in the cache and not computed."""
    num_drafted_tokens: Count
    """Drafts; a step verifies several of them."""
    num_accepted_tokens: Count
    """Drafts that were right."""
    tokens_per_step: Annotated[float, msgspec.Meta(ge=1)] | None
    """New tokens after the first per step of decode; null for fewer than two."""


class RunDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck run --json``."""

    schema: Literal["potluck.run/1"] = "potluck.run/1"
    model: str
    """MODEL as given."""
    text: str
    """The new text, without the stop string."""
    finish_reason: FinishReason
    prompt_tokens: tuple[Count, ...]
    tokens: tuple[GeneratedToken, ...]
    """The new tokens."""
    sampling: SamplingDocument
    stages: Annotated[tuple[LoadedStageDocument, ...], msgspec.Meta(min_length=1)]
    timings: TimingsDocument
    experts: ExpertUse


def run_document(model: Model, generation: Generation, *, load_seconds: float) -> RunDocument:
    """Return the document of ``potluck run --json``."""
    result = generation.result()
    return document_of(
        RunDocument,
        result,
        model=model.description.files.name,
        tokens=tuple(
            document_of(
                GeneratedToken,
                piece,
                id=piece.token,
                bytes=tuple(model.tokenizer.token_bytes(piece.token)),
                top=tuple(document_of(TokenProbability, each, id=each.token) for each in piece.top),
            )
            for piece in result.pieces
        ),
        sampling=document_of(SamplingDocument, generation.sampling),
        stages=tuple(
            document_of(
                LoadedStageDocument,
                stage.memory,
                start_layer=stage.shard.start_layer,
                end_layer=stage.shard.end_layer,
                load=load,
            )
            for stage, load in zip(model.plan.stages, load_documents(model), strict=True)
        ),
        timings=document_of(TimingsDocument, result.timings, load_seconds=load_seconds),
        experts=model.expert_use,
    )


def load_documents(model: Model) -> tuple[LoadDocument, ...]:
    """Return the results of loading each stage."""
    return tuple(
        document_of(
            LoadDocument,
            report,
            weights_bytes=dict(report.weights),
            remarks=tuple(Remark(tensor=each.name, remark=each.remark) for each in report.remarks),
        )
        for report in model.load_reports
    )
