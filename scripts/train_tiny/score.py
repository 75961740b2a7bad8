"""Phase `score`: draws images of prompts as the pipeline does and checks what is in them."""

import json
from collections import defaultdict
from collections.abc import Set
from random import Random

import numpy as np
import torch
import torch.nn.functional as F

import vae as vae_phase
from batches import SceneSet, load_vae
from captions import emoji
from data import load_concepts, load_tokenizer
from models import Velocity, compute_dtype, decode, encode_text, load_text_encoder_and_transformer, sample
from render import render, to_bytes
from report import log, phase
from scenes import Scene, Scenes, as_arrays
from scorer import grade
from settings import Settings
from sheets import sheet
from tokens import encode
from vocabulary import BACKGROUNDS, COLORS, with_article

AT_ONCE = 64
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
    """What is in each scene, wherever it is: the background, and the sprites with their colors."""
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


class Painter:
    """Prompts to images, with weights in bf16 on a GPU."""

    def __init__(self, settings: Settings, weights: str):
        self.settings = settings
        dtype = compute_dtype(settings)
        self.tokenizer = load_tokenizer(settings)
        self.text_encoder, transformer = load_text_encoder_and_transformer(settings, weights)
        self.text_encoder.to(dtype)
        self.velocity = Velocity(settings, transformer.to(dtype))
        self.vae = load_vae(settings).to(dtype)

    @torch.no_grad()
    def text(self, prompts: list[str]) -> torch.Tensor:
        tokens = encode(self.tokenizer, prompts, self.settings.prompt_tokens)
        ids, lengths = (torch.from_numpy(array).to(self.settings.device) for array in tokens)
        return encode_text(self.settings, self.text_encoder, ids, lengths)

    def paint(self, prompts: list[str], steps: int, guidance: float) -> torch.Tensor:
        """[prompts, 3, size, size] in -1..1, on the CPU."""
        settings = self.settings
        noise = torch.randn(len(prompts), settings.latent_side**2, 4 * settings.latent_channels, generator=torch.Generator().manual_seed(1))
        empty = self.text([""])
        images = []
        for first in range(0, len(prompts), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            latents = sample(self.velocity, self.text(prompts[part]), noise[part].to(settings.device), steps, guidance, empty)
            images.append(decode(settings, self.vae, latents).cpu())
        return torch.cat(images)


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


def score_weights(settings: Settings, judge: EmojiJudge, scenes: list[Scene], weights: str, steps: int, guidance: float) -> dict[str, float]:
    painter = Painter(settings, weights)
    sheet(painter.paint(SHOWN, steps, guidance), SHOWN, settings.work / f"sheets/{weights}.png")
    prompts = [scene.caption for scene in scenes]
    return grades(scenes, painter.paint(prompts, steps, guidance)) | judge.grades(painter.paint(judge.prompts, steps, guidance))


@phase
def score(settings: Settings) -> None:
    drawn = SceneSet(settings)
    trained = set(contents({"background": drawn.background.cpu().numpy(), "things": drawn.things.cpu().numpy(), "count": drawn.count.cpu().numpy()}))
    asked, judge = held_out_scenes(settings, settings.scored, 123, trained), EmojiJudge(settings, drawn, settings.scored // 2)
    arrays = {key: torch.from_numpy(value).to(settings.device) for key, value in as_arrays(asked).items()}
    rows = {"drawn": grades(asked, render(drawn.sprites, **arrays, size=256))}
    rows["teacher, 20 steps"] = score_weights(settings, judge, asked, "base", 20, settings.guidance)
    rows[f"{settings.steps} steps"] = score_weights(settings, judge, asked, "final", settings.steps, 1.0)
    reconstruction = vae_phase.check(settings, drawn)
    print_table(rows)
    log(f"reconstruction {reconstruction['mean_db']:.2f} dB mean; {len(asked)} prompts of shapes, {len(judge.prompts)} of emoji")
    (settings.work / "scores.json").write_text(json.dumps({"scores": rows, "reconstruction": reconstruction}, indent=1))
