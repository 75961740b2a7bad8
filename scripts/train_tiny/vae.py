"""Phase `vae`: trains the autoencoder on drawn scenes. Phase `latents`: encodes all scenes once."""

import math
from random import Random

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2

from batches import SceneSet, channels_last, encode_scenes, load_vae
from models import compute_dtype, encode_image, make_vae, moments, patchify, save
from optimizer import Trainer
from report import log, phase
from scorer import psnr
from settings import Settings
from sheets import sheet
from steps import RATE_WARM_UP, GraphedStep, train

RATES = (0.04, 2e-3)
HALF_SIZE_WEIGHT = 0.25
STATISTICS_IMAGES = 8192
CHECKED = 256  # images


def differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """L1 of the gradients along both axes."""
    e = a - b
    return (e[..., 1:] - e[..., :-1]).abs().mean() + (e[..., 1:, :] - e[..., :-1, :]).abs().mean()


def losses(vae: AutoencoderKLFlux2, images: torch.Tensor, kl_weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and its parts [reconstruction, half size, kl].

    Reconstruction: L1, L2, and L1 of gradients at two scales, which keeps edges sharp without a perceptual network. Half size: latents
    averaged 2 x 2 must decode to the half-size image, which makes them smooth and so easier to diffuse.
    """
    mean, log_variance = moments(vae, images)
    with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        decoded = vae.decoder(vae.post_quant_conv(latents)).float()
        half_decoded = vae.decoder(vae.post_quant_conv(F.avg_pool2d(latents, 2))).float()
    half = F.avg_pool2d(images, 2)
    decoded_half = F.avg_pool2d(decoded, 2)
    reconstruction = (images - decoded).abs().mean() + 0.5 * (images - decoded).square().mean() + 0.5 * differences(decoded, images)
    reconstruction = reconstruction + 0.5 * (decoded_half - half).abs().mean() + 0.5 * differences(decoded_half, half)
    half_size = (half - half_decoded).abs().mean()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return reconstruction + HALF_SIZE_WEIGHT * half_size + kl_weight * kl, torch.stack([reconstruction, half_size, kl]).detach()


@phase
def vae(settings: Settings) -> None:
    scenes = SceneSet(settings)
    images = scenes.draw_bytes(min(len(scenes), settings.vae_images))
    log(f"{len(images)} images drawn")
    model = make_vae(settings).to(settings.device)
    trainer = Trainer({"vae": model}, torch.float32, settings.device, RATES, settings.ema, decay=0.0)
    average = torch.zeros(3, device=settings.device)
    loss_of = torch.compile(losses, dynamic=False) if settings.compile else losses

    def step() -> None:
        chosen = torch.randint(len(images), (settings.vae_batch,), device=settings.device)
        loss, parts = loss_of(model, channels_last(images[chosen].float() / 127.5 - 1), settings.kl_weight)
        loss.backward()
        trainer.step()
        average.lerp_(parts, 0.05)

    replay = GraphedStep(step, settings.device).replay
    train(
        settings.vae_seconds, settings.max_steps, lambda _: replay(), trainer.optimizer.rate,
        lambda part: min(1.0, part / RATE_WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * part)),
        lambda: ("reconstruction {:.4f}, half size {:.4f}, kl {:.3f}".format(*average.tolist()), average), settings.vae_batch,
    )  # fmt: skip
    trainer.use_mean()
    model.eval()
    measure_latents(model, scenes)
    save(settings.work / "vae.safetensors", {"vae": model})
    check(settings, scenes)


@torch.no_grad()
def measure_latents(model: AutoencoderKLFlux2, scenes: SceneSet) -> None:
    """Exact mean and variance of the patched latents, which the pipeline normalises with."""
    count, total, squares = 0, 0.0, 0.0
    for first in range(0, min(len(scenes), STATISTICS_IMAGES), 64):
        latents = patchify(encode_image(model, channels_last(scenes.draw(first, min(len(scenes), first + 64))))).double().flatten(0, 1)
        count, total, squares = count + len(latents), total + latents.sum(0), squares + latents.square().sum(0)
    mean = total / count
    model.bn.running_mean.copy_(mean)
    model.bn.running_var.copy_(squares / count - mean.square())
    model.bn.num_batches_tracked.fill_(count)


@torch.no_grad()
def check(settings: Settings, scenes: SceneSet) -> dict[str, float]:
    """Reconstruction as it is shipped: weights in bf16, decoded in bf16 on a GPU. Scenes that were not trained on where there are such."""
    dtype = compute_dtype(settings)
    model = load_vae(settings).to(torch.bfloat16).to(dtype)
    last = len(scenes)
    images = torch.cat([scenes.draw(first, min(last, first + 64)) for first in range(max(0, last - CHECKED), last, 64)])
    decoded = []
    for part in images.split(64):
        latents = model.quant_conv(model.encoder(part.to(dtype))).chunk(2, 1)[0]
        decoded.append(model.decode(latents).sample.float().clamp(-1, 1))
    decoded = torch.cat(decoded)
    decibels = psnr(images, decoded)
    log(f"reconstruction: mean {decibels.mean():.2f} dB, worst {decibels.min():.2f} dB")
    rng = Random(0)
    shown = rng.sample(range(len(images)), min(12, len(images)))
    sheet(torch.cat([images[shown], decoded[shown]], 3), [""] * len(shown), settings.work / "sheets/vae.png", 4)
    return {"mean_db": decibels.mean().item(), "worst_db": decibels.min().item()}


@phase
def latents(settings: Settings) -> None:
    encoded = encode_scenes(settings, load_vae(settings), SceneSet(settings))
    unfinished = settings.work / "latents.part"
    torch.save(encoded, unfinished)
    unfinished.rename(settings.work / "latents.pt")
    log(f"{len(encoded)} latents, {encoded.nbytes / 2**30:.2f} GiB")
