"""Phase `base`: text encoder and transformer together, from random weights, by flow matching on latents."""

from random import Random

import torch
import torch.nn.functional as F

from batches import Examples
from models import Velocity, compute_dtype, encode_text, make_text_encoder, make_transformer, save, transformer_blocks
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, compile_blocks, train, trapezoid

RATES = (0.02, 1e-3)


def draw_times(count: int, device: str) -> torch.Tensor:
    """Between 0 (image) and 1 (noise): 60 % logit-normal(0.5, 1), where the layout is decided, the rest uniform."""
    normal = torch.sigmoid(torch.randn(count, device=device) + 0.5)
    return torch.where(torch.rand(count, device=device) < 0.6, normal, torch.rand(count, device=device)).clamp(1e-3, 1.0)


@phase
def base(settings: Settings) -> None:
    device = settings.device
    examples = Examples(settings)
    text_encoder, transformer = make_text_encoder(settings).to(device), make_transformer(settings).to(device)
    millions = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (transformer, text_encoder)]
    log("transformer {:.2f} M, text encoder {:.2f} M parameters".format(*millions))
    models = {"transformer": transformer, "text_encoder": text_encoder}
    trainer = Trainer(models, compute_dtype(settings), device, RATES, settings.ema)
    compile_blocks(settings, [*transformer_blocks(transformer), *text_encoder.model.layers[: settings.taps[-1]]])
    velocity = Velocity(settings, transformer)
    average = torch.zeros((), device=device)

    def step(batch: int, length: int) -> None:
        rows = examples.choose(batch)
        text = encode_text(settings, text_encoder, *examples.captions(rows, length, settings.empty_share))
        image = examples.latents[rows].float()
        noise, time = torch.randn_like(image), draw_times(batch, device)
        mixed = image + (noise - image) * time[:, None, None]
        loss = F.mse_loss(velocity(mixed, text, time), noise - image)
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
