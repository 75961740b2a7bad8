"""The sections of FLUX.3-klein with random weights."""

from __future__ import annotations

import re
from pathlib import Path

from check import Check, square
from measure import RUNS, Failed, Ran, Rows, Word, median, run, seconds

from . import memory, reference, tests
from .models import write

CAPTION = " ".join(["boat"] * 290)
"""With the template and the additions of the bench, between 240 and 320 tokens; the model reads 320."""


def model(check: Check) -> Path:
    """The folder of the model, which is written unless it exists."""
    folder = check.options.models / "flux3"
    if not (folder / "modular_model_index.json").exists():
        write(check, "flux3", folder)
    return folder


def flux3(check: Check) -> str:
    """Steps and whole images in bf16 and fp8, from a prompt and with references."""
    on: list[Word] = ["-d", model(check), "--device", "cuda", "--prompt", CAPTION]
    figures, missed = [], []
    for precision in check.precisions():

        def rows(*words: Word) -> Rows:
            return Rows(check.bench_rows(*on, "--precision", precision, *words).output)

        def figure(what: str, value: float) -> str:
            missed.extend(check.misses(f"{precision} {what}", f"{value:.2f}"))
            return f"{what} {value:.2f}"

        of_sizes = rows("stages/", "--steps", 4, "--size", "512,1024,2048", "--runs", 3)
        steps = [figure(f"step {size}", of_sizes.of_size(size).number("step_ms")) for size in (512, 1024, 2048)]
        whole = [figure("4 steps", of_sizes.of_size(1024).number("total_ms"))]
        long = rows("stages/", "--steps", 16, "--size", 1024, "--runs", 2)
        whole.append(figure("16 steps", long.of_size(1024).number("total_ms")))
        for size in (512, 1024, 2048):
            steps.append(figure(f"known step {size}", of_sizes.of_size(size).number("known_step_ms")))
        whole.append(figure("16 steps known", long.of_size(1024).number("known_total_ms")))
        edits = rows("stages/edit", "--steps", 4, "--size", 1024, "--references", "1,2", "--runs", 2)
        for count in (1, 2):
            steps.append(figure(f"step + {count}", edits.named(f"stages/edit-1024x1024+{count}").number("step_ms")))
        figures.append(f"{precision}: ms of {', '.join(steps)}; images of 1024 in {', '.join(whole)}")
    if missed:
        raise Failed("; ".join([*missed, *figures]))
    return "; ".join(figures)


def bench_reference(check: Check, *words: Word) -> Ran:
    env = reference.environment(check)
    command = check.script("bench_reference_flux3.py", model(check), "--out", latents_folder(check), *words)
    return run(command, "the reference failed", env)


def latents_folder(check: Check) -> Path:
    return check.work / "reference-flux3"


def flux3_reference(check: Check) -> str:
    """The same with the reference, eager."""
    rows = Rows(bench_reference(check, "--size", 512, 1024, 2048, "--editing", "--steps", 4, 16).output)
    steps = [f"{row['size']} + {row['references']} {row.number('step_ms')}" for row in rows if row.has("step_ms")]
    images = [f"{row['steps']} steps {row.number('image_ms')}" for row in rows if row.has("image_ms")]
    return f"ms of steps {', '.join(steps)}; images of 1024 in {', '.join(images)}"


def flux3_compile(check: Check) -> str:
    """Steps of the reference with torch.compile."""
    rows = Rows(bench_reference(check, "--size", 512, 1024, "--compile").output)
    return "ms of steps " + ", ".join(f"{row['size']} {row.number('step_ms')}" for row in rows if row.has("step_ms"))


def flux3_fidelity(check: Check) -> str:
    """Final latents at 512, also with a reference image, and at 1024: the distances of flux and of the reference in bf16 from
    the reference in float32."""
    folder, of = latents_folder(check), model(check)
    if not (folder / "diffusers_latents_512.safetensors").exists():
        bench_reference(check, "--size", 512, 1024, "--fidelity")
    words = ["--test-threads", "1", "full_size_latents_stand"]
    ran = tests.full_size(check, words, folder, tests.SEPARATE_QUEUES, of)
    if "1024 x 1024: " not in ran.output:
        raise Failed("ours did not get to 1024 x 1024")
    figures = re.findall(r"[0-9]+ x [0-9]+(?: edited)?: .* bf16 [0-9.]+", ran.output)
    return tests.passed(ran, "; ".join(figures))


def flux3_memory(check: Check) -> str:
    """From start to PNG at 1024 x 1024, and the same image within the smallest budgets."""
    start: list[Word] = [check.flux, "-d", model(check), "--prompt", CAPTION, "--seed", 42, "--steps", 4, "--device", "cuda"]
    image = [*start, "--quiet", "--timings=json", *square(1024)]
    resident = check.work / "flux3.png"
    cold = median([run([*image, "-o", resident], "no image").seconds for _ in range(RUNS)])
    q4_k, resident_q4_k = [*image, "--quantize", "q4_k"], check.work / "flux3-q4_k.png"
    run([*q4_k, "-o", resident_q4_k], "no image in Q4_K")
    figures = [
        f"bf16 within {memory.image_within(check, image, 4, resident)}",
        f"Q4_K within {memory.image_within(check, q4_k, 3, resident_q4_k)}",
    ]
    line = f"{seconds(cold)} s from start to PNG; {' '.join(figures)}"
    missed = check.misses("s from start to PNG", f"{cold:.2f}")
    if missed:
        raise Failed("; ".join([*missed, line]))
    return line
