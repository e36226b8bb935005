"""Makes the first record of a deployment from the user's request, validated against the model."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from potluck.catalog import ModelDescription, looks_like_path
from potluck.catalog.small_models import check_small
from potluck.errors import ParameterError
from potluck.models.names import FileKind
from potluck.models.states import num_states_of
from potluck.placement.layout import check_layout
from potluck.placement.planned import size_of
from potluck.scheduling.limits import DEFAULT_CONTEXT_TOKENS
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import OFF, ArithmeticChoice, Objective, Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import (
    Deploy,
    DeploymentRecord,
    DeploymentState,
    DeploymentStatus,
    DraftRecord,
    ModelFacts,
    ModelFingerprint,
    PlanRecord,
)
from potluck.types.deployment_spec import require_in_range
from potluck.types.model import ModelConfig
from potluck.types.placement import wanted_streams
from potluck.types.profile import ModelProfile
from potluck.types.ranges import DEFAULT_CACHE_CONTEXTS
from potluck.types.states import states_for
from potluck.types.tensor import TensorFormat


def name_of(request: Deploy) -> str:
    """Return the requested name of a deployment, or the default: MODEL, or the last part of a path.

    The default does not depend on which node has the files.
    """
    if request.model_id:
        return request.model_id
    if not looks_like_path(request.model):
        return request.model
    path = Path(request.model)
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def facts_of(
    description: ModelDescription, profile: ModelProfile, fingerprint: ModelFingerprint
) -> ModelFacts:
    """Return the facts of a model; a head tied to the embedding is counted once."""
    sizes: Counter[TensorFormat] = Counter()
    for tensor in profile.tensors.values():
        sizes[tensor.format] += tensor.num_rows * tensor.num_columns
    return ModelFacts(
        num_layers=profile.config.num_layers,
        family=profile.config.family,
        num_parameters=sizes.total(),
        stored_format=max(sizes, key=sizes.__getitem__).label if sizes else "",
        files="gguf" if description.files.kind is FileKind.GGUF else "safetensors",
        fingerprint=fingerprint,
        sampling_defaults=dict(description.sampling_defaults),
    )


def new_record(
    request: Deploy,
    description: ModelDescription,
    facts: ModelFacts,
    *,
    model_id: str,
    coordinator: NodeId,
) -> DeploymentRecord:
    """Return the record of a deployment that has no plan yet.

    Raise ``ParameterError`` for an invalid name, context, cache, number of states, group or layout,
    and for steps that would be too large for one frame.
    """
    _require_name(model_id)
    most = description.config.max_context_tokens
    require_in_range(request)
    if request.tool_format is not None:
        from potluck.text.tool_formats.choice import (
            require_format,
        )  # imported late: takes a megabyte

        require_format(request.tool_format)
    context = request.context_tokens
    if context is None:
        context = min(most, DEFAULT_CONTEXT_TOKENS)
    if not 2 <= context <= most:
        raise ParameterError(
            "context",
            f"a context of {context} tokens is out of range",
            hint=f"this model supports 2 to {most} tokens",
        )
    cache = request.cache_tokens
    if cache is None:
        cache = DEFAULT_CACHE_CONTEXTS * context
    if cache < context:
        raise ParameterError(
            "cache",
            f"a cache of {cache} tokens is smaller than one context of {context} tokens",
            hint="use a larger --cache or a smaller --context",
        )
    is_for_memory = request.objective is Objective.MEMORY and not request.layout
    if is_for_memory and (request.tensor_parallel or 1) > 1:
        raise ParameterError(
            "tensor_parallel",
            "--tensor-parallel cannot be used with --for memory",
            hint="omit --tensor-parallel, or plan for latency or throughput",
        )
    if request.layout:
        config = description.config
        check_layout(request.layout, config.num_layers, config.no_cuts)
    plan = PlanRecord(
        quantization=request.quantization or Quantization.NONE,
        arithmetic=Arithmetic.EXACT if request.arithmetic is ArithmeticChoice.EXACT else None,
    )
    record = DeploymentRecord(
        deployment=DeploymentId(secrets.token_hex(4)),
        epoch=Epoch(number=0, coordinator=coordinator),
        revision=0,
        model_id=model_id,
        created=int(time.time()),
        # Nodes that read the model later, and a successor, use the same commit.
        spec=replace(request.spec, model=description.files.pinned_name),
        facts=facts,
        status=DeploymentStatus(
            state=DeploymentState.LOADING,
            context_tokens=context,
            cache_tokens=cache,
            num_states=_num_states(request, description.config),
            plan=plan,
        ),
    )
    size_of(description.config, record)  # refused before a draft model is deployed for it
    return record


def _require_name(name: str) -> None:
    """Raise ``ParameterError`` for a name that terminals, paths or options would misread."""
    problem = ""
    if name.strip() in ("", ".", ".."):
        problem = f"{name!r} is not a name for a model"
    elif name.startswith("-"):
        problem = f"the name {name!r} begins with a dash"
    elif not name.isprintable():
        problem = f"the name {name!r} contains characters that cannot be printed"
    if problem:
        raise ParameterError("name", problem, hint="choose another with --name")


def _num_states(request: Deploy, config: ModelConfig) -> int:
    """Return the number of state slots; it is the number of concurrent streams."""
    num_streams = wanted_streams(request.objective, request.num_streams)
    return num_states_of(
        config,
        request.num_states,
        default=request.default_states,
        least=states_for(num_streams),
        why=f"{num_streams} streams",
    )


def draft_request(request: Deploy, small: ModelDescription, verified: ModelDescription) -> Deploy:
    """Return the request that deploys the draft model ``small`` for a deployment of ``verified``.

    It reads files of both models. Raises as ``check_small``.
    """
    check_small(small, verified, draft_label=request.draft, label=request.model)
    most = small.config.max_context_tokens
    context = None if request.context_tokens is None else min(most, request.context_tokens)
    name = request.draft.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return Deploy(
        model=request.draft,
        model_id=f"{name}-draft",
        context_tokens=context,
        default_states=request.default_states,
        arithmetic=request.arithmetic,
        recovery_wait_seconds=request.recovery_wait_seconds,
        rebalance=request.rebalance,
        keep_weights=request.keep_weights,
        draft=OFF,
    )


def draft_record(record: DeploymentRecord, *, is_own: bool) -> DraftRecord:
    """Return the reference to a draft model's deployment."""
    return DraftRecord(
        deployment=record.deployment, context_tokens=record.status.context_tokens, is_own=is_own
    )
