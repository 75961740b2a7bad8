"""The inputs of a student in each of the four time intervals, and their targets: a teacher's output, its own earlier output, or the image itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import Qwen3ForCausalLM

from batches import Bucket, Buckets
from models import Velocity, encode_text, guided
from settings import Settings


@dataclass
class Question:
    """What the student is asked in one interval."""

    stream: torch.Tensor  # [batch, tokens, channels]
    ids: torch.Tensor
    text: torch.Tensor
    time: torch.Tensor  # [batch], at the interval's start or inside it
    end: torch.Tensor  # of the interval
    interval: int
    clean: torch.Tensor  # the stream without noise


# The mean velocity [batch, tokens, channels] that is right for tokens of the image that is drawn.
Answer = Callable[[Question, torch.Tensor], torch.Tensor]


class Teacher:
    """Many steps with guidance."""

    def __init__(self, settings: Settings, velocity: Velocity, empty: dict[int, torch.Tensor]):
        self.settings, self.velocity, self.empty = settings, velocity, empty

    def __call__(self, question: Question, drawn: torch.Tensor) -> torch.Tensor:
        x, text, steps = question.stream, question.text, self.settings.teacher_steps[question.interval]
        duration = (question.end - question.time) / steps
        for i in range(steps):
            time = question.time + duration * i
            velocity = guided(self.velocity, x, question.ids, text, time, self.settings.guidance, self.empty[text.shape[1]])
            x = x + duration[:, None, None] * drawn * velocity
        return (x - question.stream) / (question.end - question.time)[:, None, None]


class Before:
    """What the student said before."""

    def __init__(self, velocity: Velocity):
        self.velocity = velocity

    def __call__(self, question: Question, _: torch.Tensor) -> torch.Tensor:
        return self.velocity(question.stream, question.ids, question.text, question.time)


def truth(question: Question, _: torch.Tensor) -> torch.Tensor:
    """Straight to the image without noise."""
    return (question.stream - question.clean) / question.time[:, None, None]


@dataclass(frozen=True)
class Lesson:
    answer: Answer
    # Whether texts are those of other examples, and the student's own outputs begin at any interval, from the image noised as far: what the
    # pipeline does with an image and a strength below 1.
    contradicted: bool = False


class Lessons:
    """What the student is asked in a step."""

    def __init__(self, settings: Settings, text_encoder: Qwen3ForCausalLM, student: Velocity):
        self.settings, self.text_encoder, self.student = settings, text_encoder, student
        self.buckets = Buckets(settings)

    @torch.no_grad()
    def empty(self) -> dict[int, torch.Tensor]:
        """The empty prompt by its length."""
        texts = self.buckets.texts
        length = torch.tensor([texts.empty_length], device=self.settings.device)
        lengths = (self.settings.caption_tokens, self.settings.prompt_tokens)
        return {most: encode_text(self.settings, self.text_encoder, texts.pad(texts.empty_ids, most), length) for most in lengths}

    def share(self, bucket: Bucket, length: int) -> int:
        """How many examples of each interval fill a part of a step."""
        return max(1, self.buckets.batch(bucket, length) // self.settings.steps)

    @torch.no_grad()
    def draw(self, bucket: Bucket, length: int, on_policy: bool, lesson: Lesson) -> tuple[torch.Tensor, ...]:
        """Streams, texts, times, answers and latents without noise, `share` of each interval. The times are those of the bucket's layout."""
        intervals, share = self.settings.steps, self.share(bucket, length)
        rows = bucket.choose(share if on_policy else share * intervals)
        described = bucket.choose(len(rows)) if lesson.contradicted else rows
        texts = encode_text(self.settings, self.text_encoder, *bucket.text(described, length))
        images = bucket.latents[rows].float()
        if on_policy:
            noise = torch.randn_like(images)
            first = torch.randint(intervals if lesson.contradicted else 1, (share, 1, 1), device=images.device)
            own = images + (noise - images) * bucket.drawn
        parts = []
        for i in range(intervals):
            high, low = bucket.times[i], bucket.times[i + 1]
            if on_policy:
                own = torch.where(first == i, images + (noise - images) * (high * bucket.drawn), own)
                clean, text, x, time = images, texts, own, high.expand(share)
            else:
                part = slice(i * share, (i + 1) * share)
                clean, text = images[part], texts[part]
                x, time = self.noised(bucket, clean, high, low)
            target = lesson.answer(Question(x, bucket.ids, text, time, low, i, clean), bucket.drawn)
            parts.append((x, text, time, target, clean))
            if on_policy and i + 1 < intervals:
                own = own + (low - high) * bucket.drawn * self.student(own, bucket.ids, text, time)
        return tuple(map(torch.cat, zip(*parts)))

    def noised(self, bucket: Bucket, images: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Noised images and their times, half of them at the interval's start, half inside it. References have no noise."""
        count, device = len(images), images.device
        inside = low + (high - low) * (0.05 + 0.95 * torch.rand(count, device=device))
        time = torch.where(torch.rand(count, device=device) < 0.5, high, inside)
        return images + (torch.randn_like(images) - images) * (time[:, None, None] * bucket.drawn), time
