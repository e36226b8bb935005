"""A program that contradicts itself is refused when the engine is made, naming what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from support.engines.pools import pool_of

from potluck.engines.native.engine import NativeEngine
from potluck.errors import EngineError
from potluck.types.program import (
    Activation,
    Add,
    Attention,
    CacheSpec,
    CopyColumns,
    Embed,
    GatedActivation,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Scale,
    Shard,
    SigmoidGate,
    WeightRole,
    WeightSpec,
)

OpType = TypeVar("OpType", bound=Op)

TABLE = np.zeros((8, 4), dtype=np.float32)
WIDTHS = {
    "hidden": 32,
    "x": 32,
    "q": 16,
    "k": 8,
    "v": 8,
    "a": 16,
    "gate": 40,
    "up": 40,
    "logits": 3,
}


GOOD = Program(
    shard=Shard.whole(1),
    registers=tuple(Register(name=name, width=width) for name, width in WIDTHS.items()),
    ops=(
        Embed(weight="embed", out="hidden"),
        RmsNorm(x="hidden", weight="norm", out="x", group=32, epsilon=1e-5),
        Linear(x="x", weight="wq", out="q", bias="bq"),
        Linear(x="x", weight="wk", out="k"),
        Linear(x="x", weight="wv", out="v"),
        Rope(x="q", num_heads=2, head_dim=8, rotary_dim=8),
        Rope(x="k", num_heads=1, head_dim=8, rotary_dim=4, table=1),
        Attention(
            q="q",
            k="k",
            v="v",
            out="a",
            cache_index=0,
            num_heads=2,
            num_kv_heads=1,
            head_dim=8,
            scale=0.5,
        ),
        Linear(x="a", weight="wo", out="x"),
        Add(x="hidden", y="x"),
        Linear(x="hidden", weight="wg", out="gate"),
        Linear(x="hidden", weight="wg", out="up"),
        GatedActivation(gate="gate", up="up", out="gate"),
        Linear(x="hidden", weight="router", out="logits"),
        Moe(
            x="x",
            logits="logits",
            gate="eg",
            up="eg",
            down="ed",
            out="x",
            num_experts=3,
            num_experts_per_token=2,
            expert_width=48,
            norm_topk_prob=True,
        ),
        Head(x="hidden", weight="embed", vocab_size=100),
    ),
    weights=(
        WeightSpec(name="embed", shape=(100, 32)),
        WeightSpec(name="norm", shape=(32,)),
        WeightSpec(name="wq", shape=(16, 32)),
        WeightSpec(name="bq", shape=(16,)),
        WeightSpec(name="wk", shape=(8, 32)),
        WeightSpec(name="wv", shape=(8, 32)),
        WeightSpec(name="wo", shape=(32, 16)),
        WeightSpec(name="wg", shape=(40, 32)),
        WeightSpec(name="router", shape=(3, 32), role=WeightRole.ROUTER),
        WeightSpec(name="eg", shape=(3, 48, 32)),
        WeightSpec(name="ed", shape=(3, 32, 48)),
    ),
    caches=(CacheSpec(num_kv_heads=1, head_dim=8, value_dim=8),),
    ropes=(
        RopeTable(cos=TABLE, sin=TABLE),
        RopeTable(cos=TABLE[:, :2].copy(), sin=TABLE[:, :2].copy()),
    ),
    hidden_size=32,
    vocab_size=100,
    context_tokens=8,
)


def make(program: Program, num_blocks: int = 4, max_step_tokens: int = 8) -> NativeEngine:
    return NativeEngine(
        program, num_blocks=num_blocks, max_step_tokens=max_step_tokens, pool=pool_of(1)
    )


def test_a_good_program_is_accepted() -> None:
    make(GOOD)


def test_a_cache_may_be_read_by_later_ops() -> None:
    first = GOOD.ops[7]
    assert isinstance(first, Attention)
    make(with_op(8, replace(first, k=None, v=None)))


def test_a_program_may_embed_into_several_registers() -> None:
    make(with_op(2, Embed(weight="embed", out="x")))


def test_an_unknown_op_is_refused() -> None:
    unknown: Any = GOOD.registers[0]
    with pytest.raises(EngineError, match="there is no op Register"):
        make(with_op(1, unknown))


def edited(kind: type[OpType], edit: Callable[[OpType], Op]) -> Program:
    """``GOOD`` with its first op of ``kind`` changed."""
    ops = list(GOOD.ops)
    index, op = next((i, op) for i, op in enumerate(ops) if isinstance(op, kind))
    ops[index] = edit(op)
    return replace(GOOD, ops=tuple(ops))


def with_op(index: int, *ops: Op) -> Program:
    """``GOOD`` with ``ops`` put in before ``index``."""
    return replace(GOOD, ops=(*GOOD.ops[:index], *ops, *GOOD.ops[index:]))


def with_weight(name: str, *shape: int) -> Program:
    kept = tuple(weight for weight in GOOD.weights if weight.name != name)
    return replace(GOOD, weights=(*kept, WeightSpec(name=name, shape=shape)))


def with_register(name: str, width: int) -> Program:
    kept = tuple(register for register in GOOD.registers if register.name != name)
    return replace(GOOD, registers=(*kept, Register(name=name, width=width)))


COPY = CopyColumns(x="x", out="q", num_groups=2, count=8, x_stride=16, out_stride=8)
HEADS = HeadLinear(
    x="x", weight="wh", out="q", num_heads=2, rows=8, columns=16, x_stride=16, out_stride=8
)


def with_heads(op: HeadLinear) -> Program:
    weight = WeightSpec(name="wh", shape=(2, 8, 16))
    return replace(with_op(2, op), weights=(*GOOD.weights, weight))


def latent(
    *, value_start: int = 0, value_dim: int = 8, cached: int = 0, v: str | None = None
) -> Program:
    program = edited(
        Attention, lambda op: replace(op, v=v, value_start=value_start, value_dim=value_dim)
    )
    return replace(program, caches=(replace(GOOD.caches[0], value_dim=cached),))


def test_columns_and_values_in_keys_are_accepted() -> None:
    make(with_op(2, COPY))
    make(with_heads(HEADS))
    make(latent())


BAD: dict[str, tuple[Program, str]] = {
    "unknown register": (edited(Linear, lambda op: replace(op, x="z")), "no register 'z'"),
    "unknown weight": (edited(Linear, lambda op: replace(op, weight="z")), "no weight 'z'"),
    "unknown bias": (edited(Linear, lambda op: replace(op, bias="z")), "no weight 'z'"),
    "wrong bias": (edited(Linear, lambda op: replace(op, bias="norm")), r"op 2 \(Linear\)"),
    "in place": (edited(Linear, lambda op: replace(op, out="x")), "input and output at once"),
    "matrix shape": (with_weight("wk", 8, 33), r"\[8, 33\], and \[8, 32\] is needed"),
    "vector for matrix": (with_weight("wk", 8), "is needed"),
    "stack for matrix": (with_weight("wk", 8, 32, 1), r"\[8, 32, 1\], and \[8, 32\] is needed"),
    "four dimensions": (with_weight("wk", 8, 32, 1, 1), "no vector, matrix or stack"),
    "huge stack": (with_weight("wk", 1 << 20, 1 << 20, 32), "the rows of weight 'wk'"),
    "size zero": (with_weight("wk", 0, 32), "must be from 1"),
    "huge size": (with_weight("wk", 1 << 40, 32), "must be from 1"),
    "unused weight": (with_weight("spare", 3), "'spare' is never used"),
    "weight twice": (
        replace(GOOD, weights=(*GOOD.weights, GOOD.weights[0])),
        "'embed' is listed twice",
    ),
    "register twice": (
        replace(GOOD, registers=(*GOOD.registers, GOOD.registers[1])),
        "'x' is declared twice",
    ),
    "no hidden": (replace(GOOD, registers=GOOD.registers[1:]), "no register 'hidden'"),
    "hidden width": (replace(GOOD, hidden_size=64), "'hidden' is not hidden_size wide"),
    "register width": (with_register("gate", 0), "width of register 'gate'"),
    "read before written": (with_op(1, Add(x="hidden", y="x")), "read before it is written"),
    "embedding shape": (replace(GOOD, vocab_size=99), "'embed' has shape"),
    "group": (edited(RmsNorm, lambda op: replace(op, group=5)), "group does not divide"),
    "group zero": (edited(RmsNorm, lambda op: replace(op, group=0)), "group does not divide"),
    "epsilon": (edited(RmsNorm, lambda op: replace(op, epsilon=float("nan"))), "epsilon"),
    "norm width": (edited(RmsNorm, lambda op: replace(op, out="q")), "is 16 wide, and 32"),
    "rope width": (edited(Rope, lambda op: replace(op, num_heads=3)), "is 16 wide, and 24"),
    "other rope table": (
        edited(Rope, lambda op: replace(op, table=1)),
        "rope table 1 is not one for a rotary_dim of 8",
    ),
    "rotary_dim": (
        edited(Rope, lambda op: replace(op, rotary_dim=10)),
        "rotary_dim must be from 2 to head_dim",
    ),
    "odd head": (
        edited(Rope, lambda op: replace(op, num_heads=4, head_dim=4)),
        "must be a multiple of 8",
    ),
    "no rope table": (replace(GOOD, ropes=()), "no rope table 0"),
    "rope table below": (edited(Rope, lambda op: replace(op, table=-1)), "no rope table -1"),
    "short rope table": (
        replace(GOOD, ropes=(RopeTable(cos=TABLE[:5], sin=TABLE[:5]),)),
        "one row per position",
    ),
    "other sin": (
        replace(GOOD, ropes=(RopeTable(cos=TABLE, sin=TABLE[:, :2].copy()),)),
        "rope table",
    ),
    "no such cache": (edited(Attention, lambda op: replace(op, cache_index=1)), "no cache 1"),
    "cache below": (edited(Attention, lambda op: replace(op, cache_index=-1)), "no cache -1"),
    "other cache": (
        replace(GOOD, caches=(CacheSpec(num_kv_heads=2, head_dim=8, value_dim=8),)),
        "has other heads",
    ),
    "unused cache": (replace(GOOD, caches=GOOD.caches * 2), "cache 1 is never used"),
    "cache filled twice": (with_op(8, GOOD.ops[7]), "filled by another op"),
    "cache never filled": (
        edited(Attention, lambda op: replace(op, k=None, v=None)),
        "cache 0 is read before it is filled",
    ),
    "keys without values": (
        edited(Attention, lambda op: replace(op, v=None)),
        "keys and values come together",
    ),
    "heads": (
        edited(Attention, lambda op: replace(op, num_heads=3, num_kv_heads=2)),
        "num_kv_heads does not divide",
    ),
    "attention width": (
        edited(Attention, lambda op: replace(op, out="x")),
        "'x' is 32 wide, and 16",
    ),
    "attention in place": (
        edited(Attention, lambda op: replace(op, out="q")),
        "input and output at once",
    ),
    "window": (edited(Attention, lambda op: replace(op, window=0)), "window"),
    "scale": (edited(Attention, lambda op: replace(op, scale=float("inf"))), "scale"),
    "softcap": (edited(Attention, lambda op: replace(op, softcap=0.0)), "softcap"),
    "sinks": (edited(Attention, lambda op: replace(op, sinks="norm")), r"and \[2\] is needed"),
    "gate width": (
        edited(GatedActivation, lambda op: replace(op, up="q")),
        "'q' does not have the columns of 'gate' from 0 on",
    ),
    "columns of up": (edited(GatedActivation, lambda op: replace(op, up_start=1)), "from 1 on"),
    "columns before up": (edited(GatedActivation, lambda op: replace(op, up_start=-1)), "-1 on"),
    "layer norm": (
        with_op(2, LayerNorm(x="x", weight="norm", out="q", epsilon=1e-5)),
        "is 16 wide, and 32",
    ),
    "sigmoid gate width": (with_op(2, SigmoidGate(x="x", gate="up")), "is 40 wide, and 32"),
    "sigmoid gate in place": (with_op(2, SigmoidGate(x="x", gate="x")), "input and output"),
    "factor": (with_op(2, Scale(x="x", factor=float("nan"))), "factor must be finite"),
    "factors": (with_op(2, Multiply(x="x", weight="bq")), r"\[16\], and \[32\] is needed"),
    "no columns to copy": (with_op(2, replace(COPY, count=0)), "count must be at least 1"),
    "columns of x": (with_op(2, replace(COPY, x_start=9)), "'x' does not have all of the columns"),
    "columns before x": (with_op(2, replace(COPY, x_start=-1)), "'x' does not have all"),
    "huge stride": (with_op(2, replace(COPY, x_stride=1 << 62)), "'x' does not have all"),
    "many groups": (with_op(2, replace(COPY, num_groups=1 << 30)), "'x' does not have all"),
    "columns of out": (with_op(2, replace(COPY, out_start=1)), "'q' does not have all"),
    "columns twice": (with_op(2, replace(COPY, out_stride=4)), "columns of out are written twice"),
    "copy in place": (with_op(2, replace(COPY, out="x")), "input and output at once"),
    "heads' columns": (with_heads(replace(HEADS, x_start=1)), "'x' does not have all"),
    "heads' rows": (with_heads(replace(HEADS, out_start=1)), "'q' does not have all"),
    "heads' rows twice": (with_heads(replace(HEADS, out_stride=7)), "written twice"),
    "heads' matrices": (with_heads(replace(HEADS, columns=8)), r"\[2, 8, 8\] is needed"),
    "no heads": (with_heads(replace(HEADS, num_heads=0)), "must be at least 1"),
    "heads in place": (with_heads(replace(HEADS, out="x")), "input and output at once"),
    "values after keys": (latent(value_start=1), "keys have no 8 columns from 1 on"),
    "values before keys": (latent(value_start=-1), "keys have no 8 columns from -1 on"),
    "no values": (latent(value_dim=0), "value_dim must be at least 1"),
    "values in keys and beside": (latent(v="v"), "and have no register"),
    "values kept in vain": (latent(cached=8), "has other heads"),
    "values not kept": (
        replace(GOOD, caches=(CacheSpec(num_kv_heads=1, head_dim=8, value_dim=0),)),
        "has other heads",
    ),
    "width of values": (
        edited(Attention, lambda op: replace(op, value_dim=16)),
        "'a' is 16 wide, and 32 is needed",
    ),
    "no gate": (edited(GatedActivation, lambda op: replace(op, gate=None)), "needs a gate"),
    "a gate too many": (
        edited(GatedActivation, lambda op: replace(op, activation=Activation.RELU_SQUARED)),
        "the activation has no gate",
    ),
    "experts' gate": (edited(Moe, lambda op: replace(op, gate=None)), "needs a gate"),
    "experts' gate too many": (
        edited(Moe, lambda op: replace(op, activation=Activation.RELU_SQUARED)),
        "the activation has no gate",
    ),
    "no experts": (edited(Moe, lambda op: replace(op, num_experts=0)), "num_experts must be"),
    "too many chosen": (
        edited(Moe, lambda op: replace(op, num_experts_per_token=4)),
        "num_experts_per_token must be from 1 to num_experts",
    ),
    "none chosen": (
        edited(Moe, lambda op: replace(op, num_experts_per_token=0)),
        "num_experts_per_token must be from 1 to num_experts",
    ),
    "groups": (edited(Moe, lambda op: replace(op, num_groups=2)), "num_groups does not divide"),
    "small groups": (edited(Moe, lambda op: replace(op, num_groups=3)), "at least 2 experts"),
    "groups used": (
        edited(Moe, lambda op: replace(op, num_groups_used=2)),
        "num_groups_used must be from 1 to num_groups",
    ),
    "share_scale": (edited(Moe, lambda op: replace(op, share_scale=float("inf"))), "share_scale"),
    "correction": (
        edited(Moe, lambda op: replace(op, e_score_correction_bias="norm")),
        r"\[3\] is needed",
    ),
    "biases": (edited(Moe, lambda op: replace(op, up_bias="wq")), r"\[3, 48\] is needed"),
    "router's width": (
        edited(Moe, lambda op: replace(op, num_experts=2)),
        "'logits' is 3 wide, and 2 is needed",
    ),
    "experts across panels": (
        edited(Moe, lambda op: replace(op, expert_width=40)),
        "experts have 40 rows, which must be a multiple of 16",
    ),
    "logits in place": (edited(Moe, lambda op: replace(op, out="logits")), "input and output"),
    "other experts": (edited(Moe, lambda op: replace(op, down="eg")), r"\(Moe\): weight 'eg'"),
    "add width": (edited(Add, lambda op: replace(op, y="gate")), "is 40 wide, and 32"),
    "head vocabulary": (edited(Head, lambda op: replace(op, vocab_size=5)), "vocab_size"),
    "add scale": (edited(Add, lambda op: replace(op, scale=float("nan"))), "scale must be finite"),
    "logit scale": (edited(Head, lambda op: replace(op, scale=float("nan"))), "scale must be fin"),
    "logit cap": (edited(Head, lambda op: replace(op, softcap=-1.0)), "softcap"),
    "embed not first": (
        replace(GOOD, ops=(Scale(x="hidden", factor=1.0), *GOOD.ops)),
        "read before it is written",
    ),
    "embed on a later stage": (
        replace(GOOD, shard=replace(GOOD.shard, has_embedding=False)),
        "does not have the embedding",
    ),
    "no embed": (replace(GOOD, ops=GOOD.ops[1:]), "read before it is written"),
    "second head": (with_op(3, GOOD.ops[-1]), "ends with Head"),
    "no head": (replace(GOOD, ops=GOOD.ops[:-1]), "ends with Head"),
    "no ops": (replace(GOOD, ops=()), "no ops"),
    "context": (
        replace(GOOD, context_tokens=0),
        "context_tokens",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_program_is_refused(name: str) -> None:
    program, message = BAD[name]
    with pytest.raises(EngineError, match=message):
        make(program)


@pytest.mark.parametrize(
    ("num_blocks", "max_step_tokens"), [(-1, 8), (1 << 40, 8), (4, 0), (4, 1 << 40)]
)
def test_nonsensical_sizes_are_refused(num_blocks: int, max_step_tokens: int) -> None:
    with pytest.raises(EngineError, match="must be from"):
        make(GOOD, num_blocks, max_step_tokens)
