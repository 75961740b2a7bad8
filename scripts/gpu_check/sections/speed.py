"""Sections that measure ops, stages and images of one GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from check import Check, square
from measure import RUNS, Failed, Rows, Word, median, run, say, seconds
from page_cache import evict, rate_of_reads, resident_bytes
from tiny_decoder import write_tiny_decoder


def totals(rows: Rows, *sizes: int) -> str:
    """A summary line from the rows of a stages bench."""
    of_sizes = ", ".join(f"{size}: {rows.of_size(size).number('total_ms')}" for size in sizes)
    return f"total ms, {of_sizes}; step at 1024: {rows.of_size(1024).number('step_ms')}"


def image(check: Check) -> str:
    command = check.image(check.tiny, "--device", "cuda", "-o", check.out / "image.png")
    row = Rows(run(command, "no image").output).first()
    return f"256 x 256 in {seconds(row.number('total_s'))} s"


def bench(check: Check) -> str:
    command: list[Word] = [check.flux, "bench", "--device", "cuda", "--size", 1024, *check.options.bench]
    output = run(command, "the bench failed", {"FLUX_MODEL": ""}).output
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
    """The main figures of edits and of encoding."""
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


def warm(check: Check) -> str:
    """Starts with the model in the page cache."""
    check.needs_model()
    rate_of_reads(weights(check.klein_4b))
    walls = starts(check, "warm", RUNS)
    return f"{' '.join(map(seconds, walls))} s from start to PNG, median {seconds(median(walls))} s"


def cold(check: Check) -> str:
    """Starts with the model on the disk, compared with the rate at which threads read the same disk."""
    check.needs_model()
    files = weights(check.klein_4b)
    if not files:
        raise Failed(f"no weights in {check.klein_4b}")
    missed: list[str] = []
    rates, walls, alone = [], [], []
    for count in range(1, 3):
        evict(files)
        alone.append(rate_of_reads(files))
        evict(files)
        [wall] = starts(check, f"cold-{count}", 1)
        read = sum(map(resident_bytes, files))
        walls.append(wall)
        rates.append(read / wall / 1e9)
        say(f"{read / 1e9:.2f} GB at {rates[-1]:.2f} GB/s, reads alone {alone[-1]:.2f} GB/s")
    share = f"{median(rates) / median(alone):.2f}"
    missed += check.misses("share of the rate of reads", share)
    if missed:
        raise Failed("; ".join(missed))
    return (
        f"{' '.join(map(seconds, walls))} s from start to PNG, {median(rates):.2f} GB/s: {share} of the "
        f"{median(alone):.2f} GB/s of reads alone"
    )


def weights(model: Path) -> list[Path]:
    return sorted(model.rglob("*.safetensors"))


def starts(check: Check, name: str, runs: int) -> list[float]:
    """Seconds from start to PNG, each in a new process. All images are the same."""
    made = [check.work / f"{name}-{count}.png" for count in range(runs)]
    walls = []
    for path in made:
        walls.append(run(check.image(check.klein_4b, "--device", "cuda", *square(1024), "-o", path), "no image").seconds)
        say(f"{path.stem}: {seconds(walls[-1])} s by the clock")
    shutil.copy(made[0], check.out / f"{name}.png")
    if any(path.read_bytes() != made[0].read_bytes() for path in made):
        raise Failed("the same seed gave another image")
    return walls


def streaming(check: Check) -> str:
    check.needs_model()
    figures = []
    for cap in (4, 6, 8, 10.5):
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--gpu-memory", cap, "--steps", 4, "--size", 1024]
        row = Rows(check.bench_rows("stages/1024x1024", *on).output).first()
        text, step, decode, total = (row.number(f"{of}_ms") for of in ("text", "step", "decode", "total"))
        figures.append(f"{cap} GiB: text {text}, step {step}, decode {decode}, image {total};")
    return f"ms at 1024 x 1024 within {' '.join(figures)}"


def lists(check: Check) -> str:
    """Images per second of `flux batch` including files, compared with the bench, which writes none. The bench generates one
    prompt 8 times and encodes it once; a list has 8 prompts, so the time of 7 more is added to that of the bench."""
    check.needs_model()
    missed: list[str] = []
    figures = [list_in(check, precision, missed) for precision in check.precisions()]
    if missed:
        raise Failed("; ".join(missed))
    return " ".join(figures)


def list_in(check: Check, precision: str, missed: list[str]) -> str:
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--precision", precision]
    row = Rows(check.bench_rows("stages/512x512", *on, "--steps", 4, "--size", 512, "--batch", 8).output).first()
    one_prompt = 8000 / row.number("total_ms")
    bench = 8000 / (row.number("total_ms") + 7 * row.number("text_ms"))
    few, many = (list_seconds(check, count, precision, on) for count in (64, 512))
    rate = (512 - 64) / (many - few)
    beside = f"the bench {bench:.2f}, of one prompt {one_prompt:.2f}"
    say(f"{precision}: {few:.2f} s and {many:.2f} s: {rate:.2f} images a second, {beside}")
    share = f"{rate / bench:.3f}"
    missed += check.misses(f"{precision} share of the bench's rate", share)
    return f"{precision}: {rate:.2f} images a second, {share} of the bench's {bench:.2f} ({one_prompt:.2f} of one prompt);"


def list_seconds(check: Check, count: int, precision: str, on: list[Word]) -> float:
    """Seconds from start to end of a list with this number of prompts."""
    prompts = check.work / f"prompts-{count}.txt"
    prompts.write_text("".join(f"a photograph of {number} boats on a lake\n" for number in range(count)), encoding="utf-8")
    out = check.work / f"list-{precision}-{count}"
    command: list[Word] = [check.flux, "batch", prompts, out, *on, *square(512), "-s", 4, "-S", 1, "-q"]
    ran = run(command, "the list failed")
    made = len(list(out.glob("*.png")))
    shutil.rmtree(out)
    if made != count:
        raise Failed(f"{made} of {count} images were generated")
    return ran.seconds


def previews(check: Check) -> str:
    """The cost of previews of each step of a 1024 x 1024 image: by the linear map, and by a decoder of TAEF2's sizes."""
    check.needs_model()
    decoder = write_tiny_decoder(check.work / "taef2.safetensors")
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", *square(1024), "-s", 12, "-S", 1, "-p", "boats on a lake"]
    shows: list[Word] = ["--show=blocks", "--show-steps"]
    ways: list[tuple[str, list[Word]]] = [("alone", []), ("map", shows), ("TAEF2", [*shows, "--preview-decoder", decoder])]
    times: dict[str, list[float]] = {name: [] for name, _ in ways}
    for _ in range(RUNS):
        for name, flags in ways:
            path = check.work / f"previews-{name}.png"
            command: list[Word] = [check.flux, *on, *flags, "--timings", "-o", path]
            ran = run(command, "no image", stderr=subprocess.STDOUT)
            steps = [float(found) for found in re.findall(r"^step \d+ +([\d.]+) ms", ran.output, re.MULTILINE)]
            if len(steps) != 12:
                raise Failed(f"{len(steps)} steps were reported")
            # The first step waits for the map, the last has no preview.
            times[name] += steps[1:-1]
            say(f"{name}: {' '.join(map(str, steps))}")
    alone, *shown = ((check.work / f"previews-{name}.png").read_bytes() for name, _ in ways)
    if any(image != alone for image in shown):
        raise Failed("previews change the image")
    # Smaller values count as the smallest reported value.
    costs = {name: f"{max(median(times[name]) - median(times['alone']), 0.01):.2f}" for name, _ in ways[1:]}
    missed = [missed for name, cost in costs.items() for missed in check.misses(f"ms of a preview by {name}", cost)]
    if missed:
        raise Failed("; ".join(missed))
    told = ", ".join(f"{cost} ms a preview by {name}" for name, cost in costs.items())
    return f"{told}, of a step of {median(times['alone']):.1f} ms; the image is the same"
