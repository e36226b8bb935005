"""The result of a check, which is the document of ``potluck check --json``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal

from potluck.models.names import FileKind
from potluck.types.choices import Quantization
from potluck.types.document import Count, Document, PositiveCount


class Part(enum.Enum):
    """The part of a model that a finding concerns."""

    CONFIGURATION = "configuration"
    TENSORS = "tensors"
    TOKENIZER = "tokenizer"
    CHAT_TEMPLATE = "chat template"
    BACKEND = "backend"
    MEMORY = "memory"


class Finding(Document, frozen=True, kw_only=True):
    """A finding about a model."""

    part: Part
    problem: str
    stops: bool
    """The model does not run here because of this finding."""
    hint: str = ""
    missing: tuple[str, ...] = ()
    """The features that Potluck would have to support."""


class BackendFit(Document, frozen=True, kw_only=True):
    """A backend of this build."""

    name: str
    computes: bool
    """The backend supports the model."""
    problem: str = ""
    """The reason why it does not; empty if it does."""


class ContextMemory(Document, frozen=True, kw_only=True):
    """The memory requirement of the whole model on the CPU, for one sequence of
    ``context_tokens``.
    """

    context_tokens: PositiveCount
    fits: bool
    total_bytes: Count
    weights_bytes: Count
    cache_bytes: Count
    state_bytes: Count
    other_bytes: Count


class StateMemory(Document, frozen=True, kw_only=True):
    """The state slots, for sequences and checkpoints of them."""

    slot_bytes: PositiveCount
    """Memory of a sequence in addition to keys and values, or of a checkpoint."""
    num_states: PositiveCount
    """Number of slots in every memory requirement."""
    num_fitting: Count
    """Number of slots that would fit with the shortest context."""


class CheckedConfiguration(Document, frozen=True, kw_only=True):
    """The configuration of a model."""

    family: str
    num_layers: Count
    hidden_size: Count
    vocab_size: Count
    max_context_tokens: Count
    num_parameters: Count
    """Elements of all tensors; 0 if they could not be read."""
    encoding: str | None
    """``quant_method`` of ``quantization_config``, if a weight is stored as several tensors."""
    quantization: Quantization
    """``--quant``, or the choice of ``auto``."""


class CheckDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck check --json``."""

    schema: Literal["potluck.check/1"] = "potluck.check/1"
    model: str
    """MODEL as given."""
    pinned: str
    """MODEL at its current commit."""
    kind: FileKind
    runs: bool
    """This build runs the model on this machine's CPU, with the shortest context in the usable
    memory."""
    configuration: CheckedConfiguration | None
    """Null if it could not be read or is not supported."""
    stored_bytes: Mapping[str, Count]
    """Bytes of weights by format, as given to engines."""
    tokenizer_tokens: Count | None
    has_chat_template: bool
    """A chat could be rendered."""
    backends: tuple[BackendFit, ...]
    states: StateMemory | None
    """Null for a model without state, and if the memory requirement is unknown."""
    memory: tuple[ContextMemory, ...]
    """From the shortest context to the longest; empty if unknown."""
    usable_bytes: Count
    usable_reason: str
    """The reason for this limit."""
    findings: tuple[Finding, ...]
