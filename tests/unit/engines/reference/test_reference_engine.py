"""The reference engine as a whole: batches, chunks, cuts, sampling state, and bad steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.stages import Stages, cut, load_weights
from support.models.configs import make_config
from support.models.state_dict_source import StateDictSource
from support.reference.engine import ReferenceEngine
from support.text.token_masks import mask_rows

from potluck.errors import EngineError, ParameterError
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.models.program import build_program, weight_specs
from potluck.models.registry import stored_weights
from potluck.models.rope import rope_tables
from potluck.types.model import ModelConfig
from potluck.types.program import Shard
from potluck.types.step import (
    BlockCopy,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo

# What differs between batches is the order in which a matrix product adds up; with weights and
# activations of order 1 and rows of at most 64 that is a few float32 roundings of logits near 5.
TOLERANCE = 2e-5
CONFIG = make_config(num_layers=3, sliding_windows=(None, 5, None), qk_norm=True, qkv_bias=True)
TOKENS = tuple(np.random.default_rng(5).integers(0, 50, 40).tolist())


def make_source(config: ModelConfig, **options: Any) -> StateDictSource:
    generator = np.random.default_rng(2)
    tensors = {
        HUGGING_FACE_NAMES.find(weight.name).name: generator.standard_normal(weight.shape)
        / np.sqrt(weight.shape[-1] if len(weight.shape) > 1 else 1)
        for weight in weight_specs(config, Shard.whole(config.num_layers))
    }
    floats = {name: values.astype(np.float32) for name, values in tensors.items()}
    return StateDictSource(floats, **options)


@pytest.fixture
def stages() -> Iterator[Stages]:
    with Stages(CONFIG, make_source(CONFIG), context_tokens=64) as whole:
        yield whole


def close_to(expected: NDArray[np.float32]) -> Any:
    return pytest.approx(expected, abs=TOLERANCE)


def test_chunks_give_what_the_whole_gives(stages: Stages) -> None:
    whole = stages.logits(stages.slice(0, TOKENS))
    single = stages.logits_at_all_positions(TOKENS, sequence=1)
    assert single[-1:] == close_to(whole)
    for start, end in ((0, 7), (7, 16), (16, 33), (33, 40)):
        chunked = stages.logits(stages.slice(2, TOKENS[start:end], start))
    assert chunked == close_to(whole)


def test_a_batch_gives_what_each_sequence_gives_alone(stages: Stages) -> None:
    prompts = [TOKENS[:1], TOKENS[1:18], TOKENS[5:21], TOKENS[20:]]
    alone = [stages.logits(stages.slice(i, prompt)) for i, prompt in enumerate(prompts)]
    stages.logits(stages.slice(6, prompts[2][:9]))
    together = stages.logits(
        stages.slice(4, prompts[0]),
        stages.slice(5, prompts[1]),
        stages.slice(6, prompts[2][9:], 9),
        stages.slice(7, prompts[3]),
    )
    assert together == close_to(np.concatenate(alone))


def test_only_sampled_slices_have_logits(stages: Stages) -> None:
    alone = stages.logits(stages.slice(0, TOKENS[:9]))
    logits = stages.logits(
        stages.slice(1, TOKENS[9:20], sample=False),
        stages.slice(2, TOKENS[:9]),
        stages.slice(3, TOKENS[:4], sample=False),
    )
    assert logits == close_to(alone)


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [[1], [0], [3], [1, 2], [0, 1, 2, 3], [2, 2]], ids=str)
def test_where_the_model_is_cut_changes_nothing(stages: Stages, boundaries: list[int]) -> None:
    whole = stages.logits_at_all_positions(TOKENS)
    with Stages(CONFIG, make_source(CONFIG), boundaries=boundaries, context_tokens=64) as pieces:
        np.testing.assert_array_equal(pieces.logits_at_all_positions(TOKENS), whole)


def test_a_freed_block_may_be_used_again(stages: Stages) -> None:
    expected = stages.logits(stages.slice(1, TOKENS[:5]))
    stages.logits(stages.slice(0, TOKENS))
    assert stages.logits(stages.slice(0, TOKENS[:5])) == close_to(expected)


def test_a_shared_prefix_may_be_read_by_two_sequences(stages: Stages) -> None:
    expected = stages.logits(stages.slice(0, TOKENS))
    own = stages.slice(1, TOKENS[16:], 16)
    shared = (stages.slice(0, TOKENS).block_table[0], *own.block_table[1:])
    assert stages.logits(replace(own, block_table=shared)) == close_to(expected)


def test_quantized_weights_are_those_that_gguf_reads() -> None:
    quantized = make_source(CONFIG, matrix_format=TensorFormat.Q8_0)
    plain = StateDictSource({name: quantized.values(name) for name in quantized.names()})
    with (
        Stages(CONFIG, quantized, context_tokens=64) as actual,
        Stages(CONFIG, plain, context_tokens=64) as expected,
    ):
        np.testing.assert_array_equal(
            actual.logits_at_all_positions(TOKENS), expected.logits_at_all_positions(TOKENS)
        )


def opening(sequence: int, **fields: Any) -> SequenceOpening:
    sampling = fields.pop("sampling", SamplingParams(temperature=0.0))
    return SequenceOpening(
        sequence_id=SequenceId(sequence),
        sampling=sampling,
        prompt_tokens=fields.pop("prompt", TOKENS[:9]),
        output_tokens=fields.pop("output", ()),
    )


def test_a_step_samples_in_slice_order(stages: Stages) -> None:
    logits = stages.logits(stages.slice(0, TOKENS[:9]), stages.slice(1, TOKENS[:12]))
    result = stages.step(
        stages.slice(3, TOKENS[:12]),
        stages.slice(4, TOKENS, sample=False),
        stages.slice(2, TOKENS[:9]),
        opened=[
            opening(2, sampling=SamplingParams(temperature=0.0, logprobs=True, top_logprobs=1)),
            opening(3),
        ],
    )
    assert result.hidden is None
    first, second = result.sampled
    assert (first.sequence_id, first.position, first.token) == (3, 12, logits[1].argmax())
    assert (second.sequence_id, second.position, second.token) == (2, 9, logits[0].argmax())
    assert first.logprob is None
    assert second.logprob == second.top[0].logprob


def test_masks_are_of_the_sequences_that_are_sampled(stages: Stages) -> None:
    logits = stages.logits(stages.slice(0, TOKENS[:9]), stages.slice(1, TOKENS[:12]))
    masks = {SequenceId(3): mask_rows(len(logits[0]), [7, 40])}
    result = stages.step(
        stages.slice(2, TOKENS[:9]),
        stages.slice(3, TOKENS[:12]),
        opened=[opening(2), opening(3)],
        masks=masks,
    )
    first, second = result.sampled
    assert first.token == logits[0].argmax()
    assert second.token == (7 if logits[1][7] >= logits[1][40] else 40)
    with pytest.raises(EngineError, match="sequence 3 has a mask but is not sampled"):
        stages.step(stages.slice(3, TOKENS[:12], sample=False), masks=masks)


def test_sampled_tokens_count_for_penalties_and_replay_restores_them(stages: Stages) -> None:
    """With a strong presence penalty a greedy text hardly repeats; a replayed one goes on alike."""
    sampling = SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    tokens = list(TOKENS[:9])
    plain = stages.greedy(tokens, 12, sequence=1)
    start, opened = 0, [opening(0, sampling=sampling)]
    for _ in range(12):
        result = stages.step(stages.slice(0, tokens[start:], start), opened=opened)
        start, opened = len(tokens), []
        tokens.append(result.sampled[0].token)
    assert tokens[9:] != plain
    logits = stages.logits_at_all_positions(tokens[:-1], sequence=2)[8:]
    for i, row in enumerate(logits):
        for token in tokens[9 : 9 + i]:
            row[token] -= 2 + 2 / tokens[9 : 9 + i].count(token)
        assert row.argmax() == tokens[9 + i]
    replayed = opening(3, sampling=sampling, output=tuple(tokens[9:-1]))
    result = stages.step(stages.slice(3, tokens[:-1]), opened=[replayed])
    assert result.sampled[0].token == tokens[-1]


class OneStage:
    """A single engine, driven step by step."""

    def __init__(self, shard: Shard | None = None, *, num_blocks: int = 6) -> None:
        rope = rope_tables(CONFIG, 48)
        self.program = build_program(CONFIG, shard or Shard.whole(3), context_tokens=48, ropes=rope)
        self.engine = ReferenceEngine(self.program, num_blocks=num_blocks)

    def load(self) -> OneStage:
        tensors = stored_weights(CONFIG, self.program.weights, FileKind.HUGGING_FACE)
        load_weights(self.engine, tensors, make_source(CONFIG))
        return self


def step_of(*slices: SequenceSlice, **fields: Any) -> Step:
    return Step(step_id=StepId(0), slices=slices, **fields)


def part(**fields: Any) -> SequenceSlice:
    defaults: dict[str, Any] = {
        "sequence_id": SequenceId(0),
        "tokens": TOKENS[:20],
        "start_position": 0,
        "block_table": (4, 2),
        "sample": True,
    }
    return SequenceSlice(**{**defaults, **fields})


GOOD = part()


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ((part(tokens=()),), "no tokens"),
        ((part(tokens=(50,)),), "token 50 is not in a vocabulary of 50"),
        ((part(tokens=(-1,)),), "token -1"),
        ((part(start_position=-1),), "not in a context of 48"),
        ((part(start_position=30, block_table=(0, 1, 2, 3)),), "positions 30 to 50"),
        ((part(block_table=(4,)),), "has 1 blocks, but 20 positions need 2"),
        ((part(block_table=(4, 6)),), "block 6 is not one of 6"),
        ((part(block_table=(4, -1)),), "block -1 is not one of 6"),
        ((part(block_table=(4, 4)),), "names a block twice"),
        ((part(score_from=20),), "scored from token 20 of 20"),
        ((part(score_from=-1),), "scored from token -1"),
        ((part(score_from=3, next_token=1),), "both sampled and scored, or neither"),
        ((part(score_from=3, sample=False),), "both sampled and scored, or neither"),
        ((part(next_token=1),), "a next token but is not scored"),
        ((part(score_from=3, sample=False, next_token=50),), "token 50 is not in a vocabulary"),
        ((GOOD, part(block_table=(0, 1))), "sequence 0 occurs twice"),
        ((GOOD, part(sequence_id=SequenceId(1), block_table=(0, 2))), "write block 2"),
    ],
)
def test_an_inconsistent_step_changes_nothing(
    slices: tuple[SequenceSlice, ...], problem: str
) -> None:
    stage = OneStage().load()
    before = stage.engine.logits(step_of(GOOD), None)
    # With the bad slice comes a good one that would overwrite the sequence's blocks.
    other = part(sequence_id=SequenceId(9), tokens=TOKENS[20:], block_table=(4, 2))
    for call in (stage.engine.step, stage.engine.logits):
        with pytest.raises(EngineError, match=problem):
            call(step_of(*slices), None)
        with pytest.raises(EngineError):
            call(step_of(other, *slices), None)
    last = part(tokens=TOKENS[19:20], start_position=19)
    assert stage.engine.logits(step_of(last), None) == close_to(before)


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [(6, 0, "block 6, of a copy"), (0, -1, "block -1, of a copy"), (3, 3, "copied to itself")],
)
def test_an_inconsistent_copy_changes_nothing(source: int, target: int, problem: str) -> None:
    stage = OneStage().load()
    before = stage.engine.logits(step_of(GOOD), None)
    copies = (BlockCopy(source=0, target=4), BlockCopy(source=source, target=target))
    with pytest.raises(EngineError, match=problem):
        stage.engine.step(step_of(copies=copies), None)
    last = part(tokens=TOKENS[19:20], start_position=19)
    assert stage.engine.logits(step_of(last), None) == close_to(before)


def test_blocks_are_copied_in_order_before_anything_is_computed() -> None:
    """The fork reads and then writes its copy of the last block; the first goes on unchanged."""
    stage = OneStage().load()
    before = stage.engine.logits(step_of(part(tokens=TOKENS[:21])), None)
    stage.engine.logits(step_of(part(tokens=TOKENS[:20])), None)
    copies = (BlockCopy(source=2, target=5), BlockCopy(source=5, target=3))
    fork = part(
        sequence_id=SequenceId(1), tokens=TOKENS[20:21], start_position=20, block_table=(4, 3)
    )
    assert stage.engine.logits(step_of(fork, copies=copies), None) == close_to(before)
    other = part(tokens=TOKENS[30:31], start_position=20)
    stage.engine.logits(step_of(replace(fork, tokens=TOKENS[30:31])), None)
    expected = stage.engine.logits(step_of(part(tokens=(*TOKENS[:20], TOKENS[30]))), None)
    assert stage.engine.logits(step_of(other), None) == close_to(expected)


def test_a_stage_without_layers_copies_nothing() -> None:
    embedding = OneStage(cut(3, [0])[0], num_blocks=0).load()
    copies = (BlockCopy(source=7, target=9),)
    hidden = embedding.engine.step(step_of(GOOD, copies=copies), None).hidden
    assert hidden is not None


def test_blocks_that_were_read_are_continued_from_elsewhere() -> None:
    first, other = OneStage().load(), OneStage().load()
    expected = first.engine.logits(step_of(part(tokens=TOKENS[:21])), None)
    data = first.engine.read_blocks((4, 2))
    assert data.shape == (2, first.engine.block_format.num_bytes)
    other.engine.write_blocks((1, 5), data)
    last = part(tokens=TOKENS[20:21], start_position=20, block_table=(1, 5))
    assert other.engine.logits(step_of(last), None) == close_to(expected)
    with pytest.raises(EngineError, match="block 6 is not one of 6"):
        other.engine.write_blocks((1, 6), data)
    with pytest.raises(EngineError, match=r"have shape \(1, "):
        other.engine.write_blocks((1, 5), data[:1])


def test_hidden_states_must_fit() -> None:
    middle = OneStage(cut(3, [1, 2])[1]).load()
    good = np.ones((20, 32), dtype=np.float32)
    result = middle.engine.step(step_of(GOOD), good)
    assert result.sampled == ()
    assert result.hidden is not None
    assert result.hidden.shape == (20, 32)
    assert (good == 1).all(), "the caller's array is not changed"
    bad_ones: list[Any] = [None, good[:19], good[:, :31], good.astype(np.float64), good[0]]
    for bad in bad_ones:
        with pytest.raises(EngineError, match="hidden states"):
            middle.engine.step(step_of(GOOD), bad)
    with pytest.raises(EngineError, match="does not accept hidden states"):
        OneStage().load().engine.logits(step_of(GOOD), good)


def test_hidden_states_belong_to_the_caller_even_if_nothing_was_computed() -> None:
    given = np.ones((20, 32), dtype=np.float32)
    hidden = OneStage(cut(3, [1, 1])[1]).load().engine.step(step_of(GOOD), given).hidden
    assert hidden is not None
    np.testing.assert_array_equal(hidden, given)
    assert not np.shares_memory(hidden, given)


def test_only_the_last_stage_has_logits() -> None:
    first = OneStage(cut(3, [1])[0]).load()
    with pytest.raises(EngineError, match="has no head"):
        first.engine.logits(step_of(GOOD), None)


def test_a_stage_without_layers_needs_no_blocks() -> None:
    embedding = OneStage(cut(3, [0])[0], num_blocks=0).load()
    hidden = embedding.engine.step(step_of(part(block_table=())), None).hidden
    assert hidden is not None
    assert hidden.shape == (20, 32)


def test_a_step_may_be_empty() -> None:
    assert OneStage().load().engine.step(step_of(), None).sampled == ()


def test_sequences_are_opened_before_they_are_sampled_and_once() -> None:
    engine = OneStage().load().engine
    with pytest.raises(EngineError, match="sequence 0 is sampled but was never opened"):
        engine.step(step_of(GOOD), None)
    engine.step(step_of(GOOD, opened=(opening(0),)), None)
    with pytest.raises(EngineError, match="sequence 0 is opened twice"):
        engine.step(step_of(GOOD, opened=(opening(0),)), None)
    engine.step(step_of(GOOD, closed=(SequenceId(0), SequenceId(7))), None)
    with pytest.raises(EngineError, match="never opened"):
        engine.step(step_of(GOOD), None)


def test_openings_are_checked() -> None:
    engine = OneStage().load().engine
    with pytest.raises(EngineError, match="token 50"):
        engine.step(step_of(opened=(opening(0, prompt=(50,)),)), None)
    with pytest.raises(ParameterError, match="top_p"):
        engine.step(step_of(opened=(opening(0, sampling=SamplingParams(top_p=2.0)),)), None)
    engine.step(step_of(GOOD, opened=(opening(0),)), None)


def test_weights_must_be_there_before_a_step_and_are_gone_after_close() -> None:
    stage = OneStage()
    with pytest.raises(EngineError, match=r"not loaded, among them embed\.weight"):
        stage.engine.step(step_of(GOOD), None)
    stage.load().engine.logits(step_of(GOOD), None)
    stage.engine.close()
    stage.engine.close()
    with pytest.raises(EngineError, match="weights are not loaded"):
        stage.engine.logits(step_of(GOOD), None)


NORM = TensorInfo(name="norm.weight", shape=(32,), format=TensorFormat.F32)
HEAD = TensorInfo(name="head.weight", shape=(50, 32), format=TensorFormat.Q8_0)


def test_the_sink_takes_what_the_program_reads_and_nothing_else() -> None:
    sink = OneStage().engine.sink()
    with pytest.raises(EngineError, match=r"does not use the tensor lm_head\.weight"):
        sink.begin(replace(HEAD, name="lm_head.weight"))
    with pytest.raises(EngineError, match=r"head\.weight is \(32, 50\), but must be \(50, 32\)"):
        sink.begin(replace(HEAD, shape=(32, 50), format=TensorFormat.F32))
    sink.begin(NORM)
    with pytest.raises(EngineError, match="written twice"):
        sink.begin(NORM)
    sink.write_rows("norm.weight", 0, 1, memoryview(bytes(128)))
    sink.finish("norm.weight")
    with pytest.raises(EngineError, match="written twice"):
        sink.begin(NORM)


def test_the_sink_takes_rows_in_order_and_whole() -> None:
    sink = OneStage().engine.sink()
    with pytest.raises(EngineError, match="was not begun"):
        sink.write_rows("head.weight", 0, 1, memoryview(bytes(34)))
    sink.begin(HEAD)
    for start, end, num_bytes in ((1, 2, 34), (0, 51, 51 * 34), (0, 2, 34), (0, 1, 35)):
        with pytest.raises(EngineError, match="cannot take the weights"):
            sink.write_rows("head.weight", start, end, memoryview(bytes(num_bytes)))
    sink.write_rows("head.weight", 0, 49, memoryview(bytes(49 * 34)))
    with pytest.raises(EngineError, match="ends after row 49"):
        sink.finish("head.weight")
    sink.write_rows("head.weight", 49, 50, memoryview(bytes(34)))
    sink.finish("head.weight")


def test_a_reset_forgets_sequences_and_keeps_the_weights(stages: Stages) -> None:
    opening = SequenceOpening(
        sequence_id=SequenceId(0),
        sampling=SamplingParams(temperature=0.8, repetition_penalty=1.4, seed=3),
        prompt_tokens=TOKENS,
    )
    first = stages.step(stages.slice(0, TOKENS), opened=[opening])
    with pytest.raises(EngineError, match="opened twice"):
        stages.step(stages.slice(0, TOKENS), opened=[opening])
    for engine in stages._engines:
        engine.reset()
    assert stages.step(stages.slice(0, TOKENS), opened=[opening]) == first
