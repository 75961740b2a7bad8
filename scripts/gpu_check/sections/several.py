"""Sections of two GPUs."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gpus
from check import PROMPT, Check, square
from measure import RUNS, Failed, Rows, Word, attempt, median, ratio, run, say, seconds

from .tests import SEPARATE_QUEUES, test_line

TIMES = ("text_ms", "encode_ms", "prepare_ms", "step_ms", "decode_ms", "total_ms", "second_ms")


@dataclass(frozen=True)
class Images:
    """The images of a command."""

    device: str
    folder: str
    count: int = 1
    side: int = 1024
    seed: int = 42
    flags: tuple[str, ...] = ()

    def draw(self, check: Check) -> float:
        """Seconds from start to the last PNG."""
        folder = check.work / self.folder
        folder.mkdir(exist_ok=True)
        on: list[Word] = ["--device", self.device, "-n", self.count, *square(self.side), "-o", folder / "image.png"]
        command = check.image(check.klein_4b, *on, *self.flags, seed=self.seed)
        taken_s = run(command, f"no images by {self.device}").seconds
        say(f"{self.device}: {self.count} images in {seconds(taken_s)} s by the clock")
        return taken_s


def image_with_words(check: Check, *words: Word) -> str:
    """The verbose output of an image on both GPUs."""
    start: list[Word] = [
        check.flux,
        "-d",
        check.klein_4b,
        "--prompt",
        PROMPT,
        "--steps",
        4,
        "-v",
        "--device",
        "cuda:0,1",
    ]
    return run([*start, *words], "no image", stderr=subprocess.STDOUT).output


def gpus_together(check: Check) -> str:
    ran = attempt([check.gpu_tests, "--test-threads", 1, "--nocapture", "parallel::"], SEPARATE_QUEUES)
    tests = test_line(ran.output)
    say(f"result: {tests}")
    gpus.needs_two("images by two")
    check.needs_model()
    figures: list[str] = []
    missed = stages_by_two(check, figures)
    drawn = starts(check)
    medians = [median(times) for times in drawn]
    one_s, both_s, large_s, auto_s = map(seconds, medians)
    line = (
        f"two GPUs / one: {' '.join(figures)} from start to PNG at 1024 x 1024 {both_s} s by two, {one_s} s by one, "
        f"at 2048 x 2048 {auto_s} s by two, {large_s} s by one"
    )
    share = f"{ratio(medians[3], medians[2]):.3f}"
    missed += check.misses("start to PNG at 2048 x 2048 by two GPUs, beside one", share)
    failures = [f"{miss};" for miss in missed] + ([tests] if ran.code != 0 else [])
    if failures:
        say(f"result: {line}")
        raise Failed(" ".join(failures))
    return line


def stages_by_two(check: Check, figures: list[str]) -> list[str]:
    """Adds the times of two GPUs relative to one to the figures. Returns those outside of their bounds."""
    names = ["stages/512x512", "stages/1024x1024", "stages/2048x2048", "stages/edit-1024x1024"]
    missed = shares(check, "bf16", "512,1024,2048", names, figures)
    if gpus.is_hopper():
        missed += shares(check, "fp8", "1024", ["stages/1024x1024"], figures)
    guided = ["stages/1024x1024", "--variant", "base"]
    missed += shares(check, "bf16", "1024", guided, figures, label="bf16 with guidance")
    host = {"FLUX_PEER_ACCESS": "0"}
    return missed + shares(check, "bf16", "1024", ["stages/1024x1024"], figures, host, label="bf16 through the host")


def shares(
    check: Check,
    precision: str,
    sizes: str,
    names: list[str],
    figures: list[str],
    env: dict[str, str] | None = None,
    label: str = "",
) -> list[str]:
    label, missed = label or precision, []
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda:0,1", "--precision", precision, "--steps", 4]
    rows = Rows(check.bench_rows(*names, *on, "--size", sizes, "--references", 1, "--runs", RUNS, env=env).output)
    say(f"\n{label + ', ms':<40} {'one GPU':>10} {'two GPUs':>10} {'two / one':>10}")
    for name in [row["name"][: -len(" over 2")] for row in rows if row.get("name", "").endswith(" over 2")]:
        one, both = rows.named(name), rows.named(f"{name} over 2")
        for field in TIMES:
            if one.has(field) and both.has(field):
                times = one.number(field), both.number(field)
                say(f"{name + ' ' + field:<40} {times[0]:10.2f} {times[1]:10.2f} {ratio(times[1], times[0]):10.3f}")
        what, figure = f"{label} {name[len('stages/') :]}", []
        for stage, field in (("step", "step_ms"), ("decode", "decode_ms"), ("image", "total_ms")):
            share = f"{ratio(both.number(field), one.number(field)):.3f}"
            figure.append(f"{stage} {share}")
            missed += check.misses(f"{what} {stage}", share)
        figures.append(f"{what} {' '.join(figure)};")
    return missed


def starts(check: Check) -> tuple[list[float], list[float], list[float], list[float]]:
    """Seconds from start to PNG: on one GPU and on two, and of a larger image on one and on an automatic number."""
    one, both = Images("cuda:0", "one"), Images("cuda:0,1", "both", flags=("--parallel", "2"))
    large, auto = Images("cuda:0", "large", side=2048), Images("cuda:0,1", "auto", side=2048)
    for images in (one, both):
        images.draw(check)
    files = [check.work / images.folder / "image.png" for images in (one, both)]
    least = check.bounds["dB of two GPUs beside one"].limit
    run([check.flux, "compare", "--min-psnr", least, *files], "two GPUs gave another image than one")
    # The choice of `--parallel auto` for this size and these steps must be faster.
    words = image_with_words(check, *square(2048), "-o", check.work / "auto.png")
    if not re.search(r"^two GPUs share each image|are of different kinds or not linked", words, re.MULTILINE):
        raise Failed("two GPUs do not share an image of 2048 x 2048 by default")
    runs = [[images.draw(check) for images in (one, both, large, auto)] for _ in range(RUNS)]
    ones, boths, larges, autos = ([times[at] for times in runs] for at in range(4))
    return ones, boths, larges, autos


def exchange(check: Check) -> str:
    gpus.needs_two("exchanges")
    figures: list[str] = []
    slower: list[str] = []
    for peers, label in ((True, "into each other's memory"), (False, "through memory of the host")):
        figures.append(label)
        exchange_by(check, peers, label, figures, slower)
    line = f"us of a block, ours / NCCL: {' '.join(figures)}"
    if slower:
        say(f"result: {line}")
        raise Failed(f"slower than NCCL: {' '.join(slower)}")
    return line


def exchange_by(check: Check, peers: bool, label: str, figures: list[str], slower: list[str]) -> None:
    sizes = ["--size", "512,1024,2048"]
    # Without a model, the shapes are those of klein 4B, as for NCCL.
    env = {"FLUX_MODEL": "", "FLUX_PEER_ACCESS": str(int(peers))}
    ours = Rows(check.bench_rows("exchange/", "--device", "cuda:0,1", *sizes, env=env).output)
    notes = [row["note"] for row in ours if row.has("note")]
    if peers and notes:
        raise Failed(f"these GPUs do not reach each other's memory: {'; '.join(notes)}")
    flags = [] if peers else ["--no-peer-access"]
    theirs = Rows(run(check.script("bench_nccl.py", *flags, *sizes), "NCCL was not measured").output)
    for size in (512, 1024, 2048):
        own, nccl = (
            rows.named(f"{who}/{size}x{size} over 2").number("block_us")
            for who, rows in (("exchange", ours), ("nccl", theirs))
        )
        figures.append(f"{size}: {own} / {nccl};")
        if not check.bounds["ours / NCCL"].holds(ratio(own, nccl)):
            slower.append(f"{label} at {size}: {own}, NCCL {nccl};")


def replicas(check: Check) -> str:
    gpus.needs_two("replicas")
    check.needs_model()
    Images("cuda:0", "warm").draw(check)
    words = image_with_words(check, "--seed", 42, "-n", 2, *square(1024), "-o", check.work / "copied.png")
    copied = re.search(r"^cuda:1: (.* GB of weights were copied) ", words, re.MULTILINE)
    medians = [median(times) for times in same_images(check)]
    one_s, two_s = map(seconds, medians)
    factors, missed = replica_factors(check)
    more = f"{ratio(medians[1], medians[0]):.3f}"
    line = (
        f"two GPUs make {' '.join(factors)} times the images of one; from start to PNG two images {two_s} s by two, "
        f"one {one_s} s by one ({more}); the same bytes; {copied[1] if copied else 'no weights were copied'}"
    )
    missed += check.misses("start to PNG of two GPUs, beside one", more)
    if missed:
        say(f"result: {line}")
        raise Failed("; ".join(missed))
    return line


def same_images(check: Check) -> tuple[list[float], list[float]]:
    """Seconds of one image on one GPU and of two images on both, which must have the bytes of images on one."""
    one_s, two_s = [], []
    # One image per GPU, so that the bytes equal those of single images.
    for count in range(RUNS):
        one_s.append(Images("cuda:0", f"one-{count}").draw(check))
        two_s.append(Images("cuda:0,1", f"two-{count}", count=2).draw(check))
    # Eight images run as 4 and 4, so one GPU with the last 4 seeds generates the same.
    Images("cuda:0,1", "shared", count=8).draw(check)
    Images("cuda:1", "second", seed=43).draw(check)
    Images("cuda:1", "half", count=4, seed=46).draw(check)
    for count in range(RUNS):
        same_image(check.work, f"one-{count}/image", f"two-{count}/image-42")
        same_image(check.work, "second/image", f"two-{count}/image-43")
    for seed in range(46, 50):
        same_image(check.work, f"half/image-{seed}", f"shared/image-{seed}")
    return one_s, two_s


def same_image(work: Path, by_one: str, by_two: str) -> None:
    if (work / f"{by_one}.png").read_bytes() != (work / f"{by_two}.png").read_bytes():
        raise Failed(f"{by_two}: two GPUs gave another image than one")


def replica_factors(check: Check) -> tuple[list[str], list[str]]:
    """The throughput of two GPUs relative to one, and the figures outside of their bounds."""
    factors, missed = [], []
    for batch in (1, 4):
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda:0,1", "--steps", 4, "--size", "512,1024"]
        rows = Rows(check.bench_rows("replicas", *on, "--batch", batch).output)
        for size in (512, 1024):
            factor = str(rows.named(f"replicas/{size}x{size} x 2").number("factor"))
            factors.append(f"{size} by {batch}: {factor},")
            missed += check.misses(f"the factor of {size} by {batch}", factor)
    return factors, missed
