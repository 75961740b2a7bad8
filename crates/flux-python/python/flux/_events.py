"""Events of a stream. Images are counted from 0, in the order of their seeds."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

from flux._image import Image, Pixels


@dataclasses.dataclass(frozen=True)
class Queued:
    """The job waits behind `ahead` images of other jobs."""

    ahead: int


@dataclasses.dataclass(frozen=True)
class Started:
    """A device starts a batch of `batch` images, with `images` of this job."""

    images: range
    batch: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """`done` of `total` parts of a stage are complete.

    The stages are `quantize` and `load` (elements), `text` (layers), `encode`, `denoise` (steps) and `decode`.
    """

    stage: str
    done: int
    total: int


@dataclasses.dataclass(frozen=True)
class Preview:
    """A small image after `step` of `steps` steps. There is none after the last step."""

    index: int
    step: int
    steps: int
    image: Pixels


@dataclasses.dataclass(frozen=True)
class Done:
    """An image is finished."""

    index: int
    image: Image


@dataclasses.dataclass(frozen=True)
class Finished:
    """All images of a batch are finished."""

    images: range
    device: str


Event = Union[Queued, Started, Progress, Preview, Done, Finished]
"""An event of `Engine.stream`."""


def event(parts: tuple[Any, ...]) -> Event | None:
    """Returns the event of a tuple of the extension; `None` if it is of no interest."""
    name, *rest = parts
    if name == "queued":
        return Queued(*rest)
    if name == "started":
        return Started(range(rest[0], rest[1]), rest[2])
    if name == "progress":
        return Progress(*rest)
    if name == "preview":
        return Preview(rest[0], rest[1], rest[2], Pixels(rest[3]))
    if name == "image":
        return Done(rest[0], Image(rest[1], rest[2]))
    if name == "finished":
        return Finished(range(rest[0], rest[1]), rest[2])
    return None
