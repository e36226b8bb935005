"""Conversations around the stories: a request, a fitting story, and sometimes more.

The story is written first and the request is then made from its facts, so an answer always fits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from . import smalltalk as talk
from .grammar import Story, Wish, make_story
from .plots import Beat
from .weave import weave


@dataclass(frozen=True)
class Message:
    """One message of a conversation, in the roles of the OpenAI-compatible address."""

    role: str
    content: str


ASK = "[Tell|Please tell|Can you tell|Could you tell|Will you tell|Would you tell] me"
WRITE = (
    "[Write|Please write|Write me|Make up|Can you write|Could you write|Give me|I want|I would "
    "like|"
    "I want to hear|Let me hear|Can I have|Tell]"
)
STORY = "[a|a|a|a short|a little|a nice|a bedtime|a funny] [story|story|story|tale]"
ABOUT: Beat = (
    "about {at} {k}",
    "about {at} {k}",
    "about a {k}",
    "about a {k}",
    "about a little {k}",
    "about a {k} [called|named] {n}",
    "about {at} {k} [called|named] {n}",
    "about {n} the {k}",
    "about a {k} {p}",
    "about {at} {k} {p}",
    "about a {k} who [lives|lived] {p}",
    "about a {k} and a {j}",
    "about {n} and {m}",
    "about a {k} and {fa} {j}",
    "about a {k} [called|named] {n} and a {j} [called|named] {m}",
    "with a {k}[| in it]",
    "with a {k} and a {j}",
    "that happens {p}",
    "set {p}",
    "about {at} {k} [called|named] {n} who [lives|lived] {p}",
)
ANY: Beat = (
    ASK + " " + STORY,
    WRITE + " " + STORY,
    "[A story, please|Story|Story time|Tell me something nice]",
    "[Tell me|I want|Write] a story",
    "Do you know a [nice|good] story",
)
AGAIN: Beat = (
    "[Tell me another one|Another one, please|Another story, please|One more, please|One "
    "more|Again|"
    "Can you tell me another one|Another story|Tell me a different story|And another one]",
)
AGAIN_ABOUT: Beat = (
    "[Another one|And one|Now one|Now a story|Another story|And now one], [please, |]{about}",
    "[Now tell me one|Can you tell me another one|Tell me another story] {about}",
    "[Now|And now] {about}, please",
)
SAME_HERO: Beat = (
    "[Tell me another story about|Another story about|What else happened to|More about] {n}",
    "[Tell me more about|One more story about] {n}[, please|]",
)
GENERAL_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("What was the {k} called?", "The {k} was called {n}."),
    ("What was the name of the {k}?", "The {k} was called {n}."),
    ("What was the {k}'s name?", "The {k} was called {n}."),
    ("Where did [it|the story|this|that] happen?", "It happened {p}."),
    ("Where did {n} live?", "{n} lived {p}."),
    ("Who was {n}?", "{n} was {at} {k}."),
    ("Who was {m}?", "{m} was {fa} {j}."),
    ("What was {n}'s friend called?", "{n}'s friend was called {m}."),
    ("What was the {j} called?", "The {j} was called {m}."),
    ("Who was the story about?", "The story was about {at} {k} called {n}."),
    ("What kind of creature was {n}?", "{n} was a {k}."),
    ("What was {n} like?", "{n} was {t}."),
)


def _finish(text: str, rng: random.Random) -> str:
    """End a request the way people type: properly, carelessly, or in small letters."""
    opening = text.split(" ", 1)[0]
    mark = "?" if opening in {"Can", "Could", "Will", "Would", "Do", "What"} else rng.choice("..!")
    roll = rng.random()
    if roll < 0.12:
        return text
    if roll < 0.2:
        return text[0].lower() + text[1:] if roll < 0.16 else text.lower()
    return text + mark


def request_for(story: Story, rng: random.Random, again: bool = False) -> str:
    """Return a user's request that ``story`` fulfils, in one of many phrasings."""
    slots = dict(story.cast.slots)
    if rng.random() < 0.12:
        return _finish(weave(rng.choice(AGAIN if again else ANY), slots, rng), rng)
    if rng.random() < 0.4:
        request = rng.choice(story.cast.plot.requests)
        about = (
            request
            if request.startswith("about ")
            else rng.choice(
                (
                    "about a {k} ",
                    "about {at} {k} ",
                    "about a {k} called {n} ",
                    "about a little {k} ",
                )
            )
            + request
        )
        if rng.random() < 0.25 and not request.startswith("about "):
            about += " {p}"
    else:
        about = rng.choice(ABOUT)
    if again:
        return _finish(weave(rng.choice(AGAIN_ABOUT).replace("{about}", about), slots, rng), rng)
    return _finish(weave(f"{rng.choice((ASK, WRITE))} {STORY} {about}", slots, rng), rng)


def question_about(story: Story, rng: random.Random) -> tuple[str, str]:
    """Return a question about a story just told, and its correct short answer."""
    pool = story.cast.plot.answers if rng.random() < 0.5 else GENERAL_QUESTIONS
    question, answer = rng.choice(pool)
    return weave(question, story.cast.slots, rng), weave(answer, story.cast.slots, rng)


def _pair(prompt: str, answered: str) -> list[Message]:
    """Return one turn: what the user says and what the assistant answers."""
    return [Message("user", prompt), Message("assistant", answered)]


def _small(pool: tuple[Beat, Beat], slots: Mapping[str, str], rng: random.Random) -> list[Message]:
    """Return one turn of small talk."""
    return _pair(weave(rng.choice(pool[0]), slots, rng), weave(rng.choice(pool[1]), slots, rng))


def _extras(story: Story, rng: random.Random) -> dict[str, str]:
    """Return the slots of small talk: a story's facts and two numbers."""
    return {
        **story.cast.slots,
        "digits": str(rng.randrange(1, 10 ** rng.randint(1, 3))),
        "digits2": str(rng.randrange(1, 100)),
    }


def _first_turn(story: Story, rng: random.Random) -> tuple[list[Message], bool]:
    """Return the beginning of a conversation, and whether ``story`` has been told in it."""
    slots = _extras(story, rng)
    roll = rng.random()
    if roll < 0.72:
        return _pair(request_for(story, rng), story.text), True
    if roll < 0.78:
        opening = _small(talk.GREETINGS, slots, rng)
    elif roll < 0.81:
        opening = _small(talk.WHO, slots, rng)
    elif roll < 0.83:
        opening = _small(talk.ABLE, slots, rng)
    else:
        opening = _small(talk.OFF_TOPIC, slots, rng)
    roll = rng.random()
    if roll < 0.5:
        return opening, False
    prompt = weave(rng.choice(talk.YES), slots, rng) if roll < 0.75 else request_for(story, rng)
    return opening + _pair(prompt, story.text), True


def make_chat(rng: random.Random) -> tuple[Message, ...]:
    """Write one conversation of one to four turns."""
    story = make_story(rng)
    messages = (
        [Message("system", weave(rng.choice(talk.SYSTEM), {}, rng))] if rng.random() < 0.2 else []
    )
    turns, has_story = _first_turn(story, rng)
    messages += turns
    while has_story and rng.random() < 0.45:
        roll = rng.random()
        if roll < 0.6:
            messages += _pair(*question_about(story, rng))
        elif roll < 0.78:
            story = make_story(rng)
            messages += _pair(request_for(story, rng, again=True), story.text)
        elif roll < 0.86:
            story = make_story(rng, Wish(hero=story.cast.hero))
            prompt = weave(rng.choice(SAME_HERO), story.cast.slots, rng)
            messages += _pair(_finish(prompt, rng), story.text)
        elif roll < 0.93:
            messages += _small(talk.THANKING, _extras(story, rng), rng)
        elif roll < 0.97:
            messages += _small(talk.OFF_TOPIC, _extras(story, rng), rng)
        else:
            messages += _small(talk.GOODBYE, _extras(story, rng), rng)
            break
    return tuple(messages)
