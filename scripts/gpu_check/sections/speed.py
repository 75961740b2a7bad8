"""Sections that measure ops, stages and images of one GPU."""

from __future__ import annotations

import re
import shutil

from check import Check, square
from measure import RUNS, Failed, Rows, Word, median, run, say, seconds


def totals(rows: Rows, *sizes: int) -> str:
    """One line of what the rows of a bench of stages say."""
    of_sizes = ", ".join(f"{size}: {rows.of_size(size).number('total_ms')}" for size in sizes)
    return f"total ms, {of_sizes}; step at 1024: {rows.of_size(1024).number('step_ms')}"


def image(check: Check) -> str:
    command = check.image(check.tiny, "--device", "cuda", "-o", check.out / "image.png")
    row = Rows(run(command, "no image").output).first()
    return f"256 x 256 in {seconds(row.number('total_s'))} s"


def bench(check: Check) -> str:
    command: list[Word] = [check.flux, "bench", "--device", "cuda", "--size", 1024, *check.options.bench]
    output = run(command, "the bench broke off", {"FLUX_MODEL": ""}).output
    ceilings = [line.split() for line in output.splitlines() if line.startswith("ceiling/")]
    count = len(re.findall(r"^ops/", output, re.MULTILINE))
    return f"{count} ops measured; {','.join(f'{words[0]} {words[-5]} {words[-4]}' for words in ceilings)}"


def stages(check: Check, *words: Word) -> str:
    check.needs_model()
    sizes = (256, 512, 1024, 2048)
    of_model: list[Word] = ["stages/", "-d", check.klein_4b, "--device", "cuda", *words, "--steps", 4]
    return totals(Rows(check.bench_rows(*of_model, "--size", ",".join(map(str, sizes))).output), *sizes)


def fp8(check: Check) -> str:
    return stages(check, "--precision", "fp8")


def edits(check: Check) -> str:
    check.needs_model()
    encodes = ["vae_encode/1024x1024", "vae_encode/2048x2048"]
    lines = [edits_in(check, precision, encodes if precision == "bf16" else []) for precision in check.precisions()]
    return f"ms, {' '.join(lines)}"


def edits_in(check: Check, precision: str, encodes: list[str]) -> str:
    """The main figures of images from references, and of encoding."""
    names = ["stages/edit-512x512+1", "stages/edit-1024x1024", *encodes]
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--precision", precision, "--steps", 4]
    rows = Rows(check.bench_rows(*names, *on, "--size", "512,1024,2048", "--references", "1,2").output)
    figures = [f"{precision}:"]
    for size in ("512x512+1", "1024x1024+1", "1024x1024+2"):
        step, total, read = (rows.named(f"stages/edit-{size}").number(of) for of in ("step_ms", "total_ms", "read_ms"))
        figures.append(f"{size} step {step}, image {total}, read {read};")
    figures += [f"{name} {rows.named(name).number('ms')};" for name in encodes]
    return " ".join(figures)


def adapters(check: Check) -> str:
    check.needs_model()
    return " ".join(adapters_in(check, precision) for precision in check.precisions())


def adapters_in(check: Check, precision: str) -> str:
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--precision", precision, "--steps", 4]
    row = Rows(check.bench_rows("adapters/", *on, "--size", 1024).output).first()

    def of(name: str) -> float:
        return row.number(f"{name}_ms")

    return (
        f"{precision}, ms: step {of('step')}, merged {of('merged_step')}, beside {of('beside_step')}; open {of('open')}, "
        f"ready {of('first')} (factors {of('factors')}, merge {of('merge')}), cached {of('again')}, none {of('without')};"
    )


def cold(check: Check) -> str:
    check.needs_model()
    made = [check.work / f"cold-{count}.png" for count in range(1, RUNS + 1)]
    walls = []
    for count, path in enumerate(made, 1):
        ran = run(check.image(check.klein_4b, "--device", "cuda", *square(1024), "-o", path), "no image")
        walls.append(ran.seconds)
        say(f"run {count}: {seconds(ran.seconds)} s by the clock")
    shutil.copy(made[0], check.out / "cold.png")
    if any(path.read_bytes() != made[0].read_bytes() for path in made):
        raise Failed("the same seed gave another image")
    return f"{' '.join(map(seconds, walls))} s from start to PNG, median {seconds(median(walls))} s"


def streaming(check: Check) -> str:
    check.needs_model()
    figures = []
    for cap in (4, 6, 8, 10.5):
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--gpu-memory", cap, "--steps", 4, "--size", 1024]
        row = Rows(check.bench_rows("stages/1024x1024", *on).output).first()
        text, step, decode, total = (row.number(f"{of}_ms") for of in ("text", "step", "decode", "total"))
        figures.append(f"{cap} GiB: text {text}, step {step}, decode {decode}, image {total};")
    return f"ms at 1024 x 1024 within {' '.join(figures)}"
