"""The work and the exchanges of a group's members, derived from their programs.

A step of a group consists of phases: all members compute their parts of the work between two
exchanges, and no phase begins before every member has received what the others sent. A phase
therefore takes as long as its slowest member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from potluck.models.program import program_to_count
from potluck.placement.cuts import shard_of
from potluck.placement.work import (
    LoadedBytes,
    ModelWork,
    PartCounter,
    PartWork,
    layer_of,
)
from potluck.types.choices import Quantization
from potluck.types.placement import inseparable_layers
from potluck.types.profile import ModelProfile
from potluck.types.program import (
    AllGather,
    Embed,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Op,
    Program,
    Shard,
)
from potluck.types.quantization import target_format
from potluck.types.tensor import TensorFormat, TensorInfo

ValueBytes = Callable[[TensorFormat], float]
"""Returns the bytes of a value in the form read by products with weights of a format."""

_FLOAT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The work of members up to an exchange, and what each of them then sends for every token.

    ``parts`` and ``sent_bytes`` are indexed by member. ``sent_bytes`` is empty for a phase that
    ends without an exchange. If ``is_to_leader``, only member 0 receives.
    """

    parts: tuple[PartWork, ...]
    sent_bytes: tuple[float, ...] = ()
    is_to_leader: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedWork:
    """The bytes and operations of each member of a group, and what it sends.

    ``whole`` is the work of a single unit with the whole model. ``layers`` has the phases of each
    decoder layer; equal layers share one object. ``embedding`` and ``head`` are those of the first
    and the last stage.
    """

    whole: ModelWork
    embedding: tuple[Phase, ...]
    layers: tuple[tuple[Phase, ...], ...]
    head: tuple[Phase, ...]

    @property
    def num_exchanges(self) -> int:
        """Return the number of exchanges per step of a group that holds the whole model."""
        return sum(bool(phase.sent_bytes) for phase in self.phases)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return all phases of a stage with the whole model, in order."""
        within = (each for layer in self.layers for each in layer)
        return (*self.embedding, *within, *self.head)


def divided_work(
    profile: ModelProfile,
    loaded_bytes: LoadedBytes,
    whole: ModelWork,
    shares: tuple[int, ...],
    value_bytes: ValueBytes,
) -> DividedWork:
    """Return the work of the members of a group with these ``shares``.

    ``whole`` is the work of one unit with the whole model. Raise as ``model_work``.
    """
    config = profile.config
    last = config.num_layers
    no_cuts = config.no_cuts
    needs_embedding = 0 in no_cuts

    def walk(shard: Shard) -> _Walked:
        programs = (
            program_to_count(config, part, context_tokens=1) for part in shard.divided(shares)
        )
        counted = [
            _MemberWalk(profile, whole.quantization, loaded_bytes, each, value_bytes).walked()
            for each in programs
        ]
        return _Walked.of(counted, shard)

    layers: list[tuple[Phase, ...]] = []
    known: dict[object, Sequence[tuple[Phase, ...]]] = {}
    for start, end in inseparable_layers(last, no_cuts):
        key = (config.layers[start:end], tuple(map(id, whole.layers[start:end])))
        if key not in known:
            first_item = 0 if needs_embedding and start == 0 else start + 1
            known[key] = walk(shard_of(first_item, end + 1, last)).layers
        layers += known[key]
    if needs_embedding:
        first = final = walk(Shard.whole(last))
    else:
        first = walk(shard_of(0, 1, last))
        final = walk(shard_of(last + 1, last + 2, last))
    return DividedWork(
        whole=whole,
        embedding=first.embedding,
        layers=tuple(layers),
        head=final.head,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemberPhase:
    """One phase of one member.

    ``layer`` is None for the embedding (before the layers) and the head. ``sent_bytes`` is None if
    no exchange follows.
    """

    layer: int | None
    is_head: bool
    work: PartWork
    sent_bytes: float | None
    is_to_leader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """The phases of all members of a shard."""

    embedding: tuple[Phase, ...]
    layers: tuple[tuple[Phase, ...], ...]
    head: tuple[Phase, ...]

    @classmethod
    def of(cls, members: Sequence[Sequence[_MemberPhase]], shard: Shard) -> _Walked:
        embedding: list[Phase] = []
        layers: list[list[Phase]] = [[] for _ in range(shard.start_layer, shard.end_layer)]
        head: list[Phase] = []
        for phases in zip(*members, strict=True):
            one = phases[0]
            phase = Phase(
                parts=tuple(each.work for each in phases),
                sent_bytes=()
                if one.sent_bytes is None
                else tuple(each.sent_bytes or 0.0 for each in phases),
                is_to_leader=one.is_to_leader,
            )
            if one.is_head:
                head.append(phase)
            elif one.layer is None:
                (embedding if shard.has_embedding else head).append(phase)
            else:
                layers[one.layer - shard.start_layer].append(phase)
        seen: dict[tuple[Phase, ...], tuple[Phase, ...]] = {}
        return cls(
            embedding=tuple(embedding),
            layers=tuple(seen.setdefault(each, each) for each in map(tuple, layers)),
            head=tuple(head),
        )


class _MemberWalk:
    """Divides the ops of one member's program into phases."""

    def __init__(
        self,
        profile: ModelProfile,
        quantization: Quantization,
        loaded_bytes: LoadedBytes,
        program: Program,
        value_bytes: ValueBytes,
    ) -> None:
        self._specs = {spec.name: spec for spec in program.weights}
        self._widths = {register.name: register.width for register in program.registers}
        self._loaded_bytes = loaded_bytes
        self._program = program
        self._value_bytes = value_bytes
        self._profile = profile
        self._quantization = quantization
        self._phases: list[_MemberPhase] = []
        self._layer: int | None = None
        self._is_head = False
        self._part = self._new_part()

    def walked(self) -> list[_MemberPhase]:
        """Return the phases in order."""
        for index, op in enumerate(self._program.ops):
            self._enter(layer_of(op, self._specs), is_head=isinstance(op, Head))
            match op:
                case AllGather():
                    width = op.widths[self._member]
                    self._close(width * self._bytes_for_readers(index, op.out))
                case Moe() if op.expert_widths:
                    self._part.add_experts(op, (op.gate, op.up))
                    width = op.expert_widths[self._member] * op.num_experts_per_token
                    self._close(width * self._bytes_for(op.down))
                    self._part.add_experts(op, (op.down,))
                case Embed() if op.bounds:
                    width = self._widths[op.out]
                    self._close(_share(op.bounds, self._member) * width * _FLOAT_BYTES)
                case Head() if op.bounds:
                    self._part.add(op)
                    num_rows = op.bounds[self._member + 1] - op.bounds[self._member]
                    self._close(num_rows * _FLOAT_BYTES, is_to_leader=True)
                case _:
                    self._part.add(op)
        if not self._part.is_empty:
            self._close(None)
        return self._phases

    @property
    def _member(self) -> int:
        part = self._program.shard.part
        return 0 if part is None else part.member

    def _enter(self, layer: int | None, *, is_head: bool) -> None:
        """End the current phase if another layer begins without an exchange before it."""
        if not is_head and (layer is None or layer == self._layer):
            return
        if not self._part.is_empty:
            self._close(None)
        self._layer, self._is_head = layer, is_head

    def _close(self, sent_bytes: float | None, *, is_to_leader: bool = False) -> None:
        self._phases.append(
            _MemberPhase(
                layer=self._layer,
                is_head=self._is_head,
                work=self._part.work(),
                sent_bytes=sent_bytes,
                is_to_leader=is_to_leader,
            )
        )
        self._part = self._new_part()

    def _new_part(self) -> PartCounter:
        return PartCounter(self._loaded, self._loaded_bytes, self._program)

    def _loaded(self, name: str) -> TensorInfo:
        """Return the part of a weight that is loaded: the rows that this member holds."""
        spec = self._specs[name]
        info = self._profile.info(name)
        format = target_format(self._quantization, spec, info, self._profile.config.num_layers)
        return TensorInfo(name=name, shape=spec.shape, format=format)

    def _bytes_for(self, name: str) -> float:
        return self._value_bytes(self._loaded(name).format)

    def _bytes_for_readers(self, index: int, register: str) -> float:
        """Return the bytes of a value in the form that its readers take.

        The readers are the ops that read a register after the op at ``index``; if they take
        different forms, it is float32.
        """
        forms: set[float] = set()
        for op in self._program.ops[index + 1 :]:
            if _reads(op, register):
                match op:
                    case Linear() | HeadLinear():
                        forms.add(self._bytes_for(op.weight))
                    case Moe():
                        forms.add(self._bytes_for(op.up))
                    case _:
                        forms.add(_FLOAT_BYTES)
            if getattr(op, "out", None) == register:
                break
        return forms.pop() if len(forms) == 1 else _FLOAT_BYTES


def _reads(op: Op, register: str) -> bool:
    return any(getattr(op, field.name) == register for field in fields(op) if field.name != "out")


def _share(bounds: Sequence[int], member: int) -> float:
    return (bounds[member + 1] - bounds[member]) / bounds[-1]
