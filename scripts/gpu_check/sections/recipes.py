"""Whether images are made again byte for byte from what their files say."""

from __future__ import annotations

from pathlib import Path

from check import Check, square
from measure import Failed, Word, run, say

COUNT = 3
"""Images of a batch. One of a batch is made again in such a batch."""


def recipes(check: Check) -> str:
    """Images of each model, alone and in a batch, made again."""
    models = [(check.tiny, 256)]
    if (check.klein_4b / "model_index.json").exists():
        models.append((check.klein_4b, 512))
    files = [path for model, side in models for count in (1, COUNT) for path in drawn(check, model, side, count)]
    for path in files:
        same = path.with_suffix(".same.png")
        run([check.flux, "again", path, "--exact", "-q", "-o", same], f"{path.name} was not made again")
        if same.read_bytes() != path.read_bytes():
            raise Failed(f"{path.name} is another image when it is made again")
        say(f"{path.name}: the same bytes")
    return f"{len(files)} images of {len(models)} models are the same when they are made again"


def drawn(check: Check, model: Path, side: int, count: int) -> list[Path]:
    """The images of so many seeds."""
    folder = check.work / f"recipes-{model.name}-{count}"
    words: list[Word] = ["-d", model, "--device", "cuda", *square(side), "-s", 4, "-S", 7, "-n", count, "-q"]
    run([check.flux, "-p", "boats on a lake", *words, "-o", f"{folder}/"], "no image")
    return sorted(folder.glob("*.png"))
