"""Phase `distill`: four steps without guidance, from a teacher with many steps and guidance.

The student learns, for an input at the start of each of the pipeline's four intervals of time (or inside it), the mean velocity that takes
the teacher to the interval's end: plain regression on what the pipeline will ask for. Once it is roughly right, most steps start from its
own previous output, as at inference, instead of from a noised picture. Source: piecewise rectified flow (Yan et al., 2024).
"""

import copy
from random import Random

import torch

from base import Captions, compile_blocks
from batches import SceneSet, latents_file
from models import Velocity, encode_text, guided, load, make_text_encoder, make_transformer, save, timesteps
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, train, trapezoid

RATES = (0.005, 2.5e-4)
OWN_OUTPUTS_FROM = 0.15  # of the time


@phase
def distill(settings: Settings) -> None:
    device = settings.device
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    scenes = SceneSet(settings)
    latents = torch.load(latents_file(settings), map_location=device)
    captions = Captions(settings, scenes)
    text_encoder, transformer = make_text_encoder(settings, settings.vocabulary), make_transformer(settings)
    load(settings.work / "base.safetensors", {"transformer": transformer, "text_encoder": text_encoder}, device)
    encoder = copy.deepcopy(text_encoder).to(dtype).requires_grad_(False)
    frozen = copy.deepcopy(transformer).to(dtype).requires_grad_(False)
    trainer = Trainer({"transformer": transformer}, dtype, device, RATES, settings.ema)
    trainer.optimizer.rate.zero_()  # until the clock runs
    student, teacher = Velocity(settings, transformer), Velocity(settings, frozen)
    intervals = settings.steps
    times = timesteps(latents.shape[1], intervals)
    log("times " + ", ".join(f"{time:.4f}" for time in times))
    weights = torch.tensor(settings.interval_weights, device=device)
    average = torch.zeros(intervals, device=device)
    lengths = (settings.caption_tokens, settings.prompt_tokens)
    with torch.no_grad():
        empty_length = torch.tensor([captions.empty_length], device=device)
        empty = {length: encode_text(settings, encoder, captions.pad(captions.empty_ids, length), empty_length) for length in lengths}

    def teach(x: torch.Tensor, text: torch.Tensor, start: torch.Tensor, end: float, steps: int) -> torch.Tensor:
        """Mean velocity of the guided teacher from `start` [batch] to `end`."""
        duration, first = (end - start) / steps, x
        for i in range(steps):
            x = x + duration[:, None, None] * guided(teacher, x, text, start + duration * i, settings.guidance, empty[text.shape[1]])
        return (x - first) / (end - start)[:, None, None]

    def noised(rows: torch.Tensor, high: float, low: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Noised pictures, half of them at the interval's start, half inside it."""
        inside = low + (high - low) * (0.05 + 0.95 * torch.rand(len(rows), device=device))
        time = torch.where(torch.rand(len(rows), device=device) < 0.5, torch.full_like(inside, high), inside)
        picture = latents[rows].float()
        return picture + (torch.randn_like(picture) - picture) * time[:, None, None], time

    @torch.no_grad()
    def lesson(share: int, length: int, on_policy: bool) -> tuple[torch.Tensor, ...]:
        """Inputs, texts, times and targets, `share` of each interval."""
        rows = torch.randint(len(latents), (share if on_policy else share * intervals,), device=device)
        texts = encode_text(settings, encoder, *captions.of(rows, length))
        own = torch.randn(share, *latents.shape[1:], device=device)
        parts = []
        for i, (high, low, steps) in enumerate(zip(times, times[1:], settings.teacher_steps)):
            if on_policy:
                text, x, time = texts, own, torch.full((share,), high, device=device)
            else:
                part = slice(i * share, (i + 1) * share)
                text = texts[part]
                x, time = noised(rows[part], high, low)
            parts.append((x, text, time, teach(x, text, time, low, steps)))
            if on_policy and i + 1 < intervals:
                own = own + (low - high) * student(own, text, time)
        return tuple(map(torch.cat, zip(*parts)))

    def step(batch: int, length: int, on_policy: bool) -> None:
        x, text, time, target = lesson(batch // intervals, length, on_policy)
        errors = (student(x, text, time) - target).square().mean((1, 2)).view(intervals, -1).mean(1)
        (errors * weights).mean().backward()
        trainer.step()
        average.lerp_(errors.detach(), 0.02)

    compile_blocks(settings, transformer)
    compile_blocks(settings, frozen)
    graphs = {
        (length, own): GraphedStep(lambda length=length, own=own, batch=batch: step(batch, length, own), device).replay
        for length, batch in zip(lengths, (settings.batch, settings.batch // 2))
        for own in (False, True)
    }
    rng = Random(1)

    def run(part: float) -> None:
        length = lengths[rng.random() < settings.distill_long_share]
        graphs[length, part > OWN_OUTPUTS_FROM and rng.random() < settings.on_policy_share]()

    train(
        settings.distill_seconds, settings.max_steps, run, trainer.optimizer.rate, lambda part: trapezoid(part, hold=0.4),
        lambda: ("loss by interval " + ", ".join(f"{error:.4f}" for error in average.tolist()), average), settings.batch,
    )  # fmt: skip
    trainer.use_mean()
    save(settings.work / "final.safetensors", {"transformer": transformer, "text_encoder": text_encoder})
