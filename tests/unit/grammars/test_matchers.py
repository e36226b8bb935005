from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.text.token_lists import list_tokens

from potluck.catalog import describe_model, load_tokenizer
from potluck.errors import ParameterError
from potluck.grammars import build
from potluck.grammars.matchers import Matcher, Matchers
from potluck.grammars.vocabulary import Vocabulary, num_words
from potluck.types.text import Tokenizer

if TYPE_CHECKING:
    import llguidance
    from numpy.typing import NDArray

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(describe_model("demo").files)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(list_tokens(tokenizer), tokenizer.vocab_size)


def allowed(mask: NDArray[np.uint32]) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.nonzero(bits)[0]]


def draw(
    matcher: Matcher, tokenizer: Tokenizer, rng: np.random.Generator, *, until: int = 30
) -> list[int]:
    """Return tokens drawn evenly from what is allowed; from ``until`` on they end if they may."""
    tokens: list[int] = []
    while True:
        choices = allowed(matcher.mask())
        ends = [token for token in choices if token in tokenizer.eos_token_ids]
        token = ends[0] if ends and len(tokens) >= until else int(rng.choice(choices))
        assert matcher.accept(token), matcher.problem
        if token in tokenizer.eos_token_ids:
            return tokens
        tokens.append(token)


def test_random_draws_are_always_valid(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    matchers = Matchers(vocabulary)
    grammar = build.json_schema(PERSON)
    rng = np.random.default_rng(1)
    for _ in range(50):
        matcher = matchers.take(grammar)
        document = json.loads(tokenizer.decode(draw(matcher, tokenizer, rng)))
        assert set(document) == {"name", "age"}
        assert len(document["name"]) <= 5
        assert isinstance(document["age"], int)
        matchers.give_back(matcher)
    assert matchers.num_idle == 1


def test_control_tokens_have_names_and_no_bytes(tokenizer: Tokenizer) -> None:
    tokens = list_tokens(tokenizer)
    assert set(tokens.control.values()) == set(tokenizer.special_tokens)
    for token in range(tokenizer.vocab_size):
        assert tokens.data[token] == tokenizer.token_bytes(token)


@pytest.mark.parametrize("extra", [0, 1, 31, 32, 33])
def test_masks_have_a_bit_for_each_of_the_models_logits(tokenizer: Tokenizer, extra: int) -> None:
    vocab_size = tokenizer.vocab_size + extra
    vocabulary = Vocabulary(list_tokens(tokenizer), vocab_size)
    matcher = Matchers(vocabulary).take(build.choice(["a"]))
    assert len(matcher.mask()) == num_words(vocab_size)
    (a,) = tokenizer.encode("a", add_bos=False)
    assert matcher.accept(a)
    assert allowed(matcher.mask()) == sorted(tokenizer.eos_token_ids)


def test_drafts_are_taken_back(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(2)
    matchers = Matchers(vocabulary)
    grammar = build.json_schema(PERSON)
    end = tokenizer.eos_token_ids[0]
    tokens = [*draw(matchers.take(grammar), tokenizer, rng), end]
    plain, drafted, masks = matchers.take(grammar), matchers.take(grammar), []
    for token in [*tokens, end]:
        masks.append(plain.mask())
        assert plain.accept(token)
    for index, token in enumerate(tokens):
        mask = drafted.mask()
        assert np.array_equal(mask, masks[index])
        for drafts in (tokens[index:], [*tokens[index:], end]):
            found = drafted.masks_after(drafts, mask)
            assert len(found) == len(drafts)
            for each, expected in zip(found, masks[index + 1 :], strict=False):
                assert np.array_equal(each.mask, expected)
            assert drafted.num_tokens == index
        assert drafted.accept(token)
    assert np.array_equal(drafted.mask(), masks[-1])


def test_masks_do_not_depend_on_what_a_matcher_was_used_for(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    matchers = Matchers(vocabulary)
    grammar = build.json_schema(PERSON)
    used = matchers.take(grammar)
    for seed in range(3):
        tokens = draw(used, tokenizer, np.random.default_rng(seed))
        assert used.restart()
        fresh = Matchers(vocabulary).take(grammar)
        for token in tokens:
            assert np.array_equal(used.mask(), fresh.mask())
            assert used.accept(token)
            assert fresh.accept(token)
        assert used.restart()


def test_a_token_that_is_not_allowed_leaves_nothing_but_the_end(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    matcher = Matchers(vocabulary).take(build.json_object())
    (a,) = tokenizer.encode("a", add_bos=False)
    assert not matcher.accept(a)
    assert matcher.problem is not None
    assert allowed(matcher.mask()) == sorted(tokenizer.eos_token_ids)
    assert not matcher.accept(a)
    assert not matcher.restart()


def test_an_end_goes_on_to_the_end(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    matcher = Matchers(vocabulary).take(build.choice([""]))
    for _ in range(3):
        assert allowed(matcher.mask()) == sorted(tokenizer.eos_token_ids)
        assert matcher.accept(tokenizer.eos_token_ids[-1])


def test_a_grammar_may_name_control_tokens(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    names = [text for text in tokenizer.special_tokens if text not in ("<|eos|>", "<|bos|>")]
    end = tokenizer.decode([])  # no text of theirs
    assert end == ""
    matcher = Matchers(vocabulary).take(
        build.lark(f'start: {build.control_token(names[-1])} "a" <|eos|> "b"')
    )
    (named,) = tokenizer.encode(names[-1], add_bos=False, parse_special=True)
    (eos,) = tokenizer.encode("<|eos|>", add_bos=False, parse_special=True)
    (a,) = tokenizer.encode("a", add_bos=False)
    assert allowed(matcher.mask()) == [named]
    assert matcher.accept_all([named, a])
    assert allowed(matcher.mask()) == [eos]
    assert matcher.accept(eos)
    assert matcher.problem is None
    assert all(tokenizer.token_bytes(token).startswith(b"b") for token in allowed(matcher.mask()))


def test_kept_matchers_are_bounded(vocabulary: Vocabulary) -> None:
    matchers = Matchers(vocabulary, max_idle=3)
    for number in range(10):
        matchers.give_back(matchers.take(build.choice([str(number)])))
    assert matchers.num_idle == 3


def test_a_grammar_that_is_none_is_refused(vocabulary: Vocabulary) -> None:
    matchers = Matchers(vocabulary)
    for grammar in ["", "{}", "start: /a/", '{"grammars":[{"json_schema":{}}]}', "[" * 100_000]:
        with pytest.raises(ParameterError):
            matchers.take(grammar)
    with pytest.raises(ParameterError, match="uniqueItems"):
        matchers.take(build.json_schema({"type": "array", "uniqueItems": True}))


def test_a_sequence_may_not_take_the_stages_time(
    vocabulary: Vocabulary, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.grammars.matchers.FREE_SECONDS", 0.02)
    monkeypatch.setattr("potluck.grammars.matchers.FREE_SECONDS_PER_TOKEN", 0.0001)
    matchers = Matchers(vocabulary)
    matcher = matchers.take(build.lark("start: a+\na: /[a-z]/ | a a"))
    (a,) = tokenizer.encode("a", add_bos=False)
    started = time.thread_time()
    for _ in range(400):
        mask = matcher.mask()
        if matcher.problem is not None:
            break
        assert matcher.accept(a)
    assert time.thread_time() - started < 5
    assert matcher.problem is not None
    assert "too complex" in matcher.problem
    assert allowed(matcher.mask()) == sorted(tokenizer.eos_token_ids)
    assert matcher.accept(tokenizer.eos_token_ids[0])
    for _ in range(1000):  # earn no time
        assert not matcher.accept(a)
    assert allowed(matcher.mask()) == sorted(tokenizer.eos_token_ids)
    assert matcher.is_cut_off
    matchers.give_back(matcher)
    assert matchers.num_idle == 0
    assert mask.any()


def test_time_in_which_the_thread_did_not_run_does_not_count(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a step may be interrupted for longer than a sequence's whole limit."""
    monkeypatch.setattr("potluck.grammars.matchers.FREE_SECONDS", 0.1)
    mask_of = Vocabulary.mask_of

    def interrupted(self: Vocabulary, matcher: llguidance.LLMatcher) -> NDArray[np.uint32]:
        time.sleep(0.2)
        return mask_of(self, matcher)

    monkeypatch.setattr(Vocabulary, "mask_of", interrupted)
    matcher = Matchers(vocabulary).take(build.regex("[ab ]+"))
    matcher.mask()
    assert matcher.problem is None


def test_the_time_of_drafts_does_not_count_but_is_bounded(
    tokenizer: Tokenizer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr("potluck.grammars.matchers.time.thread_time", lambda: next(now) / 10)
    matcher = Matchers(vocabulary).take(build.regex("[ab ]+"))
    a = tokenizer.encode("a", add_bos=False)
    mask = matcher.mask()
    for _ in range(50):
        found = matcher.masks_after(a * 2, mask)
        assert [each.is_cut_off for each in found] == [False, False]
        assert (matcher.num_tokens, matcher.is_broken) == (0, False)
    # What they take together is as much as may be taken without drafts: then only the end is left.
    found = matcher.masks_after(a * 9, mask)
    assert [each.is_cut_off for each in found] == [False] * 4 + [True]
    assert set(allowed(found[-1].mask)) == vocabulary.end_tokens
    assert (matcher.mask() == mask).all()
    assert not matcher.is_cut_off
