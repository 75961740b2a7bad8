"""The contents of an image stream: the generated image, then the references, each with its size and its own position ids.

Sizes count tokens of 16 x 16 pixels. A training step is one CUDA graph per length of the stream, for all sizes in it, so only
layouts whose tokens add up to one of `Settings.streams` are trained. Those lengths have many factors, so every side occurs.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from random import Random

import torch

from settings import Settings

PIXELS = 16  # a token's side
MAX_IMAGES = 3  # in a stream: one that is drawn, two references
REFERENCE_STEP = 10  # between the first axis of the ids of one image and the next, as the pipeline has it

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Layout:
    sizes: tuple[Size, ...]  # of the image that is drawn, then of the references

    @property
    def tokens(self) -> int:
        """Of the image that is drawn: the first of the stream."""
        return prod(self.sizes[0])

    @property
    def stream(self) -> int:
        return sum(map(prod, self.sizes))

    def ids(self) -> torch.Tensor:
        """[stream, 4] i64: which image, row, column, 0."""
        zero = torch.arange(1)
        parts = [
            torch.cartesian_prod(torch.tensor([REFERENCE_STEP * i]), torch.arange(height), torch.arange(width), zero)
            for i, (height, width) in enumerate(self.sizes)
        ]
        return torch.cat(parts)

    def drawn(self) -> torch.Tensor:
        """[stream, 1] f32: 1 for tokens of the image that is drawn, 0 for those of references, which stay as they are."""
        return (torch.arange(self.stream) < self.tokens).float()[:, None]

    def opposite(self) -> torch.Tensor:
        """[stream] i64: for a token of the image that is drawn, the one at its place in the first reference; any other token, and any where there is
        no reference, is its own."""
        opposite = torch.arange(self.stream)
        if len(self.sizes) > 1:
            (height, width), (rows, columns) = self.sizes[:2]
            row, column = torch.arange(height) * rows // height, torch.arange(width) * columns // width
            opposite[: self.tokens] = self.tokens + (row[:, None] * columns + column).flatten()
        return opposite


def pixels(size: Size) -> tuple[int, int]:
    return size[0] * PIXELS, size[1] * PIXELS


def size_name(size: Size) -> str:
    """Width x height, in pixels."""
    return f"{size[1] * PIXELS}x{size[0] * PIXELS}"


@cache
def layouts(settings: Settings) -> list[list[tuple[Layout, float]]]:
    """Layouts that are trained, by the number of references, each with its share: the native size, then other sizes.

    References mostly have the size of what is drawn, which is what the pipeline makes of them when no size is asked for; `mixed_layouts`
    have others.
    """
    sides = range(settings.least_side, settings.most_side + 1)
    sizes = [(h, w) for h, w in product(sides, sides) if max(h, w) <= 2 * min(h, w)]
    native = (settings.latent_side, settings.latent_side)
    rng = Random(0)
    rows = []
    for references in range(MAX_IMAGES):
        fits = lambda layout: layout.stream in settings.streams  # noqa: E731
        same = [layout for size in sizes if fits(layout := Layout((size,) * (1 + references)))]
        # Two references: the image has the size of the first, as in the pipeline.
        mixed = [layout for a, b in product(sizes, sizes) if a != b and fits(layout := Layout((a,) * max(1, references) + (b,)))]
        mixed = rng.sample(mixed, min(settings.mixed_layouts, len(mixed))) if references else []
        natives = [layout for layout in same if layout.sizes[0] == native]
        others = [layout for layout in same if layout.sizes[0] != native]
        groups = [(natives, settings.native_share), (others, 1 - settings.native_share - settings.mixed_share), (mixed, settings.mixed_share)]
        rows.append([(layout, share * part) for members, share in groups for layout, part in evenly(members)])
    return rows


def evenly(members: list[Layout]) -> list[tuple[Layout, float]]:
    """Every length of the stream has the same share, so that the few layouts of the largest images are not lost among the others."""
    lengths = Counter(layout.stream for layout in members)
    return [(layout, 1 / len(lengths) / lengths[layout.stream]) for layout in members]


def draw_layout(settings: Settings, references: int, rng: Random) -> Layout:
    among = layouts(settings)[references]
    return rng.choices([layout for layout, _ in among], [share for _, share in among])[0]
