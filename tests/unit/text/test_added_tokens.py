"""Cutting text at added tokens."""

from __future__ import annotations

import time

import pytest

from potluck.text.added_tokens import AddedToken, AddedTokens, is_turn_marker


def control(text: str, token: int) -> AddedToken:
    return AddedToken(text=text, token=token, control=True)


def cut(
    added: AddedTokens, text: str, *, parse_control: bool = True, literal: tuple[int, ...] = ()
) -> list[str | int]:
    parts = added.split(text, parse_control=parse_control, literal=literal)
    return [part if isinstance(part, str) else part.token for part in parts]


def test_control_tokens_are_matched_on_request_only() -> None:
    added = AddedTokens([control("<s>", 1), AddedToken(text="<think>", token=2, control=False)])
    assert cut(added, "a<s>b<think>c") == ["a", 1, "b", 2, "c"]
    assert cut(added, "a<s>b<think>c", parse_control=False) == ["a<s>b", 2, "c"]


def test_the_longest_of_several_is_matched() -> None:
    added = AddedTokens([control("<a", 1), control("<a>", 2), control("<a>>", 3)])
    assert cut(added, "<a><a>><a") == [2, 3, 1]


def test_the_longest_of_very_many_is_matched() -> None:
    texts = [f"<unused{number}>" for number in range(6000)]
    texts += [" " * length for length in range(2, 200)]
    texts += ["<unused", "<u", "</u>", "a.b", "aXb"]
    added = AddedTokens([control(text, token) for token, text in enumerate(texts)])
    ids = {text: token for token, text in enumerate(texts)}
    assert cut(added, "<unused5999>x") == [ids["<unused5999>"], "x"]
    assert cut(added, "<unused6000>") == [ids["<unused"], "6000>"]
    assert cut(added, "<unuse</u>") == [ids["<u"], "nuse", ids["</u>"]]
    assert cut(added, "a.baXbazb") == [ids["a.b"], ids["aXb"], "azb"]
    for length in (2, 3, 47, 48, 49, 50, 120, 199):
        assert cut(added, "x" + " " * length + "y") == ["x", ids[" " * length], "y"]
    assert cut(added, " " * 201) == [ids[" " * 199], ids[" " * 2]]


def test_very_many_tokens_take_no_longer() -> None:
    added = AddedTokens([control(f"<unused{number}>", number) for number in range(6000)])
    started = time.thread_time()
    assert cut(added, "<" * 100_000) == ["<" * 100_000]
    assert time.thread_time() - started < 1  # 10 ms; with a plain list of alternatives 4 s


def test_white_space_goes_with_a_token_that_strips() -> None:
    added = AddedTokens(
        [
            AddedToken(text="<l>", token=1, control=True, lstrip=True),
            AddedToken(text="<r>", token=2, control=True, rstrip=True),
        ]
    )
    assert cut(added, "a \n<l> b <r> \t c") == ["a", 1, " b ", 2, "c"]
    assert cut(added, "<r>  <l>") == [2, 1]


def test_a_single_word_is_not_matched_inside_a_word() -> None:
    added = AddedTokens([AddedToken(text="is", token=1, control=False, single_word=True)])
    assert cut(added, "this is_ is, is") == ["this is_ ", 1, ", ", 1]


def test_a_literal_character_is_no_part_of_a_token() -> None:
    added = AddedTokens([control("<s>", 1), control("<s", 2)])
    assert cut(added, "<s><s>", literal=(1,)) == ["<s>", 1]
    assert cut(added, "<s><s>", literal=(5,)) == [1, 2, ">"]


def test_no_tokens_at_all() -> None:
    assert cut(AddedTokens([]), "text") == ["text"]
    assert cut(AddedTokens([]), "") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|im_start|>", True),
        ("<|eot_id|>", True),
        ("<start_of_turn>", True),
        ("[/INST]", True),
        ("<think>", False),
        ("</tool_call>", False),
        ("<|turn>", True),
        ("<turn|>", True),
        ('<|"|>', True),
        ("<table>", False),
        ("<|a b|>", False),
        ("x<|im_end|>", False),
    ],
)
def test_turn_markers(text: str, expected: bool) -> None:
    assert is_turn_marker(text) is expected
