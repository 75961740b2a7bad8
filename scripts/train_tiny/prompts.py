"""The data of tests/meaning for the default model: prompts, the required contents of their images, and rendered images.

    python3 scripts/train_tiny/prompts.py --work target/train

reads `data.zip` of the phase `data` in WORK and writes the files in tests/meaning. The prompts do not depend on the weights.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from PIL import Image

from captions import emoji
from concepts import Concept
from data import load_concepts, load_sprites
from render import Sprites, render, to_bytes
from report import UserError
from scenes import OWN, Scene, Scenes, Thing, as_arrays
from score import held_out_scenes
from scorer import CELLS, TEMPLATES, grade
from settings import Settings
from vocabulary import BACKGROUNDS, COLORS, SHAPES, UNKNOWN, plural, with_article

TESTS = Path(__file__).parents[2] / "tests/meaning"
SCENES, SEED = 32, 2026  # other scenes than the phase `score` draws
PLACED = 3  # more, of one shape whose place is said
THUMBNAIL = 16  # pixels a side
CANDIDATES = 64  # emoji that the shown one is told from
COLUMNS = 8
# Wordings that captions do not have, or seldom: for a scene of this kind with these facts.
ODD = [
    ("draw me a {color} {shape} on a {background} background", "shape", {"place": None}),
    ("PLEASE DRAW A {COLOR} {SHAPE} ON A {BACKGROUND} BACKGROUND!", "shape", {"place": None}),
    ("the {color} {shape}. {background} background", "shape", {"place": None}),
    ("A Grey {shape} On A {background} Background", "shape", {"color": "gray", "place": None}),
    ("a violet {shape}, {background} background", "shape", {"color": "purple", "place": None}),
    ("could you paint a {color} {shape} on a light grey backdrop?", "shape", {"background": "light gray", "place": None}),
    ("a {color} {shape} in the centre of a {background} background", "shape", {"place": (0.5, 0.5)}),
    ("{color} {shape}, upper right corner, {background} background", "shape", {"place": (0.76, 0.24)}),
    ("{color} {shape} at the left on a navy blue background", "shape", {"background": "dark blue", "place": (0.24, 0.5)}),
    ("{color} {shape}, bottom left, on {background}", "shape", {"place": (0.24, 0.76)}),
    ("on the right side: a {color} {shape}. turquoise background.", "shape", {"background": "cyan", "place": (0.76, 0.5)}),
    ("2 {color} {shapes} on a {background} background", "shapes", {"count": 2}),
    ("I want three {color} {shapes}, {background} background please", "shapes", {"count": 3}),
    ("FOUR {COLOR} {SHAPES} ON {BACKGROUND}", "shapes", {"count": 4}),
]
EMOJI = ["rocket", "ghost", "octopus", "cactus", "slice of pizza", "owl"]
NONSENSE = ["a flibbergast on a pink background", "zorvex quamtil on a teal background"]


@dataclass
class Asked:
    scene: Scene
    facts: dict = field(default_factory=dict)  # beside kind and background


def facts(scene: Scene) -> dict:
    """The scene's meaning as objects (color and shape; between two, the first named first) and what is said about their places."""
    meaning = scene.meaning
    if scene.kind == "two_shapes":
        return {"objects": [{"color": color, "shape": shape} for shape, color in meaning["entities"]], "relation": meaning["relation"]}
    thing = {"color": meaning["color"], "shape": meaning["shape"]}
    return {"objects": [thing] * meaning.get("count", 1), "place": meaning.get("place")}


def placed(scenes: Scenes, rng: Random) -> list[Asked]:
    drawn = (scenes.draw(rng, "shape") for _ in range(1000))
    return [Asked(scene, facts(scene)) for scene in drawn if scene.meaning["place"]][:PLACED]


def odd(scenes: Scenes, rng: Random) -> list[Asked]:
    """Held-out scenes in the wordings of `ODD`."""
    asked = []
    for wording, kind, wanted in ODD:
        while True:
            scene = scenes.draw(rng, kind)
            found = scene.meaning | {"background": scene.background}
            ordinary = kind != "shape" or 0.3 < scene.things[0].side < 0.7  # these wordings name no size
            if ordinary and all(found[name] == value for name, value in wanted.items()):
                break
        words = {"color": found["color"], "shape": found["shape"], "shapes": plural(found["shape"]), "background": found["background"]}
        scene.caption = wording.format(**words, **{name.upper(): word.upper() for name, word in words.items()})
        asked.append(Asked(scene, facts(scene)))
    return asked


def sprite(concepts: list[Concept], name: str) -> Thing:
    concept = next(i for i, concept in enumerate(concepts) if concept.name.words == name)
    return Thing(len(SHAPES) + 2 * concept, 0.5, 0.5, 0.72, OWN)


def emojis(concepts: list[Concept], rng: Random) -> list[Asked]:
    by_name = {concept.name.words: concept for concept in concepts}
    asked = []
    for name in EMOJI:
        background = rng.choice(BACKGROUNDS)
        caption = f"{emoji(Random(0), by_name[name])} on {with_article(background)} background"
        asked.append(Asked(Scene("emoji", background, [sprite(concepts, name)], caption), {"emoji": name}))
    return asked


def nonsense(concepts: list[Concept]) -> list[Asked]:
    """Words that mean nothing; what the training draws for such is a question mark."""
    backgrounds = [next(name for name in COLORS if f"a {name} background" in words) for words in NONSENSE]
    return [Asked(Scene("unknown", name, [sprite(concepts, UNKNOWN)], words), {"emoji": UNKNOWN}) for name, words in zip(backgrounds, NONSENSE)]


def tiled(tiles: torch.Tensor) -> Image.Image:
    """tiles [n, channels, side, side] u8 -> an image of rows of COLUMNS."""
    count, channels, side, _ = tiles.shape
    rows = math.ceil(count / COLUMNS)
    tiles = torch.cat([tiles, tiles.new_zeros(rows * COLUMNS - count, channels, side, side)])
    pixels = tiles.view(rows, COLUMNS, channels, side, side).permute(0, 3, 1, 4, 2).reshape(rows * side, COLUMNS * side, channels)
    return Image.fromarray(pixels.numpy())


def candidates(concepts: list[Concept], sprites: Sprites) -> tuple[list[str], torch.Tensor]:
    """Those that are asked for, then others from the whole list: names, and their images in 3D [CANDIDATES, 4, side, side] u8, premultiplied."""
    names = [concept.name.words for concept in concepts]
    asked = [*EMOJI, UNKNOWN]
    others = [name for name in names if name not in asked]
    others = [others[i * len(others) // (CANDIDATES - len(asked))] for i in range(CANDIDATES - len(asked))]
    chosen = [names.index(name) for name in asked + others]
    small = F.avg_pool2d(sprites.emoji(32)[chosen], 32 // THUMBNAIL)
    return asked + others, (small * 255).round().to(torch.uint8)


def shape_templates() -> list[dict]:
    """What the scorer compares with: rows of # and ., and the logarithm of width by height."""
    rows = lambda template: ["".join(".#"[int(cell)] for cell in row) for row in template]  # noqa: E731
    return [{"name": name, "aspect": round(aspect, 6), "rows": rows(template)} for name, (template, aspect) in TEMPLATES.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes tests/meaning: prompts, the required contents of their images, and rendered images.")
    parser.add_argument("--work", type=Path, required=True, help="folder with data.zip of the phase `data`")
    settings = Settings(parser.parse_args().work, "cpu")
    concepts = load_concepts(settings)
    if len(concepts) < CANDIDATES:
        raise UserError(f"`{settings.work}` has {len(concepts)} emoji, but {CANDIDATES} are required", "run the phase `data` without `--toy`")
    sprites = Sprites(torch.from_numpy(load_sprites(settings)))
    rng, held = Random(SEED + 1), Scenes(concepts, held=True)
    asked = [Asked(scene, facts(scene)) for scene in held_out_scenes(settings, SCENES, SEED)]
    asked += placed(held, rng) + odd(held, rng) + emojis(concepts, rng) + nonsense(concepts)

    arrays = {key: torch.from_numpy(value) for key, value in as_arrays([row.scene for row in asked]).items()}
    drawn = to_bytes(F.avg_pool2d(render(sprites, **arrays, size=(256, 256)), 256 // CELLS))
    for row, image in zip(asked, drawn.permute(0, 2, 3, 1).numpy()):
        if row.scene.meaning and not all(grade(row.scene.kind, row.scene.background, row.scene.meaning, image).values()):
            raise ValueError(f"the scorer misreads the rendered image of `{row.scene.caption}`")
    names, thumbnails = candidates(concepts, sprites)

    TESTS.mkdir(exist_ok=True)
    tiled(drawn).save(TESTS / "drawn.png", optimize=True)
    tiled(thumbnails).save(TESTS / "emoji.png", optimize=True)
    prompts = [
        {"prompt": row.scene.caption, "seed": 1000 + i, "kind": row.scene.kind, "background": row.scene.background} | row.facts
        for i, row in enumerate(asked)
    ]
    lines = lambda rows: "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"  # noqa: E731
    parts = {"colors": json.dumps(COLORS), "shapes": lines(shape_templates()), "emoji": json.dumps(names), "prompts": lines(prompts)}
    (TESTS / "prompts.json").write_text("{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n")
    print(f"{len(prompts)} prompts in {TESTS}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
