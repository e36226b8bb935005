"""The settings compared with llama.cpp, and the resulting table. This module starts no process.

A *setting* is what both sides run; a *claim* is a question that a few settings answer; a *row* is a
claim for one type of file. Rates are tokens per second of all sequences together.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_shapes import Shape, gguf_tensors
from random_gguf import stored_format

DEEP_TOKENS = 4096
NUM_SEQUENCES = 8
_SHORT_PROMPT_TOKENS = 16


class Side(enum.StrEnum):
    """The program that runs a setting."""

    OURS = "ours"
    THEIRS = "theirs"


class Phase(enum.StrEnum):
    """The rate that a row is about."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run in one process: a prompt and then decoding, both after ``depth_tokens``.

    ``num_prompt_tokens`` is 0 where prefill is not asked for. ``isa`` is None for the best that
    each side has. ``is_fast`` concerns our prefill alone. With ``is_sampled`` tokens are drawn, at
    temperature 0.8 and top-p 0.95; otherwise decoding is greedy.
    """

    type_name: str
    num_threads: int
    num_prompt_tokens: int
    num_decode_tokens: int
    depth_tokens: int = 0
    num_sequences: int = 1
    isa: str | None = None
    is_fast: bool = False
    is_busy: bool = False
    is_sampled: bool = False

    @property
    def theirs(self) -> Setting:
        """The setting that llama.cpp runs for it, without the parts that apply only to Potluck."""
        return dataclasses.replace(self, is_fast=False)

    def on(self, side: Side) -> Setting:
        """Return the setting that ``side`` runs for this one."""
        return self if side is Side.OURS else self.theirs

    @property
    def context_tokens(self) -> int:
        """The maximum length of a sequence."""
        return self.depth_tokens + self.num_prompt_tokens + self.num_decode_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Samples of one or more runs of a setting, and the reasons for failed runs.

    Of us alone: ``outside`` are the fractions of decoding that were not products with weights,
    ``of_bandwidth`` those that decoding reached of what was measured around it.
    """

    prefill: tuple[float, ...] = ()
    decode: tuple[float, ...] = ()
    outside: tuple[float, ...] = ()
    of_bandwidth: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            prefill=self.prefill + other.prefill,
            decode=self.decode + other.decode,
            outside=self.outside + other.outside,
            of_bandwidth=self.of_bandwidth + other.of_bandwidth,
            failures=self.failures + other.failures,
        )

    def median(self, phase: Phase) -> float | None:
        """Return the median rate of a phase; None if no run gave a sample."""
        return median_of(self.prefill if phase is Phase.PREFILL else self.decode)


Samples = Mapping[tuple[Side, Setting], Rates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The machine's limits with all requested threads, as measured in the same run."""

    read_bytes_per_second: float | None = None
    int8_operations_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The cost of a token: stored bytes that decoding reads, and operations of a prompt's token
    with weights, where a multiply-add counts as two.
    """

    read_bytes: float
    operations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """Targets: the minimum ratio to llama.cpp, fraction of the limit, and ratio to our own
    baseline, and the maximum outside the products.
    """

    ratio: float | None = None
    fraction: float | None = None
    own_ratio: float | None = None
    outside: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Rates are medians; None is what could not be measured.

    ``own_ratio`` is our rate over that of ``baseline``, a setting of ours; ``their_own_ratio`` the
    same of llama.cpp's. ``outside`` is the fraction of our time that was not products with weights.
    """

    claim: str
    type_name: str
    phase: Phase
    ours: float | None
    theirs: float | None
    fraction: float | None = None
    their_fraction: float | None = None
    own_ratio: float | None = None
    their_own_ratio: float | None = None
    outside: float | None = None
    aims: Aims = field(default_factory=Aims)
    counts: bool = True
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Our rate divided by theirs."""
        return _quotient(self.ours, self.theirs)

    @property
    def is_met(self) -> bool | None:
        """Whether every target is met; None if a figure is missing or does not count."""
        pairs = (
            (self.ratio if self.counts else None, self.aims.ratio),
            (self.fraction, self.aims.fraction),
            (self.own_ratio, self.aims.own_ratio),
            (_negative(self.outside), _negative(self.aims.outside)),
        )
        aimed_pairs = [(value, aim) for value, aim in pairs if aim is not None]
        if not aimed_pairs or any(value is None for value, _ in aimed_pairs):
            return None
        return all(value is not None and value >= aim for value, aim in aimed_pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The settings from which claims are built."""

    types: Sequence[str]
    isas: Sequence[str]
    num_threads: int
    num_prompt_tokens: int
    num_decode_tokens: int

    @property
    def quantized(self) -> list[str]:
        """The types whose products are integer sums."""
        return [name for name in self.types if name not in ("F32", "F16", "BF16")]

    @property
    def one(self) -> str:
        """The type for claims that need only one."""
        return "Q8_0" if "Q8_0" in self.types else self.types[0]

    @property
    def two(self) -> list[str]:
        """The types for claims that need a simple one and one with many parts."""
        return [name for name in ("Q8_0", "Q4_K_M") if name in self.types] or [self.one]

    def setting(self, type_name: str, **changes: Any) -> Setting:
        """Return the plain setting of a type with ``changes`` applied."""
        plain = Setting(
            type_name=type_name,
            num_threads=self.num_threads,
            num_prompt_tokens=self.num_prompt_tokens,
            num_decode_tokens=self.num_decode_tokens,
        )
        return dataclasses.replace(plain, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row that is not measured yet."""

    claim: str
    phase: Phase
    setting: Setting
    baseline: Setting | None = None
    aims: Aims = field(default_factory=Aims)


def _decode(scope: Scope) -> Iterator[Question]:
    aims = {
        "Q8_0": Aims(ratio=1.02, fraction=0.90),
        "Q4_0": Aims(ratio=1.25, fraction=0.88),
        "Q4_K_M": Aims(ratio=1.5, fraction=0.83),
        "BF16": Aims(ratio=1.3, fraction=0.90),
    }
    for name in scope.types:
        yield Question(
            claim="decode",
            phase=Phase.DECODE,
            setting=scope.setting(name),
            aims=aims.get(name, Aims()),
        )


def _prefill(scope: Scope) -> Iterator[Question]:
    for name in scope.types:
        aims = Aims(ratio=1.9, fraction=0.10) if name in scope.quantized else Aims()
        if name == "BF16":
            aims = Aims(ratio=8.0, fraction=0.16)
        yield Question(claim="prefill", phase=Phase.PREFILL, setting=scope.setting(name), aims=aims)


def _fast(scope: Scope) -> Iterator[Question]:
    for name in scope.quantized:
        yield Question(
            claim="prefill, fast",
            phase=Phase.PREFILL,
            setting=scope.setting(name, is_fast=True),
            aims=Aims(ratio=3.5, fraction=0.18),
        )


def _isa(scope: Scope) -> Iterator[Question]:
    for isa in scope.isas:
        for name in scope.two:
            for phase, least in ((Phase.DECODE, 1.1), (Phase.PREFILL, 1.2)):
                yield Question(
                    claim=f"{phase}, {isa}",
                    phase=phase,
                    setting=scope.setting(name, isa=isa),
                    aims=Aims(ratio=least),
                )


def _sequences(scope: Scope) -> Iterator[Question]:
    for name in scope.two:
        yield Question(
            claim=f"decode, {NUM_SEQUENCES} sequences",
            phase=Phase.DECODE,
            setting=scope.setting(
                name, num_sequences=NUM_SEQUENCES, num_prompt_tokens=_SHORT_PROMPT_TOKENS
            ),
            baseline=scope.setting(name),
            aims=Aims(ratio=1.5, own_ratio=5.0),
        )


def _sampled(scope: Scope) -> Iterator[Question]:
    name = scope.one
    for count in (1, NUM_SEQUENCES):
        plain = scope.setting(
            name,
            num_sequences=count,
            num_prompt_tokens=scope.num_prompt_tokens if count == 1 else _SHORT_PROMPT_TOKENS,
        )
        yield Question(
            claim="decode, sampled" if count == 1 else f"sampled, {count} sequences",
            phase=Phase.DECODE,
            setting=dataclasses.replace(plain, is_sampled=True),
            baseline=plain,
            aims=Aims(own_ratio=0.98),
        )


def _context(scope: Scope) -> Iterator[Question]:
    name = scope.one
    yield Question(
        claim=f"decode at {DEEP_TOKENS:,}",
        phase=Phase.DECODE,
        setting=scope.setting(name, depth_tokens=DEEP_TOKENS, num_prompt_tokens=0),
        baseline=scope.setting(name),
        aims=Aims(own_ratio=0.8),
    )


def _threads(scope: Scope) -> Iterator[Question]:
    name = scope.one
    for phase in Phase:
        yield Question(
            claim=f"{phase}, 1 to {scope.num_threads} threads",
            phase=phase,
            setting=scope.setting(name),
            baseline=scope.setting(name, num_threads=1),
            aims=Aims(own_ratio=1.9 if scope.num_threads == 2 else None),
        )


def _busy(scope: Scope) -> Iterator[Question]:
    name = scope.one
    yield Question(
        claim="decode, a core busy",
        phase=Phase.DECODE,
        setting=scope.setting(name, is_busy=True),
        baseline=scope.setting(name, num_threads=1),
        aims=Aims(own_ratio=0.8),
    )


def _outside(scope: Scope) -> Iterator[Question]:
    yield Question(
        claim="outside the products",
        phase=Phase.DECODE,
        setting=scope.setting(scope.one),
        aims=Aims(outside=0.05),
    )


CLAIMS: Mapping[str, Callable[[Scope], Iterator[Question]]] = {
    "decode": _decode,
    "prefill": _prefill,
    "fast": _fast,
    "sequences": _sequences,
    "sampled": _sampled,
    "context": _context,
    "threads": _threads,
    "isa": _isa,
    "busy": _busy,
    "outside": _outside,
}


def questions(claims: Sequence[str], scope: Scope) -> list[Question]:
    """Return the questions of the given claims, in the order of the table."""
    return [each for name, ask in CLAIMS.items() if name in claims for each in ask(scope)]


def settings_of(selected_questions: Sequence[Question]) -> list[Setting]:
    """Return every setting once, grouped by type, so that the type's file stays in memory."""
    wanted = {
        setting: None
        for question in selected_questions
        for setting in (question.setting, question.baseline)
        if setting is not None
    }
    types = list(dict.fromkeys(setting.type_name for setting in wanted))
    return sorted(wanted, key=lambda setting: types.index(setting.type_name))


def answer(
    question: Question, samples: Samples, work: Work, limits: Limits, *, counts: bool
) -> Row:
    """Return the row. ``counts`` says whether ratios to this build of llama.cpp count."""
    ours, theirs = (_rate(samples, side, question.setting, question.phase) for side in Side)
    fractions: list[float | None] = [None, None]
    setting = question.setting
    if setting.isa is None and setting.num_sequences == 1 and not setting.is_busy:
        fractions = [_fraction(rate, question, work, limits) for rate in (ours, theirs)]
        reached = median_of(samples.get((Side.OURS, setting), Rates()).of_bandwidth)
        if question.phase is Phase.DECODE and not setting.depth_tokens and reached is not None:
            fractions[0] = reached
    own: list[float | None] = [None, None]
    if question.baseline is not None:
        own = [
            _quotient(rate, _rate(samples, side, question.baseline, question.phase))
            for rate, side in ((ours, Side.OURS), (theirs, Side.THEIRS))
        ]
    notes = [
        f"{side}: {failure}"
        for side in Side
        for failure in dict.fromkeys(samples.get((side, setting.on(side)), Rates()).failures)
    ]
    if not counts and setting.isa is None:
        notes.append("llama.cpp's build lacks AMX: its ratio does not count")
    return Row(
        claim=question.claim,
        type_name=setting.type_name,
        phase=question.phase,
        ours=ours,
        theirs=theirs,
        fraction=fractions[0],
        their_fraction=fractions[1],
        own_ratio=own[0],
        their_own_ratio=own[1],
        outside=_outside_fraction(samples, question),
        aims=question.aims,
        counts=counts or setting.isa is not None,
        notes=tuple(notes),
    )


def work_of(shape: Shape, type_name: str) -> Work:
    """Return the cost of a token, computed from the sizes alone. It includes only the experts that
    are used, and the embedding only if it is also the head. The head is left out for a prompt's
    tokens except the last, and the cache is left out entirely.
    """
    if shape.vocab_size is None:
        raise ValueError("a shape that is compared has a vocabulary of its own")
    head = "token_embd.weight" if shape.has_tied_head else "output.weight"
    read_bytes = operations = 0.0
    for tensor in gguf_tensors(shape, shape.vocab_size):
        if tensor.name == "token_embd.weight" and not shape.has_tied_head:
            continue
        used = 1.0
        if shape.experts is not None and "_exps." in tensor.name:
            used = shape.experts.num_experts_per_token / shape.experts.num_experts
        count = used * math.prod(tensor.dimensions)
        fmt = stored_format(tensor, type_name, shape)
        read_bytes += count / fmt.block_elements * fmt.block_bytes
        if len(tensor.dimensions) > 1 and tensor.name != head:
            operations += 2 * count
    return Work(read_bytes=read_bytes, operations=operations)


def median_of(samples: Iterable[float | None]) -> float | None:
    """Return the median of the known samples; None if there are none."""
    known = [each for each in samples if each is not None]
    return statistics.median(known) if known else None


def _rate(samples: Samples, side: Side, setting: Setting, phase: Phase) -> float | None:
    rates = samples.get((side, setting.on(side)))
    return None if rates is None else rates.median(phase)


def _outside_fraction(samples: Samples, question: Question) -> float | None:
    if question.aims.outside is None:
        return None
    return median_of(samples.get((Side.OURS, question.setting), Rates()).outside)


def _fraction(rate: float | None, question: Question, work: Work, limits: Limits) -> float | None:
    if rate is None or question.setting.depth_tokens:
        return None
    if question.phase is Phase.DECODE:
        return _quotient(rate * work.read_bytes, limits.read_bytes_per_second)
    return _quotient(rate * work.operations, limits.int8_operations_per_second)


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _negative(value: float | None) -> float | None:
    return None if value is None else -value
