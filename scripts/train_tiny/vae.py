"""Phase `vae`: trains the autoencoder on rendered scenes of several sizes. Phase `latents`: encodes all scenes once."""

import math
from math import prod
from random import Random

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2

from batches import SceneSet, channels_last, encode_rows, in_parts, layout_rows, load_vae
from layouts import Size, size_name
from models import compute_dtype, encode_image, make_vae, moments, patchify, save
from optimizer import Trainer
from report import left, log, phase
from scorer import psnr
from settings import Settings
from sheets import sheet
from steps import RATE_WARM_UP, GraphedStep, train

RATES = (0.04, 2e-3)
HALF_SIZE_WEIGHT = 0.25
STATISTICS_IMAGES = 8192


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
    native, *others = settings.vae_sizes
    budgets = {native: settings.vae_images} | {size: settings.vae_images * prod(native) // prod(size) // 4 for size in others}
    images = {size: scenes.draw_bytes(scenes.some(count, seed), size) for seed, (size, count) in enumerate(budgets.items())}
    log(f"{sum(map(len, images.values()))} images rendered, {sum(part.nbytes for part in images.values()) / 2**30:.1f} GiB")
    model = make_vae(settings).to(settings.device)
    trainer = Trainer({"vae": model}, torch.float32, settings.device, RATES, settings.ema, decay=0.0)
    average = torch.zeros(3, device=settings.device)
    loss_of = torch.compile(losses, dynamic=False) if settings.compile else losses
    batches = {size: max(1, settings.vae_batch * prod(native) // prod(size)) for size in images}

    def step(size: Size) -> None:
        chosen = torch.randint(len(images[size]), (batches[size],), device=settings.device)
        loss, parts = loss_of(model, channels_last(images[size][chosen].float() / 127.5 - 1), settings.kl_weight)
        loss.backward()
        trainer.step()
        average.lerp_(parts, 0.05)

    graphs = {size: GraphedStep(lambda size=size: step(size), settings.device).replay for size in images}
    rng = Random(0)

    def run(_: float) -> int:
        size = native if rng.random() < settings.vae_native_share else rng.choice(others)
        graphs[size]()
        return batches[size]

    train(
        settings.vae_seconds, settings.max_steps, run, trainer.optimizer.rate,
        lambda part: min(1.0, part / RATE_WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * part)),
        lambda: ("reconstruction {:.4f}, half size {:.4f}, kl {:.3f}".format(*average.tolist()), average),
    )  # fmt: skip
    trainer.use_mean()
    model.eval()
    measure_latents(settings, model, scenes)
    save(settings.work / "vae", {"vae": model})
    check(settings, scenes)


@torch.no_grad()
def measure_latents(settings: Settings, model: AutoencoderKLFlux2, scenes: SceneSet) -> None:
    """Exact mean and variance of the patched latents, which the pipeline normalises with: of the native size, as large images are more even."""
    count, total, squares = 0, 0.0, 0.0
    for rows in in_parts(scenes.some(STATISTICS_IMAGES, 1), scenes.native):
        latents = patchify(encode_image(model, channels_last(scenes.draw(rows, scenes.native)))).double().flatten(0, 1)
        count, total, squares = count + len(latents), total + latents.sum(0), squares + latents.square().sum(0)
    mean = total / count
    model.bn.running_mean.copy_(mean)
    model.bn.running_var.copy_(squares / count - mean.square())
    model.bn.num_batches_tracked.fill_(count)


@torch.no_grad()
def check(settings: Settings, scenes: SceneSet) -> dict[str, dict[str, float]]:
    """Reconstruction by size, as it is shipped: weights in bf16, decoded in bf16 on a GPU."""
    dtype = compute_dtype(settings)
    model, results = load_vae(settings).to(torch.bfloat16).to(dtype), {}
    for size in settings.vae_sizes:
        rows, decibels, shown = scenes.some(settings.checked, 2), [], []
        for part in in_parts(rows, (4 * size[0], size[1])):
            images = scenes.draw(part, size)
            latents = model.quant_conv(model.encoder(images.to(dtype))).chunk(2, 1)[0]
            decoded = model.decode(latents).sample.float().clamp(-1, 1)
            decibels.append(psnr(images, decoded))
            shown.append(torch.cat([images, decoded], 3).cpu())
        decibels, name = torch.cat(decibels), size_name(size)
        results[name] = {"mean_db": decibels.mean().item(), "worst_db": decibels.min().item()}
        log("reconstruction at {}: mean {mean_db:.2f} dB, worst {worst_db:.2f} dB".format(name, **results[name]))
        sheet(torch.cat(shown)[:12], [""] * min(12, len(rows)), settings.work / f"sheets/vae-{name}.png", 4)
    return results


@phase
def latents(settings: Settings) -> None:
    """Writes a file per length of the stream. Existing files are kept, so that an interrupted run resumes."""
    model, scenes = load_vae(settings), SceneSet(settings)
    folder, unfinished = settings.work / "latents", settings.work / "latents.part"
    folder.mkdir(exist_ok=True)
    newest = max(left(settings, name).stat().st_mtime for name in ("vae", "scenes.npz"))
    bounds: dict[int, tuple[int, int]] = {}
    for layout, first, last in layout_rows(scenes.sizes):
        bounds[layout.stream] = (bounds.get(layout.stream, (first, last))[0], last)
    total = 0
    for stream, (first, last) in bounds.items():
        path = folder / f"{stream:04}.pt"
        if not path.exists() or path.stat().st_mtime < newest:
            # Without trying algorithms for each of the many shapes, which takes longer than encoding them.
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=True):
                torch.save(encode_rows(model, scenes, first, last), unfinished)
            unfinished.rename(path)
        total += path.stat().st_size
        log(f"streams of {stream} tokens: {last - first}")
    log(f"{total / 2**30:.2f} GiB")
