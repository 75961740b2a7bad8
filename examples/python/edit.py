"""Generates a star, edits it, and edits a part of it under a mask of numpy: `python edit.py FOLDER [MODEL]`."""

import sys
from pathlib import Path

import flux
import numpy as np


def main() -> None:
    folder, *model = sys.argv[1:]
    with flux.Engine(*model) as engine:
        star = engine.generate("a yellow star on a purple background", size=(256, 256), seed=1)
        blue = engine.edit("make the star blue", images=[star], seed=1)
        mask = np.zeros((256, 256), np.uint8)
        mask[:, 128:] = 255
        half = engine.edit("a red circle", images=[star], mask=mask, feather=8, seed=1)
    for name, image in {"star": star, "blue": blue, "half": half}.items():
        image.save(Path(folder) / f"{name}.png")


if __name__ == "__main__":
    main()
