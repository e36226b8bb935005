"""Steps of random sequences over the edges of a pipeline: each stage sees what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.cluster.wire import steps as module
from potluck.cluster.wire.steps import StepDecoder, StepEncoder, decode_failure, encode_failure
from potluck.errors import EngineError
from potluck.types.step import (
    BlockCopy,
    HashedBlock,
    HashedState,
    Pooling,
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    StateCopy,
    Step,
    StepId,
)

TOKENS = st.integers(0, 200_000)
NUM_IDS = 12


@dataclass(slots=True)
class Pipeline:
    """An encoder and the decoders of ``num_stages``, which hand headers on as workers do."""

    num_stages: int
    encoder: StepEncoder = field(default_factory=StepEncoder)
    decoders: list[StepDecoder] = field(default_factory=list)
    num_steps: int = 0

    def __post_init__(self) -> None:
        last = self.num_stages - 1
        self.decoders = [
            StepDecoder(is_first=index == 0, is_last=index == last)
            for index in range(self.num_stages)
        ]

    def send(self, step: Step, fails_at: int | None = None) -> list[Step]:
        """What each stage decodes; those after the stage that fails decode nothing."""
        header = self.encoder.encode(step)
        seen: list[Step] = []
        has_failed = False
        for index, decoder in enumerate(self.decoders):
            if has_failed:
                decoder.skip_failed(header)
                continue
            seen.append(decoder.decode(step.step_id, memoryview(header)))
            if index == fails_at:
                has_failed = True
                header = decoder.failed(header, EngineError("no", hint="why"))
                assert decode_failure(header).message == "no"
            else:
                header = decoder.forwarded(header)
        return seen


@st.composite
def tables(draw: st.DrawFn, before: tuple[int, ...]) -> tuple[int, ...]:
    """As before, grown, cut, changed inside, or another one."""
    kept = before[: draw(st.integers(0, len(before)) | st.just(len(before)))]
    return (*kept, *draw(st.lists(st.integers(0, 99), max_size=3)))


@st.composite
def slices(draw: st.DrawFn, sequence_id: int, before: tuple[int, ...]) -> SequenceSlice:
    tokens = tuple(draw(st.lists(TOKENS, min_size=1, max_size=6)))
    pooling = draw(st.none() | st.sampled_from(Pooling))
    sample = pooling is None and draw(st.booleans())
    scores = st.integers(0, len(tokens) - 1)
    score_from = draw(st.none() | scores) if pooling is None else None
    drafts = st.integers(0, len(tokens))
    return SequenceSlice(
        sequence_id=SequenceId(sequence_id),
        tokens=tokens,
        start_position=draw(st.integers(0, 5000)),
        block_table=draw(tables(before)),
        sample=sample,
        score_from=score_from,
        next_token=None if sample or score_from is None else draw(TOKENS),
        pooling=pooling,
        ends_pooling=pooling is not None and draw(st.booleans()),
        state=draw(st.none() | st.integers(0, 9)),
        num_drafts=draw(drafts) if sample and score_from is None else 0,
    )


@st.composite
def openings(draw: st.DrawFn, sequence_id: int) -> SequenceOpening:
    return SequenceOpening(
        sequence_id=SequenceId(sequence_id),
        sampling=SamplingParams(
            repetition_penalty=draw(st.sampled_from([1.0, 1.2])),
            presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        ),
        prompt_tokens=tuple(draw(st.lists(TOKENS, max_size=4))),
        output_tokens=tuple(draw(st.lists(TOKENS, max_size=4))),
        grammar=draw(st.none() | st.just('{"grammars":[]}')),
    )


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data(), num_stages=st.integers(1, 4), most=st.sampled_from([3, 512]))
def test_every_stage_sees_what_it_needs(data: st.DataObject, num_stages: int, most: int) -> None:
    """Whatever tables do, which sequences come and go, and where steps fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_TABLES", most)
        pipeline = Pipeline(num_stages)
        latest: dict[int, tuple[int, ...]] = {}
        for number in range(data.draw(st.integers(1, 12))):
            ids = data.draw(st.lists(st.integers(0, NUM_IDS), max_size=3, unique=True))
            parts = tuple(data.draw(slices(each, latest.get(each, ()))) for each in ids)
            latest |= {part.sequence_id: part.block_table for part in parts}
            step = Step(
                step_id=StepId(number),
                slices=parts,
                opened=tuple(data.draw(openings(each)) for each in ids[:1]),
                closed=tuple(
                    SequenceId(each)
                    for each in data.draw(st.lists(st.integers(0, NUM_IDS), max_size=2))
                ),
                copies=(BlockCopy(source=1, target=2),) * data.draw(st.integers(0, 2)),
                saves=(HashedBlock(block=7, hash=b"h" * 32, parent=b"p" * 32),)
                * data.draw(st.integers(0, 2)),
                state_copies=(StateCopy(source=3, target=5), StateCopy(source=5, target=8))[
                    : data.draw(st.integers(0, 2))
                ],
                state_saves=(HashedState(state=4, hash=b"s" * 32),) * data.draw(st.integers(0, 2)),
                cancels=tuple(map(StepId, range(data.draw(st.integers(0, number))))),
            )
            fails_at = data.draw(st.none() | st.integers(0, num_stages - 1))
            seen = pipeline.send(step, fails_at)
            assert len(seen) == num_stages if fails_at is None else fails_at + 1
            for index, got in enumerate(seen):
                assert_is_needed_part(
                    step, got, is_first=index == 0, is_last=index + 1 == num_stages
                )
            assert len(pipeline.encoder._tables) <= most
            assert all(len(each._tables) <= most for each in pipeline.decoders)


def assert_is_needed_part(step: Step, got: Step, *, is_first: bool, is_last: bool) -> None:
    parts = ["step_id", "closed", "copies", "state_copies", "saves", "state_saves", "results"]
    parts += ["cancels", "can_be_skipped"] if is_last or not step.opened else ["cancels"]
    assert [getattr(got, name) for name in parts] == [getattr(step, name) for name in parts]
    assert len(got.slices) == len(step.slices)
    for mine, its in zip(got.slices, step.slices, strict=True):
        if is_first:
            assert mine == its
            continue
        assert len(mine.tokens) == len(its.tokens)
        assert replace(mine, tokens=its.tokens) == its
        if its.ends_pooling:
            assert mine.tokens[-1] == its.tokens[-1]
        if its.num_drafts:
            assert mine.tokens[-its.num_drafts :] == its.tokens[-its.num_drafts :]
        if its.score_from is not None:
            wanted = its.wanted
            assert [mine.known_after(each) for each in wanted] == [
                its.known_after(each) for each in wanted
            ]
    if not is_last:
        assert got.opened == ()
        return
    for opened, given_ in zip(got.opened, step.opened, strict=True):
        sampling = given_.sampling
        needs_prompt = sampling.repetition_penalty != 1.0
        needs_output = needs_prompt or sampling.presence_penalty or given_.grammar is not None
        assert opened == replace(
            given_,
            prompt_tokens=given_.prompt_tokens if needs_prompt else (),
            output_tokens=given_.output_tokens if needs_output else (),
        )


def a_slice(num_blocks: int, *, position: int = 0, sequence_id: int = 0) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence_id),
        tokens=(7,),
        start_position=position,
        block_table=tuple(range(num_blocks)),
        sample=True,
    )


def test_the_failure_of_a_step_without_a_header_of_its_own_changes_no_table() -> None:
    pipeline = Pipeline(2)
    pipeline.send(Step(step_id=StepId(0), slices=(a_slice(5),)))
    pipeline.decoders[1].skip_failed(encode_failure(EngineError("not restored")))
    later = Step(step_id=StepId(2), slices=(a_slice(6, position=80),))
    assert pipeline.send(later)[1].slices[0].block_table == tuple(range(6))


@pytest.mark.slow
@settings(max_examples=40)
@given(data=st.data(), num_stages=st.integers(1, 4))
def test_all_stages_know_the_tables_of_skipped_steps(data: st.DataObject, num_stages: int) -> None:
    """Whichever stage skips a step first, and wherever later ones fail or are skipped."""
    pipeline = Pipeline(num_stages)
    latest: dict[int, tuple[int, ...]] = {}
    for number in range(data.draw(st.integers(1, 10))):
        ids = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
        parts = []
        for each in ids:
            part = data.draw(slices(each, latest.get(each, ())))
            latest[each] = part.block_table
            verified = replace(
                part,
                sample=True,
                num_drafts=len(part.tokens),
                score_from=None,
                next_token=None,
                pooling=None,
                ends_pooling=False,
                state=None,
            )
            parts.append(verified)
        cancels = tuple(map(StepId, range(data.draw(st.integers(0, number)))))
        step = Step(step_id=StepId(number), slices=tuple(parts), cancels=cancels)
        assert step.can_be_skipped
        skipped_at = data.draw(st.none() | st.integers(0, num_stages - 1))
        header = pipeline.encoder.encode(step)
        for index, decoder in enumerate(pipeline.decoders):
            if skipped_at is not None and index > skipped_at:
                assert decoder.skip(header) == cancels
                continue
            got = decoder.decode(step.step_id, memoryview(header))
            assert_is_needed_part(step, got, is_first=index == 0, is_last=index + 1 == num_stages)
            is_skipped = index == skipped_at
            header = decoder.skipped(header) if is_skipped else decoder.forwarded(header)
    encoder_tables = dict(pipeline.encoder._tables)
    assert all(each._tables == encoder_tables for each in pipeline.decoders)


def test_a_long_table_is_sent_once() -> None:
    pipeline = Pipeline(2)
    first = Step(step_id=StepId(0), slices=(a_slice(1900, position=30_384),))
    later = Step(step_id=StepId(1), slices=(a_slice(1901, position=30_400),))
    assert len(pipeline.encoder.encode(first)) > 3000
    assert len(pipeline.encoder.encode(later)) < 40


def test_neither_tokens_nor_their_count_of_bytes_reach_the_second_stage() -> None:
    prompt = replace(a_slice(32), tokens=tuple(range(100_000, 100_512)))
    header = StepEncoder().encode(Step(step_id=StepId(0), slices=(prompt,)))
    decoder = StepDecoder(is_first=True, is_last=False)
    assert len(header) > 2500
    assert len(decoder.forwarded(header)) < 64


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"\x94\xc0\x90\x90\x90", "Expected"),
        (b"", "truncated"),
        (
            StepEncoder()
            .encode(Step(step_id=StepId(0), slices=(a_slice(1),)))
            .replace(b"\x9b\x00\x00\x01\x00", b"\x9b\x00\x00\x01\x05"),
            "the table of sequence 0 is unknown",
        ),
        (
            StepEncoder().encode(Step(step_id=StepId(0), slices=(a_slice(1),)))[:-5]
            + b"\x90\x90\x90",
            "tokens for other sequences",
        ),
        *(
            (StepEncoder().encode(Step(step_id=StepId(0), slices=(part,))), problem)
            for part, problem in (
                (replace(a_slice(1), num_drafts=2), "2 of 1 tokens of sequence 0 are drafts"),
                (replace(a_slice(1), num_drafts=-1), "-1 of 1 tokens of sequence 0 are drafts"),
                (replace(a_slice(1), num_drafts=1, score_from=0), "drafts and is not only sampled"),
                (replace(a_slice(1), num_drafts=1, sample=False), "drafts and is not only sampled"),
            )
        ),
    ],
)
def test_what_makes_no_sense_is_refused(header: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        StepDecoder(is_first=True, is_last=True).decode(StepId(0), header)


def test_every_field_of_a_step_has_a_place_in_its_header() -> None:
    """A field that is added must be sent too: say here how."""
    assert {each.name for each in fields(Step)} == {
        "step_id",
        "slices",
        "opened",
        "closed",
        "copies",
        "saves",
        "restores",  # which have frames of their own
        "restored_state",
        "state_copies",
        "state_saves",
        "cancels",
    }
    assert {each.name for each in fields(SequenceSlice)} == {
        "sequence_id",
        "tokens",
        "start_position",
        "block_table",
        "sample",
        "score_from",
        "next_token",
        "pooling",
        "ends_pooling",
        "state",
        "num_drafts",
    }
    assert {*SampledToken.__struct_fields__} == {
        "sequence_id",
        "position",
        "token",
        "logprob",
        "top",
        "vector",
        "is_cut_off",
    }
