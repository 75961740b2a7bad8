"""Scenes: things with places and colors, a background, and a caption.

A scene is a background color and up to six things. A thing is a sprite with a center (in parts of the image's width and height) and a side
(in parts of the shorter of them), drawn in its own colors, filled with one color (shapes) or tinted (emoji). Sprites are numbered: the
shapes, then every concept in 3D and flat.

One in ten combinations of shape, color and background, and of emoji and tint, is held out: never trained on, used to score.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

import captions
from concepts import Concept
from vocabulary import BACKGROUNDS, BASIC_COLORS, COLORS, PLACES, SHAPE_COLORS, SHAPES, color_distance

MAX_OBJECTS = 6
OWN, FILLED, TINTED = 0, 1, 2

# Kind of scene: share. Shapes: one, several, two, three, one inside another. Emoji: one, several, two, with a shape, inside a shape, unknown.
KINDS = {"shape": 0.15, "shapes": 0.08, "two_shapes": 0.13, "three_shapes": 0.03, "shape_inside": 0.04,
         "emoji": 0.34, "emojis": 0.06, "two_emoji": 0.08, "emoji_and_shape": 0.03, "emoji_inside": 0.04, "unknown": 0.02}  # fmt: skip

LEFT, RIGHT, TOP, BOTTOM = (0.27, 0.5), (0.73, 0.5), (0.5, 0.27), (0.5, 0.73)
# Words between two things: (center of the first, of the second, where the first is). "and" alone puts the first on the left.
RELATIONS = [
    (["{a} to the left of {b}"], LEFT, RIGHT, "left"),
    (["{a} to the right of {b}"], RIGHT, LEFT, "right"),
    (["{a} above {b}", "{a} above {b}", "{a} over {b}"], TOP, BOTTOM, "above"),
    (["{a} below {b}", "{a} below {b}", "{a} under {b}", "{a} underneath {b}"], BOTTOM, TOP, "below"),
    (["{a} on the left and {b} on the right"], LEFT, RIGHT, "left"),
    (["{a} at the top and {b} at the bottom"], TOP, BOTTOM, "above"),
    (["{a} next to {b}", "{a} beside {b}"], LEFT, RIGHT, "left"),
    (["{a} and {b}"], LEFT, RIGHT, "left"),
    (["{a} and {b}"], LEFT, RIGHT, "left"),
]
# Several of a thing: number: centers, side. One layout each: a student of four steps mixes two that a caption does not tell apart.
LAYOUTS = {
    2: ([(0.27, 0.5), (0.73, 0.5)], 0.36),
    3: ([(0.5, 0.28), (0.27, 0.7), (0.73, 0.7)], 0.34),
    4: ([(0.28, 0.28), (0.72, 0.28), (0.28, 0.72), (0.72, 0.72)], 0.33),
    5: ([(0.24, 0.24), (0.76, 0.24), (0.5, 0.5), (0.24, 0.76), (0.76, 0.76)], 0.27),
    6: ([(0.2, 0.32), (0.5, 0.32), (0.8, 0.32), (0.2, 0.68), (0.5, 0.68), (0.8, 0.68)], 0.24),
}
# A shape with room inside: (side of the thing in it, how much lower it sits), in parts of the shape's side.
OUTER = {"circle": (0.48, 0), "square": (0.55, 0), "hexagon": (0.5, 0), "diamond": (0.38, 0), "heart": (0.4, -0.03),
         "star": (0.3, 0.03), "rectangle": (0.34, 0), "oval": (0.38, 0)}  # fmt: skip
OUTER_OF_EMOJI = ["circle", "square", "hexagon", "diamond", "heart"]


@dataclass
class Thing:
    sprite: int
    x: float
    y: float
    side: float
    mode: int = OWN
    color: tuple = (0, 0, 0)

    def row(self) -> tuple:
        return (self.sprite, self.x, self.y, self.side, self.mode, *self.color)


@dataclass
class Scene:
    kind: str
    background: str
    things: list[Thing]
    caption: str
    meaning: dict = field(default_factory=dict)  # what a scorer can check


def held_out(*parts: str) -> bool:
    return zlib.crc32("|".join(parts).encode()) % 10 == 0


class Scenes:
    """Draws scenes: those of the training (`held=False`) or of the scores (`held=True`)."""

    def __init__(self, concepts: list[Concept], held: bool = False):
        self.concepts, self.held = concepts, held
        self.with_plural = [i for i, concept in enumerate(concepts) if concept.plural]
        self.known = [concept.name.words for concept in concepts]

    def draw(self, rng: Random, kind: str | None = None) -> Scene:
        kind = kind or rng.choices([*KINDS], KINDS.values())[0]
        background = rng.choice(BACKGROUNDS)
        named = rng.random() >= 0.16
        if not named:
            background = "white"
        style = None
        has_emoji = "emoji" in kind
        if has_emoji:
            chance = rng.random()
            style = "flat" if chance < 0.27 else "3d" if chance < 0.37 else None
        scene = Scene(kind, background, [], "")
        core = getattr(self, f"_{kind}")(rng, scene, style == "flat")
        scene.caption = captions.caption(rng, core, scene.background if named or scene.background != "white" else None, style, has_emoji)
        return scene

    # --- Things.

    def _filled(self, shape: str, color: str, x: float, y: float, side: float) -> Thing:
        return Thing(SHAPES.index(shape), x, y, side, FILLED, COLORS[color])

    def _sprite(self, concept: int, flat: bool, x: float, y: float, side: float, tint: str | None = None) -> Thing:
        sprite = len(SHAPES) + 2 * concept + int(flat)
        return Thing(sprite, x, y, side, TINTED, COLORS[tint]) if tint else Thing(sprite, x, y, side)

    def _tint(self, rng: Random, concept: int, background: str) -> str | None:
        if not self.concepts[concept].tintable or rng.random() >= 0.22:
            return None
        name = self.concepts[concept].name.words
        for _ in range(20):
            tint = rng.choice([*BASIC_COLORS])
            if color_distance(tint, background) > 95 and held_out("tint", name, tint) == self.held:
                return tint
        return None

    def _place(self, rng: Random, side: float) -> tuple[str, float, float, float, str | None, tuple | None]:
        """Size and place of a thing that is alone: (words behind it, x, y, side, word before it, place)."""
        x, y, size, place = 0.5, 0.5, None, None
        side *= rng.uniform(0.97, 1.03)
        chance = rng.random()
        if chance < 0.22:
            place, side = rng.choice([*PLACES]), 0.38 * rng.uniform(0.95, 1.05)
        elif chance < 0.42:
            size, side = rng.choice([("small", 0.27), ("tiny", 0.18), ("big", 0.82), ("large", 0.82)])
            side *= rng.uniform(0.95, 1.05)
            if size == "small" and rng.random() < 0.4:
                place = rng.choice([*PLACES])
        if place:
            x, y = place
        return (" " + rng.choice(PLACES[place]) if place else ""), x + jitter(rng), y + jitter(rng), side, size, place

    # --- Kinds. Each fills the scene and returns the words for it.

    def _shape(self, rng: Random, scene: Scene, flat: bool) -> str:
        behind, x, y, side, size, place = self._place(rng, 0.56)
        while True:
            shape, color = rng.choice(SHAPES), rng.choice(SHAPE_COLORS)
            if color_distance(color, scene.background) > 95 and held_out(shape, color, scene.background) == self.held:
                break
            if rng.random() < 0.1:
                scene.background = rng.choice(BACKGROUNDS)
        scene.things = [self._filled(shape, color, x, y, side)]
        scene.meaning = {"shape": shape, "color": color, "place": place}
        return captions.shape(rng, shape, color, size) + behind

    def _emoji(self, rng: Random, scene: Scene, flat: bool) -> str:
        behind, x, y, side, size, place = self._place(rng, 0.72)
        concept = rng.randrange(len(self.concepts))
        tint = self._tint(rng, concept, scene.background)
        scene.things = [self._sprite(concept, flat, x, y, side, tint)]
        return captions.emoji(rng, self.concepts[concept], tint, size) + behind

    def _unknown(self, rng: Random, scene: Scene, flat: bool) -> str:
        scene.things = [self._sprite(len(self.concepts) - 1, False, 0.5 + jitter(rng), 0.5 + jitter(rng), 0.72)]
        return captions.unknown(rng, self.known)

    def _shapes(self, rng: Random, scene: Scene, flat: bool) -> str:
        centers, side, count = self._layout(rng)
        shape, color = rng.choice(SHAPES), distinct_colors(rng, 1, scene.background)[0]
        scene.things = [self._filled(shape, color, x, y, side) for x, y in centers]
        scene.meaning = {"shape": shape, "color": color, "count": count}
        return captions.shape(rng, shape, color, None, count)

    def _emojis(self, rng: Random, scene: Scene, flat: bool) -> str:
        centers, side, count = self._layout(rng)
        concept = rng.choice(self.with_plural)
        tint = self._tint(rng, concept, scene.background)
        scene.things = [self._sprite(concept, flat, x, y, side * 1.1, tint) for x, y in centers]
        return captions.emoji(rng, self.concepts[concept], tint, None, count)

    def _layout(self, rng: Random) -> tuple[list[tuple[float, float]], float, int]:
        count = rng.choice([2, 2, 3, 3, 4, 5, 6])
        centers, side = LAYOUTS[count]
        return [(x + jitter(rng), y + jitter(rng)) for x, y in centers], side * rng.uniform(0.94, 1.06), count

    def _three_shapes(self, rng: Random, scene: Scene, flat: bool) -> str:
        colors = distinct_colors(rng, 3, scene.background)
        shapes = [rng.choice(SHAPES) for _ in colors]
        scene.things = [
            self._filled(shape, color, x + jitter(rng), 0.5 + jitter(rng), 0.25) for shape, color, x in zip(shapes, colors, (0.19, 0.5, 0.81))
        ]
        a, b, c = (captions.shape(rng, shape, color) for shape, color in zip(shapes, colors))
        return f"{a}, {b} and {c}"

    def _two_shapes(self, rng: Random, scene: Scene, flat: bool) -> str:
        return self._two(rng, scene, flat, "ss")

    def _two_emoji(self, rng: Random, scene: Scene, flat: bool) -> str:
        return self._two(rng, scene, flat, "ee")

    def _emoji_and_shape(self, rng: Random, scene: Scene, flat: bool) -> str:
        return self._two(rng, scene, flat, rng.choice(["es", "se"]))

    def _two(self, rng: Random, scene: Scene, flat: bool, which: str) -> str:
        forms, *centers, relation = rng.choice(RELATIONS)
        side = 0.37 * rng.uniform(0.95, 1.05)
        words, entities = [], []
        for kind, color, (x, y) in zip(which, distinct_colors(rng, 2, scene.background), centers):
            x, y = x + jitter(rng), y + jitter(rng)
            if kind == "s":
                shape = rng.choice(SHAPES)
                scene.things.append(self._filled(shape, color, x, y, side))
                words.append(captions.shape(rng, shape, color))
                entities.append((shape, color))
            else:
                concept = rng.randrange(len(self.concepts))
                tint = self._tint(rng, concept, scene.background)
                scene.things.append(self._sprite(concept, flat, x, y, side * 1.12, tint))
                words.append(captions.emoji(rng, self.concepts[concept], tint))
        scene.meaning = {"entities": entities, "relation": relation}
        return rng.choice(forms).format(a=words[0], b=words[1])

    def _shape_inside(self, rng: Random, scene: Scene, flat: bool) -> str:
        color, (x, y), side, words = self._outer(rng, scene, [*OUTER])
        shape = rng.choice(SHAPES)
        scene.things.append(self._filled(shape, color, x, y, side))
        return f"{captions.shape(rng, shape, color)} {rng.choice(['inside', 'in', 'inside of'])} {words}"

    def _emoji_inside(self, rng: Random, scene: Scene, flat: bool) -> str:
        _, (x, y), side, words = self._outer(rng, scene, OUTER_OF_EMOJI)
        concept = rng.randrange(len(self.concepts))
        scene.things.append(self._sprite(concept, flat, x, y, side * 1.2))
        return f"{captions.emoji(rng, self.concepts[concept])} {rng.choice(['inside', 'in', 'on top of', 'on'])} {words}"

    def _outer(self, rng: Random, scene: Scene, among: list[str]):
        """Puts a large shape; returns a color for what goes in, its center and side, and the words for the large shape."""
        color, inner_color = distinct_colors(rng, 2, scene.background)
        outer = rng.choice(among)
        inner, lower = OUTER[outer]
        side = 0.84 * rng.uniform(0.97, 1.03)
        x, y = 0.5 + jitter(rng), 0.5 + jitter(rng)
        scene.things = [self._filled(outer, color, x, y, side)]
        return inner_color, (x, y + lower * side), side * inner, captions.shape(rng, outer, color)


def distinct_colors(rng: Random, count: int, background: str) -> list[str]:
    """Colors that a viewer can tell from the background and from each other."""
    colors: list[str] = []
    while len(colors) < count:
        color = rng.choice(SHAPE_COLORS)
        if stands_out(color, background, colors):
            colors.append(color)
    return colors


def stands_out(color: str, background: str, others: list[str]) -> bool:
    return color_distance(color, background) > 95 and all(color_distance(color, other) > 75 for other in others)


def jitter(rng: Random) -> float:
    return rng.uniform(-0.015, 0.015)


def as_arrays(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """background [n, 3] u8, things [n, 6, 8] f32 (sprite, x, y, side, mode, r, g, b), count [n] u8."""
    things = np.zeros((len(scenes), MAX_OBJECTS, 8), np.float32)
    for i, scene in enumerate(scenes):
        for j, thing in enumerate(scene.things):
            things[i, j] = thing.row()
    return {
        "background": np.array([COLORS[scene.background] for scene in scenes], np.uint8),
        "things": things,
        "count": np.array([len(scene.things) for scene in scenes], np.uint8),
    }
