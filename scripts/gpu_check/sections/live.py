"""Video as it comes in: frames a second, and the time from a frame to its image."""

from __future__ import annotations

import gpus
from check import Check
from measure import Failed, Rows, Word

FRAMES = 40
"""Frames of each row that are counted."""

# What is measured: the name of a figure, the row of the bench, precision, size, steps. Of a strength of 0.5 half of the
# steps run.
ROWS: list[tuple[str, str, str, int, int]] = [
    ("reference 512, 2 steps, bf16", "reference-still", "bf16", 512, 2),
    ("reference 512, 2 steps, fp8", "reference-still", "fp8", 512, 2),
    ("reference 512, 1 step, fp8", "reference-still", "fp8", 512, 1),
    ("strength 256, 2 of 4 steps, fp8", "strength-0.5-still", "fp8", 256, 4),
    ("text 512, 4 steps, fp8", "text", "fp8", 512, 4),
    ("text 256, 4 steps, fp8", "text", "fp8", 256, 4),
]


def live(check: Check) -> str:
    """Frames a second with the figures of the table, and how many times a frame's own time its image takes."""
    check.needs_model()
    missed: list[str] = []
    told = []
    for figure, name, precision, size, steps in ROWS:
        if precision == "fp8" and not gpus.is_hopper():
            continue
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--precision", precision]
        of: list[Word] = ["--size", size, "--steps", steps, "--runs", FRAMES]
        row = Rows(check.bench_rows("live", f"live/{name}/", *on, *of).output).first()
        rate, took, most = (row.number(key) for key in ("frames_per_s", "p50_ms", "p95_ms"))
        missed += check.misses(f"{figure}: frames a second", f"{rate:.2f}")
        missed += check.misses("times a frame's own time", f"{took * rate / 1000:.2f}")
        told.append(f"{figure}: {rate:.2f} a second, {took:.1f} ms (95%: {most:.1f});")
    if missed:
        raise Failed("; ".join([*missed, *told]))
    return " ".join(told)
