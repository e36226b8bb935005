"""Check from headers alone whether a model will run. Nothing is loaded, and no driver is used.

All parts of a model are examined even if one has a problem, so that all problems are reported at
once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from potluck.catalog import (
    ModelDescription,
    ModelFiles,
    config_document,
    describe_files,
    find_files,
    load_chat_template,
    load_tokenizer,
    read_profile,
)
from potluck.engines.backends import BACKENDS, abilities_of
from potluck.engines.loading import plan_stage
from potluck.engines.loading.sizes import fitting_size_hint, quantized_to_fit
from potluck.errors import ParameterError, PotluckError
from potluck.formats.encodings import read_encoding
from potluck.formats.encodings.encoding import KEY as QUANTIZATION_KEY
from potluck.host.cores import default_num_threads
from potluck.host.memory import available_memory
from potluck.local.check_document import (
    BackendFit,
    CheckDocument,
    CheckedConfiguration,
    ContextMemory,
    Finding,
    Part,
    StateMemory,
)
from potluck.models.names import FileKind
from potluck.models.program import program_to_count
from potluck.models.registry import config_from_hugging_face
from potluck.models.states import num_states_of
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import MAX_STEP_TOKENS
from potluck.scheduling.limits import DEFAULT_CONTEXT_TOKENS
from potluck.types.choices import Quantization
from potluck.types.document import document_of
from potluck.types.memory import MemoryLimit
from potluck.types.model import ModelConfig
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes
from potluck.types.ranges import require_number
from potluck.types.stage import StagePlan, StageSize
from potluck.types.text import ChatMessage
from potluck.weights.load import check_weights, remark_lines

Result = TypeVar("Result")

_MOST_TENSORS_NAMED = 3
_LONGER_CONTEXTS = (16_384, 65_536)
"""Contexts in addition to the default and the longest."""
_TRIAL_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def check_model(
    name: str,
    *,
    context_tokens: int | None = None,
    num_states: int | None = None,
    default_states: int | None = None,
    quantization: Quantization | None = Quantization.NONE,
    limit: MemoryLimit | None = None,
) -> CheckDocument:
    """Examine MODEL. Only small files and headers of a hub model are downloaded, no weights.

    ``context_tokens`` is the context that must fit, by default that of ``potluck run``; so must
    ``num_states`` and ``default_states`` (see ``Model.open``). A ``quantization`` of None uses the
    most precise one that fits. ``limit`` is the usable memory, by default the free memory of this
    machine. Raise ``ModelNotFoundError`` if there is no such model, and ``ParameterError`` if the
    model does not support the context, or states are given for a model without state.
    """
    files = find_files(name)
    found = _Findings()
    description = _describe(files, found)
    tokenizer = found.of(Part.TOKENIZER, lambda: load_tokenizer(files))
    has_template = _has_chat_template(files, found)
    usable = limit or available_memory()
    profile = None if description is None else _profile(description, found)
    fits: tuple[BackendFit, ...] = ()
    contexts: tuple[ContextMemory, ...] = ()
    slots = 0
    quantized = quantization or Quantization.NONE
    if profile is not None:
        slots = num_states_of(profile.config, num_states, default=default_states)
        size = replace(_size(profile.config, context_tokens, quantized), num_states=slots)
        if _check_tensors(profile, size, found):
            if quantization is None:
                size = quantized_to_fit(size, lambda other: _fits(profile, other, usable))
                quantized = size.quantization
            planned = list(_backend_fits(profile, size, found))
            fits = tuple(fit for fit, _ in planned)
            native = next(plan for fit, plan in planned if abilities_of(fit.name).is_built_in)
            if native is not None:
                for line in remark_lines(native.remarks):
                    found.note(Part.TENSORS, line)
                is_context_requested = context_tokens is not None
                contexts = tuple(
                    _contexts(profile, size, usable, is_context_requested=is_context_requested)
                )
                if not contexts[0].fits:
                    _report_missing_memory(profile, size, contexts[0], usable, found)
    findings = found.all()
    return CheckDocument(
        model=files.name,
        pinned=files.pinned_name,
        kind=files.kind,
        runs=not any(each.stops for each in findings),
        configuration=None
        if description is None
        else document_of(
            CheckedConfiguration,
            description.config,
            num_parameters=0 if profile is None else _num_parameters(profile),
            encoding=None if description.encoding is None else description.encoding.method,
            quantization=quantized,
        ),
        stored_bytes={} if profile is None else _stored(profile),
        tokenizer_tokens=None if tokenizer is None else tokenizer.vocab_size,
        has_chat_template=has_template,
        backends=fits,
        states=_states(contexts[0], slots, usable) if contexts and slots else None,
        memory=contexts,
        usable_bytes=usable.bytes,
        usable_reason=usable.reason,
        findings=findings,
    )


def _profile(description: ModelDescription, found: _Findings) -> ModelProfile | None:
    for skipped in description.skipped:
        found.note(Part.TENSORS, f"{skipped} is ignored")
    return found.of(Part.TENSORS, lambda: read_profile(description))


def _states(memory: ContextMemory, num_states: int, limit: MemoryLimit) -> StateMemory:
    slot_bytes = memory.state_bytes // num_states
    room_bytes = limit.bytes - (memory.total_bytes - memory.state_bytes)
    return StateMemory(
        slot_bytes=slot_bytes,
        num_states=num_states,
        num_fitting=max(0, room_bytes // slot_bytes),
    )


def _size(config: ModelConfig, context_tokens: int | None, quantization: Quantization) -> StageSize:
    """Return the size that ``potluck run`` would use.

    Raise ``ParameterError`` if the context is too short or too long.
    """
    if context_tokens is not None:
        require_number("context", context_tokens)
    context = context_tokens or min(DEFAULT_CONTEXT_TOKENS, config.max_context_tokens)
    if context > config.max_context_tokens:
        raise ParameterError(
            "context",
            f"the context is {context}, but the model supports at most "
            f"{config.max_context_tokens} tokens",
            hint=f"set --context to at most {config.max_context_tokens}",
        )
    return StageSize(
        context_tokens=context,
        num_blocks=blocks_for(context),
        max_step_tokens=min(MAX_STEP_TOKENS, context),
        num_threads=default_num_threads(),
        quantization=quantization,
    )


class _Findings:
    """The findings so far, in order."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def of(self, part: Part, examine: Callable[[], Result], *, stops: bool = True) -> Result | None:
        """Return the result of ``examine``, or add a finding and return None if it fails."""
        try:
            return examine()
        except PotluckError as error:
            self.add(part, error, stops=stops)
            return None

    def add(self, part: Part, error: PotluckError, *, stops: bool) -> None:
        """Add an error as a finding, unless another part has the same one."""
        if any(each.problem == error.message for each in self._found):
            return
        self._found.append(
            Finding(
                part=part,
                problem=error.message,
                hint=error.hint,
                missing=tuple(getattr(error, "missing", ())),
                stops=stops,
            )
        )

    def stop(self, part: Part, problem: str, hint: str = "") -> None:
        self._found.append(Finding(part=part, problem=problem, hint=hint, stops=True))

    def note(self, part: Part, problem: str) -> None:
        self._found.append(Finding(part=part, problem=problem, stops=False))

    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found)


def _describe(files: ModelFiles, found: _Findings) -> ModelDescription | None:
    """Return the description, or add all problems of a configuration that is refused."""
    if files.kind is FileKind.HUGGING_FACE:
        read = found.of(Part.CONFIGURATION, lambda: config_document(files.path))
        if read is None:
            return None
        document, path = read
        plain = {key: value for key, value in document.items() if key != QUANTIZATION_KEY}
        before = len(found.all())
        found.of(Part.CONFIGURATION, lambda: read_encoding(document, path=path))
        found.of(Part.CONFIGURATION, lambda: config_from_hugging_face(plain, path=path))
        if len(found.all()) > before:
            return None
    return found.of(Part.CONFIGURATION, lambda: describe_files(files))


def _has_chat_template(files: ModelFiles, found: _Findings) -> bool:
    """Return whether a chat with one message can be rendered. Without it the model still runs."""
    template = found.of(Part.CHAT_TEMPLATE, lambda: load_chat_template(files), stops=False)
    if template is None:
        if not any(each.part is Part.CHAT_TEMPLATE for each in found.all()):
            found.note(
                Part.CHAT_TEMPLATE, "the model has no chat template and can only complete texts"
            )
        return False
    messages = [ChatMessage(role="user", content="Hello")]
    rendered = found.of(
        Part.CHAT_TEMPLATE, lambda: template.render(messages, now=_TRIAL_TIME), stops=False
    )
    return rendered is not None


def _check_tensors(profile: ModelProfile, size: StageSize, found: _Findings) -> bool:
    """Return whether all weights can be loaded, and add findings for those that cannot."""
    unusable = [each.error() for each in profile.unusable.values()]
    for error in unusable[:_MOST_TENSORS_NAMED]:
        found.add(Part.TENSORS, error, stops=True)
    if len(unusable) > _MOST_TENSORS_NAMED:
        others = len(unusable) - _MOST_TENSORS_NAMED
        found.stop(Part.TENSORS, f"{others} more tensors cannot be read")
    if unusable:
        return False
    config = profile.config
    program = program_to_count(config, Shard.whole(config.num_layers), size.context_tokens)
    checked = found.of(Part.TENSORS, lambda: check_weights(program, profile, path=profile.path))
    return checked is not None


def _backend_fits(
    profile: ModelProfile, size: StageSize, found: _Findings
) -> Iterator[tuple[BackendFit, StagePlan | None]]:
    """Yield every backend of this build, with the plan for the whole model if it supports it."""
    shard = Shard.whole(profile.config.num_layers)
    for spec in BACKENDS:
        on_backend = replace(size, backend=spec.name)
        try:
            plan = plan_stage(profile, shard, on_backend)
        except PotluckError as error:
            if spec.abilities.is_built_in:
                found.add(Part.BACKEND, error, stops=True)
            yield BackendFit(name=spec.name, computes=False, problem=error.message), None
        else:
            yield BackendFit(name=spec.name, computes=True), plan


def _fits(profile: ModelProfile, size: StageSize, limit: MemoryLimit) -> bool:
    try:
        plan = plan_stage(profile, Shard.whole(profile.config.num_layers), size)
    except PotluckError:  # reported with the backend
        return False
    return plan.memory.total_bytes <= limit.bytes


def _contexts(
    profile: ModelProfile, size: StageSize, limit: MemoryLimit, *, is_context_requested: bool
) -> Iterator[ContextMemory]:
    """Yield the memory for the context of ``size`` and, unless it is requested, for longer ones."""
    most = profile.config.max_context_tokens
    longer = () if is_context_requested else (*_LONGER_CONTEXTS, most)
    lengths = {
        size.context_tokens,
        *(each for each in longer if size.context_tokens < each <= most),
    }
    shard = Shard.whole(profile.config.num_layers)
    for context_tokens in sorted(lengths):
        wanted = replace(size, context_tokens=context_tokens, num_blocks=blocks_for(context_tokens))
        memory = plan_stage(profile, shard, wanted).memory
        held_bytes = memory.weights_bytes + memory.cache_bytes + memory.state_bytes
        yield document_of(
            ContextMemory,
            memory,
            context_tokens=context_tokens,
            fits=memory.total_bytes <= limit.bytes,
            other_bytes=memory.total_bytes - held_bytes,
        )


def _report_missing_memory(
    profile: ModelProfile,
    size: StageSize,
    least: ContextMemory,
    limit: MemoryLimit,
    found: _Findings,
) -> None:
    hint = (
        fitting_size_hint(size, lambda other: _fits(profile, other, limit))
        or "potluck up combines several machines"
    )
    if "--mmap" in hint:
        hint += "; --mmap is an option of potluck run"
    found.stop(
        Part.MEMORY,
        f"{format_bytes(least.total_bytes)} are needed for {least.context_tokens} "
        f"tokens of context, but only {format_bytes(limit.bytes)} are usable ({limit.reason})",
        hint,
    )


def _num_parameters(profile: ModelProfile) -> int:
    """Return the number of elements of all tensors; a head tied to the embedding counts once."""
    return sum(math.prod(info.shape) for info in profile.tensors.values())


def _stored(profile: ModelProfile) -> dict[str, int]:
    num_bytes: Counter[str] = Counter()
    for info in profile.tensors.values():
        num_bytes[info.format.label] += info.num_bytes
    return dict(num_bytes.most_common())
