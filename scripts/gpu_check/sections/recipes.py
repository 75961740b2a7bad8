"""Checks that images are reproduced byte for byte from their files."""

from __future__ import annotations

from pathlib import Path

from check import Check, square
from measure import Failed, Word, run, say

COUNT = 3
"""Images of a batch. An image of a batch is reproduced in such a batch."""


def recipes(check: Check) -> str:
    """Reproduces images of each model, alone and in a batch."""
    models = [(check.tiny, 256)]
    if (check.klein_4b / "model_index.json").exists():
        models.append((check.klein_4b, 512))
    files = [path for model, side in models for count in (1, COUNT) for path in drawn(check, model, side, count)]
    for path in files:
        same = path.with_suffix(".same.png")
        run([check.flux, "again", path, "--exact", "-q", "-o", same], f"{path.name} was not reproduced")
        if same.read_bytes() != path.read_bytes():
            raise Failed(f"{path.name} was reproduced with differences")
        say(f"{path.name}: the same bytes")
    return f"{len(files)} images of {len(models)} models were reproduced exactly"


def drawn(check: Check, model: Path, side: int, count: int) -> list[Path]:
    """Generates the images of some seeds."""
    folder = check.work / f"recipes-{model.name}-{count}"
    words: list[Word] = ["-d", model, "--device", "cuda", *square(side), "-s", 4, "-S", 7, "-n", count, "-q"]
    run([check.flux, "-p", "boats on a lake", *words, "-o", f"{folder}/"], "no image")
    return sorted(folder.glob("*.png"))
