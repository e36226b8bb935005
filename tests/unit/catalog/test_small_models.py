"""Which models may draft for which."""

from __future__ import annotations

import pytest

from potluck.catalog.small_models import require_same_vocabulary
from potluck.errors import ParameterError
from potluck.types.text import TokenList


def tokens(*data: bytes, control: dict[int, str] | None = None) -> TokenList:
    return TokenList(data=data, control=control or {}, end_tokens=())


def check(draft: TokenList, verified: TokenList) -> None:
    require_same_vocabulary(draft, verified, draft_label="small", label="large")


def test_equal_vocabularies_with_more_at_the_end_are_accepted() -> None:
    check(tokens(b"a", b"b"), tokens(b"a", b"b"))
    check(tokens(b"a", b"b", b"c"), tokens(b"a", b"b", b"c", b""))
    check(tokens(b"a", b"b", b"c", b""), tokens(b"a", b"b", b"c"))


@pytest.mark.parametrize(
    ("draft", "verified", "why"),
    [
        (tokens(b"a", b"b"), tokens(b"a", b"c"), "token 1 differs"),
        (tokens(b"", control={0: "<s>"}), tokens(b"", control={0: "<e>"}), "token 0 differs"),
        (tokens(b"a"), tokens(b"a", b"b", b"c"), "it has 1 tokens, and large has 3"),
    ],
)
def test_others_are_refused_by_name(draft: TokenList, verified: TokenList, why: str) -> None:
    with pytest.raises(ParameterError, match="small cannot draft for large") as caught:
        check(draft, verified)
    assert why in caught.value.message
    assert "same family" in caught.value.hint
