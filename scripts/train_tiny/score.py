"""Phase `score`: generates and edits images as the pipeline does, and checks their contents."""

import json
from collections import defaultdict
from collections.abc import Set
from random import Random

import numpy as np
import torch
import torch.nn.functional as F

import vae as vae_phase
from batches import SceneSet
from captions import emoji
from data import load_concepts
from edit_scorer import EditScorer
from layouts import size_name
from models import teacher_name
from painter import Painter
from render import to_bytes
from report import log, phase
from scenes import Scene, Scenes, as_arrays
from score_edits import DRAWN, edit_table, score_edits, scored_edits
from scorer import grade
from settings import Settings
from sheets import sheet
from vocabulary import BACKGROUNDS, COLORS, with_article

SEED = 123
EMOJI_SIDE = 32  # of what is compared to tell an emoji
SHOWN = [
    "a red circle on a blue background", "a slice of pizza on a light blue background", "a cat", "a purple cat on a yellow background",
    "a rocket on a dark blue background", "a dog next to a cat", "three bananas on a pink background", "a robot inside a yellow circle",
    "a green triangle to the left of a red square", "two white stars on a dark blue background", "a unicorn in flat style, lavender background",
    "a hamburger on the left and french fries on the right", "a small blue heart in the top right corner",
    "a smiling face with sunglasses on an orange background", "a pink elephant on a light green background", "a cup of coffee on a beige background",
    "a big yellow star on a purple background", "an octopus with a teal background", "six red hearts on white", "a panda above a green hexagon",
    "a black cat on an orange background", "a blue car on a light gray background", "a cactus, flat style", "a ghost on a black background",
    "draw me a lion please", "THREE ORANGE CATS ON A GREEN BACKGROUND", "2 grey squares on a teal background", "cats",
    "a flibbergast on a pink background",
    "a majestic philosophy of time", "an owl on a purple background", "a cupcake in the bottom left corner",
]  # fmt: skip


def contents(arrays: dict[str, np.ndarray]) -> list[bytes]:
    """What is in each scene, wherever it is: the background, and the sprites with their colors. Images of a stream count one by one."""
    arrays = {"background": arrays["background"].reshape(-1, 3), "things": arrays["things"].reshape(-1, 6, 8), "count": arrays["count"].reshape(-1)}
    sprites = np.concatenate([arrays["things"][..., :1], arrays["things"][..., 4:]], -1)
    return [
        background.tobytes() + b"".join(sorted(sprite.tobytes() for sprite in sprites[:count]))
        for background, sprites, count in zip(arrays["background"], sprites, arrays["count"])
    ]


def held_out_scenes(settings: Settings, count: int, seed: int, trained: Set[bytes] = frozenset()) -> list[Scene]:
    """Half of one shape, a quarter of several, a quarter of two. Those of one shape are in combinations that are never trained on; of the
    others none has the contents of a scene in `trained`."""
    rng, scenes = Random(seed), Scenes(load_concepts(settings), held=True)

    def draw(kind: str) -> Scene:
        while contents(as_arrays([scene := scenes.draw(rng, kind)]))[0] in trained:
            pass
        return scene

    return [draw(kind) for kind in ["shape"] * (count // 2) + ["shapes"] * (count // 4) + ["two_shapes"] * (count // 4)]


def grades(scenes: list[Scene], images: torch.Tensor) -> dict[str, float]:
    """Share of the prompts that are right, by what was asked for."""
    results = defaultdict(list)
    for scene, image in zip(scenes, to_bytes(images).permute(0, 2, 3, 1).cpu().numpy()):
        for name, right in grade(scene.kind, scene.background, scene.meaning, image).items():
            results[name].append(right)
    return {name: sum(right) / len(right) for name, right in results.items()}


class EmojiJudge:
    """Which emoji an image shows: the nearest of all by pixels, where it should be, on the background that was asked for."""

    def __init__(self, settings: Settings, scenes: SceneSet, count: int):
        self.settings = settings
        rng, concepts = Random(3), load_concepts(settings)
        self.chosen = [rng.randrange(len(concepts)) for _ in range(count)]
        backgrounds = [rng.choice(BACKGROUNDS) for _ in self.chosen]
        self.prompts = [
            f"{emoji(Random(0), concepts[i])} on {with_article(background)} background" for i, background in zip(self.chosen, backgrounds)
        ]
        self.colors = torch.tensor([COLORS[background] for background in backgrounds]) / 255
        self.sprites = scenes.sprites.emoji(EMOJI_SIDE).cpu()

    def grades(self, images: torch.Tensor) -> dict[str, float]:
        margin = round(0.14 * self.settings.size)
        middle = images[:, :, margin : self.settings.size - margin, margin : self.settings.size - margin]
        middle = F.interpolate(middle * 0.5 + 0.5, size=(EMOJI_SIDE, EMOJI_SIDE), mode="area")
        ranks = []
        for image, asked, color in zip(middle, self.chosen, self.colors):
            drawn = self.sprites[:, :3] + (1 - self.sprites[:, 3:]) * color.view(1, 3, 1, 1)
            distances = (drawn - image).square().mean((1, 2, 3))
            ranks.append(int((distances < distances[asked]).sum()))
        return {"emoji": sum(rank == 0 for rank in ranks) / len(ranks), "emoji_top5": sum(rank < 5 for rank in ranks) / len(ranks)}


def print_table(rows: dict[str, dict[str, float]]) -> None:
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = max(len(name) for name in rows)
    print(" " * width + "  " + "  ".join(columns))
    for name, row in rows.items():
        cells = (f"{row[column]:.3f}".rjust(len(column)) if column in row else "-".rjust(len(column)) for column in columns)
        print(name.ljust(width) + "  " + "  ".join(cells))


def score_weights(settings: Settings, judge: EmojiJudge, scenes: list[Scene], painter: Painter, weights: str, how: tuple) -> dict[str, float]:
    sheet(painter.paint(SHOWN, *how), SHOWN, settings.work / f"sheets/{weights}.png")
    prompts = [scene.caption for scene in scenes]
    return grades(scenes, painter.paint(prompts, *how)) | judge.grades(painter.paint(judge.prompts, *how))


def score_sizes(settings: Settings, scenes: list[Scene], painter: Painter, how: tuple) -> dict[str, dict[str, float]]:
    """The prompts of shapes at other sizes, with the emoji among those of the contact sheet to look at."""
    rows = {}
    for size in settings.scored_sizes:
        sheet(painter.paint(SHOWN, *how, size), SHOWN, settings.work / f"sheets/final-{size_name(size)}.png")
        rows[size_name(size)] = grades(scenes, painter.paint([scene.caption for scene in scenes], *how, size))
    return rows


@phase
def score(settings: Settings) -> None:
    drawn = SceneSet(settings)
    trained = set(contents({key: getattr(drawn, key).cpu().numpy() for key in ("background", "things", "count")}))
    asked, judge = held_out_scenes(settings, settings.scored, SEED, trained), EmojiJudge(settings, drawn, settings.scored // 2)
    scorer = EditScorer(drawn.sprites)
    rows = {"drawn": grades(asked, scorer.drawn(asked, DRAWN))}
    asked_edits = scored_edits(settings, scorer)
    edits = {"drawn": edit_table(scorer, asked_edits, scorer.drawn([edit.expected for edit in asked_edits], DRAWN), DRAWN)}
    four_steps, teacher = (settings.steps, 1.0), teacher_name(settings)
    models = [("teacher, 20 steps", teacher, (20, settings.guidance))] if (settings.work / teacher).exists() else []  # `refine` has none
    for name, weights, how in [*models, (f"{settings.steps} steps", "final", four_steps)]:
        painter = Painter(settings, weights)
        rows[name] = score_weights(settings, judge, asked, painter, weights, how)
        edits |= score_edits(settings, scorer, asked_edits, painter, weights, how)
    rows |= score_sizes(settings, asked, painter, four_steps)
    reconstruction = vae_phase.check(settings, drawn)
    print_table(rows)
    for name, table in edits.items():
        print(f"\nedits: {name}")
        print_table(table)
    log(f"{len(asked)} prompts of shapes, {len(judge.prompts)} of emoji, {len(asked_edits)} edits")
    (settings.work / "scores.json").write_text(json.dumps({"scores": rows, "edits": edits, "reconstruction": reconstruction}, indent=1))
