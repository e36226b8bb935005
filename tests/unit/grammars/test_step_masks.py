"""The masks of steps: opened, sampled, closed, taken up again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.text.grammars import BYTES, TOKENS

from potluck.errors import EngineError, PotluckError, TransferError
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
    import llguidance
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


def drafted(sequence: SequenceId, start: int, text: str, num_drafts: int) -> SequenceSlice:
    """A slice whose last ``num_drafts`` tokens are drafts; the others, as later stages see them."""
    known = "\0" * (len(text) - num_drafts) + text[len(text) - num_drafts :]
    return SequenceSlice(
        sequence_id=sequence,
        tokens=tuple(map(ord, known)),
        start_position=start,
        block_table=(0,),
        sample=True,
        num_drafts=num_drafts,
    )


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
    with pytest.raises(EngineError, match="not set up"):
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


@pytest.mark.parametrize(
    "problem",
    [EngineError("87 MiB are needed"), TransferError("tokenizer.json: no node has it")],
    ids=["memory", "file"],
)
def test_without_a_vocabulary_a_sequence_is_cut_off_alone_until_there_is_one(
    problem: PotluckError,
) -> None:
    answers: list[PotluckError | Vocabulary] = [problem, BYTES]

    def open_vocabulary() -> Vocabulary:
        answer = answers.pop(0)
        if isinstance(answer, PotluckError):
            raise answer
        return answer

    masks = StepMasks(open_vocabulary)
    now = step(part(A, 0), part(B, 0), opened=[opening(A, GRAMMAR), opening(B, None)])
    assert masks.before(now) == {}
    tokens = masks.marked([sampled(A, 1, "x"), sampled(B, 1, "y")])
    assert [token.is_cut_off for token in tokens] == [True, False]
    masks.after(step(closed=[A]), [])
    assert texts(masks.before(step(part(A, 0), opened=[opening(A, GRAMMAR)]))[A]) == "ab"


@pytest.mark.slow
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


def test_drafts_have_a_row_each_as_far_as_the_grammar_allows_them(masks: StepMasks) -> None:
    first = step(part(A, 0, 2), opened=[opening(A, GRAMMAR)])
    masks.before(first)
    masks.after(first, [sampled(A, 2, "a")])
    now = step(drafted(A, 2, "abac", 3))
    assert list(map(texts, masks.before(now)[A])) == ["ab", "ab", "c", "."]
    assert list(map(texts, masks.before(step(drafted(A, 2, "ab", 1)))[A])) == ["ab", "ab"]
    wrong = masks.before(step(drafted(A, 2, "abxc", 3)))[A]
    assert list(map(texts, wrong)) == ["ab", "ab", "ab", "ab"]  # the last one is not needed
    beyond = masks.before(step(drafted(A, 2, "abac" + chr(258) + "z", 5)))[A]
    assert list(map(texts, beyond)) == ["ab", "ab", "c", ".", ".", "."]
    masks.before(now)
    masks.after(now, [sampled(A, 3, "b"), sampled(A, 4, "b")])  # the second draft was wrong
    assert texts(masks.before(step(part(A, 4)))[A]) == "c"
    masks.after(step(drafted(A, 4, "bc", 1)), [sampled(A, 5, "c"), sampled(A, 6, chr(258))])
    assert texts(masks.before(step(part(A, 6)))[A]) == "."


def test_a_slice_that_begins_with_a_wrong_draft_has_no_masks(masks: StepMasks) -> None:
    first = step(part(A, 0, 2), opened=[opening(A, GRAMMAR)])
    masks.before(first)
    masks.after(first, [sampled(A, 2, "a")])
    assert list(map(texts, masks.before(step(drafted(A, 2, "ab", 2)))[A])) == ["ab", "ab"]
    assert masks.before(step(drafted(A, 2, "bb", 2))) == {}
    assert masks.before(step(drafted(A, 3, "ab", 2))) == {}
    assert list(map(texts, masks.before(step(drafted(A, 2, "a", 1)))[A])) == ["ab"]


def test_a_grammar_that_is_too_complex_after_a_draft_is_followed_where_it_was_not_right(
    masks: StepMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a wrong draft leads to neither spends the time of a sequence nor ends it."""
    first = step(part(A, 0, 2), opened=[opening(A, build.regex("[ab]+"))])
    masks.before(first)
    masks.after(first, [sampled(A, 2, "a")])
    monkeypatch.setattr("potluck.grammars.matchers.FREE_SECONDS", -1.0)
    now = step(drafted(A, 2, "abb", 2))
    assert list(map(texts, masks.before(now)[A])) == ["ab.", ".", "."]
    tokens = masks.marked([sampled(A, 3, "b"), sampled(A, 4, chr(258))])
    assert [each.is_cut_off for each in tokens] == [False, True]
    monkeypatch.undo()
    assert list(map(texts, masks.before(now)[A])) == ["ab.", "ab.", "ab."]
    monkeypatch.setattr("potluck.grammars.vocabulary.Vocabulary.mask_of", _breaks_after(1))
    assert list(map(texts, masks.before(now)[A])) == ["ab.", "ab.", "."]
    monkeypatch.undo()
    assert list(map(texts, masks.before(now)[A])) == ["ab.", "ab.", "ab."]
    masks.after(now, [sampled(A, 3, "b")])
    assert texts(masks.before(step(part(A, 3)))[A]) == "ab."


def _breaks_after(num_masks: int) -> Callable[[Vocabulary, llguidance.LLMatcher], object]:
    """A ``mask_of`` whose matcher cannot be followed any further after some masks."""
    whole, made = Vocabulary.mask_of, []

    def mask_of(vocabulary: Vocabulary, matcher: llguidance.LLMatcher) -> object:
        made.append(matcher)
        if len(made) > num_masks:
            matcher.consume_token(ord("!"))
            assert matcher.is_error()
        return whole(vocabulary, matcher)

    return mask_of


def test_rows_are_the_masks_of_the_tokens_one_after_another() -> None:
    """Whatever is drafted, right or wrong, whole or in slices that begin with drafts."""
    rng = np.random.default_rng(11)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 6}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    grammar = build.json_schema(schema)
    masks, plain = StepMasks(lambda: BYTES), StepMasks(lambda: BYTES)
    num_verified = 0
    for number in range(40):
        sequence = SequenceId(number)
        begin = step(part(sequence, 0), opened=[opening(sequence, grammar)])
        rows = masks.before(begin)[sequence]
        position, tokens = 1, [_drawn(rng, plain.before(begin)[sequence][0])]
        for each in (masks, plain):
            each.after(begin, [SampledToken(sequence_id=sequence, position=1, token=tokens[0])])
        while tokens[-1] not in BYTES.end_tokens:
            # What would be sampled, token after token, and drafts of it that may be wrong.
            right: list[int] = []
            wanted = []
            for _ in range(int(rng.integers(1, 6))):
                now = step(part(sequence, position + len(right)))
                wanted.append(plain.before(now)[sequence][0])
                right.append(_drawn(rng, wanted[-1]))
                at = position + len(right)
                token = SampledToken(sequence_id=sequence, position=at, token=right[-1])
                plain.after(now, [token])
                if right[-1] in BYTES.end_tokens:
                    break
            drafts = [token if rng.random() < 0.8 else int(rng.integers(263)) for token in right]
            num_right = next((i for i, d in enumerate(drafts) if d != right[i]), len(right) - 1)
            drafts = drafts[: len(right) - 1 + int(rng.integers(2))]
            now = step(
                SequenceSlice(
                    sequence_id=sequence,
                    tokens=(tokens[-1], *drafts),
                    start_position=position,
                    block_table=(0,),
                    sample=True,
                    num_drafts=len(drafts) + int(rng.integers(2)) * (len(drafts) > 0),
                )
            )
            rows = masks.before(now)[sequence]
            assert len(rows) == 1 + len(drafts)
            num_right = min(num_right, len(right) - 1)
            for mine, its in zip(rows[: num_right + 1], wanted, strict=False):
                assert (mine == its).all()
            taken = right[: num_right + 1]
            masks.after(
                now,
                [
                    SampledToken(sequence_id=sequence, position=position + 1 + i, token=token)
                    for i, token in enumerate(taken)
                ],
            )
            num_verified += len(taken)
            if len(taken) < len(right):  # the plain one begins again where the other is
                tokens += taken
                again = SequenceOpening(
                    sequence_id=sequence,
                    sampling=SamplingParams(),
                    prompt_tokens=(),
                    output_tokens=tuple(tokens),
                    grammar=grammar,
                )
                plain.before(step(opened=[again]))
            else:
                tokens += right
            position += len(taken)
        document = json.loads(_text(tokens[:-1]))
        assert set(document) == {"a", "b"}
        for each in (masks, plain):
            each.after(step(closed=[sequence]), [])
    assert num_verified > 500


def _drawn(rng: np.random.Generator, mask: NDArray[np.uint32]) -> int:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return int(rng.choice(np.nonzero(bits)[0]))


def _text(tokens: Sequence[int]) -> str:
    return b"".join(TOKENS.data[token] for token in tokens).decode()
