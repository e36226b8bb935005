"""The requested settings of a deployment. Each setting is declared here, and nowhere else.

A field of ``DeploymentSpec`` with its ``Setting`` is also the option of ``potluck deploy``, the key
of the configuration file, the field of ``POST /cluster/deployments``, the range that is checked,
the field of the JSON that commands print, and its rows in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from potluck.types.choices import (
    DEFAULT_DRAFT,
    DEFAULT_NUM_STREAMS,
    DEFAULT_REBALANCE_THRESHOLD,
    ArithmeticChoice,
    Objective,
    Quantization,
    Rebalance,
)
from potluck.types.groups import LayoutStage
from potluck.types.ranges import (
    DEFAULT_RECOVERY_WAIT_SECONDS,
    DEFAULT_TARGET_STEP_MS,
    MAX_CACHE_DISK_BYTES,
    MAX_REBALANCE_THRESHOLD,
    MAX_RECOVERY_WAIT_SECONDS,
    MAX_SPARES,
    MAX_STREAMS,
    MAX_TARGET_STEP_MS,
    MAX_TENSOR_PARALLEL,
    MIN_REBALANCE_THRESHOLD,
    MIN_TARGET_STEP_MS,
    RANGES,
    NumberRange,
    between,
    whole,
)
from potluck.types.states import LEAST_DEFAULT_STATES, MOST_DEFAULT_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a field of ``DeploymentSpec`` is set.

    ``option`` is that of the command line, with ``metavar``, and ``key`` that of the configuration;
    each is empty if there is none. ``help`` describes the option, and ``meaning`` the key, which
    has a table of its own. ``parse`` names the parser in ``potluck.cli.spec_options`` for options
    whose text is not the value itself. ``numbers`` is the range of a number.
    """

    help: str
    option: str = ""
    metavar: str | None = None
    parse: str = ""
    key: str = ""
    meaning: str = ""
    numbers: NumberRange | None = None

    @property
    def label(self) -> str:
        """Return the name of the field in errors."""
        return (self.option or self.key).removeprefix("--").replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Return whether the option takes no value, and only changes the field if it is given."""
        return self.parse in ("flag", "inverted flag")


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The requested settings. They do not change while the model is deployed.

    ``model`` is MODEL. None leaves ``context_tokens``, ``cache_tokens`` and ``num_states`` to the
    model, and ``quantization`` to the plans: each uses the most precise that fits. For
    ``num_streams`` and ``tensor_parallel`` see ``Preferences``, for ``draft``
    ``potluck.drafting.sources``.
    """

    model: str
    objective: Annotated[
        Objective,
        Setting(
            option="--for",
            help="latency: minimize the time per token of a single stream, without units that "
            "would slow it down. throughput: maximize the total tokens per second of --streams "
            "concurrent streams. memory: fill every unit in proportion to its memory. Default: "
            "latency.",
            key="objective",
            meaning="what plans optimize",
        ),
    ] = Objective.LATENCY
    num_streams: Annotated[
        int,
        Setting(
            option="--streams",
            metavar="N",
            help="Number of concurrent streams to plan for with --for throughput. Default: "
            f"{DEFAULT_NUM_STREAMS}.",
            key="streams",
            meaning="concurrent streams that plans for throughput assume",
            numbers=whole(MAX_STREAMS),
        ),
    ] = DEFAULT_NUM_STREAMS
    tensor_parallel: Annotated[
        int | None,
        Setting(
            option="--tensor-parallel",
            metavar="auto|off|N",
            help="Number of units that share each stage's matrices. auto: what is predicted to be "
            "fastest, on fast links; off: one unit per stage; N: N units per stage. Default: "
            "auto.",
            parse="units",
            key="tensor_parallel",
            meaning="most units that share one stage",
            numbers=whole(
                MAX_TENSOR_PARALLEL,
                words=f"auto, off, or an integer from 1 to {MAX_TENSOR_PARALLEL}",
            ),
        ),
    ] = None
    layout: Annotated[
        tuple[LayoutStage, ...],
        Setting(
            option="--layout",
            metavar="NODE[/UNIT]=LAYERS,…",
            help="Use this placement instead of searching for the best one, for example "
            "desktop=24,board/cpu/native=8; NODE is a node id or host name. desktop*3+board=24 "
            "splits the matrices of 24 layers between both nodes in a ratio of three to one.",
            parse="layout",
        ),
    ] = ()
    rebalance: Annotated[
        Rebalance,
        Setting(
            option="--rebalance",
            help="Whether the model moves to a much faster plan when there is one. auto: "
            "automatically; ask: potluck ps shows the plan and potluck rebalance applies it; "
            "never. Default: auto.",
            key="rebalance",
            meaning="whether a deployment moves to a faster plan",
        ),
    ] = Rebalance.AUTO
    rebalance_threshold: Annotated[
        float,
        Setting(
            help="Gain in tokens per second from which a move is worthwhile (0.2: 20 %).",
            key="rebalance_threshold",
            meaning="gain in tokens per second from which a move is worthwhile (0.2: 20 %)",
            numbers=between(MIN_REBALANCE_THRESHOLD, MAX_REBALANCE_THRESHOLD),
        ),
    ] = DEFAULT_REBALANCE_THRESHOLD
    context_tokens: Annotated[
        int | None,
        Setting(
            option="--context",
            help="Maximum context length in tokens. Default: what the model supports, at most "
            "4096.",
            numbers=RANGES["context"],
        ),
    ] = None
    cache_tokens: Annotated[
        int | None,
        Setting(
            option="--cache",
            help="Cache size in tokens, shared by all sequences. Default: four full contexts.",
            numbers=RANGES["cache"],
        ),
    ] = None
    num_states: Annotated[
        int | None,
        Setting(
            option="--states",
            metavar="N",
            help="State slots for sequences and their checkpoints (only for models with recurrent "
            f"layers). Default: as many as fit in 512 MiB, {LEAST_DEFAULT_STATES} to "
            f"{MOST_DEFAULT_STATES}.",
            numbers=RANGES["states"],
        ),
    ] = None
    prefix_cache: Annotated[
        bool,
        Setting(
            option="--prefix-cache/--no-prefix-cache",
            help="Reuse cached results for prompts that share a prefix. Default: on.",
            key="prefix_cache",
            meaning="whether prompts with a common prefix share the cache",
        ),
    ] = True
    target_step_ms: Annotated[
        float,
        Setting(
            option="--target-step-ms",
            metavar="MS",
            help="Target time between tokens while other prompts are being processed; prompts are "
            f"split to meet it. Default: {DEFAULT_TARGET_STEP_MS:g}.",
            key="target_step_ms",
            meaning="milliseconds between tokens while long prompts are computed beside them",
            numbers=between(MIN_TARGET_STEP_MS, MAX_TARGET_STEP_MS),
        ),
    ] = DEFAULT_TARGET_STEP_MS
    cache_disk_bytes: Annotated[
        int,
        Setting(
            option="--cache-disk",
            metavar="BYTES",
            help="Disk space per stage for cached prompts, for example 20GiB, so that the cache "
            "survives a restart. The data is not encrypted. Default: 0.",
            parse="size",
            key="cache_disk_bytes",
            meaning="limit of the prefix cache that each stage keeps on disk; 0 keeps none",
            numbers=whole(MAX_CACHE_DISK_BYTES, least=0, words="a number of bytes, at most 1 PiB"),
        ),
    ] = 0
    tool_format: Annotated[
        str | None,
        Setting(
            option="--tool-format",
            metavar="NAME",
            help="Format in which the model writes tool calls. Default: detected from its chat "
            "template.",
        ),
    ] = None
    quantization: Annotated[
        Quantization | None,
        Setting(
            option="--quant",
            help="Quantize floating-point weights while loading; auto: only as much as is needed "
            "for the model to fit. Default: none.",
            parse="quantization",
        ),
    ] = Quantization.NONE
    is_mapped: Annotated[
        bool,
        Setting(
            option="--mmap",
            help="Memory-map the weights from a file in the cache: they use only memory that is "
            "otherwise free, and the next start is fast.",
            parse="flag",
        ),
    ] = False
    arithmetic: Annotated[
        ArithmeticChoice,
        Setting(
            option="--arithmetic",
            help="exact: bit-identical on every CPU. fast: multiply in bf16 where the CPU supports "
            "it (avx512_bf16, AMX, i8mm), which flushes subnormal numbers to zero; bit-identical "
            "only among CPUs of the same kind. Default: exact.",
            key="arithmetic",
            meaning="see [exact and fast arithmetic]"
            "(../guides/models.md#exact-and-fast-arithmetic)",
        ),
    ] = ArithmeticChoice.EXACT
    draft: Annotated[
        str,
        Setting(
            option="--draft",
            metavar="ngram|off|MODEL",
            help="Speculative decoding, which does not change the output. ngram: draft tokens from "
            "repetitions in the text; off: no drafts; MODEL: draft with a smaller model that has "
            "the same vocabulary. Default: ngram.",
            parse="draft",
            key="draft",
            meaning="source of [draft tokens](../guides/speculation.md): `ngram`, `off`, or a "
            "model with the same vocabulary",
        ),
    ] = DEFAULT_DRAFT
    recovery_wait_seconds: Annotated[
        float,
        Setting(
            option="--recovery-wait",
            metavar="SECONDS",
            help="How long requests wait for the model to recover after nodes are lost. Default: "
            f"{DEFAULT_RECOVERY_WAIT_SECONDS:g}.",
            key="recovery_wait_seconds",
            meaning="seconds that requests wait while a deployment recovers",
            numbers=between(0, MAX_RECOVERY_WAIT_SECONDS, "of seconds "),
        ),
    ] = DEFAULT_RECOVERY_WAIT_SECONDS
    num_spares: Annotated[
        int,
        Setting(
            option="--spares",
            metavar="N",
            help="Keep the weights of every stage ready on N additional nodes. Default: 0.",
            key="spares",
            meaning="further nodes that keep the weights of each stage ready",
            numbers=whole(MAX_SPARES, least=0),
        ),
    ] = 0
    keep_weights: Annotated[
        bool,
        Setting(
            option="--no-store",
            help="Do not store model files from other nodes or the hub on disk; load them directly "
            "into memory.",
            parse="inverted flag",
        ),
    ] = True


@cache
def settings_of(kind: type[DeploymentSpec]) -> Mapping[str, Setting]:
    """Return the settings of a specification by the names of their fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: setting
        for name in kind.__struct_fields__
        for setting in getattr(hints[name], "__metadata__", ())
        if isinstance(setting, Setting)
    }


def value_types(kind: type[DeploymentSpec]) -> Mapping[str, Any]:
    """Return the types of the fields of a specification, without None."""
    return {
        name: next((each for each in get_args(hint) if each is not type(None)), hint)
        if type(None) in get_args(hint)
        else hint
        for name, hint in get_type_hints(kind).items()
    }


def require_in_range(spec: DeploymentSpec) -> None:
    """Raise ``ParameterError`` for a number that is out of its range."""
    for name, setting in settings_of(type(spec)).items():
        value = getattr(spec, name)
        if setting.numbers is not None and value is not None:
            setting.numbers.require(setting.label, value)
