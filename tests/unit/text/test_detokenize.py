"""Streaming detokenization, by hand-written cases."""

from __future__ import annotations

import pytest
from support.text.byte_tokenizer import ByteTokenizer

from potluck.errors import ParameterError
from potluck.text.detokenize import StopMatcher, StreamingDetokenizer


def stream(
    data: list[bytes], stop_strings: tuple[str, ...] = ()
) -> tuple[list[str], StreamingDetokenizer]:
    tokenizer = ByteTokenizer(pieces=tuple(data))
    detokenizer = StreamingDetokenizer(tokenizer, stop_strings=stop_strings)
    pieces = [detokenizer.push(token) for token in range(len(data))]
    return [*pieces, detokenizer.flush()], detokenizer


def test_text_comes_at_once() -> None:
    assert stream([b"Hello", b" world"])[0] == ["Hello", " world", ""]


def test_a_character_comes_when_it_is_whole() -> None:
    assert stream([b"a\xf0\x9f", b"\x98", b"\x80b"])[0] == ["a", "", "😀b", ""]


def test_invalid_bytes_become_replacement_characters() -> None:
    assert stream([b"\xffa", b"\xe4\xbd", b"A", b"\xe4"])[0] == [
        "\ufffda",
        "",
        "\ufffdA",
        "",
        "\ufffd",
    ]


def test_a_possible_stop_string_is_held_back() -> None:
    pieces, detokenizer = stream([b"one", b"\n", b"two", b"\n", b"\n", b"x"], ("\n\n",))
    assert pieces == ["one", "", "\ntwo", "", "", "", ""]
    assert detokenizer.stopped_by == "\n\n"


def test_what_was_held_back_comes_at_the_end() -> None:
    pieces, detokenizer = stream([b"one EN"], ("END",))
    assert pieces == ["one ", "EN"]
    assert detokenizer.stopped_by is None


def test_a_failed_beginning_may_hide_another() -> None:
    pieces, detokenizer = stream([b"aab", b"aa", b"bc", b"z"], ("aabc", "abd"))
    assert pieces == ["", "aab", "", "", ""]
    assert detokenizer.stopped_by == "aabc"


def test_the_stop_string_that_ends_first_counts() -> None:
    pieces, detokenizer = stream([b"xabcd"], ("abcd", "bc", "c"))
    assert pieces == ["xa", ""]
    assert detokenizer.stopped_by == "bc"


def test_a_stop_string_can_end_at_the_end_of_invalid_bytes() -> None:
    pieces, detokenizer = stream([b"a\xe4"], ("\ufffd",))
    assert pieces == ["a", ""]
    assert detokenizer.stopped_by == "\ufffd"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ParameterError):
        StopMatcher(["a", ""])


@pytest.mark.parametrize(
    ("strips", "starts_text", "expected"),
    [
        (True, True, ["", "Once", " ."]),
        (True, False, ["", " Once", " ."]),
        (False, True, ["", " Once", " ."]),
    ],
)
def test_the_leading_space(strips: bool, starts_text: bool, expected: list[str]) -> None:
    tokenizer = ByteTokenizer(pieces=(b"", b" Once", b" ."), strips_prefix_space=strips)
    detokenizer = StreamingDetokenizer(tokenizer, starts_text=starts_text)
    assert [detokenizer.push(token) for token in range(3)] == expected


def test_time_is_linear_in_the_text() -> None:
    # Every prefix of the text is a beginning of the stop string: quadratic time would be hours.
    matcher = StopMatcher(["a" * 50_000 + "b"])
    given = sum(len(matcher.push("a" * 20)[0]) for _ in range(10_000))
    assert given + len(matcher.flush()) == 200_000


def test_control_tokens_vanish_unless_they_are_visible() -> None:
    tokenizer = ByteTokenizer(pieces=(b"a", b"", b"", b""), control={1: "<call>", 2: "<end>"})
    tokens = [0, 1, 2, 3, 0]
    plain = StreamingDetokenizer(tokenizer)
    assert "".join(map(plain.push, tokens)) == "aa"
    visible = StreamingDetokenizer(tokenizer, visible={"<call>", ""})
    assert "".join(map(visible.push, tokens)) == "a<call>a"


def test_a_visible_control_token_ends_a_broken_character() -> None:
    tokenizer = ByteTokenizer(pieces=(b"\xe4\xbd", b""), control={1: "<call>"})
    detokenizer = StreamingDetokenizer(tokenizer, visible={"<call>"})
    assert detokenizer.push(0) + detokenizer.push(1) == "\ufffd<call>"
