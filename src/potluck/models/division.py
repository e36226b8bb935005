"""Divide the program of a shard among the members of a group.

Every matrix is divided by rows, so that each element of a product is computed by one member in the
same order as on a single unit: results are bit-identical for any shares (ADR 0059). Attention is
divided by heads. Values that are computed per column or per head stay divided until an op needs all
columns; that op is preceded by an ``AllGather``. Every member computes norms over the whole width,
the residual stream and recurrences in full.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from potluck.models.builder import add_register
from potluck.models.division_classes import WHOLE, Parts, Ranges, ValueClass
from potluck.models.division_values import (
    Node,
    ProgramValues,
    Value,
    expert_bounds,
    find_values,
)
from potluck.models.shares import vocabulary_bounds
from potluck.types.groups import GroupPart
from potluck.types.program import (
    HIDDEN,
    AllGather,
    Attention,
    CopyColumns,
    Embed,
    GatedActivation,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    Register,
    Rope,
    WeightRows,
)


def divide_program(program: Program, part: GroupPart) -> Program:
    """Return the part of ``program``, which is the whole shard's, that a member of a group
    computes.

    The programs of all members have the same exchange ops in the same order. Anything with fewer
    units (heads, panels of rows) than there are members is computed in full by every member.
    """
    values = find_values(program, len(part.shares))
    return _Division(program, part, values).program()


class _Division:
    """Builds a member's program, op by op."""

    def __init__(self, program: Program, part: GroupPart, values: ProgramValues) -> None:
        self._program = program
        self._member, self._shares = part.member, part.shares
        self._part = part
        self._values = values
        self._index = 0
        self._ops: list[Op] = []
        self._registers: dict[str, int] = {HIDDEN: program.hidden_size}
        self._weights = {each.name: each for each in program.weights}
        self._caches = list(program.caches)
        self._parts: dict[ValueClass, Parts] = {}
        self._waiting: list[Value] = []
        """Values that are computed in parts and have to be read whole."""
        self._needed_at: dict[Value, int] = {}
        for index, needed in values.read_whole.items():
            for value in needed:
                self._needed_at.setdefault(value, index)

    def program(self) -> Program:
        """Return the member's program."""
        for index, node in enumerate(self._values.nodes):
            self._gather_for(index)
            self._index = index
            self._add(node)
            if node.made in self._needed_at and self._ranges(node.made):
                self._waiting.append(node.made)
        self._gather_for(len(self._values.nodes))
        return dataclasses.replace(
            self._program,
            shard=dataclasses.replace(self._program.shard, part=self._part),
            registers=tuple(
                Register(name=name, width=width) for name, width in self._registers.items()
            ),
            ops=tuple(self._ops),
            weights=tuple(self._weights.values()),
            caches=tuple(self._caches),
        )

    def _gather_for(self, index: int) -> None:
        """Gather the values that the op at ``index`` reads whole, and those available that later
        ones need.

        Adjacent values can be exchanged together.
        """
        needed = self._values.read_whole.get(index, ())
        if not any(value in needed for value in self._waiting):
            return
        for value in sorted(self._waiting, key=self._needed_at.__getitem__):
            widths = _widths(self._ranges(value))
            self._ops.append(AllGather(x=self._own(value), out=self._whole(value), widths=widths))
        self._waiting.clear()

    def _ranges(self, value: Value) -> Ranges:
        """Return which columns of a value each member has; empty if every member has all."""
        return () if value.its_class is None else self._parts_of(value.its_class).of(value.width)

    def _parts_of(self, its_class: ValueClass) -> Parts:
        root = its_class.root
        if root not in self._parts:
            self._parts[root] = root.parts(self._shares, self._program.hidden_size)
        return self._parts[root]

    def _whole(self, value: Value) -> str:
        """Return the register with all columns of a value."""
        return add_register(self._registers, value.register, value.width)

    def _own(self, value: Value) -> str:
        """Return the register with a value as it was computed: this member's columns, or all."""
        ranges = self._ranges(value)
        return self._part_of(value, ranges) if ranges else self._whole(value)

    def _part_of(self, value: Value, ranges: Ranges) -> str:
        start, end = ranges[self._member]
        return add_register(self._registers, f"{value.register}.part", end - start)

    def _divided(self, value: Value, ranges: Ranges) -> str:
        """Return the register with this member's columns, copied if all are there."""
        if self._ranges(value):
            return self._own(value)
        start, end = ranges[self._member]
        part, whole = self._part_of(value, ranges), self._whole(value)
        self._ops.append(
            CopyColumns(
                x=whole,
                out=part,
                num_groups=1,
                count=end - start,
                x_stride=end - start,
                out_stride=end - start,
                x_start=start,
            )
        )
        return part

    def _rows(self, name: str | None, ranges: Ranges, axis: int = 0) -> None:
        """Make the program read this member's part of a weight, along one dimension."""
        if name is None or not ranges:
            return
        spec = self._weights[name]
        start, end = ranges[self._member]
        whole = spec.whole_shape
        shape = (*whole[:axis], end - start, *whole[axis + 1 :])
        rows = WeightRows(start=start, total=whole[axis], axis=axis)
        if spec.rows not in (None, rows):
            raise ValueError(f"{name} is divided along two axes")
        self._weights[name] = dataclasses.replace(spec, shape=shape, rows=rows)

    def _add(self, node: Node) -> None:
        """Add the op as this member computes it."""
        op = node.op
        ranges = () if node.made is None else self._ranges(node.made)
        match op:
            case Embed() | Head():
                self._add_op(node, bounds=self._vocabulary(op.weight))
            case Linear():
                self._rows(op.weight, ranges)
                self._rows(op.bias, ranges)
                self._add_op(node)
            case Multiply():
                if ranges and self._weights[op.weight].shape != (1,):
                    self._rows(op.weight, ranges)
                self._add_op(node)
            case HeadLinear():
                heads = self._heads(op.num_heads, node)
                self._rows(op.weight, heads)
                self._add_op(node, num_heads=self._count(heads, op.num_heads))
            case Rope():
                heads = self._heads(op.num_heads, node)
                self._add_op(node, num_heads=self._count(heads, op.num_heads))
            case CopyColumns():
                heads = self._heads(op.num_groups, node)
                self._add_op(node, num_groups=self._count(heads, op.num_groups))
            case Attention():
                self._add_attention(op, node)
            case GatedActivation():
                self._add_activation(op, node, ranges)
            case Moe():
                self._add_moe(op, node, ranges)
            case _:
                self._add_op(node)

    def _add_op(self, node: Node, **changes: Any) -> None:
        """Add an op with this member's registers, and other changes."""
        names: dict[str, Any] = {each: self._read(value) for each, value in node.reads.items()}
        if node.made is not None:
            names["out" if hasattr(node.op, "out") else "x"] = self._own(node.made)
        self._ops.append(dataclasses.replace(node.op, **names, **changes))

    def _read(self, value: Value) -> str:
        """Return the register from which the current op reads a value."""
        return self._whole(value) if self._is_read_whole(value) else self._own(value)

    def _is_read_whole(self, value: Value) -> bool:
        return value in self._values.read_whole.get(self._index, ())

    def _vocabulary(self, weight: str | None) -> tuple[int, ...]:
        if weight is None:
            return ()
        bounds = vocabulary_bounds(self._program.vocab_size, self._shares)
        self._rows(weight, tuple(itertools.pairwise(bounds)))
        return bounds

    def _heads(self, num_heads: int, node: Node) -> Ranges:
        """Return which heads of an op's output each member has; empty if every member has all."""
        if node.made is None or node.made.its_class is None:
            return ()
        return self._parts_of(node.made.its_class).of(num_heads)

    def _count(self, ranges: Ranges, whole: int) -> int:
        """Return how many of ``whole`` this member has."""
        if not ranges:
            return whole
        start, end = ranges[self._member]
        return end - start

    def _add_attention(self, op: Attention, node: Node) -> None:
        parts = WHOLE if node.head_class is None else self._parts_of(node.head_class)
        if not parts.ranges:
            self._add_op(node)
            return
        heads, key_heads = parts.of(op.num_heads), parts.covered_by(op.num_kv_heads)
        names = {"q": self._divided(node.reads["q"], parts.of(node.reads["q"].width))}
        for each in node.reads.keys() - names.keys():
            value = node.reads[each]
            is_shared = op.num_kv_heads == 1
            names[each] = (
                self._read(value) if is_shared else self._divided(value, key_heads.of(value.width))
            )
        num_kv_heads = self._count(key_heads.ranges, op.num_kv_heads)
        spec = self._program.caches[op.cache_index]
        self._caches[op.cache_index] = dataclasses.replace(spec, num_kv_heads=num_kv_heads)
        self._rows(op.sinks, heads)
        changes: dict[str, Any] = {**names, "num_heads": self._count(heads, op.num_heads)}
        if node.made is not None:
            changes["out"] = self._own(node.made)
        self._ops.append(dataclasses.replace(op, **changes, num_kv_heads=num_kv_heads))

    def _add_activation(self, op: GatedActivation, node: Node, ranges: Ranges) -> None:
        up = node.reads["up"]
        has_own = ranges and (up.its_class is None or self._is_read_whole(up))
        start = ranges[self._member][0] if has_own else 0
        self._add_op(node, up_start=op.up_start + start)

    def _add_moe(self, op: Moe, node: Node, ranges: Ranges) -> None:
        if not ranges:
            self._add_op(node)
            return
        expert = tuple(itertools.pairwise(expert_bounds(op, self._shares)))
        for name in (op.gate, op.up, op.gate_bias, op.up_bias):
            self._rows(name, expert, axis=1)
        for name in (op.down, op.down_bias):
            self._rows(name, ranges, axis=1)
        widths = _widths(expert)
        self._add_op(node, expert_widths=widths)


def _widths(ranges: Ranges) -> tuple[int, ...]:
    return tuple(end - start for start, end in ranges)
