"""Edits: reference scenes, an instruction, and the expected scene. Everything that the instruction does not name is unchanged: the
same sprites at the same places.

One in ten combinations of a thing and a background is held out: training has no scene with it, and in a scored edit the result of the
changed thing, or of the new background, is such a combination.
"""

from dataclasses import dataclass, replace
from random import Random

import captions
import instructions
from concepts import Concept
from scenes import (
    BOTTOM, FILLED, LEFT, OWN, RIGHT, TINTED, TOP, Scene, Thing, distinct_colors, held_out, jitter, stands_out,
)  # fmt: skip
from vocabulary import BACKGROUNDS, BASIC_COLORS, COLORS, PLACES, SHAPE_COLORS, SHAPE_WORDS, SHAPES

# Operation: share. What draws a thing that no reference shows is learned last, so `replace` has most. The last two take two references. What is
# scored together stands in `GROUPS`.
OPERATIONS = {"color": 0.13, "background": 0.05, "replace": 0.33, "add": 0.12, "remove": 0.06, "move": 0.06, "larger": 0.04, "smaller": 0.04,
              "arrange": 0.05, "swap": 0.03, "transfer": 0.04, "both": 0.05}  # fmt: skip
GROUPS = {"larger": "resize", "smaller": "resize", "swap": "arrange", "transfer": "two references", "both": "two references"}
LARGER, SMALLER = 1.5, 0.62
RELATIONS = {"left": (LEFT, RIGHT), "right": (RIGHT, LEFT), "above": (TOP, BOTTOM), "below": (BOTTOM, TOP)}
NAMES = {rgb: name for name, rgb in COLORS.items()}
GAP, MARGIN = 0.05, 0.01  # between things, and to the border, in parts of the image
TINT_SHARE = 0.25
ATTEMPTS = 1000


@dataclass(frozen=True)
class Shares:
    emoji: float  # of things
    flat: float  # of scenes: emoji in them are in flat style


SCORED = Shares(emoji=0.4, flat=0.27)
TRAINED = Shares(emoji=0.55, flat=0.4)  # more of what is learned last: emoji have the finest parts, and their style is that of the reference


@dataclass
class Edit:
    operation: str
    references: list[Scene]
    instruction: str
    expected: Scene
    changed: list[int]  # which things of `expected` the instruction names; none where one was removed
    removed: Thing | None = None

    @property
    def group(self) -> str:
        return GROUPS.get(self.operation, self.operation)


class Unfit(Exception):
    """The operation cannot be applied to a scene, so another scene is sampled."""


def scene_of(background: str, things: list[Thing]) -> Scene:
    return Scene("edit", background, things, "")


def inside(thing: Thing) -> bool:
    return all(thing.side / 2 + MARGIN <= at <= 1 - MARGIN - thing.side / 2 for at in (thing.x, thing.y))


def apart(a: Thing, b: Thing) -> bool:
    """Whether they do not touch. On an image that is not square they are further apart than here."""
    return max(abs(a.x - b.x), abs(a.y - b.y)) >= (a.side + b.side) / 2 + GAP


def checked(things: list[Thing]) -> list[Thing]:
    """The things, where they lie inside the image and apart. Errors when they do not."""
    if not all(map(inside, things)) or not all(apart(a, b) for i, a in enumerate(things) for b in things[:i]):
        raise Unfit
    return things


class Edits:
    """Draws edits: those of the training (`held=False`) or of the scores (`held=True`)."""

    def __init__(self, concepts: list[Concept], held: bool = False, shares: Shares = SCORED):
        self.concepts, self.held, self.shares = concepts, held, shares

    def draw(self, rng: Random, operation: str | None = None) -> Edit:
        operation = operation or rng.choices([*OPERATIONS], OPERATIONS.values())[0]
        for _ in range(ATTEMPTS):
            try:
                edit = getattr(self, f"_{operation}")(rng)
                self._check_held(edit)
                return edit
            except Unfit:
                pass
        raise RuntimeError(f"no scene in {ATTEMPTS} suits `{operation}`")

    # --- Things and their names.

    def _concept(self, thing: Thing) -> Concept | None:
        return None if thing.sprite < len(SHAPES) else self.concepts[(thing.sprite - len(SHAPES)) // 2]

    def noun(self, thing: Thing) -> str:
        concept = self._concept(thing)
        return concept.name.words if concept else SHAPES[thing.sprite]

    def _is_held(self, thing: Thing, background: str) -> bool:
        """As the scenes of text alone hold out shapes and tints, so that what is held out there is not trained on here."""
        color = NAMES.get(thing.color) if thing.mode != OWN else "own"
        tinted = thing.mode == TINTED and held_out("tint", self.noun(thing), color)
        return tinted or held_out(self.noun(thing), color, background)

    def _check_held(self, edit: Edit) -> None:
        if self.held:
            named = [edit.expected.things[i] for i in edit.changed] + ([edit.removed] if edit.removed else [])
            fits = any(self._is_held(thing, edit.expected.background) for thing in named)
        else:
            fits = not any(self._is_held(thing, scene.background) for scene in [*edit.references, edit.expected] for thing in scene.things)
        if not fits:
            raise Unfit

    def _thing(self, rng: Random, center: tuple[float, float], side: float, color: str, flat: bool) -> Thing:
        x, y = center
        if rng.random() >= self.shares.emoji:
            return Thing(rng.randrange(len(SHAPES)), x, y, side, FILLED, COLORS[color])
        concept = rng.randrange(len(self.concepts))
        sprite = len(SHAPES) + 2 * concept + int(flat)
        if self.concepts[concept].tintable and color in BASIC_COLORS and rng.random() < TINT_SHARE:
            return Thing(sprite, x, y, side, TINTED, COLORS[color])
        return Thing(sprite, x, y, side)

    def _scene(self, rng: Random, count: int, room: bool = False) -> Scene:
        """`count` things apart from each other, no two of one name and color; with `room`, each small enough to lie at any place."""
        background, flat = rng.choice(BACKGROUNDS), rng.random() < self.shares.flat
        colors = distinct_colors(rng, count, background)
        if count == 1 and not room and rng.random() < 0.5:
            centers, least, most = [(0.5, 0.5)], 0.4, 0.74
        else:
            centers, least, most = rng.sample([*PLACES], count), 0.25, 0.42 if count == 1 else 0.36
        things = [
            self._thing(rng, (x + jitter(rng), y + jitter(rng)), rng.uniform(least, most), color, flat) for (x, y), color in zip(centers, colors)
        ]
        if len({(self.noun(thing), thing.color) for thing in things}) < count:
            raise Unfit
        return scene_of(background, checked(things))

    def _flat(self, scene: Scene) -> bool:
        return any(thing.sprite >= len(SHAPES) and (thing.sprite - len(SHAPES)) % 2 for thing in scene.things)

    def _colors(self, scene: Scene, but: int = -1) -> list[str]:
        """Of things that are drawn in one, all but one."""
        return [NAMES[thing.color] for i, thing in enumerate(scene.things) if i != but and thing.mode != OWN]

    def _new(self, rng: Random, scene: Scene, center: tuple[float, float], side: float, but: int = -1) -> tuple[Thing, str]:
        """A thing of another name than those in the scene, and its words with the article."""
        color = rng.choice(SHAPE_COLORS)
        thing = self._thing(rng, center, side, color, self._flat(scene))
        if self.noun(thing) in map(self.noun, scene.things) or not stands_out(color, scene.background, self._colors(scene, but)):
            raise Unfit
        concept = self._concept(thing)
        if concept is None:
            return thing, captions.shape(rng, SHAPES[thing.sprite], color)
        return thing, captions.emoji(rng, concept, color if thing.mode == TINTED else None)

    def name(self, rng: Random, scene: Scene, i: int, it: bool = True) -> str:
        """ "the star", with its color where another has that name; with `it`, a thing that is alone may be called so."""
        thing, concept = scene.things[i], self._concept(scene.things[i])
        if it and len(scene.things) == 1 and rng.random() < 0.2:
            return "it"
        alike = sum(self.noun(other) == self.noun(thing) for other in scene.things) > 1
        color = NAMES[thing.color] if thing.mode != OWN and (alike or rng.random() < 0.5) else None
        if alike and color is None:
            raise Unfit
        if concept:
            return instructions.definite(captions.emoji(rng, concept, color))
        words = rng.choice(SHAPE_WORDS.get(self.noun(thing), [self.noun(thing)])) if rng.random() < 0.2 else self.noun(thing)
        return f"the {captions.color(rng, color)} {words}" if color else f"the {words}"

    def _changed(self, rng: Random, operation: str, scene: Scene, i: int, thing: Thing, **words: str) -> Edit:
        """One thing of the scene becomes another."""
        things = checked([thing if j == i else other for j, other in enumerate(scene.things)])
        text = instructions.instruct(rng, operation, thing=self.name(rng, scene, i), **words)
        return Edit(operation, [scene], text, scene_of(scene.background, things), [i])

    # --- Operations.

    def _color(self, rng: Random) -> Edit:
        scene = self._scene(rng, rng.choice([1, 1, 2, 2, 3]))
        i = rng.randrange(len(scene.things))
        thing, concept = scene.things[i], self._concept(scene.things[i])
        color = rng.choice([*BASIC_COLORS] if concept else SHAPE_COLORS)
        if (concept and not concept.tintable) or not stands_out(color, scene.background, self._colors(scene)):
            raise Unfit
        new = replace(thing, mode=TINTED if concept else FILLED, color=COLORS[color])
        return self._changed(rng, "color", scene, i, new, **instructions.color(rng, color))

    def _background(self, rng: Random) -> Edit:
        scene, background = self._scene(rng, rng.choice([1, 1, 2, 3])), rng.choice(BACKGROUNDS)
        self._check_background(scene.things, background, scene.background)
        text = instructions.instruct(rng, "background", **instructions.color(rng, background))
        return Edit("background", [scene], text, scene_of(background, scene.things), [*range(len(scene.things))])

    def _check_background(self, things: list[Thing], background: str, old: str) -> None:
        colors = [NAMES[thing.color] for thing in things if thing.mode != OWN]
        if not stands_out(background, old, []) or not all(stands_out(color, background, []) for color in colors):
            raise Unfit

    def _replace(self, rng: Random) -> Edit:
        scene = self._scene(rng, rng.choice([1, 1, 2, 2, 3]))
        i = rng.randrange(len(scene.things))
        new, words = self._new(rng, scene, (scene.things[i].x, scene.things[i].y), scene.things[i].side, but=i)
        return self._changed(rng, "replace", scene, i, new, a=words)

    def _add(self, rng: Random) -> Edit:
        scene = self._scene(rng, rng.choice([1, 1, 2]), room=True)
        center = rng.choice([*PLACES])
        new, words = self._new(rng, scene, center, 0.3)
        text = instructions.instruct(rng, "add", a=words, **instructions.place(rng, center))
        return Edit("add", [scene], text, scene_of(scene.background, checked([*scene.things, new])), [len(scene.things)])

    def _remove(self, rng: Random) -> Edit:
        scene = self._scene(rng, rng.choice([2, 2, 3]))
        i = rng.randrange(len(scene.things))
        text = instructions.instruct(rng, "remove", thing=self.name(rng, scene, i))
        things = scene.things[:i] + scene.things[i + 1 :]
        return Edit("remove", [scene], text, scene_of(scene.background, things), [], scene.things[i])

    def _move(self, rng: Random) -> Edit:
        scene, center = self._scene(rng, rng.choice([1, 1, 2, 3]), room=True), rng.choice([*PLACES])
        i = rng.randrange(len(scene.things))
        new = replace(scene.things[i], x=center[0], y=center[1])
        if max(abs(new.x - scene.things[i].x), abs(new.y - scene.things[i].y)) < 0.2:
            raise Unfit
        return self._changed(rng, "move", scene, i, new, **instructions.place(rng, center))

    def _larger(self, rng: Random) -> Edit:
        return self._resized(rng, "larger", LARGER)

    def _smaller(self, rng: Random) -> Edit:
        return self._resized(rng, "smaller", SMALLER)

    def _resized(self, rng: Random, operation: str, factor: float) -> Edit:
        scene = self._scene(rng, rng.choice([1, 1, 2]))
        i = rng.randrange(len(scene.things))
        return self._changed(rng, operation, scene, i, replace(scene.things[i], side=factor * scene.things[i].side))

    def _placed(self, scene: Scene, centers: tuple) -> list[Thing]:
        return checked([replace(thing, x=x, y=y) for thing, (x, y) in zip(scene.things, centers)])

    def _arrange(self, rng: Random) -> Edit:
        scene, relation = self._scene(rng, 2), rng.choice([*RELATIONS])
        things = self._placed(scene, RELATIONS[relation])
        if all(max(abs(a.x - b.x), abs(a.y - b.y)) < 0.1 for a, b in zip(things, scene.things)):
            raise Unfit
        words = instructions.arrangement(rng, relation, self.name(rng, scene, 0), self.name(rng, scene, 1))
        return Edit("arrange", [scene], instructions.instruct(rng, "arrange", **words), scene_of(scene.background, things), [0, 1])

    def _swap(self, rng: Random) -> Edit:
        scene = self._scene(rng, 2)
        things = self._placed(scene, [(thing.x, thing.y) for thing in reversed(scene.things)])
        text = instructions.instruct(rng, "swap", thing=self.name(rng, scene, 0), other=self.name(rng, scene, 1))
        return Edit("swap", [scene], text, scene_of(scene.background, things), [0, 1])

    def _transfer(self, rng: Random) -> Edit:
        first, second = self._scene(rng, 1), self._scene(rng, rng.choice([1, 1, 2]))
        self._check_background(first.things, second.background, first.background)
        text = instructions.instruct(rng, "transfer", thing=self.name(rng, first, 0, it=False))
        return Edit("transfer", [first, second], text, scene_of(second.background, first.things), [0])

    def _both(self, rng: Random) -> Edit:
        """The thing of the first on the left, that of the second on the right, on the background of the first."""
        first, second = self._scene(rng, 1), self._scene(rng, 1)
        things = [replace(first.things[0], x=LEFT[0], y=LEFT[1], side=0.38), replace(second.things[0], x=RIGHT[0], y=RIGHT[1], side=0.38)]
        colors = [NAMES[thing.color] for thing in things if thing.mode != OWN]
        if self.noun(things[0]) == self.noun(things[1]) or not all(stands_out(c, first.background, colors[:i]) for i, c in enumerate(colors)):
            raise Unfit
        text = instructions.instruct(rng, "both", thing=self.name(rng, first, 0, it=False), other=self.name(rng, second, 0, it=False))
        return Edit("both", [first, second], text, scene_of(first.background, things), [0, 1])
