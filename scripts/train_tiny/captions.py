"""Captions for a scene: one of many wordings, chosen by the given generator."""

from random import Random

from concepts import Concept
from vocabulary import COLOR_WORDS, NUMBERS, SHAPE_WORDS, plural, with_article

REQUESTS = [
    "a picture of ", "an image of ", "a drawing of ", "an illustration of ", "a photo of ", "picture of ", "draw ", "draw me ", "please draw ",
    "can you draw ", "show me ", "i want ", "paint ", "make ", "create ", "generate a picture of ", "give me ",
]  # fmt: skip
EMOJI_REQUESTS = ["an emoji of ", "emoji of ", "an icon of ", "a sticker of "]
PRAISE = ["nice", "cute", "pretty", "beautiful", "simple", "lovely", "little"]
STYLES = {
    "flat": (
        ["a flat icon of ", "a flat illustration of ", "flat icon of ", "flat design of ", "a flat drawing of "],
        [" in flat style", ", flat style", ", flat design", " in a flat style", ", flat icon"],
    ),
    "3d": (["a 3d icon of ", "a 3d render of ", "3d render of ", "a 3d emoji of "], [" in 3d style", ", 3d style", ", 3d render", " in 3d"]),
}
BACKGROUND_FORMS = [
    (0.55, " on {a} background"),
    (0.10, " with {a} background"),
    (0.08, " against {a} background"),
    (0.08, " on {color}"),
    (0.12, ", {color} background"),
    (0.07, " over {a} backdrop"),
]
SYLLABLES = (
    "ba be bi bo bra cor da del do dra el en er fi flo fra ga gle go gri in ka kel kor la li lo ma mi mon na nel no or pa pel po qua ra ri ro sa sel \
si sko stu ta tel ti to tra u un va ver vi wo xi ya zan ze zo".split()
)


def color(rng: Random, name: str) -> str:
    return rng.choice(COLOR_WORDS[name]) if name in COLOR_WORDS and rng.random() < 0.5 else name


def several(rng: Random, count: int, words: str) -> str:
    return f"{rng.choice(NUMBERS[count])} {words}".strip()


def shape(rng: Random, name: str, tint: str, size: str | None = None, count: int = 1) -> str:
    words = rng.choice(SHAPE_WORDS.get(name, [name])) if rng.random() < 0.25 else name
    adjectives = " ".join(filter(None, (size, color(rng, tint))))
    if count == 1:
        return with_article(f"{adjectives} {words}")
    if " pointing" in words or " shape" in words:
        words = name
    return several(rng, count, f"{adjectives} {plural(words)}")


def emoji(rng: Random, concept: Concept, tint: str | None = None, size: str | None = None, count: int = 1) -> str:
    adjectives = " ".join(filter(None, (size, color(rng, tint) if tint else None)))
    if count > 1:
        return several(rng, count, f"{adjectives} {concept.plural}".strip())
    name = concept.name
    if not tint and concept.others and rng.random() < 0.35:
        name = rng.choice(concept.others)
    words = f"{adjectives} {name.words}".strip()
    return with_article(words) if name.article else words


def unknown(rng: Random, known: list[str]) -> str:
    """A word without meaning: syllables, or halves of two known names."""
    if rng.random() < 0.3:
        first, second = rng.choice(known), rng.choice(known)
        word = first[: (len(first) + 1) // 2] + second[len(second) // 2 :]
    else:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    word += rng.choice(["", "", "", "s", "ing", "er", "ism", "y"])
    if word in known:
        return unknown(rng, known)
    return rng.choice([with_article(word), with_article(word), word, f"the {word}", f"{word} and {rng.choice(SYLLABLES)}{rng.choice(SYLLABLES)}"])


def misspell(rng: Random, text: str) -> str:
    """Omits, doubles or swaps one letter of a long word."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 5]
    if not long:
        return text
    i = rng.choice(long)
    word, at = words[i], rng.randrange(1, len(words[i]) - 2)
    words[i] = rng.choice([word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word[:at] + word[at + 1] + word[at] + word[at + 2 :]])
    return " ".join(words)


def background(rng: Random, name: str) -> str:
    words = color(rng, name)
    form = rng.choices([form for _, form in BACKGROUND_FORMS], [share for share, _ in BACKGROUND_FORMS])[0]
    return form.format(a=with_article(words), color=words)


def caption(rng: Random, core: str, background_name: str | None, style: str | None, has_emoji: bool) -> str:
    """Puts a sentence around `core`, which names the things and their places."""
    if core.startswith(("a ", "an ")):
        chance = rng.random()
        if chance < 0.12:
            core = core.split(" ", 1)[1]
        elif chance < 0.15:
            core = with_article(f"{rng.choice(PRAISE)} {core.split(' ', 1)[1]}")
    before = after = ""
    if style:
        befores, afters = STYLES[style]
        if rng.random() < 0.35:
            before = rng.choice(befores)
        else:
            after = rng.choice(afters)
    if not before and rng.random() < 0.25:
        before = rng.choice(REQUESTS + EMOJI_REQUESTS if has_emoji else REQUESTS)
    if background_name is None:
        text = before + core + after
    elif rng.random() < 0.08:
        text = f"on {with_article(color(rng, background_name))} background, {before}{core}{after}"
    elif rng.random() < 0.6:
        text = before + core + background(rng, background_name) + after
    else:
        text = before + core + after + background(rng, background_name)
    return finish(rng, text)


def finish(rng: Random, text: str) -> str:
    """Adds polite words, typing errors, capitals and a full stop."""
    if rng.random() < 0.03:
        text += rng.choice([" please", ", please"])
    if rng.random() < 0.02:
        text = misspell(rng, text)
    chance = rng.random()
    if chance < 0.15:
        text = text[0].upper() + text[1:]
    elif chance < 0.18:
        text = text.upper()
    elif chance < 0.20:
        text = text.title()
    if rng.random() < 0.1:
        text += rng.choice([".", ".", ".", "!"])
    return text
