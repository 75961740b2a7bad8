"""Phase `start`: the shipped models with their tokenizer, instead of the phase `vae`, as initial weights for `base` and for `refine`."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from data import replace_tokenizer
from models import make_text_encoder, make_transformer, make_vae, save
from report import UserError, phase
from settings import Settings

FILES = {
    "vae": "vae/diffusion_pytorch_model.safetensors", "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
}  # fmt: skip


def read(settings: Settings, folder: Path) -> dict[str, nn.Module]:
    models = {"vae": make_vae(settings), "transformer": make_transformer(settings), "text_encoder": make_text_encoder(settings)}
    for name, model in models.items():
        path = folder / FILES[name]
        weights = load_file(path)
        expected = {key: value.shape for key, value in model.state_dict().items() if key != "lm_head.weight"}
        if expected != {key: value.shape for key, value in weights.items()}:
            raise UserError(f"the shapes in `{path}` do not match the {name} in settings.py", "skip the phase `start`, and train a VAE")
        model.load_state_dict(weights, strict=False)
    return models


@phase
def start(settings: Settings) -> None:
    models = read(settings, settings.shipped)
    replace_tokenizer(settings, (settings.shipped / "tokenizer/tokenizer.json").read_text())
    save(settings.work / "vae", {"vae": models.pop("vae")})
    save(settings.work / "start", models)
    for name in ("before", "base", "tune", "final"):  # of other weights
        shutil.rmtree(settings.work / name, ignore_errors=True)
    if settings.before:
        before = read(settings, settings.before)
        texts = [model["text_encoder"].state_dict() for model in (before, models)]
        if not all(torch.equal(texts[0][key], texts[1][key]) for key in texts[0]):
            raise UserError(f"`{settings.before}` has a different text encoder", "give a model that was refined from the same distilled one")
        del before["vae"]
        save(settings.work / "before", before)
