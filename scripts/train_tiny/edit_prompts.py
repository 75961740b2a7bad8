"""Edits for tests of the default model: instructions, their reference images, and the expected results. The edits are of
shapes, which `tests/meaning/reader.rs` recognizes.

    python3 scripts/train_tiny/edit_prompts.py --work target/train --out target/train/edits

reads `data.zip` of the phase `data` in WORK and writes to OUT. The edits do not depend on the weights.

- edits.json: `edits`, a list of {prompt, seed, kind, references, background, objects, changed, touched}. `kind` is the operation,
  `references` how many of the tiles of references.png, from left to right and down, are its own. `objects` are as they are read in the drawn image:
  color, shape, x and y (the center, in parts of the image) and side (in parts of its shorter side); `touched` are boxes [left, top, right, bottom],
  in parts of the image, outside of which it must stay as it is, or null where its background changes or there are two references.
- references.png and expected.png: drawn images of 256 x 256, in rows of 8. The expected ones are read without an error.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from data import load_concepts, load_sprites
from edit_scorer import EditScorer
from edits import OPERATIONS, SCORED, Edit, Edits
from prompts import tiled
from render import Sprites, to_bytes
from report import UserError
from scorer import Object, read
from settings import Settings

SEED, EACH = 2027, 4  # number of edits per operation
SIZE = (16, 16)
MARGIN = 0.02  # margin around the edited area, in parts of the image


def touched(edit: Edit) -> list[list[float]] | None:
    first, expected = edit.references[0], edit.expected
    if len(edit.references) > 1 or expected.background != first.background:
        return None
    box = lambda thing: [thing.x - thing.side / 2, thing.y - thing.side / 2, thing.x + thing.side / 2, thing.y + thing.side / 2]  # noqa: E731
    grown = lambda box: [round(min(1.0, max(0.0, at + by)), 4) for at, by in zip(box, (-MARGIN, -MARGIN, MARGIN, MARGIN))]  # noqa: E731
    differ = [thing for thing in first.things if thing not in expected.things] + [thing for thing in expected.things if thing not in first.things]
    return [grown(box(thing)) for thing in differ]


def seen(thing: Object) -> dict:
    return {"color": thing.color, "shape": thing.shape, "x": round(thing.x, 4), "y": round(thing.y, 4), "side": round(thing.side, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes edits for tests: instructions, their references, and the expected results.")
    parser.add_argument("--work", type=Path, required=True, help="folder with data.zip of the phase `data`")
    parser.add_argument("--out", type=Path, required=True, help="folder for edits.json, references.png and expected.png")
    arguments = parser.parse_args()
    settings = Settings(arguments.work, "cpu")
    scorer = EditScorer(Sprites(torch.from_numpy(load_sprites(settings))))
    drawer, rng = Edits(load_concepts(settings), held=True, shares=replace(SCORED, emoji=0.0)), Random(SEED)
    edits = [scorer.readable(drawer, rng, operation, SIZE) for operation in OPERATIONS for _ in range(EACH)]
    references = to_bytes(scorer.drawn([scene for edit in edits for scene in edit.references], SIZE))
    expected = to_bytes(scorer.drawn([edit.expected for edit in edits], SIZE))
    rows = [
        {
            "prompt": edit.instruction, "seed": 2000 + i, "kind": edit.operation, "references": len(edit.references),
            "background": edit.expected.background, "objects": [*map(seen, read(image.permute(1, 2, 0).numpy())[1])], "touched": touched(edit),
        }
        for i, (edit, image) in enumerate(zip(edits, expected))
    ]  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    tiled(references).save(arguments.out / "references.png", optimize=True)
    tiled(expected).save(arguments.out / "expected.png", optimize=True)
    (arguments.out / "edits.json").write_text('{"edits": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n")
    print(f"{len(edits)} edits, {len(references)} references in {arguments.out}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
