"""The masks of steps: opened, sampled, closed, taken up again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.grammars import BYTES, TOKENS

from potluck.errors import EngineError
from potluck.grammars import build
from potluck.grammars.step_masks import StepMasks
from potluck.grammars.vocabulary import Vocabulary
from potluck.types.engine import NO_MASKS
from potluck.types.step import (
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

A, B = SequenceId(1), SequenceId(2)
GRAMMAR = build.regex("[ab]{3}c")


def opening(sequence: SequenceId, grammar: str | None, output: str = "") -> SequenceOpening:
    return SequenceOpening(
        sequence_id=sequence,
        sampling=SamplingParams(),
        prompt_tokens=(1, 2),
        output_tokens=tuple(output.encode()),
        grammar=grammar,
    )


def part(sequence: SequenceId, start: int, count: int = 1, sample: bool = True) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=sequence,
        tokens=(0,) * count,
        start_position=start,
        block_table=(0,),
        sample=sample,
    )


def step(
    *parts: SequenceSlice,
    opened: Sequence[SequenceOpening] = (),
    closed: Sequence[SequenceId] = (),
) -> Step:
    return Step(step_id=StepId(0), slices=parts, opened=tuple(opened), closed=tuple(closed))


def sampled(sequence: SequenceId, position: int, text: str) -> SampledToken:
    return SampledToken(sequence_id=sequence, position=position, token=ord(text))


def texts(mask: NDArray[np.uint32]) -> str:
    bits = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0]
    return "".join(chr(bit) for bit in bits if bit < 256) + "." * bool(bits[-1] >= 256)


@pytest.fixture
def masks() -> StepMasks:
    return StepMasks(lambda: BYTES)


def test_a_sequence_is_followed_from_its_opening_to_its_end(masks: StepMasks) -> None:
    first = step(part(A, 0, 2), opened=[opening(A, GRAMMAR)])
    seen = [texts(masks.before(first)[A])]
    masks.after(first, [sampled(A, 2, "a")])
    for position, text in enumerate("bac", 2):
        now = step(part(A, position))
        seen.append(texts(masks.before(now)[A]))
        masks.after(now, [sampled(A, position + 1, text)])
    last = step(part(A, 5))
    seen.append(texts(masks.before(last)[A]))
    assert seen == ["ab", "ab", "ab", "c", "."]
    masks.after(step(closed=[A]), [])
    assert masks.before(step(part(A, 6))) == {}


def test_only_sequences_that_sample_and_have_a_grammar_have_masks(masks: StepMasks) -> None:
    now = step(
        part(A, 0, 2, sample=False), part(B, 0), opened=[opening(A, GRAMMAR), opening(B, None)]
    )
    assert masks.before(now) == {}
    masks.after(now, [sampled(B, 1, "x")])
    assert texts(masks.before(step(part(A, 2), part(B, 1)))[A]) == "ab"


def test_without_grammars_nothing_is_opened() -> None:
    def fail() -> Vocabulary:
        raise AssertionError

    masks = StepMasks(fail)
    now = step(part(A, 0), opened=[opening(A, None)])
    assert masks.before(now) is NO_MASKS
    masks.after(now, [sampled(A, 1, "x")])


def test_a_sequence_that_is_replayed_goes_on_where_it_was(masks: StepMasks) -> None:
    now = step(part(A, 0, 4), opened=[opening(A, GRAMMAR, "ab")])
    assert texts(masks.before(now)[A]) == "ab"
    masks.after(now, [sampled(A, 4, "b")])
    assert texts(masks.before(step(part(A, 4)))[A]) == "c"
    again = step(part(A, 0, 3), opened=[opening(A, GRAMMAR, "a")])
    assert texts(masks.before(again)[A]) == "ab"
    masks.after(again, [sampled(A, 3, "b")])
    assert texts(masks.before(step(part(A, 3)))[A]) == "ab"


def test_scored_tokens_do_not_count(masks: StepMasks) -> None:
    now = step(part(A, 0, 3), opened=[opening(A, GRAMMAR)])
    masks.before(now)
    masks.after(now, [sampled(A, 1, "x"), sampled(A, 2, "y"), sampled(A, 3, "a")])
    assert texts(masks.before(step(part(A, 3)))[A]) == "ab"


def test_a_sequence_may_be_closed_by_the_step_that_samples_it(masks: StepMasks) -> None:
    now = step(part(A, 0), opened=[opening(A, GRAMMAR)], closed=[A])
    masks.before(now)
    masks.after(now, [sampled(A, 1, "a")])
    assert masks.before(step(part(A, 1))) == {}


def test_all_are_forgotten_together(masks: StepMasks) -> None:
    masks.before(step(part(A, 0), opened=[opening(A, GRAMMAR), opening(B, GRAMMAR)]))
    masks.reset()
    assert masks.before(step(part(A, 1), part(B, 1))) == {}


def test_output_that_no_grammar_allowed_is_ended(masks: StepMasks) -> None:
    now = step(part(A, 0, 3), opened=[opening(A, GRAMMAR, "x")])
    assert texts(masks.before(now)[A]) == "."


def test_what_cannot_be_followed_is_refused(masks: StepMasks) -> None:
    with pytest.raises(EngineError, match="not prepared"):
        StepMasks(None).before(step(opened=[opening(A, GRAMMAR)]))


def test_a_grammar_that_cannot_be_compiled_ends_its_own_sequence_only(masks: StepMasks) -> None:
    bad = build.json_schema({"contains": {}})
    now = step(part(A, 0), part(B, 0), opened=[opening(A, bad), opening(B, GRAMMAR)])
    found = masks.before(now)
    assert texts(found[A]) == "."
    assert texts(found[B]) == "ab"
    masks.after(now, [sampled(A, 1, chr(258)), sampled(B, 1, "a")])
    assert texts(masks.before(step(part(A, 1)))[A]) == "."
    masks.after(step(closed=[A, B]), [])
    assert masks.before(step(part(A, 2))) == {}


def test_where_there_is_no_memory_a_sequence_is_cut_off_alone_until_there_is() -> None:
    answers: list[EngineError | Vocabulary] = [
        EngineError("87 MiB are needed"),
        BYTES,
    ]

    def open_vocabulary() -> Vocabulary:
        answer = answers.pop(0)
        if isinstance(answer, EngineError):
            raise answer
        return answer

    masks = StepMasks(open_vocabulary)
    now = step(part(A, 0), part(B, 0), opened=[opening(A, GRAMMAR), opening(B, None)])
    assert masks.before(now) == {}
    told = masks.marked([sampled(A, 1, "x"), sampled(B, 1, "y")])
    assert [token.is_cut_off for token in told] == [True, False]
    masks.after(step(closed=[A]), [])
    assert texts(masks.before(step(part(A, 0), opened=[opening(A, GRAMMAR)]))[A]) == "ab"


def test_random_interleavings_are_as_each_sequence_alone() -> None:
    """Sequences are opened, sampled, preempted and closed in any order; each ends valid."""
    rng = np.random.default_rng(7)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    grammar = build.json_schema(schema)
    masks = StepMasks(lambda: BYTES)
    outputs: dict[SequenceId, list[int]] = {}
    opened: set[SequenceId] = set()
    done = 0
    for number in range(3000):
        live = [each for each in outputs if rng.random() < 0.7]
        if len(outputs) < 4:
            new = SequenceId(100 + number)
            outputs[new] = []
            live.append(new)
        for each in live:
            if each in opened and rng.random() < 0.05:
                opened.discard(each)  # preempted
        now = step(
            *(part(each, len(outputs[each])) for each in live),
            opened=[
                SequenceOpening(
                    sequence_id=each,
                    sampling=SamplingParams(),
                    prompt_tokens=(),
                    output_tokens=tuple(outputs[each]),
                    grammar=grammar,
                )
                for each in live
                if each not in opened
            ],
        )
        opened.update(live)
        allowed = masks.before(now)
        assert set(allowed) == set(live)
        tokens = []
        for each in live:
            bits = np.unpackbits(allowed[each].view(np.uint8), bitorder="little")
            token = int(rng.choice(np.nonzero(bits)[0]))
            tokens.append(
                SampledToken(sequence_id=each, position=len(outputs[each]) + 1, token=token)
            )
            outputs[each].append(token)
        masks.after(now, tokens)
        for each in [each for each in live if outputs[each][-1] in BYTES.end_tokens]:
            document = json.loads(_text(outputs.pop(each)[:-1]))
            assert set(document) == {"a", "b"}
            opened.discard(each)
            masks.after(step(closed=[each]), [])
            done += 1
    assert done > 50


def test_tokens_say_whether_their_grammars_were_given_up(
    masks: StepMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = step(
        part(A, 0, 2),
        part(B, 0, 2),
        opened=[opening(A, GRAMMAR), opening(B, build.regex("[ab]+"))],
    )
    masks.before(now)
    tokens = (sampled(A, 2, "a"), sampled(B, 2, "a"))
    assert masks.marked(tokens) == tokens
    masks.after(now, tokens)
    monkeypatch.setattr("potluck.grammars.matchers.FREE_SECONDS", -1.0)
    later = step(part(A, 2), part(B, 2))
    assert texts(masks.before(later)[A]) == "ab"  # made before
    masks.after(later, (sampled(A, 3, "a"),))
    again = step(part(A, 3))
    assert texts(masks.before(again)[A]) == "."
    assert [token.is_cut_off for token in masks.marked((sampled(A, 4, " "),))] == [True]
    broken = step(part(A, 0, 2), opened=[opening(A, "broken")])
    masks.before(broken)
    assert [token.is_cut_off for token in masks.marked((sampled(A, 2, " "),))] == [True]
    masks.before(step())
    assert not any(token.is_cut_off for token in masks.marked((sampled(A, 3, " "),)))


def _text(tokens: Sequence[int]) -> str:
    return b"".join(TOKENS.data[token] for token in tokens).decode()
