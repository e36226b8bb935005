"""The statistics of a finished text: one line, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from potluck.quantities import format_bytes, format_count, format_seconds
from potluck.types.expert_use import NO_EXPERTS, ExpertUse
from potluck.types.sampling import default_sampling

if TYPE_CHECKING:
    from potluck.local import Generation, LoadPlan, Model, Piece, Timings
    from potluck.types.memory import MemoryPlan
    from potluck.weights.report import LoadReport


def stage_lines(plan: LoadPlan) -> Iterator[str]:
    """One line per stage: its layers and its bytes."""
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
    """How tokens are chosen: ``values`` are those of ``default_sampling`` with what was asked for.

    What is neutral is left out.
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
    """Tokens, seconds and rates on one line; loading too, unless ``load_seconds`` is None.

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


def run_document(model: Model, generation: Generation, *, load_seconds: float) -> dict[str, object]:
    """The document of ``potluck run --json`` (schema ``potluck.run/1``)."""
    result = generation.result()
    sampling = generation.sampling
    timings = result.timings
    return {
        "schema": "potluck.run/1",
        "model": model.description.files.name,
        "text": result.text,
        "finish_reason": result.finish_reason.value,
        "prompt_tokens": list(result.prompt_tokens),
        "tokens": [_token(model, piece) for piece in result.pieces],
        "sampling": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "seed": sampling.seed,
        },
        "stages": [
            {
                "start_layer": stage.shard.start_layer,
                "end_layer": stage.shard.end_layer,
                "weights_bytes": stage.memory.weights_bytes,
                "mapped_bytes": stage.memory.mapped_bytes,
                "cache_bytes": stage.memory.cache_bytes,
                "state_bytes": stage.memory.state_bytes,
                "load": load_document(report),
            }
            for stage, report in zip(model.plan.stages, model.load_reports, strict=True)
        ],
        "timings": {
            "load_seconds": load_seconds,
            "prefill_seconds": timings.prefill_seconds,
            "prefill_tokens_per_second": timings.prefill_tokens_per_second,
            "decode_seconds": timings.decode_seconds,
            "decode_tokens_per_second": timings.decode_tokens_per_second,
            "num_cached_tokens": timings.num_cached_tokens,
            "num_drafted_tokens": timings.num_drafted_tokens,
            "num_accepted_tokens": timings.num_accepted_tokens,
            "tokens_per_step": timings.tokens_per_step,
        },
        "experts": {
            "num_used": model.expert_use.num_used,
            "num_in_memory": model.expert_use.num_in_memory,
        },
    }


def load_document(report: LoadReport) -> dict[str, object]:
    """What loading one stage did."""
    return {
        "read_bytes": report.read_bytes,
        "seconds": report.seconds,
        "weights_bytes": dict(report.weights),
        "remarks": [{"tensor": each.name, "remark": each.remark} for each in report.remarks],
    }


def _token(model: Model, piece: Piece) -> dict[str, object]:
    return {
        "id": piece.token,
        "bytes": list(model.tokenizer.token_bytes(piece.token)),
        "logprob": piece.logprob,
        "top": [{"id": other.token, "logprob": other.logprob} for other in piece.top],
    }
