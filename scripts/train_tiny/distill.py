"""Phase `distill`: four steps without guidance, from a teacher with many steps and guidance.

The student learns, for an input at the start of each of the pipeline's four intervals of time (or inside it), the mean velocity that takes
the teacher to the interval's end: plain regression on what the pipeline will ask for. Once it is roughly right, most steps start from its
own previous output, as at inference, instead of from a noised image. Source: piecewise rectified flow (Yan et al., 2024).
"""

import copy
from itertools import pairwise
from random import Random

import torch
from transformers import Qwen3ForCausalLM

from batches import Examples
from models import Velocity, compute_dtype, encode_text, guided, load_text_encoder_and_transformer, save, timesteps, transformer_blocks
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, compile_blocks, train, trapezoid

RATES = (0.005, 2.5e-4)
OWN_OUTPUTS_FROM = 0.15  # of the time


class Lessons:
    """What the student is to answer, and the teacher's answer."""

    def __init__(self, settings: Settings, text_encoder: Qwen3ForCausalLM, teacher: Velocity, student: Velocity):
        self.settings, self.text_encoder, self.teacher, self.student = settings, text_encoder, teacher, student
        self.examples = Examples(settings)
        self.times = timesteps(self.examples.latents.shape[1], settings.steps)
        empty_length = torch.tensor([self.examples.empty_length], device=settings.device)
        with torch.no_grad():
            self.empty = {
                length: encode_text(settings, text_encoder, self.examples.pad(self.examples.empty_ids, length), empty_length)
                for length in (settings.caption_tokens, settings.prompt_tokens)
            }

    @torch.no_grad()
    def draw(self, share: int, length: int, on_policy: bool) -> tuple[torch.Tensor, ...]:
        """Inputs, texts, times and targets, `share` of each interval."""
        device, intervals = self.settings.device, self.settings.steps
        rows = self.examples.choose(share if on_policy else share * intervals)
        texts = encode_text(self.settings, self.text_encoder, *self.examples.captions(rows, length))
        own = torch.randn(share, *self.examples.latents.shape[1:], device=device)
        parts = []
        for i, ((high, low), steps) in enumerate(zip(pairwise(self.times), self.settings.teacher_steps)):
            if on_policy:
                text, x, time = texts, own, torch.full((share,), high, device=device)
            else:
                part = slice(i * share, (i + 1) * share)
                text = texts[part]
                x, time = self.noised(rows[part], high, low)
            parts.append((x, text, time, self.teach(x, text, time, low, steps)))
            if on_policy and i + 1 < intervals:
                own = own + (low - high) * self.student(own, text, time)
        return tuple(map(torch.cat, zip(*parts)))

    def noised(self, rows: torch.Tensor, high: float, low: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Noised images and their times, half of them at the interval's start, half inside it."""
        image = self.examples.latents[rows].float()
        inside = low + (high - low) * (0.05 + 0.95 * torch.rand(len(rows), device=rows.device))
        time = torch.where(torch.rand(len(rows), device=rows.device) < 0.5, torch.full_like(inside, high), inside)
        return image + (torch.randn_like(image) - image) * time[:, None, None], time

    def teach(self, x: torch.Tensor, text: torch.Tensor, start: torch.Tensor, end: float, steps: int) -> torch.Tensor:
        """Mean velocity of the guided teacher from `start` [batch] to `end`."""
        duration, first, empty = (end - start) / steps, x, self.empty[text.shape[1]]
        for i in range(steps):
            x = x + duration[:, None, None] * guided(self.teacher, x, text, start + duration * i, self.settings.guidance, empty)
        return (x - first) / (end - start)[:, None, None]


@phase
def distill(settings: Settings) -> None:
    device, dtype, intervals = settings.device, compute_dtype(settings), settings.steps
    text_encoder, transformer = load_text_encoder_and_transformer(settings, "base")
    frozen_encoder, frozen = (copy.deepcopy(model).to(dtype).requires_grad_(False) for model in (text_encoder, transformer))
    trainer = Trainer({"transformer": transformer}, dtype, device, RATES, settings.ema)
    student = Velocity(settings, transformer)
    lessons = Lessons(settings, frozen_encoder, Velocity(settings, frozen), student)
    log("times " + ", ".join(f"{time:.4f}" for time in lessons.times))
    weights = torch.tensor(settings.interval_weights, device=device)
    average = torch.zeros(intervals, device=device)

    def step(batch: int, length: int, on_policy: bool) -> None:
        x, text, time, target = lessons.draw(batch // intervals, length, on_policy)
        errors = (student(x, text, time) - target).square().mean((1, 2)).view(intervals, -1).mean(1)
        (errors * weights).mean().backward()
        trainer.step()
        average.lerp_(errors.detach(), 0.02)

    compile_blocks(settings, [*transformer_blocks(transformer), *transformer_blocks(frozen)])
    lengths = (settings.caption_tokens, settings.prompt_tokens)
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
