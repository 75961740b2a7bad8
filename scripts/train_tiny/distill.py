"""Phase `distill`: four steps without guidance, from a teacher with many steps and guidance.

For an input at the start of each of the pipeline's four time intervals (or inside it), the student learns the mean velocity with which
the teacher reaches the interval's end: plain regression on the pipeline's inputs. After a warm-up, most steps start from the student's
previous output, as at inference, instead of a noised image. Source: piecewise rectified flow (Yan et al., 2024).

Phase `refine`: a student continues without a teacher. An edit has one right answer, so each of the four steps targets the image itself,
and the errors of a teacher are not learned. A caption has many right answers, so the student keeps to its earlier outputs. The same holds for
image to image with a strength (part `strength`): the caption contradicts the image, and nothing else in the training defines how far the
image persists. The earlier outputs are those of the initial student, or of an earlier student before its refinement.
"""

import copy
from collections.abc import Callable
from random import Random

import torch
from diffusers import Flux2Transformer2DModel
from transformers import Qwen3ForCausalLM

from batches import Bucket
from lessons import Before, Lesson, Lessons, Teacher, truth
from models import Velocity, compute_dtype, load_text_encoder_and_transformer, save, teacher_name, transformer_blocks
from optimizer import Trainer
from report import phase
from settings import Settings
from steps import GraphedStep, compile_blocks, train, trapezoid

RATES = (0.005, 2.5e-4)
HOLD = 0.3  # fraction of the time before the rate falls
OWN_OUTPUTS_FROM = 0.1  # of the time


@phase
def distill(settings: Settings) -> None:
    text_encoder, student = load_text_encoder_and_transformer(settings, teacher_name(settings))
    teacher = freeze(settings, student)

    def course(lessons: Lessons) -> dict[str, Lesson]:
        return dict.fromkeys(settings.parts, Lesson(Teacher(settings, teacher, lessons.empty())))

    learn(settings, text_encoder, student, course, settings.parts, settings.distill_seconds)


@phase
def refine(settings: Settings) -> None:
    text_encoder, student = load_text_encoder_and_transformer(settings, "start")
    held = "before" if (settings.work / "before").exists() else "start"
    before = Before(freeze(settings, load_text_encoder_and_transformer(settings, held)[1]))
    course = {"text": Lesson(before), "strength": Lesson(before, contradicted=True), "edit": Lesson(truth)}
    learn(settings, text_encoder, student, lambda _: course, settings.refined_parts, settings.refine_seconds)


def freeze(settings: Settings, transformer: Flux2Transformer2DModel) -> Velocity:
    """A frozen copy."""
    copied = copy.deepcopy(transformer).to(compute_dtype(settings)).requires_grad_(False)
    compile_blocks(settings, transformer_blocks(copied))
    return Velocity(copied)


def learn(
    settings: Settings, text_encoder: Qwen3ForCausalLM, transformer: Flux2Transformer2DModel, course: Callable[[Lessons], dict[str, Lesson]],
    parts: tuple[str, ...], seconds: float,
) -> None:  # fmt: skip
    """Trains the transformer on these parts of a step, each with its lesson, and saves both models under `final`."""
    device, dtype, intervals = settings.device, compute_dtype(settings), settings.steps
    trainer = Trainer({"transformer": transformer}, dtype, device, RATES, settings.ema)
    compile_blocks(settings, transformer_blocks(transformer))
    student = Velocity(transformer)
    lessons = Lessons(settings, copy.deepcopy(text_encoder).to(dtype).requires_grad_(False), student)
    lesson_of = course(lessons)
    weights = torch.tensor(settings.interval_weights, device=device)
    averages = {part: torch.zeros(intervals, device=device) for part in lesson_of}
    loss = torch.zeros(intervals, device=device)

    def add_gradients(bucket: Bucket, length: int, on_policy: bool, lesson: Lesson) -> None:
        x, text, time, target, clean = lessons.draw(bucket, length, on_policy, lesson)
        errors = bucket.mean((student(x, bucket.ids, text, time) - target).square(), clean).view(intervals, -1).mean(1)
        ((errors * weights).mean() / len(parts)).backward()
        loss.copy_(errors.detach())

    lengths, buckets = (settings.caption_tokens, settings.prompt_tokens), lessons.buckets
    graphs = {
        case: GraphedStep(lambda bucket=bucket, case=case: add_gradients(bucket, *case[1:]), device).replay
        for bucket in buckets.all
        for length, own in ((lengths[0], False), (lengths[0], True), (lengths[1], True))
        for case in {(bucket.stream, length, own, lesson) for part, lesson in lesson_of.items() if bucket.weight(part == "edit")}
    }
    trainer.forget()
    step_trainer = GraphedStep(trainer.step, device).replay
    rng = Random(2)

    def run(part_of_time: float) -> int:
        images = 0
        for part in parts:
            bucket = buckets.draw(rng, part)
            own = part_of_time > OWN_OUTPUTS_FROM and rng.random() < settings.on_policy_share
            length = lengths[own and rng.random() < settings.distill_long_share]
            graphs[bucket.stream, length, own, lesson_of[part]]()
            averages[part].lerp_(loss, 0.02)
            images += intervals * lessons.share(bucket, length)
        step_trainer()
        return images

    def describe() -> tuple[str, torch.Tensor]:
        rows = {part: ", ".join(f"{error:.4f}" for error in average.tolist()) for part, average in averages.items()}
        return "loss by interval of " + "; of ".join(f"{part} {row}" for part, row in rows.items()), sum(averages.values())

    train(seconds, settings.max_steps, run, trainer.optimizer.rate, lambda part: trapezoid(part, HOLD), describe)
    trainer.use_mean()
    save(settings.work / "final", {"transformer": transformer, "text_encoder": text_encoder})
