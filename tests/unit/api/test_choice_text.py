"""One choice: text and the tokens that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

from support.http.toy_gateway import END_OF_TEXT, ToyTokenizer

from potluck.api.choice import ChoiceText
from potluck.api.delta import Delta
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest
from potluck.types.step import SamplingParams, SequenceId


def deltas(
    tokens: Sequence[int], *, stop: Sequence[str] = (), logprobs: bool = True
) -> list[Delta]:
    """Of a sequence that ends with an end of text, or else at its length."""
    request = SequenceRequest(
        prompt_tokens=(1,), sampling=SamplingParams(), stop_tokens=frozenset({END_OF_TEXT})
    )
    choice = ChoiceText(request, ToyTokenizer(), stop=stop, starts_text=False)
    out = []
    for position, token in enumerate(tokens, 1):
        reason = None
        if token == END_OF_TEXT:
            reason = FinishReason.STOP
        elif position == len(tokens):
            reason = FinishReason.LENGTH
        out.append(
            choice.push(
                CommittedToken(
                    sequence_id=SequenceId(0),
                    token=token,
                    position=position,
                    logprob=-1.0 if logprobs else None,
                    top=(),
                    finish_reason=reason,
                )
            )
        )
        if out[-1].finish_reason is not None:
            break
    return out


def offsets(delta: Delta) -> list[tuple[int, int]]:
    return [(each.token, each.offset) for each in delta.tokens]


def test_tokens_come_with_the_text_that_they_begin() -> None:
    euro = list("€".encode())
    out = deltas([65, *euro, 300, 66])
    assert [delta.text for delta in out] == ["A", "", "", "€", " w300", "B"]
    assert [offsets(delta) for delta in out] == [
        [(65, 0)],
        [],
        [],
        [(euro[0], 1), (euro[1], 1), (euro[2], 1)],
        [(300, 2)],
        [(66, 7)],
    ]
    assert [delta.finish_reason for delta in out[:-1]] == [None] * 5
    assert out[-1].finish_reason is FinishReason.LENGTH


def test_an_end_of_text_is_no_part_of_the_text() -> None:
    out = deltas([65, END_OF_TEXT, 66])
    assert [(delta.text, offsets(delta)) for delta in out] == [("A", [(65, 0)]), ("", [])]
    assert out[-1].finish_reason is FinishReason.STOP


def test_a_stop_string_over_several_tokens_takes_its_tokens_with_it() -> None:
    out = deltas([*b"abENDc"], stop=["END"])
    assert "".join(delta.text for delta in out) == "ab"
    assert [pair for delta in out for pair in offsets(delta)] == [(97, 0), (98, 1)]
    assert out[-1].finish_reason is FinishReason.STOP
    assert len(out) == 5


def test_a_stop_string_that_begins_inside_a_token_keeps_that_token() -> None:
    out = deltas([65, 300, 66], stop=["30"])
    assert "".join(delta.text for delta in out) == "A w"
    assert [pair for delta in out for pair in offsets(delta)] == [(65, 0), (300, 1)]


def test_what_looked_like_a_stop_string_is_given_at_the_end() -> None:
    out = deltas([*b"aEN"], stop=["END"])
    assert [delta.text for delta in out] == ["a", "", "EN"]
    assert [offsets(delta) for delta in out] == [[(97, 0)], [], [(69, 1), (78, 2)]]


def test_half_a_character_at_the_end_is_replaced() -> None:
    out = deltas([65, "€".encode()[0]])
    assert out[-1].text == "\ufffd"
    assert out[-1].finish_reason is FinishReason.LENGTH


def test_without_log_probabilities_there_are_no_tokens() -> None:
    out = deltas([65, 66], logprobs=False)
    assert all(delta.tokens == () for delta in out)
    assert not out[0].is_empty
