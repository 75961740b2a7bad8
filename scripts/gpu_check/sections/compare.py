"""The section that compares another program with this one, interleaved."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import gpus
from check import Check, square
from measure import RUNS, Failed, Rows, Word, median, ratio, run, say

FIGURES = {
    "step_512": "step 512, bf16, ms",
    "step": "step 1024, bf16, ms",
    "step_fp8": "step 1024, fp8, ms",
    "decode": "decode 1024, ms",
    "image": "image 1024, bf16, ms",
    "image_fp8": "image 1024, fp8, ms",
    "cold": "start to PNG 1024, s",
}


def compare(check: Check) -> str:
    base = check.options.base or check.bin / "base"
    if not os.access(base, os.X_OK) or base.is_dir():
        raise Failed("no program to compare with: set BASE, or add it to the bundle with `make gpu-bundle BASE=PROGRAM`")
    check.needs_model()
    programs = {"base": base, "new": check.flux}
    # A first, unmeasured image reads the weights into the page cache.
    image(check, check.flux, "warm")
    measured: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in programs}
    for count in range(1, RUNS + 1):
        say(f"run {count}")
        for name, program in programs.items():
            for figure, value in figures_of(check, name, program).items():
                measured[name][figure].append(value)
    say(f"\n{f'median of {RUNS}':<32} {'base':>10} {'new':>10} {'new / base':>10}")
    figures = []
    for figure in [figure for figure in FIGURES if figure in measured["base"]]:
        theirs, ours = (median(measured[name][figure]) for name in programs)
        say(f"{FIGURES[figure]:<32} {theirs:>10.6g} {ours:>10.6g} {ratio(ours, theirs):>10.4f}")
        figures.append(f"{figure} {ours:.6g} / {theirs:.6g},")
    if not gpus.is_hopper():
        say("no fp8: this is no Hopper GPU")
    both = [check.work / f"{name}.png" for name in programs]
    pixels = run([check.flux, "compare", *both], "the images cannot be compared").output.strip()
    return f"new / base: {' '.join(figures)} the images: {pixels}"


def image(check: Check, program: Path, name: str) -> float:
    words = check.image(check.klein_4b, "--device", "cuda", *square(1024), "-o", check.work / f"{name}.png")
    return run([program, *words[1:]], f"no image by {program}").seconds


def figures_of(check: Check, name: str, program: Path) -> dict[str, float]:
    """The figures of one run of a program."""

    def stages(*words: Word) -> Rows:
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", *words]
        return Rows(run([program, "bench", "stages/", *on, "--json"], f"the bench of {name} failed").output)

    rows = stages("--steps", 4, "--size", "512,1024")
    row = rows.of_size(1024)
    figures = {"step": row.number("step_ms"), "decode": row.number("decode_ms"), "image": row.number("total_ms")}
    figures["step_512"] = rows.of_size(512).number("step_ms")
    if gpus.is_hopper():
        row = stages("--precision", "fp8", "--steps", 4, "--size", 1024).of_size(1024)
        figures |= {"step_fp8": row.number("step_ms"), "image_fp8": row.number("total_ms")}
    figures["cold"] = round(image(check, program, name), 2)
    return figures
