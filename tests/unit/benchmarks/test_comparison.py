"""Which settings claims need, and what rows say of samples."""

from __future__ import annotations

import pytest
from comparison import (
    CLAIMS,
    Aims,
    Limits,
    Phase,
    Question,
    Rates,
    Scope,
    Side,
    Work,
    answer,
    questions,
    settings_of,
    work_of,
)
from model_shapes import SHAPES, Experts, Shape
from potluck_bench import outside_products

SCOPE = Scope(
    types=("Q8_0", "BF16"),
    isas=("avx2",),
    num_threads=2,
    num_prompt_tokens=512,
    num_decode_tokens=48,
)
PLAIN = SCOPE.setting("Q8_0")
ONE_THREAD = SCOPE.setting("Q8_0", num_threads=1)
WORK = Work(read_bytes=1e9, operations=2e9)
LIMITS = Limits(read_bytes_per_second=40e9, int8_operations_per_second=4e12)


def test_settings_are_measured_once_and_by_type() -> None:
    settings = settings_of(questions(list(CLAIMS), SCOPE))
    assert len(settings) == len(set(settings))
    # Plain, fast, 8 sequences, both sampled, deep, one thread, avx2 and busy; BF16 is plain.
    assert [each.type_name for each in settings] == ["Q8_0"] * 9 + ["BF16"]


def test_a_claim_alone() -> None:
    (question,) = questions(["context"], SCOPE)
    assert question.setting.depth_tokens == 4096
    assert settings_of([question]) == [question.setting, PLAIN]


def test_a_row() -> None:
    question = Question(
        claim="decode",
        phase=Phase.DECODE,
        setting=PLAIN,
        baseline=ONE_THREAD,
        aims=Aims(ratio=1.25, fraction=0.9, own_ratio=1.9),
    )
    samples = {
        (Side.OURS, PLAIN): Rates(decode=(30.0, 36.0, 37.0)),
        (Side.THEIRS, PLAIN): Rates(decode=(24.0,), failures=("ended with -4: ",)),
        (Side.OURS, ONE_THREAD): Rates(decode=(18.0,)),
    }
    row = answer(question, samples, WORK, LIMITS, counts=True)
    assert (row.ours, row.theirs, row.ratio) == (36.0, 24.0, 1.5)
    assert row.fraction == pytest.approx(36 / 40)
    assert row.their_fraction == pytest.approx(24 / 40)
    assert (row.own_ratio, row.their_own_ratio) == (2.0, None)
    assert row.is_met
    assert row.notes == ("theirs: ended with -4: ",)


@pytest.mark.parametrize(
    ("outside", "is_met"), [((), None), ((0.04, 0.05, 0.09), True), ((0.06,), False)]
)
def test_what_is_outside_the_products(outside: tuple[float, ...], is_met: bool | None) -> None:
    (question,) = questions(["outside"], SCOPE)
    samples = {(Side.OURS, PLAIN): Rates(decode=(30.0,), outside=outside)}
    row = answer(question, samples, WORK, LIMITS, counts=True)
    assert row.is_met is is_met
    assert row.outside == (outside[len(outside) // 2] if outside else None)


def test_decoding_is_held_against_the_bandwidth_around_it() -> None:
    question, _ = questions(["decode"], SCOPE)
    samples = {(Side.OURS, PLAIN): Rates(decode=(30.0, 36.0), of_bandwidth=(0.9, 0.8, 0.7))}
    assert answer(question, samples, WORK, LIMITS, counts=True).fraction == 0.8


def test_ops_outside_the_products() -> None:
    names = ("attn.q+k+v", "mlp.down", "head", "experts", "attention", "add+norms", "sampling")
    ops = [{"op": name, "share": 1 / 8} for name in names]
    assert outside_products({"ops": ops}) == 3 / 8


@pytest.mark.parametrize("missed", [{"ratio": 1.51}, {"fraction": 0.91}, {"own_ratio": 2.01}])
def test_one_aim_that_is_missed_is_enough(missed: dict[str, float]) -> None:
    question = Question(
        claim="decode",
        phase=Phase.DECODE,
        setting=PLAIN,
        baseline=ONE_THREAD,
        aims=Aims(**missed),
    )
    samples = {
        (Side.OURS, PLAIN): Rates(decode=(36.0,)),
        (Side.THEIRS, PLAIN): Rates(decode=(24.0,)),
        (Side.OURS, ONE_THREAD): Rates(decode=(18.0,)),
    }
    assert answer(question, samples, WORK, LIMITS, counts=True).is_met is False


def test_prefill_is_held_against_the_peak() -> None:
    question = Question(claim="prefill", phase=Phase.PREFILL, setting=PLAIN)
    samples = {(Side.OURS, PLAIN): Rates(prefill=(400.0,))}
    row = answer(question, samples, WORK, LIMITS, counts=True)
    assert row.fraction == pytest.approx(400 * 2e9 / 4e12)
    assert row.is_met is None  # it asks for nothing


def test_fast_prefill_is_held_against_their_only_one() -> None:
    fast = SCOPE.setting("Q8_0", is_fast=True)
    question = Question(claim="fast", phase=Phase.PREFILL, setting=fast, aims=Aims(ratio=3.5))
    samples = {
        (Side.OURS, fast): Rates(prefill=(400.0,)),
        (Side.OURS, PLAIN): Rates(prefill=(300.0,)),
        (Side.THEIRS, PLAIN): Rates(prefill=(100.0,)),
    }
    row = answer(question, samples, WORK, LIMITS, counts=True)
    assert (row.ratio, row.is_met) == (4.0, True)


def test_a_build_without_amx_is_shown_and_does_not_count() -> None:
    question = Question(claim="d", phase=Phase.DECODE, setting=PLAIN, aims=Aims(ratio=1.02))
    samples = {
        (Side.OURS, PLAIN): Rates(decode=(40.0,)),
        (Side.THEIRS, PLAIN): Rates(decode=(20.0,)),
    }
    row = answer(question, samples, WORK, LIMITS, counts=False)
    assert (row.ratio, row.is_met) == (2.0, None)
    assert "does not count" in row.notes[0]


def test_a_row_for_an_instruction_set_counts_without_amx() -> None:
    setting = SCOPE.setting("Q8_0", isa="avx2")
    question = Question(claim="d", phase=Phase.DECODE, setting=setting, aims=Aims(ratio=1.1))
    samples = {
        (Side.OURS, setting): Rates(decode=(40.0,)),
        (Side.THEIRS, setting): Rates(decode=(20.0,)),
    }
    row = answer(question, samples, WORK, LIMITS, counts=False)
    assert row.is_met
    assert row.notes == ()
    # Bandwidth was measured with the best instruction set.
    assert row.fraction is None


def test_what_failed_on_both_sides_is_a_row_too() -> None:
    question = Question(claim="d", phase=Phase.DECODE, setting=PLAIN, aims=Aims(ratio=1.1))
    samples = {(side, PLAIN): Rates(failures=(f"{side} hung",)) for side in Side}
    row = answer(question, samples, WORK, Limits(), counts=True)
    assert (row.ours, row.theirs, row.ratio, row.is_met) == (None, None, None, None)
    assert row.notes == ("ours: ours hung", "theirs: theirs hung")


def test_work_of_a_dense_model() -> None:
    # Parameters as the model's card has them; norms (2 · 16 + 1 of 2048) are in 4 bytes.
    norms, head = 33 * 2048, 128_256 * 2048
    matrices = 1_235_814_400 - norms
    work = work_of(SHAPES["Llama-3.2-1B"], "BF16")
    assert work.read_bytes == 2 * matrices + 4 * norms
    assert work.operations == 2 * (matrices - head)


def test_work_of_experts_is_that_of_the_chosen() -> None:
    shape = Shape(
        family="qwen3_moe",
        hidden_size=256,
        intermediate_size=512,
        num_layers=1,
        num_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        vocab_size=1000,
        has_tied_head=False,
        experts=Experts(num_experts=4, num_experts_per_token=2, intermediate_size=256),
    )
    attention = 256 * (256 + 128 + 128 + 256)
    chosen, router = 2 * 3 * 256 * 256, 4 * 256
    norms = 2 * 128 + 3 * 256
    work = work_of(shape, "BF16")
    assert work.operations == 2 * (attention + chosen + router)
    assert work.read_bytes == 2 * (attention + chosen + 1000 * 256) + 4 * (router + norms)
