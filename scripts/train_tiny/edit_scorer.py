"""Checks an edited image: the change in the instruction is present, and everything else is unchanged.

Shapes are read by `scorer.read` and compared with those in the rendered image of the expected scene. Emoji are recognized by pixels: among all
emoji in the same style and color, in larger and smaller sizes and other tints, the right one must be the nearest at its place.
"""

from dataclasses import replace
from random import Random

import numpy as np
import torch
import torch.nn.functional as F

from edits import LARGER, NAMES, SMALLER, Edit, Edits, scene_of
from layouts import Size, pixels
from render import Sprites, render, to_bytes
from scenes import OWN, TINTED, Scene, Thing, as_arrays
from scorer import CELLS, Object, psnr, read
from vocabulary import BASIC_COLORS, COLORS, SHAPES

PLACE_TOLERANCE = 0.08  # of the image
SIDE_TOLERANCE = 1.25  # a factor
WINDOW = 1.5  # around an emoji, in its sides: what is compared
COVER = 1.1  # of an emoji's side: what is painted over before shapes are read
TOUCHED = 4  # pixels of 256 around what an edit changes, which the VAE smears


class EditScorer:
    def __init__(self, sprites: Sprites):
        self.sprites = sprites
        self.emoji = range(len(SHAPES), len(sprites.levels[32]))

    def draw(self, scenes: list[Scene], size: tuple[int, int]) -> torch.Tensor:
        """Images [scenes, 3, height, width] in -1..1; `size` in pixels."""
        arrays = {key: torch.from_numpy(value).to(self.sprites.luma.device) for key, value in as_arrays(scenes).items()}
        return render(self.sprites, **arrays, size=size)

    def drawn(self, scenes: list[Scene], size: Size) -> torch.Tensor:
        """Drawn images on the CPU, in as many levels as a file has."""
        parts = [self.draw(scenes[first : first + 32], pixels(size)) for first in range(0, len(scenes), 32)]
        return to_bytes(torch.cat(parts)).cpu().float() / 127.5 - 1

    def readable(self, drawer: Edits, rng: Random, operation: str, size: Size) -> Edit:
        """An edit whose drawn image is read without an error: of three in a hundred, with an emoji that the background hides or that is very
        small, it is not."""
        while True:
            edit = drawer.draw(rng, operation)
            image = self.drawn([edit.expected], size)[0]
            if self.grade(edit, image, image)["right"]:
                return edit

    def grade(self, edit: Edit, image: torch.Tensor, drawn: torch.Tensor) -> dict[str, bool]:
        """Images [3, height, width] in -1..1: one to grade, and the drawn one of the expected scene. Sides are divisible by 64.

        `changed`: what the instruction names is right. `kept`: everything else, with nothing beside it. `right`: both.
        """
        scene = edit.expected
        emoji = [thing for thing in scene.things if thing.sprite >= len(SHAPES)]
        background, objects = read(without(emoji, scene, image))
        expected = read(without(emoji, scene, drawn))[1]
        right = [
            self.shows_emoji(scene, i, image) if thing in emoji else shows_shape(thing, objects, expected) for i, thing in enumerate(scene.things)
        ]
        same_background, alone = background == scene.background, len(objects) == len(scene.things) - len(emoji)
        if edit.operation in ("background", "transfer"):
            changed, kept = [same_background], [alone, *right]
        elif edit.removed:
            changed, kept = [alone], [same_background, *right]
        else:
            changed = [right[i] for i in edit.changed]
            kept = [same_background, alone] + [is_right for i, is_right in enumerate(right) if i not in edit.changed]
        return {"changed": all(changed), "kept": all(kept), "right": all(changed) and all(kept)}

    def shows_emoji(self, scene: Scene, i: int, image: torch.Tensor) -> bool:
        thing = scene.things[i]
        style = (thing.sprite - len(SHAPES)) % 2
        others = [replace(thing, sprite=sprite) for sprite in self.emoji[style::2] if sprite != thing.sprite]
        if thing.mode == TINTED:
            others += [replace(thing, mode=OWN)] + [replace(thing, color=COLORS[name]) for name in BASIC_COLORS if COLORS[name] != thing.color]
        candidates = [thing, replace(thing, side=thing.side * LARGER), replace(thing, side=thing.side * SMALLER), *others]
        height, width = image.shape[1:]
        size = (CELLS * height // min(height, width), CELLS * width // min(height, width))
        scenes = [scene_of(scene.background, [*scene.things[:i], other, *scene.things[i + 1 :]]) for other in candidates]
        top, bottom, left, right = box(thing, WINDOW, size)
        seen = F.interpolate(image[None], size, mode="area")[0, :, top:bottom, left:right]
        distances = (self.draw(scenes, size).cpu()[:, :, top:bottom, left:right] - seen).square().mean((1, 2, 3))
        return int(distances.argmin()) == 0


def box(thing: Thing, times: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of a thing whose side is so many times as long, inside an image of (height, width) pixels."""
    half = thing.side * times * min(size) / 2
    edges = [(at * length - half, at * length + half, length) for at, length in ((thing.y, size[0]), (thing.x, size[1]))]
    top, bottom, left, right = (edge for low, high, length in edges for edge in (max(0, int(low)), min(length, int(high) + 1)))
    return top, bottom, left, right


def without(things: list[Thing], scene: Scene, image: torch.Tensor) -> np.ndarray:
    """The image as [height, width, 3] u8, things painted over with the background that should be there."""
    pixels = to_bytes(image).permute(1, 2, 0).numpy().copy()
    for thing in things:
        top, bottom, left, right = box(thing, COVER, pixels.shape[:2])
        pixels[top:bottom, left:right] = COLORS[scene.background]
    return pixels


def shows_shape(thing: Thing, objects: list[Object], expected: list[Object]) -> bool:
    """Whether the object that is nearest to its place is this shape, in its color, there and as large as in the drawn image."""
    distance = lambda object: max(abs(object.x - thing.x), abs(object.y - thing.y))  # noqa: E731
    if not objects or not expected:
        return False
    seen, drawn = min(objects, key=distance), min(expected, key=distance)
    there = max(abs(seen.x - drawn.x), abs(seen.y - drawn.y)) < PLACE_TOLERANCE
    as_large = 1 / SIDE_TOLERANCE < seen.side / drawn.side < SIDE_TOLERANCE
    return there and as_large and (seen.shape, seen.color) == (SHAPES[thing.sprite], NAMES[thing.color])


def untouched(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Where the drawn images of an edit with one reference are the same, not too near to where they differ: [height, width] bool."""
    differ = ((before - after).abs().amax(0) > 1e-3).float()
    reach = max(1, TOUCHED * min(before.shape[1:]) // 256)
    return F.max_pool2d(differ[None], 2 * reach + 1, 1, reach)[0] == 0


def kept_psnr(image: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> float | None:
    """Of an edited image and its reference where the edit changes nothing, dB; nothing where it changes everything."""
    mask = untouched(before, after)
    if mask.float().mean() < 0.01:
        return None
    return psnr(image[:, mask][None, :, None], before[:, mask][None, :, None]).item()


def shuffled(edits: list[Edit]) -> list[int]:
    """For each edit the next of its operation."""
    places: dict[str, list[int]] = {}
    for i, edit in enumerate(edits):
        places.setdefault(edit.operation, []).append(i)
    following = {i: row[(j + 1) % len(row)] for row in places.values() for j, i in enumerate(row)}
    return [following[i] for i in range(len(edits))]
