"""The stories of the demo model agree with themselves and with what was asked."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.demo_model import lexicon as lex
from tools.demo_model.chats import GENERAL_QUESTIONS, make_chat, question_about, request_for
from tools.demo_model.documents import (
    BOS,
    CHAT_TEMPLATE,
    END,
    EOS,
    document,
    documents,
    render_chat,
)
from tools.demo_model.grammar import Being, Story, Wish, make_story, story_for_seed
from tools.demo_model.more_plots import PLOTS
from tools.demo_model.weave import weave

SEEDS = st.integers(min_value=0, max_value=2**40)
QUICK = settings(max_examples=40)
SPEECH = re.compile(r"\"[^\"]*\"")


def outside_speech(text: str) -> str:
    """The narrator's words only."""
    return SPEECH.sub("", text)


@QUICK
@given(SEEDS)
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    assert story_for_seed(seed).text == story_for_seed(seed).text
    assert document(seed, 3) == document(seed, 3)


@pytest.mark.slow
def test_stories_do_not_repeat() -> None:
    texts = {story_for_seed(seed).text for seed in range(2000)}
    assert len(texts) == 2000


def test_the_stream_can_be_entered_anywhere() -> None:
    tail = list(itertools.islice(documents(5, start=7), 3))
    assert tail == list(itertools.islice(documents(5), 7, 10))
    assert tail != list(itertools.islice(documents(6, start=7), 3))


@QUICK
@given(SEEDS)
def test_no_slot_or_choice_is_left_open(seed: int) -> None:
    assert not set("{}[]|_") & set(story_for_seed(seed).text)


@QUICK
@given(SEEDS)
def test_every_paragraph_is_made_of_whole_sentences(seed: int) -> None:
    for paragraph in story_for_seed(seed).text.split("\n\n"):
        first = paragraph.lstrip('"')[0]
        assert first.isupper()
        assert paragraph.rstrip('"')[-1] in ".!?"
        assert paragraph.count('"') % 2 == 0
        assert "  " not in paragraph


@QUICK
@given(SEEDS)
def test_sentences_begin_with_a_capital_and_pronouns_inside_do_not(seed: int) -> None:
    text = story_for_seed(seed).text
    assert not re.search(r"[.!?] [a-z]", text)
    assert not re.search(r"[a-z,;:] (?:He|She|His|Her)\b", outside_speech(text))


@QUICK
@given(SEEDS)
def test_the_article_fits_the_word_behind_it(seed: int) -> None:
    text = story_for_seed(seed).text
    for article, word in re.findall(r"\b([Aa]n?) (\w+)", text):
        vowel = word[0].lower() in "aeiou" and not word.startswith(("uni", "use", "one"))
        if article == "An":
            assert vowel
        assert (len(article) == 2) == (vowel or word == "hour"), (article, word)
    assert not re.search(r"\b(a|an|the) (a|an|the)\b", text)


@QUICK
@given(SEEDS)
def test_hero_friend_and_place_keep_their_names(seed: int) -> None:
    story = story_for_seed(seed)
    first, middle, last = story.text.split("\n\n")
    cast = story.cast
    assert cast.hero.name in first
    assert cast.hero.kind in first
    assert cast.place in first
    assert cast.hero.trait in first
    assert cast.hero.name in last or "the two friends" in last
    assert cast.friend.name in story.text
    assert cast.friend.kind in story.text
    assert cast.hero.name in middle or cast.friend.name in middle
    assert cast.hero.kind != cast.friend.kind
    assert cast.hero.name[0] != cast.friend.name[0]


@QUICK
@given(SEEDS)
def test_pronouns_agree_when_both_are_of_one_gender(seed: int) -> None:
    rng = random.Random(seed)
    story = make_story(rng, Wish(hero=Being("fox", "Qira", "brave", female=True)))
    if story.cast.friend.female:
        assert not re.search(r"\b([Hh]e|[Hh]im|[Hh]is)\b", outside_speech(story.text))


@QUICK
@given(SEEDS)
def test_the_thing_sought_is_the_thing_found(seed: int) -> None:
    story = make_story(random.Random(seed), Wish(plot="lost", thing="lantern"))
    first, middle, _ = story.text.split("\n\n")
    assert "lantern" in first
    assert "lantern" in middle
    others = [thing for thing in lex.THINGS if thing != "lantern"]
    text = story.text
    for spot in (spot for place in lex.PLACES for spot in place.spots):
        text = text.replace(spot, "")  # such as "under an old boat"
    assert not [thing for thing in others if f"{story.cast.slots['c']} {thing}" in text]


@QUICK
@given(SEEDS, st.sampled_from([plot.name for plot in PLOTS]), st.sampled_from(lex.KINDS))
def test_a_wish_is_granted(seed: int, plot: str, kind: str) -> None:
    story = make_story(random.Random(seed), Wish(kind=kind, name="Zora", plot=plot, place="beach"))
    assert story.cast.plot.name == plot
    assert f"{kind}" in story.text
    assert "Zora" in story.text
    assert "beach" in story.text


@QUICK
@given(SEEDS)
def test_an_answer_tells_of_whom_was_asked(seed: int) -> None:
    rng = random.Random(seed)
    story = make_story(rng)
    request = request_for(story, rng).lower()
    animals = [kind for kind in lex.KINDS if re.search(rf"\b{kind}\b", request)]
    assert all(kind in story.text for kind in animals)


@QUICK
@given(SEEDS)
def test_answers_about_a_story_are_found_in_it(seed: int) -> None:
    rng = random.Random(seed)
    story = make_story(rng)
    _, answer = question_about(story, rng)
    names = [name for name in (story.cast.hero.name, story.cast.friend.name) if name in answer]
    assert all(name in story.text for name in names)
    assert answer[0].isupper()
    assert answer.endswith(".")


def test_general_questions_fit_every_plot() -> None:
    rng = random.Random(0)
    for plot in PLOTS:
        story: Story = make_story(rng, Wish(plot=plot.name))
        for question, answer in (*GENERAL_QUESTIONS, *plot.answers):
            assert weave(question, story.cast.slots, rng).endswith("?")
            assert weave(answer, story.cast.slots, rng).endswith(".")


def test_every_plot_is_told_and_lengths_are_moderate() -> None:
    stories = [story_for_seed(seed) for seed in range(600)]
    assert {story.cast.plot.name for story in stories} == {plot.name for plot in PLOTS}
    words = [len(story.text.split()) for story in stories]
    assert min(words) > 60
    assert max(words) < 280


@QUICK
@given(SEEDS)
def test_a_chat_takes_turns_and_ends_with_the_assistant(seed: int) -> None:
    chat = make_chat(random.Random(seed))
    roles = [message.role for message in chat if message.role != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert roles
    assert all(message.content.strip() == message.content != "" for message in chat)
    text = render_chat(chat)
    assert text.startswith(BOS)
    assert text.endswith(END + "\n")
    assert EOS not in text


def test_no_stranger_to_the_grammar_is_let_in() -> None:
    with pytest.raises(KeyError):
        weave("{nobody} came.", {}, random.Random(0))


@QUICK
@given(SEEDS)
def test_the_chat_template_writes_what_the_model_was_trained_on(seed: int) -> None:
    jinja2 = pytest.importorskip("jinja2")
    chat = make_chat(random.Random(seed))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    messages = [{"role": message.role, "content": message.content} for message in chat]
    assert template.render(messages=messages, bos_token=BOS) == render_chat(chat)
    prompt = template.render(messages=messages[:-1], bos_token=BOS, add_generation_prompt=True)
    assert render_chat(chat).startswith(prompt)
