"""Reads an image of shapes back: background, and the color, shape and place of every object. Reads drawn images without an error.

tests/meaning/reader.rs takes the same steps: a change here is made there, too.
"""

from dataclasses import dataclass

import numpy as np
import torch

from sprites import shape_mask
from vocabulary import COLORS, SHAPES

CELLS = 64  # the image is averaged to so many cells a side
DIFFERENT = 48  # sRGB distance from the background that makes a cell part of an object
SMALLEST = 20  # cells
TEMPLATE = 32  # side of what is compared to tell a shape
PLACE_TOLERANCE = 0.15  # of the image


@dataclass
class Object:
    color: str
    shape: str
    x: float
    y: float
    side: float  # the longer of its outline, in parts of the image's shorter side


def nearest_color(rgb: np.ndarray) -> str:
    return min(COLORS, key=lambda name: float(((rgb - np.array(COLORS[name])) ** 2).sum()))


def grown(mask: np.ndarray) -> np.ndarray:
    """The mask and the cells beside it."""
    result = mask.copy()
    result[1:] |= mask[:-1]
    result[:-1] |= mask[1:]
    result[:, 1:] |= mask[:, :-1]
    result[:, :-1] |= mask[:, 1:]
    return result


def components(mask: np.ndarray) -> list[np.ndarray]:
    """4-connected parts of a boolean image, the largest first."""
    rest, parts = mask.copy(), []
    while rest.any():
        part = np.zeros_like(rest)
        part[tuple(np.argwhere(rest)[0])] = True
        while (larger := grown(part) & rest).sum() > part.sum():
            part = larger
        parts.append(part)
        rest &= ~part
    return sorted(parts, key=lambda part: -part.sum())


def cropped(mask: np.ndarray) -> tuple[np.ndarray, float]:
    """What a mask's bounding box holds, at TEMPLATE x TEMPLATE, and the logarithm of its width by height."""
    ys, xs = np.nonzero(mask)
    box = mask[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    middles = (np.arange(TEMPLATE) + 0.5) / TEMPLATE
    rows, columns = (middles * box.shape[0]).astype(int), (middles * box.shape[1]).astype(int)
    return box[rows][:, columns], float(np.log(box.shape[1] / box.shape[0]))


TEMPLATES = {name: cropped(shape_mask(name) > 127) for name in SHAPES}


def nearest_shape(mask: np.ndarray) -> str:
    crop, aspect = cropped(mask)

    def fit(name: str) -> float:
        template, template_aspect = TEMPLATES[name]
        return (template & crop).sum() / max(1, (template | crop).sum()) - 0.6 * abs(aspect - template_aspect)

    return max(SHAPES, key=fit)


def read(image: np.ndarray) -> tuple[str, list[Object]]:
    """image [height, width, 3] u8, sides divisible by 64 -> background, objects."""
    height, width, _ = image.shape
    edge = max(2, height // 40)
    border = [image[:edge], image[-edge:], image[:, :edge], image[:, -edge:]]
    background = np.median(np.concatenate([part.reshape(-1, 3) for part in border]), 0)
    cells = image.reshape(CELLS, height // CELLS, CELLS, width // CELLS, 3).mean((1, 3))
    parts = [part for part in components(np.sqrt(((cells - background) ** 2).sum(-1)) > DIFFERENT) if part.sum() >= SMALLEST]
    objects = []
    for part in parts:
        y, x = ((places.mean() + 0.5) / CELLS for places in np.nonzero(part))
        color = np.median(cells[part], 0)
        # The outline by pixels: those in and beside the part that are nearer to its color than to the background.
        near = grown(part) & ~np.logical_or.reduce([other for other in parts if other is not part], initial=False)
        near = near.repeat(height // CELLS, 0).repeat(width // CELLS, 1)
        outline = near & (((image - color) ** 2).sum(-1) < ((image - background) ** 2).sum(-1))
        if not outline.any():  # an object of many colors, whose medians are no pixel's color
            outline = near
        side = max(np.ptp(places) + 1 for places in np.nonzero(outline)) / min(height, width)
        objects.append(Object(nearest_color(color), nearest_shape(outline), float(x), float(y), float(side)))
    return nearest_color(background), objects


def grade(kind: str, background: str, meaning: dict, image: np.ndarray) -> dict[str, bool]:
    """What is right of what was asked for, by name; a key is there where the prompt says something about it."""
    seen_background, objects = read(image)
    first = objects[0] if objects else None
    if kind == "shapes":
        return {
            "count": len(objects) == meaning["count"],
            "count_color": bool(objects) and all(thing.color == meaning["color"] for thing in objects),
        }
    if kind == "two_shapes":
        if len(objects) != 2:
            return {"relation": False, "relation_shapes": False}
        upright = meaning["relation"] in ("above", "below")
        pair = sorted(objects, key=lambda thing: thing.y if upright else thing.x)
        if meaning["relation"] in ("right", "below"):
            pair.reverse()
        colors, shapes = [color for _, color in meaning["entities"]], [shape for shape, _ in meaning["entities"]]
        return {"relation": [thing.color for thing in pair] == colors, "relation_shapes": [thing.shape for thing in pair] == shapes}
    grades = {
        "background": seen_background == background,
        "color": first is not None and first.color == meaning["color"],
        "shape": first is not None and len(objects) <= 2 and first.shape == meaning["shape"],
    }
    place = meaning["place"]
    near = lambda a, b: abs(a - b) < PLACE_TOLERANCE  # noqa: E731
    if place:
        grades["position"] = first is not None and near(first.x, place[0]) and near(first.y, place[1])
    grades["all"] = all(grades.values())
    return grades


def psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of images [n, 3, height, width] in -1..1, dB each."""
    return -10 * torch.log10(((a - b) / 2).square().mean((1, 2, 3)) + 1e-12)
