"""Phase `base`: text encoder and transformer together, by flow matching on latents, from random weights or those of the phase `start`.
Phase `tune` continues with lower rates that fall for longer."""

from itertools import product
from random import Random

import torch
from diffusers import Flux2Transformer2DModel
from transformers import Qwen3ForCausalLM

from batches import Bucket, Buckets
from models import (
    Velocity, compute_dtype, encode_text, load_text_encoder_and_transformer, make_text_encoder, make_transformer, save, transformer_blocks,
)  # fmt: skip
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, compile_blocks, train, trapezoid

# The rates of Muon and AdamW: for random weights, for those of the phase `start`, and for those of `base`.
RATES = (0.02, 1e-3)
START_RATES = (0.01, 5e-4)
TUNE_RATES = (0.005, 2.5e-4)
TUNE_HOLD = 0.25  # fraction of the time before the rate falls: `base` learned its last skills while the rate fell


def draw_times(count: int, device: str) -> torch.Tensor:
    """Times between 0 (image) and 1 (noise): 60 % logit-normal(0.5, 1), which decide the layout, the rest uniform."""
    normal = torch.sigmoid(torch.randn(count, device=device) + 0.5)
    return torch.where(torch.rand(count, device=device) < 0.6, normal, torch.rand(count, device=device)).clamp(1e-3, 1.0)


@phase
def base(settings: Settings) -> None:
    if (settings.work / "start").exists():
        models, rates = load_text_encoder_and_transformer(settings, "start"), START_RATES
    else:
        models, rates = (make_text_encoder(settings).to(settings.device), make_transformer(settings).to(settings.device)), RATES
    learn(settings, *models, rates, settings.base_seconds, "base", Random(0))


@phase
def tune(settings: Settings) -> None:
    models = load_text_encoder_and_transformer(settings, "base")
    learn(settings, *models, TUNE_RATES, settings.tune_seconds, "tune", Random(1), TUNE_HOLD)


def learn(
    settings: Settings, text_encoder: Qwen3ForCausalLM, transformer: Flux2Transformer2DModel, rates: tuple[float, float], seconds: float,
    name: str, rng: Random, hold: float = 0.5,
) -> None:  # fmt: skip
    """Trains both models, and saves them under this name."""
    device = settings.device
    millions = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (transformer, text_encoder)]
    log("transformer {:.2f} M, text encoder {:.2f} M parameters".format(*millions))
    models = {"transformer": transformer, "text_encoder": text_encoder}
    trainer = Trainer(models, compute_dtype(settings), device, rates, settings.ema)
    compile_blocks(settings, [*transformer_blocks(transformer), *text_encoder.model.layers[: settings.taps[-1]]])
    velocity, buckets = Velocity(transformer), Buckets(settings)
    averages = {part: torch.zeros((), device=device) for part in settings.parts}
    loss = torch.zeros((), device=device)

    def add_gradients(bucket: Bucket, length: int) -> None:
        batch = buckets.batch(bucket, length)
        rows = bucket.choose(batch)
        text = encode_text(settings, text_encoder, *bucket.text(rows, length, settings.empty_share))
        image = bucket.latents[rows].float()
        noise, time = torch.randn_like(image), draw_times(batch, device)
        stream = image + (noise - image) * (time[:, None, None] * bucket.drawn)  # references have no noise
        error = bucket.mean((velocity(stream, bucket.ids, text, time) - (noise - image)).square(), image).mean()
        (error / len(settings.parts)).backward()
        loss.copy_(error.detach())

    lengths = (settings.caption_tokens, settings.prompt_tokens)
    graphs = {
        (bucket.stream, length): GraphedStep(lambda bucket=bucket, length=length: add_gradients(bucket, length), device).replay
        for bucket, length in product(buckets.all, lengths)
    }
    trainer.forget()
    step_trainer = GraphedStep(trainer.step, device).replay

    def run(_: float) -> int:
        images = 0
        for part in settings.parts:
            bucket, length = buckets.draw(rng, part), lengths[rng.random() < settings.long_share]
            graphs[bucket.stream, length]()
            averages[part].lerp_(loss, 0.02)
            images += buckets.batch(bucket, length)
        step_trainer()
        return images

    train(
        seconds, settings.max_steps, run, trainer.optimizer.rate, lambda part: trapezoid(part, hold),
        lambda: ("loss of " + ", ".join(f"{part} {average:.4f}" for part, average in averages.items()), sum(averages.values())),
    )  # fmt: skip
    trainer.use_mean()
    save(settings.work / name, models)
