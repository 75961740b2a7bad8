"""Phase `base`: text encoder and transformer together, from random weights, by flow matching on latents."""

from random import Random

import torch
import torch.nn.functional as F

from batches import SceneSet, latents_file
from data import load_tokenizer
from models import Velocity, encode_text, make_text_encoder, make_transformer, save
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, train, trapezoid
from tokens import PADDING, encode

RATES = (0.02, 1e-3)


def draw_times(count: int, device: str) -> torch.Tensor:
    """Between 0 (picture) and 1 (noise): 60 % logit-normal(0.5, 1), where the layout is decided, the rest uniform."""
    normal = torch.sigmoid(torch.randn(count, device=device) + 0.5)
    return torch.where(torch.rand(count, device=device) < 0.6, normal, torch.rand(count, device=device)).clamp(1e-3, 1.0)


def compile_blocks(settings: Settings, transformer: torch.nn.Module, text_encoder: torch.nn.Module | None = None) -> None:
    if not settings.compile:
        return
    torch._dynamo.config.recompile_limit = 128
    torch._dynamo.config.accumulated_recompile_limit = 1024
    layers = list(text_encoder.model.layers[: settings.taps[-1]]) if text_encoder else []
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks, *layers]:
        block.compile(dynamic=False)


class Captions:
    """Tokens of captions on the device, at any padded length, and those of the empty prompt."""

    def __init__(self, settings: Settings, scenes: SceneSet):
        tokenizer = load_tokenizer(settings)
        self.settings, self.scenes, self.padding = settings, scenes, tokenizer.token_to_id(PADDING)
        ids, lengths = encode(tokenizer, [""], settings.caption_tokens)
        self.empty_ids, self.empty_length = torch.from_numpy(ids).to(settings.device), int(lengths[0])

    def pad(self, ids: torch.Tensor, length: int) -> torch.Tensor:
        return F.pad(ids, (0, length - ids.shape[1]), value=self.padding) if length > ids.shape[1] else ids

    def of(self, rows: torch.Tensor, length: int, empty_share: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [rows, length] and lengths [rows]; a share of them, at random, of the empty prompt."""
        ids, lengths = self.scenes.ids[rows].long(), self.scenes.lengths[rows].long()
        if empty_share:
            empty = torch.rand(len(rows), device=rows.device) < empty_share
            ids = torch.where(empty[:, None], self.empty_ids, ids)
            lengths = torch.where(empty, self.empty_length, lengths)
        return self.pad(ids, length), lengths


@phase
def base(settings: Settings) -> None:
    device = settings.device
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    scenes = SceneSet(settings)
    latents = torch.load(latents_file(settings), map_location=device)
    captions = Captions(settings, scenes)
    text_encoder, transformer = make_text_encoder(settings, settings.vocabulary).to(device), make_transformer(settings).to(device)
    millions = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (transformer, text_encoder)]
    log("transformer {:.2f} M, text encoder {:.2f} M parameters".format(*millions))
    models = {"transformer": transformer, "text_encoder": text_encoder}
    trainer = Trainer(models, dtype, device, RATES, settings.ema)
    trainer.optimizer.rate.zero_()  # until the clock runs
    compile_blocks(settings, transformer, text_encoder)
    velocity = Velocity(settings, transformer)
    average = torch.zeros((), device=device)

    def step(batch: int, length: int) -> None:
        rows = torch.randint(len(latents), (batch,), device=device)
        text = encode_text(settings, text_encoder, *captions.of(rows, length, settings.empty_share))
        picture = latents[rows].float()
        noise, time = torch.randn_like(picture), draw_times(batch, device)
        mixed = picture + (noise - picture) * time[:, None, None]
        loss = F.mse_loss(velocity(mixed, text, time), noise - picture)
        loss.backward()
        trainer.step()
        average.lerp_(loss.detach(), 0.02)

    short = GraphedStep(lambda: step(settings.batch, settings.caption_tokens), device).replay
    long = GraphedStep(lambda: step(settings.batch // 2, settings.prompt_tokens), device).replay
    rng = Random(0)
    train(
        settings.base_seconds, settings.max_steps, lambda _: long() if rng.random() < settings.base_long_share else short(),
        trainer.optimizer.rate, trapezoid, lambda: (f"loss {average:.4f}", average), settings.batch,
    )  # fmt: skip
    trainer.use_mean()
    save(settings.work / "base.safetensors", models)
