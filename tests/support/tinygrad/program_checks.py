"""Checks of whole programs on tinygrad against the reference engine; see ``tinygrad_child``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.parity import native_error_limit, rms
from support.engines.stages import cut
from support.models.configs import make_config
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine
from support.reference.sampling import sample, score
from support.text.token_masks import mask_rows
from tinygrad.helpers import GlobalCounters

from potluck.engines.tinygrad.backend import COST
from potluck.engines.tinygrad.compiled import open_device
from potluck.engines.tinygrad.engine import TinygradEngine
from potluck.errors import EngineError, ParameterError, UnitFaultError
from potluck.models.layers import with_attention, with_layers
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.arithmetic import Arithmetic
from potluck.types.engine import Engine, StepResult
from potluck.types.model import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormKind,
    NormPlaces,
    PerLayerInputs,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation, Program, Shard
from potluck.types.step import (
    BlockCopy,
    Pooling,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat
from potluck.types.unit import Fault

Logits = NDArray[np.float32]

CONTEXT, NUM_BLOCKS, VOCAB = 128, 40, 90


def tiny(**changes: Any) -> ModelConfig:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_heads": 4}
    return make_config(**{**sizes, "vocab_size": VOCAB, **changes})


TINY = tiny()
# What families differ in, all at once.
QWEN3 = tiny(qk_norm=True, tied_head=True)
QWEN2 = tiny(qkv_bias=True)
MISTRAL = tiny(sliding_windows=(5, None))
_NEAR = RopeConfig(theta=10000.0, rotary_dim=16)
_FAR = RopeConfig(theta=1e6, rotary_dim=16, scaling=RopeScaling.LINEAR, factor=8.0)


def _gemma(**changes: Any) -> ModelConfig:
    """Local and global layers with a rope table each, four norms, and GELU."""

    def layer(index: int, plain: LayerConfig) -> LayerConfig:
        is_global = index % 2 == 1
        return replace(
            plain,
            norms=NormPlaces.SANDWICH,
            mlp=MlpConfig(width=96, activation=Activation.GELU_TANH),
            attention=replace(
                plain.grouped_attention,
                rope=int(is_global),
                window=None if is_global else 5,
                scale=0.3,
            ),
        )

    sizes = {"embedding_scale": 8.0, "ropes": (_NEAR, _FAR), "tied_head": True, "qk_norm": True}
    return with_layers(tiny(**{**sizes, **changes}), layer)


def _capped(index: int, attention: AttentionConfig) -> AttentionConfig:
    return replace(attention, softcap=2.0)


def _sharing(index: int, attention: AttentionConfig) -> AttentionConfig:
    shared = index - 2 if index >= 2 else None
    return replace(attention, shared_layer=shared, has_value_norm=shared is None)


def _without_rope(index: int, attention: AttentionConfig) -> AttentionConfig:
    return replace(attention, rope=None if index % 2 else 0)


GEMMA3 = _gemma()
GEMMA2 = replace(with_attention(GEMMA3, _capped), logit_softcap=3.0)
GEMMA4 = with_layers(
    replace(
        with_attention(_gemma(num_layers=4), _sharing),
        per_layer_inputs=PerLayerInputs(width=12),
    ),
    lambda _, layer: replace(layer, has_output_scale=True),
)
PHI4 = tiny(rope=RopeConfig(theta=10000.0, rotary_dim=12))
SMOLLM3 = with_attention(tiny(num_layers=4), _without_rope)
GRANITE = with_layers(
    tiny(embedding_scale=12.0, logit_scale=0.25),
    lambda _, layer: replace(layer, residual_scale=0.22),
)
COMMAND_R = with_layers(
    tiny(norm=NormKind.LAYER, logit_scale=0.5),
    lambda _, layer: replace(layer, norms=NormPlaces.PARALLEL),
)
OLMO2 = with_layers(tiny(), lambda _, layer: replace(layer, norms=NormPlaces.POST))
TOKENS = tuple(np.random.default_rng(5).integers(0, VOCAB, 100).tolist())


def check_llama() -> None:
    _compare(TINY, TensorFormat.F32)


def check_family_mistral() -> None:
    _compare(MISTRAL, TensorFormat.F32)


def check_family_qwen2() -> None:
    _compare(QWEN2, TensorFormat.F32)


def check_family_qwen3() -> None:
    _compare(QWEN3, TensorFormat.F32)


def check_family_gemma_2() -> None:
    _compare(GEMMA2, TensorFormat.F32)


def check_family_gemma_3() -> None:
    _compare(GEMMA3, TensorFormat.F32)


def check_gemma_4_with_shared_caches_and_inputs_of_every_layer() -> None:
    _compare(GEMMA4, TensorFormat.F32)


def check_family_phi_4() -> None:
    _compare(PHI4, TensorFormat.F32)


def check_family_smollm_3() -> None:
    _compare(SMOLLM3, TensorFormat.F32)


def check_family_granite() -> None:
    _compare(GRANITE, TensorFormat.F32)


def check_family_command_r() -> None:
    _compare(COMMAND_R, TensorFormat.F32)


def check_family_olmo_2() -> None:
    _compare(OLMO2, TensorFormat.F32)


def check_these_families_need_nothing_that_the_backend_lacks() -> None:
    for config in (GEMMA2, GEMMA3, GEMMA4, PHI4, SMOLLM3, GRANITE, COMMAND_R, OLMO2):
        program = _program(config, Shard.whole(config.num_layers))
        assert COST.abilities.missing_features(program) == ()


def check_quantized() -> None:
    """Formats of a file's own mixture; every format by itself is checked with the weights."""
    _compare(TINY, TensorFormat.Q4_0)


def check_chunks_and_replay() -> None:
    """A prompt in pieces gives what it gives whole, and the same pieces give the same bits."""
    engine = _engine()
    whole = _logits(engine, _slice(0, TOKENS[:60]))
    runs = []
    for sequence in (1, 2):
        for start, end in ((0, 7), (7, 40), (40, 41), (41, 60)):
            last = _logits(engine, _slice(sequence, TOKENS[start:end], start))
        runs.append(last)
    np.testing.assert_array_equal(runs[0], runs[1])
    _assert_close(runs[0], whole)


def check_a_batch_gives_what_each_gives_alone() -> None:
    engine = _engine()
    prompts = [TOKENS[:1], TOKENS[1:18], TOKENS[5:45], TOKENS[20:23]]
    alone = [_logits(engine, _slice(i, prompt)) for i, prompt in enumerate(prompts)]
    _logits(engine, _slice(6, prompts[2][:9]))
    together = _logits(
        engine,
        _slice(4, prompts[0]),
        _slice(5, prompts[1]),
        _slice(6, prompts[2][9:], 9),
        _slice(3, prompts[3]),
    )
    _assert_close(together, np.concatenate(alone))


def check_only_sampled_slices_have_logits() -> None:
    engine = _engine()
    alone = _logits(engine, _slice(0, TOKENS[:9]))
    slices = (
        _slice(1, TOKENS[9:50], is_sampled=False),
        _slice(2, TOKENS[:9]),
        _slice(3, TOKENS[:4], is_sampled=False),
    )
    _assert_close(_logits(engine, *slices), alone)
    unsampled = Step(step_id=StepId(0), slices=slices[:1])
    assert engine.logits(unsampled, None).shape == (0, VOCAB)


def check_stages() -> None:
    """Cut in the middle, with a stage that has no layers, the model computes the same."""
    whole = _logits(_engine(), _slice(0, TOKENS[:40]), _slice(1, TOKENS[:3]))
    step = Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:40]), _slice(1, TOKENS[:3])))
    hidden = None
    *first, last = [_new(_program(TINY, shard)) for shard in cut(TINY.num_layers, [0, 1])]
    for engine in first:
        hidden = engine.step(step, hidden).hidden
        assert hidden is not None
        assert hidden.shape == (43, TINY.hidden_size)
    _assert_close(last.logits(step, hidden), whole)


def check_warming_up_changes_nothing() -> None:
    engine = _engine()
    _logits(engine, _slice(0, TOKENS[:20]))
    expected = _logits(engine, _slice(0, TOKENS[20:21], 20))
    engine.warm_up()
    again = _logits(engine, _slice(0, TOKENS[20:21], 20))
    np.testing.assert_array_equal(again, expected)


def check_copies_of_blocks() -> None:
    """A fork within a block, by way of a third; also one of the blocks that warming up reads."""
    engine = _engine()
    engine.warm_up()
    tokens = TOKENS[:25]
    _logits(engine, _slice(0, tokens))
    table, between = _slice(0, tokens).block_table, _slice(2, tokens).block_table[3]
    fork = _slice(1, TOKENS[40:43], 25)
    target = fork.block_table[1]
    fork = replace(fork, block_table=(table[0], *fork.block_table[1:]))
    copies = (
        BlockCopy(source=table[1], target=between),
        BlockCopy(source=between, target=target),
    )
    slices = (_slice(0, TOKENS[50:54], 25), fork)
    together = engine.logits(Step(step_id=StepId(0), slices=slices, copies=copies), None)
    for row, tail in zip(together, (TOKENS[50:54], TOKENS[40:43]), strict=True):
        _assert_close(row, _logits(engine, _slice(4, (*tokens, *tail)))[0])
    embedding = _new(_program(TINY, cut(TINY.num_layers, [0])[0]))
    assert embedding.step(Step(step_id=StepId(0), slices=(), copies=copies), None).sampled == ()
    bad = Step(step_id=StepId(0), slices=(), copies=(BlockCopy(source=0, target=NUM_BLOCKS),))
    _refused("of a copy", lambda: engine.step(bad, None))


def check_sampling() -> None:
    """What is chosen is what the reference chooses from the same logits; penalties count."""
    engine = _engine()
    params = [
        SamplingParams(temperature=0.0, repetition_penalty=5.0, logprobs=True, top_logprobs=2),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.95, seed=3, frequency_penalty=2.0),
    ]
    outputs: list[list[int]] = [[], []]
    openings = tuple(
        SequenceOpening(sequence_id=SequenceId(i), sampling=each, prompt_tokens=TOKENS[:9])
        for i, each in enumerate(params)
    )
    fed, start = [TOKENS[:9], TOKENS[:9]], 0
    vocab_size = TINY.vocab_size
    for turn in range(4):
        masks = {SequenceId(1): mask_rows(vocab_size, range(turn, vocab_size, 2))} if turn else {}
        parts = [_slice(i, fed[i], start) for i in range(2)]
        # The same tokens in the same places, so that the same bits are in the cache after.
        logits = engine.logits(Step(step_id=StepId(0), slices=tuple(parts)), None)
        step = Step(step_id=StepId(0), slices=tuple(parts), opened=() if turn else openings)
        result = engine.step(step, None, masks)
        start += len(fed[0])
        for i, (chosen, row) in enumerate(zip(result.sampled, logits, strict=True)):
            wanted = sample(
                row,
                params[i],
                prompt_tokens=TOKENS[:9],
                output_tokens=outputs[i],
                position=start,
                mask=masks[SequenceId(i)][0] if SequenceId(i) in masks else None,
            )
            assert (chosen.sequence_id, chosen.position) == (i, start)
            assert chosen.token == wanted.token
            assert [one.token for one in chosen.top] == [one.token for one in wanted.top]
            outputs[i].append(chosen.token)
            fed[i] = (chosen.token,)
    closing = Step(step_id=StepId(0), slices=(), closed=(SequenceId(0), SequenceId(1)), opened=())
    assert engine.step(closing, None) == StepResult(hidden=None, sampled=())
    assert len(set(outputs[0])) == 4, "a penalty of 5 forbids a token to be repeated"


def check_what_follows_wrong_drafts_in_another_call_is_sampled_from_its_own_logits() -> None:
    engine = _engine()
    openings = (_opening(0), _opening(1))
    prompt = _slice(1, TOKENS[9:49])
    first = Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:9]), prompt), opened=openings)
    (token, alone) = engine.step(first, None).sampled
    after = engine.logits(Step(step_id=StepId(0), slices=(_slice(0, (token.token,), 9),)), None)
    wrong = (int(np.argmin(after[0])),) * 3
    drafted = replace(_slice(0, (token.token, *wrong), 9), num_drafts=3)
    second = Step(step_id=StepId(1), slices=(drafted, prompt))
    sampled = engine.step(second, None).sampled
    engine.reset()  # other checks have the same engine
    assert [(each.sequence_id, each.position) for each in sampled] == [(0, 10), (1, 40)]
    assert sampled[1].token == alone.token


def check_a_reset_forgets_sequences() -> None:
    engine = _engine()
    opening = SequenceOpening(
        sequence_id=SequenceId(0),
        sampling=SamplingParams(temperature=0.8, repetition_penalty=1.4, seed=3),
        prompt_tokens=TOKENS[:9],
    )
    step = Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:9]),), opened=(opening,))
    first = engine.step(step, None)
    _refused("opened twice", lambda: engine.step(step, None))
    engine.reset()
    assert engine.step(step, None) == first
    engine.reset()  # other checks have the same engine


def check_scores() -> None:
    """Of more tokens than a call computes; those of the reference from the same logits."""
    engine = _engine()
    opening = SequenceOpening(
        sequence_id=SequenceId(0),
        sampling=SamplingParams(temperature=0.0, logprobs=True, top_logprobs=2),
        prompt_tokens=TOKENS[:51],
    )
    part = replace(_slice(0, TOKENS[:50], is_sampled=False), score_from=3, next_token=TOKENS[50])
    step = Step(step_id=StepId(0), slices=(part,), opened=(opening,), closed=(opening.sequence_id,))
    scores = engine.step(step, None).sampled
    logits = _engine().logits(replace(step, opened=()), None)
    assert len(scores) == len(logits) == 47
    for position, (got, row) in enumerate(zip(scores, logits, strict=True), 4):
        wanted = score(row, TOKENS[position], 2, position=position)
        assert (got.position, got.token) == (position, TOKENS[position])
        assert got.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        assert [each.token for each in got.top] == [each.token for each in wanted.top]


def check_vectors() -> None:
    """In pieces, beside others that are sampled, and where the model has no head."""
    headless = replace(TINY, has_logits=False, tied_head=False, num_labels=3)
    for config in (TINY, headless):
        program = _program(config, Shard.whole(config.num_layers))
        engine = _new(program)
        reference = ReferenceEngine(program, num_blocks=NUM_BLOCKS)
        load_random_weights(reference, program, TensorFormat.F32)
        engines: list[Engine] = [engine, reference]
        engine.warm_up()
        rows = []
        for each in engines:
            vectors = []
            for pooling in Pooling:
                for start, end in ((0, 30), (30, 60)):
                    first = _slice(0, TOKENS[start:end], start, is_sampled=False)
                    ends = start == 0 if pooling is Pooling.CLS else end == 60
                    pooled = replace(first, pooling=pooling, ends_pooling=ends)
                    beside = _slice(1, TOKENS[: end - start], is_sampled=config.has_logits)
                    step = Step(
                        step_id=StepId(0),
                        slices=(beside, pooled),
                        opened=(_opening(1),) if config.has_logits else (),
                        closed=(SequenceId(1),),
                    )
                    sampled = each.step(step, None).sampled
                    assert len(sampled) == config.has_logits + ends
                    if ends:
                        assert sampled[-1].vector is not None
                        vectors.append(np.frombuffer(sampled[-1].vector, "<f4"))
            rows.append(np.array(vectors))
        _assert_close(*rows)
        late = replace(_slice(0, TOKENS[:3], 5, is_sampled=False), pooling=Pooling.MEAN)
        step = Step(step_id=StepId(0), slices=(late,))
        _refused("the tokens before 0", partial(engine.step, step, None))


def _opening(sequence: int) -> SequenceOpening:
    return SequenceOpening(
        sequence_id=SequenceId(sequence),
        sampling=SamplingParams(temperature=0.0),
        prompt_tokens=TOKENS[:5],
    )


def check_errors_leave_the_cache_unchanged() -> None:
    engine = _engine()
    _logits(engine, _slice(0, TOKENS[:20]))
    expected = _logits(engine, _slice(0, TOKENS[20:21], 20))
    good = _slice(0, TOKENS[30:40], 10)
    opening = SequenceOpening(
        sequence_id=SequenceId(0), sampling=SamplingParams(top_p=7.0), prompt_tokens=(1,)
    )
    bad = (
        ("not in a vocabulary", Step(step_id=StepId(0), slices=(replace(good, tokens=(VOCAB,)),))),
        ("is not one of", Step(step_id=StepId(0), slices=(replace(good, block_table=(99,) * 8),))),
        ("never opened", Step(step_id=StepId(0), slices=(good,))),
        ("top_p", Step(step_id=StepId(0), slices=(good,), opened=(opening,))),
        (
            "exceeds the stage.s limit of 64",
            Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:60]), _slice(1, TOKENS[:9]))),
        ),
    )
    for message, step in bad:
        _refused(message, partial(engine.step, step, None))
    _refused(
        "accept hidden", lambda: engine.step(Step(step_id=StepId(0), slices=(good,)), _hidden(10))
    )
    again = _logits(engine, _slice(0, TOKENS[20:21], 20))
    np.testing.assert_array_equal(again, expected)


def check_what_is_not_finite_is_a_fault() -> None:
    """On the last stage and on one whose numbers go on to the next."""
    _, middle, last = (_new(_program(TINY, shard)) for shard in cut(TINY.num_layers, [0, 1]))
    step = Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:3]),))
    hidden = _hidden(3)
    hidden[1, 5] = np.nan
    for run in (middle.step, last.logits):
        with pytest.raises(UnitFaultError) as raised:
            run(step, hidden)
        assert raised.value.fault == Fault.NOT_FINITE.value
        hidden[1, 5], hidden[2, 5] = 0, np.inf


def check_an_engine_without_weights_or_closed_computes_nothing() -> None:
    step = Step(step_id=StepId(0), slices=(_slice(0, TOKENS[:3]),))
    engine = TinygradEngine(_program(TINY, Shard.whole(2)), num_blocks=4, max_step_tokens=8)
    _refused("not loaded", lambda: engine.logits(step, None))
    _refused("not loaded", engine.warm_up)
    engine.close()
    engine.close()
    _refused("closed", lambda: engine.logits(step, None))


def check_memory_is_no_more_than_counted() -> None:
    """For any number of layers, and all of it is given back."""
    for num_layers in (1, 4):
        config = tiny(num_layers=num_layers)
        program = _program(config, Shard.whole(num_layers))
        before = GlobalCounters.mem_used
        engine = _new(program)
        engine.warm_up()
        cache_bytes = COST.cache_bytes(program, NUM_BLOCKS) // (2 if open_device().has_f16 else 1)
        scratch_bytes = COST.scratch_bytes(program, 64, num_threads=1, arithmetic=Arithmetic.EXACT)
        counted = engine.weights_bytes + cache_bytes + scratch_bytes
        taken = GlobalCounters.mem_used - before
        assert 0.5 * counted < taken <= counted, (taken, counted)
        engine.close()
        assert GlobalCounters.mem_used - before < 100


def _compare(config: ModelConfig, fmt: TensorFormat) -> None:
    """Ragged steps of three sequences, whose tokens are cut into calls at odd places."""
    program = _program(config, Shard.whole(config.num_layers))
    actual = _new(program, fmt)
    expected = ReferenceEngine(program, num_blocks=NUM_BLOCKS)
    load_random_weights(expected, program, fmt)
    lengths = dict.fromkeys(range(3), 0)
    found, wanted = [], []
    for lots in (((0, 37), (1, 5)), ((1, 1), (0, 1), (2, 50)), ((0, 1),), ((2, 3), (1, 17))):
        slices = []
        for sequence, count in lots:
            start = lengths[sequence]
            slices.append(_slice(sequence, TOKENS[start : start + count], start))
            lengths[sequence] += count
        found.append(_logits(actual, *slices))
        wanted.append(_logits(expected, *slices))
    _assert_close(np.concatenate(found), np.concatenate(wanted))
    assert np.std(np.concatenate(wanted)) > 0.1
    assert actual.weights_bytes > 0
    actual.close()


def _assert_close(actual: Logits, expected: Logits) -> None:
    """Within rounding: of a few float32 sums, and of keys and values where they are f16."""
    has_f16 = open_device().has_f16
    limit = native_error_limit(num_layers=2, is_quantized=False) if has_f16 else 5e-6
    assert actual.shape == expected.shape
    assert rms(actual - expected) < limit * rms(expected), rms(actual - expected) / rms(expected)


@cache
def _engine() -> TinygradEngine:
    """Shared by checks that need no model of their own."""
    return _new(_program(TINY, Shard.whole(TINY.num_layers)))


def _new(program: Program, fmt: TensorFormat = TensorFormat.F32) -> TinygradEngine:
    engine = TinygradEngine(program, num_blocks=NUM_BLOCKS, max_step_tokens=64)
    load_random_weights(engine, program, fmt)
    return engine


def _program(config: ModelConfig, shard: Shard) -> Program:
    rope = rope_tables(config, CONTEXT)
    return build_program(config, shard, context_tokens=CONTEXT, ropes=rope)


_ORDER = np.random.default_rng(7).permutation(NUM_BLOCKS).tolist()


def _slice(
    sequence: int, tokens: Sequence[int], start: int = 0, *, is_sampled: bool = True
) -> SequenceSlice:
    """In five blocks of the sequence's own, out of order."""
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=tuple(tokens),
        start_position=start,
        block_table=tuple(_ORDER[5 * sequence : 5 * sequence + 5]),
        sample=is_sampled,
    )


def _logits(engine: Engine, *slices: SequenceSlice) -> Logits:
    return engine.logits(Step(step_id=StepId(0), slices=slices), None)


def _hidden(num_tokens: int) -> NDArray[np.float32]:
    return np.zeros((num_tokens, TINY.hidden_size), np.float32)


def _refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises((EngineError, ParameterError), match=message):
        call()
