"""Sections that write models with random weights, and those of the 9B model, which is deleted afterwards."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from check import Check, square
from gpus import memory_of
from measure import Failed, Rows, Word, gib, ratio, run, seconds

NINE_BYTES = 36_000_000 << 10
"""The required disk space for the 9B model."""


def write(check: Check, size: str, folder: Path) -> str:
    tokenizer = check.root / "tests/golden/qwen3-tokenizer.json.gz"
    command = check.script("make_full_size_model.py", size, folder, "--tokenizer", tokenizer)
    return f"written in {seconds(run(command, 'not written').seconds)} s"


def is_there(folder: Path) -> bool:
    return (folder / "model_index.json").exists()


def model(check: Check) -> str:
    return f"{check.klein_4b} is there" if is_there(check.klein_4b) else write(check, "4b", check.klein_4b)


@contextmanager
def nine_model(check: Check) -> Iterator[tuple[Path, str]]:
    """The 9B model and its origin. It is written unless it exists, and then deleted at the end unless KEEP is set."""
    in_memory, on_disk = check.options.memory_dir / "flux-klein-9b", check.options.models / "klein-9b"
    for folder in (in_memory, on_disk):
        if is_there(folder):
            yield folder, f"{folder} was there"
            return
    for folder in (in_memory, on_disk):
        shutil.rmtree(folder, ignore_errors=True)
    check.options.models.mkdir(parents=True, exist_ok=True)
    # The disk with the 4B model may be too small, while memory is large enough.
    folder = in_memory if free(check.options.models) < NINE_BYTES < free(check.options.memory_dir) else on_disk
    try:
        yield folder, write(check, "9b", folder)
    finally:
        if not check.options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def nine(check: Check) -> str:
    with nine_model(check) as (folder, came):
        made, capped = check.out / "nine.png", check.work / "capped.png"
        on: list[Word] = ["--device", "cuda", *square(1024)]
        row = Rows(run(check.image(folder, *on, "-o", made), "no image").output).first()
        command = check.image(folder, *on, "--gpu-memory", 5, "-o", capped)
        ran, driver_mib = memory_of(command, "no image within 5 GiB")
        if made.read_bytes() != capped.read_bytes():
            raise Failed("within 5 GiB the same seed gave another image")
    peak = gib(row.number("timings", "device", "peak_memory_bytes"))
    within_s = seconds(Rows(ran.output).first().number("total_s"))
    return (
        f"{came}; 1024 x 1024 in {seconds(row.number('total_s'))} s, peak {peak}; "
        f"within 5 GiB in {within_s} s, {driver_mib} MiB by the driver, the same bytes"
    )


def kv(check: Check) -> str:
    with nine_model(check) as (folder, came):
        names = ["stages/1024x1024", "stages/edit-1024x1024"]
        on: list[Word] = ["-d", folder, "--kv", "--device", "cuda", "--steps", 4, "--size", 1024]
        rows = Rows(check.bench_rows(*names, *on, "--references", "1,2,4").output)
    alone = rows.named("stages/1024x1024").number("step_ms")
    figures = []
    for references in (1, 2, 4):
        row = rows.named(f"stages/edit-1024x1024+{references}")
        step, made, first, second = (row.number(f"{of}_ms") for of in ("step", "references", "total", "second"))
        times = f"{ratio(step, alone):.3f} x"
        figures.append(f"with {references}: step {step} ({times}), made in {made}, prompts {first}, {second};")
    return f"{came}; ms, step without references {alone}; {' '.join(figures)}"
