"""Edit instructions: one of many wordings, chosen by the given generator."""

from random import Random

import captions
from vocabulary import PLACES, with_article

# {thing}: "the red star", or "it" where there is but one. {color}: of the palette. {a}: a new thing, with its article.
WORDINGS = {
    "color": ["make {thing} {color}", "make {thing} {color}", "change the color of {thing} to {color}", "turn {thing} {color}",
              "paint {thing} {color}", "recolor {thing} to {color}", "{thing} should be {color}", "color {thing} {color}", "change {thing} to {color}"],
    "background": ["change the background to {color}", "change the background to {color}", "make the background {color}", "{color} background",
                   "put it on {a_color} background", "set the background to {color}", "the background should be {color}",
                   "turn the background {color}", "replace the background with {color}"],
    "replace": ["replace {thing} with {a}", "replace {thing} with {a}", "replace {thing} by {a}", "turn {thing} into {a}", "swap {thing} for {a}",
                "change {thing} into {a}", "put {a} in place of {thing}", "{a} instead of {thing}"],
    "add": ["add {a} {place}", "add {a} {place}", "put {a} {place}", "place {a} {place}", "draw {a} {place}", "insert {a} {place}",
            "add {a} {place} too"],
    "remove": ["remove {thing}", "remove {thing}", "delete {thing}", "take away {thing}", "erase {thing}", "get rid of {thing}", "leave out {thing}",
               "the same without {thing}"],
    "move": ["move {thing} {to}", "move {thing} {to}", "shift {thing} {to}", "put {thing} {place}", "place {thing} {place}",
             "{thing} should be {place}"],
    "larger": ["make {thing} larger", "make {thing} bigger", "enlarge {thing}", "{thing} should be larger", "a bigger version of {thing}",
               "increase the size of {thing}"],
    "smaller": ["make {thing} smaller", "make {thing} smaller", "shrink {thing}", "{thing} should be smaller", "a smaller version of {thing}",
                "reduce the size of {thing}"],
    "arrange": ["put {first}", "the same, but {first}", "arrange them so that {first_is}", "{first}", "show {first}"],
    "swap": ["swap {thing} and {other}", "{thing} and {other} change places", "swap their places", "swap the two"],
    "transfer": ["put {thing} on the background of the second image", "put {thing} of the first image on the background of the second",
                 "{thing} of image 1 on the background of image 2", "use the background of the second image for {thing}",
                 "move {thing} to the second image's background", "the object of the first image on the background of the second"],
    "both": ["both side by side", "put both side by side", "put both next to each other", "{thing} and {other} side by side",
             "{thing} next to {other}", "show {thing} and {other} side by side", "put {thing} of the first image next to {other} of the second"],
}  # fmt: skip
# Words between two things that the pipeline's captions have, too: (words, whether the first lies beside or above the second, and on which side).
ARRANGEMENTS = {
    "left": ["{a}{is} to the left of {b}", "{a}{is} on the left and {b} on the right"],
    "right": ["{a}{is} to the right of {b}"],
    "above": ["{a}{is} above {b}", "{a}{is} over {b}", "{a}{is} at the top and {b} at the bottom"],
    "below": ["{a}{is} below {b}", "{a}{is} under {b}"],
}
# Toward a place, in place of the first word of those in `PLACES`.
TOWARD = {"in": ["to", "into"], "on": ["to"], "at": ["to"], "near": ["near"]}


def definite(words: str) -> str:
    """ "a red star" -> "the red star"."""
    first, _, rest = words.partition(" ")
    return f"the {rest if first in ('a', 'an') else words}"


def instruct(rng: Random, operation: str, **words: str) -> str:
    text = rng.choice(WORDINGS[operation]).format(**words)
    if rng.random() < 0.06:
        text = rng.choice(["please ", "now "]) + text
    return captions.finish(rng, text)


def place(rng: Random, center: tuple[float, float]) -> dict[str, str]:
    """Words for where something is, and for where it goes."""
    words = rng.choice(PLACES[center])
    first, rest = words.split(" ", 1)
    return {"place": words, "to": f"{rng.choice(TOWARD[first])} {rest}"}


def color(rng: Random, name: str) -> dict[str, str]:
    words = captions.color(rng, name)
    return {"color": words, "a_color": with_article(words)}


def arrangement(rng: Random, relation: str, a: str, b: str) -> dict[str, str]:
    form = rng.choice(ARRANGEMENTS[relation])
    return {"first": form.format(a=a, b=b, **{"is": ""}), "first_is": form.format(a=a, b=b, **{"is": " is"})}
