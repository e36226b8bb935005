"""What ops ask of an engine, and which of it a backend says that it lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.engines.native_pipeline import small_config

import potluck
from potluck.engines.backends import BACKENDS, abilities_of, cost_of
from potluck.models.program import build_program
from potluck.models.rope import empty_rope_tables
from potluck.types.backend import ALL_FEATURES, BackendAbilities, BackendSpec, features_of
from potluck.types.program import Attention, Head, Linear, Op, Program, Shard
from potluck.types.tensor import TensorFormat

ATTENTION = Attention(
    q="q",
    k="k",
    v="v",
    out="o",
    cache_index=0,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    scale=0.5,
)


def a_program() -> Program:
    config = small_config(2)
    ropes = empty_rope_tables(config, 64)
    return build_program(config, Shard.whole(2), context_tokens=64, ropes=ropes)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (ATTENTION, ["Attention"]),
        (replace(ATTENTION, window=5), ["Attention", "Attention with window"]),
        (Linear(x="x", weight="w", out="y"), ["Linear"]),
        (Linear(x="x", weight="w", out="y", bias="b"), ["Linear", "Linear with bias"]),
        (Head(x="x", weight=None, vocab_size=5), ["Head", "Head without weight"]),
    ],
)
def test_an_op_asks_for_itself_and_for_what_of_it_is_optional(op: Op, wanted: list[str]) -> None:
    assert list(features_of(op)) == wanted
    assert ALL_FEATURES.issuperset(wanted)


def test_what_is_missing_is_named_once() -> None:
    program = a_program()
    wanted = {each for op in program.ops for each in features_of(op)}
    assert ALL_FEATURES >= wanted >= {"Embed", "Moe", "Head"}
    able = BackendAbilities(features=ALL_FEATURES - {"Moe", "Linear"})
    assert sorted(able.missing_features(program)) == ["Linear", "Moe"]
    ops = {type(op).__name__ for op in program.ops}
    assert set(BackendAbilities().missing_features(program)) == ops


def test_formats_that_are_missing_are_named_once() -> None:
    able = BackendAbilities(formats=frozenset({TensorFormat.BF16}))
    formats = [TensorFormat.Q4_0, TensorFormat.BF16, TensorFormat.Q4_0]
    assert able.missing_formats(formats) == ("q4_0",)


@pytest.mark.parametrize("spec", BACKENDS, ids=lambda spec: spec.name)
def test_the_table_of_backends_and_their_engines_say_the_same(spec: BackendSpec) -> None:
    assert spec.abilities == cost_of(spec.name).abilities == abilities_of(spec.name)
    assert spec.abilities.features <= ALL_FEATURES
    assert {"Embed", "Linear", "Attention", "Head"} <= spec.abilities.features


def test_nothing_is_said_of_a_backend_that_is_not_in_the_table() -> None:
    assert abilities_of("tinygrad:METAL") == BackendAbilities()


def test_no_source_compares_a_backend_with_a_name() -> None:
    """What a backend does is asked of its abilities."""
    root = Path(potluck.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"[!=]= ?NATIVE\b|is (not )?NATIVE\b", line)
    ]
    assert found == []
