"""The index of runs of tokens, against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.drafting.token_index import MAX_MATCH_TOKENS, TokenIndex

tokens = st.integers(0, 2) | st.sampled_from([70_000, 2**31 - 1])
texts = st.lists(tokens, max_size=40)


def matches(own: Sequence[int], text: Sequence[int], ends: range) -> dict[int, int]:
    """How much of the end of ``text`` is before each of ``ends`` in ``own``."""
    found = {}
    for end in ends:
        length = 0
        while (
            length < min(end, len(text), MAX_MATCH_TOKENS)
            and own[end - 1 - length] == text[len(text) - 1 - length]
        ):
            length += 1
        found[end] = length
    return found


def latest_longest(found: dict[int, int], anchor: int) -> tuple[int, int]:
    end = max(found, key=lambda each: (found[each], each), default=0)
    return (end, found[end]) if found and found[end] >= anchor else (0, 0)


def index_of(text: Sequence[int], anchor: int) -> TokenIndex:
    index = TokenIndex(anchor, max_candidates=100_000)
    index.extend(text)
    return index


@pytest.mark.slow
@given(parts=st.lists(texts, max_size=12), anchor=st.integers(1, 3))
def test_a_text_is_searched_for_its_own_end(parts: list[list[int]], anchor: int) -> None:
    index = index_of((), anchor)
    text: list[int] = []
    for part in parts:
        index.extend(part)
        text += part
        found = matches(text, text, range(1, len(text)))
        assert index.longest_match(index.tokens) == latest_longest(found, anchor)
        assert list(index.tokens) == text


@given(own=texts, text=texts, anchor=st.integers(1, 3))
def test_a_text_is_searched_for_the_end_of_another(
    own: list[int], text: list[int], anchor: int
) -> None:
    found = matches(own, text, range(1, len(own) + 1))
    assert index_of(own, anchor).longest_match(text) == latest_longest(found, anchor)


@pytest.mark.slow
@given(kept=texts, lost=texts, added=texts, anchor=st.integers(1, 3))
def test_what_was_taken_back_leaves_nothing_behind(
    kept: list[int], lost: list[int], added: list[int], anchor: int
) -> None:
    index = index_of(kept, anchor)
    index.extend(lost)
    index.truncate(len(kept))
    index.extend(added)
    assert list(index.tokens) == kept + added
    expected = index_of(kept + added, anchor)
    assert index.longest_match(index.tokens) == expected.longest_match(expected.tokens)


def test_a_long_text_is_indexed_at_once_as_it_is_token_by_token() -> None:
    text = [(number * number) % 97 for number in range(1_500)]
    at_once = index_of(text, 3)
    one_by_one = index_of((), 3)
    for token in text:
        one_by_one.extend([token])
    assert at_once.longest_match(at_once.tokens) == one_by_one.longest_match(one_by_one.tokens)
    for _ in range(700):  # over places that were indexed in one go
        at_once.truncate(len(at_once) - 1)
        one_by_one.truncate(len(one_by_one) - 1)
        assert at_once.longest_match(at_once.tokens) == one_by_one.longest_match(one_by_one.tokens)


def test_only_the_latest_candidates_are_compared() -> None:
    index = TokenIndex(2, max_candidates=3)
    index.extend([9, 1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2, 8, 9, 1, 2])
    assert index.longest_match(index.tokens) == (12, 2)
    assert index_of(index.tokens, 2).longest_match([9, 1, 2]) == (16, 3)
