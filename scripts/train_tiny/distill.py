"""Phase `distill`: four steps without guidance, from a teacher with many steps and guidance.

The student learns, for an input at the start of each of the pipeline's four intervals of time (or inside it), the mean velocity that takes
the teacher to the interval's end: plain regression on what the pipeline will ask for. Once it is roughly right, most steps start from its
own previous output, as at inference, instead of from a noised image. Source: piecewise rectified flow (Yan et al., 2024).
"""

import copy
from random import Random

import torch
from transformers import Qwen3ForCausalLM

from batches import Bucket, Buckets
from models import (
    Velocity, compute_dtype, encode_text, guided, load_text_encoder_and_transformer, save, student_name, teacher_name, transformer_blocks,
)  # fmt: skip
from optimizer import Trainer
from report import log, phase
from settings import Settings
from steps import GraphedStep, compile_blocks, train, trapezoid

RATES = (0.005, 2.5e-4)
HOLD = 0.3  # of the time, before the rate falls
OWN_OUTPUTS_FROM = 0.1  # of the time


class Lessons:
    """What the student is to answer, and the teacher's answer."""

    def __init__(self, settings: Settings, text_encoder: Qwen3ForCausalLM, teacher: Velocity, student: Velocity):
        self.settings, self.text_encoder, self.teacher, self.student = settings, text_encoder, teacher, student
        self.buckets = Buckets(settings)
        texts = self.buckets.texts
        empty_length = torch.tensor([texts.empty_length], device=settings.device)
        with torch.no_grad():
            self.empty = {
                length: encode_text(settings, text_encoder, texts.pad(texts.empty_ids, length), empty_length)
                for length in (settings.caption_tokens, settings.prompt_tokens)
            }

    def share(self, bucket: Bucket, length: int) -> int:
        """How many examples of each interval fill a part of a step."""
        return max(1, self.buckets.batch(bucket, length) // self.settings.steps)

    @torch.no_grad()
    def draw(self, bucket: Bucket, length: int, on_policy: bool) -> tuple[torch.Tensor, ...]:
        """Streams, texts, times, targets and latents without noise, `share` of each interval. The times are those of the bucket's layout."""
        intervals, share = self.settings.steps, self.share(bucket, length)
        rows = bucket.choose(share if on_policy else share * intervals)
        texts = encode_text(self.settings, self.text_encoder, *bucket.text(rows, length))
        images = bucket.latents[rows].float()
        if on_policy:
            own = images + (torch.randn_like(images) - images) * bucket.drawn
        parts = []
        for i, steps in enumerate(self.settings.teacher_steps):
            high, low = bucket.times[i], bucket.times[i + 1]
            if on_policy:
                clean, text, x, time = images, texts, own, high.expand(share)
            else:
                part = slice(i * share, (i + 1) * share)
                clean, text = images[part], texts[part]
                x, time = self.noised(bucket, clean, high, low)
            parts.append((x, text, time, self.teach(bucket, x, text, time, low, steps), clean))
            if on_policy and i + 1 < intervals:
                own = own + (low - high) * bucket.drawn * self.student(own, bucket.ids, text, time)
        return tuple(map(torch.cat, zip(*parts)))

    def noised(self, bucket: Bucket, images: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Noised images and their times, half of them at the interval's start, half inside it. References have no noise."""
        count, device = len(images), images.device
        inside = low + (high - low) * (0.05 + 0.95 * torch.rand(count, device=device))
        time = torch.where(torch.rand(count, device=device) < 0.5, high, inside)
        return images + (torch.randn_like(images) - images) * (time[:, None, None] * bucket.drawn), time

    def teach(self, bucket: Bucket, x: torch.Tensor, text: torch.Tensor, start: torch.Tensor, end: torch.Tensor, steps: int) -> torch.Tensor:
        """Mean velocity of the guided teacher from `start` [batch] to `end`."""
        duration, first, empty = (end - start) / steps, x, self.empty[text.shape[1]]
        for i in range(steps):
            velocity = guided(self.teacher, x, bucket.ids, text, start + duration * i, self.settings.guidance, empty)
            x = x + duration[:, None, None] * bucket.drawn * velocity
        return (x - first) / (end - start)[:, None, None]


@phase
def distill(settings: Settings) -> None:
    device, dtype, intervals = settings.device, compute_dtype(settings), settings.steps
    text_encoder, teacher = load_text_encoder_and_transformer(settings, teacher_name(settings))
    _, transformer = load_text_encoder_and_transformer(settings, student_name(settings))
    frozen_encoder, frozen = (copy.deepcopy(model).to(dtype).requires_grad_(False) for model in (text_encoder, teacher))
    trainer = Trainer({"transformer": transformer}, dtype, device, RATES, settings.ema)
    compile_blocks(settings, [*transformer_blocks(transformer), *transformer_blocks(frozen)])
    student = Velocity(transformer)
    lessons = Lessons(settings, frozen_encoder, Velocity(frozen), student)
    weights = torch.tensor(settings.interval_weights, device=device)
    average = torch.zeros(intervals, device=device)

    def add_gradients(bucket: Bucket, length: int, on_policy: bool) -> None:
        x, text, time, target, clean = lessons.draw(bucket, length, on_policy)
        errors = bucket.mean((student(x, bucket.ids, text, time) - target).square(), clean).view(intervals, -1).mean(1)
        ((errors * weights).mean() / len(settings.parts)).backward()
        average.lerp_(errors.detach(), 0.02)

    lengths, buckets = (settings.caption_tokens, settings.prompt_tokens), lessons.buckets
    graphs = {
        (bucket.stream, length, own): GraphedStep(lambda case=(bucket, length, own): add_gradients(*case), device).replay
        for bucket in buckets.all
        for length, own in ((lengths[0], False), (lengths[0], True), (lengths[1], True))
    }
    trainer.forget()
    step_trainer = GraphedStep(trainer.step, device).replay
    rng = Random(2)

    def run(part_of_time: float) -> int:
        images = 0
        for part in settings.parts:
            bucket = buckets.draw(rng, part)
            own = part_of_time > OWN_OUTPUTS_FROM and rng.random() < settings.on_policy_share
            length = lengths[own and rng.random() < settings.distill_long_share]
            graphs[bucket.stream, length, own]()
            images += intervals * lessons.share(bucket, length)
        step_trainer()
        return images

    train(
        settings.distill_seconds, settings.max_steps, run, trainer.optimizer.rate, lambda part: trapezoid(part, HOLD),
        lambda: ("loss by interval " + ", ".join(f"{error:.4f}" for error in average.tolist()), average),
    )  # fmt: skip
    trainer.use_mean()
    save(settings.work / "final", {"transformer": transformer, "text_encoder": text_encoder})
