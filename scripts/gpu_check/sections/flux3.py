"""The section of FLUX.3-klein with random weights."""

from __future__ import annotations

from check import Check
from measure import Failed, Rows, Word
from sections.models import write

CAPTION = " ".join(["boat"] * 290)
"""With the template, and what the bench adds, between 240 and 320 tokens: the model reads 320."""


def flux3(check: Check) -> str:
    """Steps and whole images in bf16 and fp8, from a text and from references."""
    folder = check.options.models / "flux3"
    if not (folder / "modular_model_index.json").exists():
        write(check, "flux3", folder)
    on: list[Word] = ["-d", folder, "--device", "cuda", "--prompt", CAPTION]
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
        edits = rows("stages/edit", "--steps", 4, "--size", 1024, "--references", "1,2", "--runs", 2)
        for count in (1, 2):
            steps.append(figure(f"step + {count}", edits.named(f"stages/edit-1024x1024+{count}").number("step_ms")))
        figures.append(f"{precision}: ms of {', '.join(steps)}; images of 1024 in {', '.join(whole)}")
    if missed:
        raise Failed("; ".join([*missed, *figures]))
    return "; ".join(figures)
