"""Determine which values of a program can be divided among the members of a group, and how.

A *value* is what an op writes to a register. Values whose columns must be divided at the same
boundaries form a *class* (``division_classes``). ``find_values`` analyzes a program once and
records which values each op reads and writes; the parts of each member are known after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.models.division_classes import GROUP, PANEL, ValueClass
from potluck.models.shares import unit_bounds
from potluck.types.program import (
    HIDDEN,
    Add,
    AllGather,
    Attention,
    CausalConv,
    CopyColumns,
    Embed,
    GatedActivation,
    GatedDelta,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    StateScan,
    WeightRole,
)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The content of a register after an op. Without ``its_class``, every member has all of it."""

    register: str
    width: int
    its_class: ValueClass | None = None
    origin: Value | None = None
    """The values from which it was computed, column by column or head by head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An op with its inputs, by field name, and its output."""

    op: Op
    reads: Mapping[str, Value] = field(default_factory=dict)
    made: Value | None = None
    head_class: ValueClass | None = None
    """For an attention op, the class that divides its heads; None if it is computed in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramValues:
    """The ops of a program in order, and which of their values are read whole. All others are read
    as they were computed, or divided like the value that is computed from them.
    """

    nodes: tuple[Node, ...]
    read_whole: Mapping[int, tuple[Value, ...]]
    """Maps the index of an op to values, in the order in which they are needed."""


def find_values(program: Program, num_members: int) -> ProgramValues:
    """Return the inputs and outputs of the ops of ``program`` when it is divided among members."""
    whole_ops: frozenset[int] = frozenset()
    while True:
        finder = _Finder(program, num_members, whole_ops)
        for op in program.ops:
            finder.add(op)
        if finder.too_coarse() <= whole_ops:
            break
        whole_ops |= finder.too_coarse()
    if program.head is None:
        finder.need_whole(finder.value(HIDDEN), None)
    return ProgramValues(nodes=tuple(finder.nodes), read_whole=finder.read_whole)


class _Finder:
    """Analyzes a program; the ops at ``whole_ops`` are computed in full by every member."""

    def __init__(self, program: Program, num_members: int, whole_ops: frozenset[int]) -> None:
        self._whole_ops = whole_ops
        self._coarse: list[tuple[int, ValueClass]] = []
        self.nodes: list[Node] = []
        self.read_whole: dict[int, tuple[Value, ...]] = {}
        self._num_members = num_members
        self._widths = {each.name: each.width for each in program.registers}
        self._roles = {each.name: each.role for each in program.weights}
        self._values: dict[str, Value] = {}
        self._caches: dict[int, ValueClass] = {}
        if not program.shard.has_embedding:
            self._values[HIDDEN] = Value(HIDDEN, program.hidden_size)

    def value(self, register: str) -> Value:
        """Return the current content of a register, which nobody reads before it is written."""
        return self._values.get(register) or Value(register, self._widths[register])

    def need_whole(self, value: Value, op: Op | None) -> None:
        """Record that the next op (None: the next stage) reads all of a value."""
        index = len(self.nodes)
        if value.its_class is None:
            return
        is_multiplied = isinstance(op, Linear | HeadLinear | Moe)
        value.its_class.exchange(value.width, GROUP if is_multiplied else PANEL)
        before = self.read_whole.get(index, ())
        if value not in before:
            self.read_whole[index] = (*before, value)

    def too_coarse(self) -> frozenset[int]:
        """Return the ops that leave a class with fewer units than there are members.

        Such ops had better read all of their inputs, so that the preceding ops are divided.
        """
        return frozenset(index for index, each in self._coarse if not each.covers_heads)

    def _limit(self, its_class: ValueClass, num_units: int) -> None:
        """Limit the number of units into which the next op divides a class."""
        its_class.limit(num_units)
        if num_units < self._num_members:
            self._coarse.append((len(self.nodes), its_class))

    def add(self, op: Op) -> None:
        """Analyze the next op."""
        match op:
            case Embed():
                self._make(op, {}, op.out)
            case RmsNorm():
                self._add_norm(op)
            case LayerNorm() | CausalConv():
                self._whole(op, ("x",), op.out)
            case Linear():
                is_whole = self._roles[op.weight] is WeightRole.ROUTER
                num_rows, num_columns = self._widths[op.out], self._widths[op.x]
                num_weights = num_rows * num_columns
                made = None if is_whole else ValueClass(num_rows, num_weights=num_weights)
                self._whole(op, ("x",), op.out, made)
            case HeadLinear():
                self._add_by_heads(op, op.num_heads, columns=op.columns, rows=op.rows)
            case CopyColumns():
                self._add_by_heads(op, op.num_groups, columns=op.count, rows=op.count)
            case Rope():
                self._keep(op, op.num_heads)
            case Scale() | Multiply():
                self._keep(op)
            case Attention():
                self._add_attention(op)
            case GatedDelta():
                self._whole(op, ("x", "decay", "beta"), op.out)
            case StateScan():
                self._whole(op, ("x", "step"), op.out)
            case GatedActivation():
                self._add_activation(op)
            case Moe():
                self._add_moe(op)
            case SigmoidGate():
                if self._widths[op.gate] == 1:
                    self.need_whole(self.value(op.gate), op)
                    self._keep(op, reads={"gate": self.value(op.gate)})
                else:
                    self._add_elementwise(op, ("x", "gate"), op.x)
            case Add():
                self._add_elementwise(op, ("x", "y"), op.x)
            case Head():
                self._whole(op, ("x",), None)
            case AllGather():
                raise ValueError("the program is already divided")

    def _make(
        self,
        op: Op,
        reads: Mapping[str, Value],
        out: str,
        its_class: ValueClass | None = None,
        *,
        origin: Value | None = None,
        head_class: ValueClass | None = None,
    ) -> None:
        made = Value(out, self._widths[out], its_class, origin)
        self._values[out] = made
        self.nodes.append(Node(op=op, reads=reads, made=made, head_class=head_class))

    def _read(self, op: Op, fields: Iterable[str]) -> dict[str, Value]:
        """Return the values of the fields that name a register."""
        named = {each: getattr(op, each) for each in fields}
        return {each: self.value(name) for each, name in named.items() if name is not None}

    def _whole(
        self,
        op: Op,
        fields: Sequence[str],
        out: str | None,
        made: ValueClass | None = None,
        *,
        origin: Value | None = None,
    ) -> None:
        """Add an op that reads all of its inputs."""
        reads = self._read(op, fields)
        for value in reads.values():
            self.need_whole(value, op)
        if out is None:
            self.nodes.append(Node(op=op, reads=reads))
        else:
            self._make(op, reads, out, made, origin=origin)

    def _keep(
        self,
        op: Rope | Scale | Multiply | SigmoidGate,
        num_units: int | None = None,
        reads: Mapping[str, Value] | None = None,
    ) -> None:
        """Add an op that changes its register in place, divided or not."""
        x = self.value(op.x)
        if len(self.nodes) in self._whole_ops:
            self._whole(op, ("x",), op.x, origin=x)
            return
        if x.its_class is not None and num_units is not None:
            self._limit(x.its_class, num_units)
        self._make(op, {"x": x, **(reads or {})}, op.x, x.its_class, origin=x)

    def _add_norm(self, op: RmsNorm) -> None:
        x = self.value(op.x)
        is_whole = op.group == x.width or len(self.nodes) in self._whole_ops
        if x.its_class is None or is_whole:
            self._whole(op, ("x",), op.out, origin=x)
            return
        self._limit(x.its_class, x.width // op.group)
        self._make(op, {"x": x}, op.out, x.its_class, origin=x)

    def _add_by_heads(
        self, op: HeadLinear | CopyColumns, num_heads: int, *, columns: int, rows: int
    ) -> None:
        """Add an op that writes some columns of every head and leaves the others unchanged."""
        x, before = self.value(op.x), self.value(op.out)
        is_new = op.out not in self._values or num_heads * rows == before.width
        fits = (
            num_heads > 1
            and len(self.nodes) not in self._whole_ops
            and x.width == num_heads * op.x_stride
            and before.width == num_heads * op.out_stride
            and op.x_start + columns <= op.x_stride
            and op.out_start + rows <= op.out_stride
        )
        if not fits or x.its_class is None or not (is_new or before.its_class is not None):
            if not is_new:
                self.need_whole(before, op)
            self._whole(op, ("x",), op.out)
            return
        self._limit(x.its_class, num_heads)
        if not is_new and before.its_class is not None:
            x.its_class.join(before.its_class)
        self._make(op, {"x": x}, op.out, x.its_class)

    def _add_attention(self, op: Attention) -> None:
        """Divide attention by query heads, with the key-value heads that each member's queries
        need.

        If there is only one key-value head, every member has it anyway.
        """
        reads = self._read(op, ("q", "k", "v"))
        is_shared = op.num_kv_heads == 1
        num_units = op.num_heads
        keys = [reads[each] for each in ("k", "v") if each in reads]
        if num_units < self._num_members:
            for value in keys:
                _keep_origin_whole(value)
            self._whole(op, tuple(reads), op.out)
            return
        heads = ValueClass(num_units, num_weights=None)
        if is_shared:
            for value in keys:
                _keep_origin_whole(value)
                self.need_whole(value, op)
        else:
            heads.have_heads(op.num_kv_heads)
            heads = self._caches.setdefault(op.cache_index, heads)
            heads.limit(num_units)
            for value in keys:
                if value.its_class is not None:
                    value.its_class.limit(op.num_kv_heads)
                    value.its_class.cover(heads)
        if (its_class := reads["q"].its_class) is not None:
            heads.join(its_class)
        self._make(op, reads, op.out, heads, head_class=heads)

    def _add_activation(self, op: GatedActivation) -> None:
        width = self._widths[op.out]
        reads = self._read(op, ("gate", "up"))
        gate, up = reads.get("gate"), reads["up"]
        is_up_divided = up.its_class is not None and up.width == width and op.up_start == 0
        if gate is None:
            if is_up_divided:
                self._make(op, reads, op.out, up.its_class)
            else:
                self._whole(op, ("up",), op.out)
            return
        if gate.its_class is None:
            self._whole(op, ("gate", "up"), op.out)
            return
        if is_up_divided and up.its_class is not None:
            gate.its_class.join(up.its_class)
        else:
            # Each member takes its own part of columns that every member has.
            self.need_whole(up, op)
        self._make(op, reads, op.out, gate.its_class)

    def _add_moe(self, op: Moe) -> None:
        is_divided = bool(expert_bounds(op, (1,) * self._num_members))
        made = ValueClass(self._widths[op.out], num_weights=None) if is_divided else None
        self._whole(op, ("x", "logits"), op.out, made)

    def _add_elementwise(self, op: SigmoidGate | Add, fields: Sequence[str], out: str) -> None:
        reads = self._read(op, fields)
        x, y = reads.values()
        if x.its_class is None or y.its_class is None:
            self._whole(op, fields, out)
            return
        x.its_class.join(y.its_class)
        self._make(op, reads, out, x.its_class)


def expert_bounds(op: Moe, shares: Sequence[int]) -> tuple[int, ...]:
    """Return the bounds between the members' rows of ``gate`` and ``up``; empty if all have all.

    They are multiples of 32, or of 16 if there are too few of these.
    """
    for unit in (GROUP, PANEL):
        num_units, rest = divmod(op.expert_width, unit)
        if rest == 0 and num_units >= len(shares):
            return tuple(bound * unit for bound in unit_bounds(num_units, shares))
    return ()


def _keep_origin_whole(value: Value) -> None:
    """Make every member compute a value that all of them need, if it comes from one product."""
    origin: Value | None = value
    while origin is not None:
        if origin.its_class is not None:
            origin.its_class.keep_whole()
        origin = origin.origin
