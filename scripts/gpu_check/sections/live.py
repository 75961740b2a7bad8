"""Live video: frames per second, and the time from a frame to its image."""

from __future__ import annotations

from typing import NamedTuple

import gpus
from check import Check
from measure import Failed, Rows, Word, run

from .models import is_there, write

FRAMES, FRAMES_IN_TURN = 40, 200
"""The number of measured frames of each row."""
SMALL = "small-decoder"


class Row(NamedTuple):
    """A measurement, and its min frames per second. With a strength of 0.5, half of the steps run."""

    figure: str
    name: str
    precision: str
    size: int
    steps: int
    least: float
    has_small_decoder: bool = False


ROWS = [
    Row("reference 512, 2 steps, bf16", "reference-still", "bf16", 512, 2, 15),
    Row("reference 512, 2 steps, fp8", "reference-still", "fp8", 512, 2, 22),
    Row("reference 512, 1 step, fp8, small decoder", "reference-still", "fp8", 512, 1, 40, True),
    Row("the same, half of the tokens reused", "reuse-0.02-half", "fp8", 512, 1, 60, True),
    Row("strength 256, 2 of 4 steps, fp8", "strength-0.5-still", "fp8", 256, 4, 55),
    Row("text 512, 4 steps, fp8", "text", "fp8", 512, 4, 14),
    Row("text 256, 4 steps, fp8", "text", "fp8", 256, 4, 25),
]
SOAK_SECONDS = 500
OWN_TIME = "times a frame's own time"
IN_TURN = "times the frames of one"


def live(check: Check) -> str:
    """Frames per second against the table, and the latency of an image relative to the time of a frame."""
    check.needs_model()
    missed: list[str] = []
    told = []
    for row in ROWS:
        if row.precision == "fp8" and not gpus.is_hopper():
            continue
        rate, took, most, computed = measure(check, row, "cuda")
        missed += check.misses(f"{row.figure}: frames a second", f"{rate:.2f}")
        missed += check.misses(OWN_TIME, f"{took * rate / 1000:.2f}")
        share = f", {100 * computed:.0f} % computed" if computed < 1 else ""
        told.append(f"{row.figure}: {rate:.2f} a second, {took:.1f} ms (95%: {most:.1f}){share};")
    if missed:
        raise Failed("; ".join([*missed, *told]))
    return " ".join(told)


def in_turn(check: Check) -> str:
    """Alternating frames on two GPUs, compared with one."""
    gpus.needs_two("frames in turn")
    check.needs_model()
    row = ROWS[1] if gpus.is_hopper() else ROWS[0]
    one, two = (measure(check, row, device, FRAMES_IN_TURN)[0] for device in ("cuda:0", "cuda:0,1"))
    text = f"{row.figure}: {one:.2f} a second by one, {two:.2f} by two"
    if missed := check.misses(IN_TURN, f"{two / one:.3f}"):
        raise Failed("; ".join([*missed, text]))
    return f"{text}, {two / one:.3f} times"


def soak(check: Check) -> str:
    """Frames for minutes: their order, equal images for equal frames, and no growth."""
    check.needs_model()
    precision = "fp8" if gpus.is_hopper() else "bf16"
    on: list[Word] = ["--side", 512, "-d", check.klein_4b, "--device", "cuda", "--precision", precision, "-s", 1]
    ran = run(check.script("soak_live.py", SOAK_SECONDS, check.flux, *on), "the soak failed")
    return ran.output.strip().removeprefix("soak: ")


def measure(check: Check, row: Row, device: str, frames: int = FRAMES) -> tuple[float, float, float, float]:
    """Frames per second, median and 95th percentile of ms from a frame to its image, and the share of computed tokens."""
    on: list[Word] = ["-d", check.klein_4b, "--device", device, "--precision", row.precision]
    if row.has_small_decoder:
        folder = check.options.models / SMALL
        if not is_there(folder):
            write(check, SMALL, folder)
        on += ["--vae", folder / "vae"]
    of: list[Word] = ["--size", row.size, "--steps", row.steps, "--runs", frames]
    made = Rows(check.bench_rows("live", f"live/{row.name}/", *on, *of).output).first()
    rate, took, most = (made.number(key) for key in ("frames_per_s", "p50_ms", "p95_ms"))
    return rate, took, most, made.number("computed") if row.name.startswith("reuse") else 1.0
