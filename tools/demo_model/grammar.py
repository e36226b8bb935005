"""Writes little stories from a seed.

A story is a cast (who, where, what, in which weather) and a plot.  All facts are settled in the
cast before the first word is written, so names, pronouns, the thing sought and the weather agree
from the first sentence to the last.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import lexicon as lex
from .more_plots import PLOTS
from .plots import Beat, Plot
from .weave import weave


@dataclass(frozen=True)
class Being:
    """Someone in a story."""

    kind: str
    name: str
    trait: str
    female: bool


@dataclass(frozen=True)
class Cast:
    """All facts of one story; ``slots`` are those facts as the templates use them."""

    plot: Plot
    hero: Being
    friend: Being
    place: str
    thing: str
    slots: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Wish:
    """The requirements of a story; whatever is None is free."""

    hero: Being | None = None
    kind: str | None = None
    name: str | None = None
    trait: str | None = None
    friend_kind: str | None = None
    place: str | None = None
    thing: str | None = None
    plot: str | None = None


@dataclass(frozen=True)
class Story:
    """A finished story with the facts it was made from."""

    cast: Cast
    text: str


OPENING: Beat = (
    "[Once upon a time|Once|Long ago|A long time ago|Many years ago], there was {at} {k} "
    "[named|called] {n} "
    "who lived {p}.",
    "[Once upon a time|Once], there was {at} {k} who lived {p}. [{His} name was {n}.|{He} was "
    "called {n}.]",
    "[Once upon a time|Once|Long ago], {at} {k} [named|called] {n} lived in a {home} {p}.",
    "[Once upon a time|In a land far away|Not so long ago], {at} {k} lived {p}. [{His} name was "
    "{n}|"
    "Everyone called {him} {n}].",
    "There [once was|was once] {at} {k} [called|named] {n}, who lived {p}.",
    "{n} was {at} {k}. {He} lived in a {home} {p}.",
    "{At} {k} [named|called] {n} lived {p}[|, in a {home} with {c} windows|, far away from here].",
    "{P} lived {at} {k} [named|called] {n}.",
    "This is the story of {at} {k} [named|called] {n}, who lived {p}.",
    "Once upon a time, there was a little {k} who lived {p}. {His} name was {n}, and {he} was "
    "very {t}.",
    "Once upon a time, there was a little {k} who was very {t}. {His} name was {n}, and {he} "
    "lived {p}.",
    "Once upon a time, there was {at} {k} who [loved|had] {a_c_thing}. {His} name was {n}, and "
    "{he} lived "
    "{p}.",
    "Once upon a time, there was a little {k} who [wanted to see the world|loved to "
    "[sing|play|dream]|"
    "liked [pancakes|the rain|long walks|old songs]] and lived {p}. {His} name was {n}, and {he} "
    "was "
    "very {t}.",
    "One {weather} {day}, {at} {k} [named|called] {n} woke up in {his} {home} {p}.",
    "Once upon a time, there was a little {k} named {n}. {n} was {t} and lived {p}.",
    "{n} the {k} lived in a {home} {p}. {He} was [a very|the most] {t} {k}[| of all|, as "
    "everyone knew].",
)


# Plots that need open sky are not set under a roof unless a wish says so.
_OUTDOOR_PLOTS = frozenset({"storm", "way_home", "seed", "race", "treasure"})
_ROOFED = frozenset({"castle", "library", "school"})


def _pronouns(female: bool, prefix: str = "") -> dict[str, str]:
    """Return the pronoun slots for one being; ``prefix`` distinguishes the friend from the hero."""
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    return {
        f"{prefix}he": he,
        f"{prefix}him": him,
        f"{prefix}his": his,
        f"{prefix.upper()}He": he.capitalize(),
        f"{prefix.upper()}His": his.capitalize(),
        f"{prefix}himself": f"{him}self",
    }


def random_name(rng: random.Random, female: bool) -> str:
    """Return a common name, a pet's name, or (often) a name made of syllables, so that the model
    learns to copy names.
    """
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(lex.GIRL_NAMES if female else lex.BOY_NAMES)
    if roll < 0.6:
        return rng.choice(lex.PET_NAMES)
    return rng.choice(lex.NAME_HEADS) + rng.choice(lex.NAME_TAILS)


def _being(
    rng: random.Random, kind: str | None, name: str | None, trait: str | None, helper: bool
) -> Being:
    """Return a new character; a helper is more often an animal and has a helper's trait."""
    kind = kind or rng.choice(
        lex.ANIMALS if rng.random() < (0.8 if helper else 0.55) else lex.KINDS
    )
    if name in lex.GIRL_NAMES or kind in lex.GIRLS:
        female = True
    elif name in lex.BOY_NAMES or kind in lex.BOYS:
        female = False
    else:
        female = rng.random() < 0.5
    words = lex.FRIEND_TRAITS if helper else tuple(trait.word for trait in lex.TRAITS)
    return Being(kind, name or random_name(rng, female), trait or rng.choice(words), female)


def _an(words: str) -> str:
    """Return ``words`` after the article ``a``, which ``weave`` turns into ``an`` if needed."""
    return f"a {words}"


def make_cast(rng: random.Random, wish: Wish) -> Cast:
    """Settle every fact of a story so that ``wish`` is granted and the rest is free."""
    plots = [plot for plot in PLOTS if wish.plot in (None, plot.name)]
    plot = rng.choice(plots)
    hero = wish.hero or _being(rng, wish.kind, wish.name, wish.trait, helper=False)
    friend = _being(rng, wish.friend_kind, None, None, helper=True)
    while friend.kind == hero.kind or friend.name[0] == hero.name[0]:
        friend = _being(rng, wish.friend_kind, None, None, helper=True)
    outdoors = plot.name in _OUTDOOR_PLOTS and wish.place is None
    places = [
        place
        for place in lex.PLACES
        if wish.place in (None, place.noun) and not (outdoors and place.noun in _ROOFED)
    ]
    place = rng.choice(places)
    thing = wish.thing or rng.choice(lex.THINGS)
    colour = rng.choice(lex.COLOURS)
    weather = rng.choice(lex.WEATHERS)
    spots = rng.sample(place.spots, 4)
    slots = {
        "n": hero.name,
        "k": hero.kind,
        "t": hero.trait,
        **_pronouns(hero.female),
        "m": friend.name,
        "j": friend.kind,
        **_pronouns(friend.female, "f"),
        "at": _an(hero.trait),
        "At": _an(hero.trait),
        "fa": _an(friend.trait),
        "fA": _an(friend.trait),
        "fa_plain": "a",
        "p": place.where,
        "P": place.where,
        "place": place.noun,
        "s1": spots[0],
        "s2": spots[1],
        "s3": spots[2],
        "s4": spots[3],
        "S1": spots[0].capitalize(),
        "thing": thing,
        "c": colour,
        "a_c_thing": _an(f"{colour} {thing}"),
        "a_food": _an(rng.choice(lex.FOODS)),
        "home": rng.choice(lex.HOMES),
        "day": rng.choice(lex.DAYS),
        "weather": weather.adjective,
        "weather_begins": weather.begins,
        "weather_end": weather.ends,
    }
    for options in plot.facts:
        slots.update(rng.choice(options))
    for name, value in tuple(slots.items()):
        if name not in ("n", "m"):
            slots[name] = _fill(value, slots, rng)
    slots["lesson"] = _fill(rng.choice(lex.LESSONS), slots, rng)
    if "noise" in slots:
        slots["Noise"] = slots["noise"].capitalize()
    return Cast(plot, hero, friend, place.noun, thing, slots)


def _fill(value: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """Settle a fact that itself holds choices or slots, keeping its first letter as it is."""
    if not ({"[", "{"} & set(value)):
        return value
    woven = weave(value, slots, rng)
    return woven if value.lstrip("{[")[0].isupper() else woven[0].lower() + woven[1:]


def _section(beats: tuple[Beat, ...], slots: Mapping[str, str], rng: random.Random) -> str:
    """Return one paragraph, with each beat told in one of its ways."""
    sentences = (weave(rng.choice(beat), slots, rng) for beat in beats)
    return " ".join(sentence for sentence in sentences if sentence)


def _notes(cast: Cast) -> Beat:
    """Return sentences that show the hero's trait, and sometimes none."""
    notes = next((trait.notes for trait in lex.TRAITS if trait.word == cast.hero.trait), ())
    return (*notes, *notes, "")


def make_story(rng: random.Random, wish: Wish | None = None) -> Story:
    """Write one story."""
    cast = make_cast(rng, wish or Wish())
    opening = _section((OPENING, _notes(cast), *cast.plot.begin), cast.slots, rng)
    middle = _section(cast.plot.middle, cast.slots, rng)
    end = _section(cast.plot.end, cast.slots, rng)
    return Story(cast, "\n\n".join((opening, middle, end)))


def story_for_seed(seed: int) -> Story:
    """Return the story that belongs to ``seed``; the same seed always gives the same story."""
    return make_story(random.Random(seed))
