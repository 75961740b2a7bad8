"""Sections about the memory of images: within budgets, and with quantized weights."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from check import Check, square
from gpus import memory_of
from measure import Failed, Rows, Word, attempt, gib, run, say, seconds

from . import reference, tests


def memory(check: Check) -> str:
    check.needs_model()
    context_mib = context(check)
    large: list[Word] = ["--device", "cuda", *square(1024)]
    resident = check.work / "resident.png"
    run(check.image(check.klein_4b, *large, "-o", resident), "no image with all memory")
    figures = [image_within(check, check.image(check.klein_4b, *large), cap, resident) for cap in (12, 8, 6, 4, 3)]
    small = check.image(check.klein_4b, "--device", "cuda", *square(512), "--gpu-memory", 2.5)
    run([*small, "-o", check.work / "small.png"], "no image of 512 x 512 within 2.5 GiB")
    refused(check, check.image(check.klein_4b, *large, "--gpu-memory", 1))
    return (
        f"start to PNG within {' '.join(figures)} 512 x 512 within 2.5 GiB; "
        f"context and code at most {context_mib} MiB; refused within 1 GiB"
    )


def context(check: Check) -> int:
    """The MiB that the driver counts and that are not tensors."""
    command = check.image(check.tiny, "--device", "cuda", "-o", check.work / "tiny.png")
    ran, driver_mib = memory_of(command, "no image of the default model")
    tensors_mib = int(peak_bytes(ran.output)) >> 20
    say(f"default model: {driver_mib} MiB by the driver, {tensors_mib} MiB of them tensors")
    context_mib = driver_mib - tensors_mib
    if context_mib > check.bounds["MiB of context"].limit:
        raise Failed(f"context, code and what the pool reserves take {context_mib} MiB")
    return context_mib


def image_within(check: Check, image: list[Word], cap: float, resident: Path) -> str:
    """Generates the image of a command within a budget in GiB. The bytes must equal those of `resident`."""
    capped = check.work / "capped.png"
    ran, driver_mib = memory_of([*image, "--gpu-memory", cap, "-o", capped], f"no image within {cap} GiB")
    if capped.read_bytes() != resident.read_bytes():
        raise Failed(f"within {cap} GiB the same seed gave another image")
    beside_mib = driver_mib - int(cap * 1024)
    say(f"{driver_mib} MiB by the driver: {beside_mib} MiB more than {cap} GiB")
    if beside_mib > check.bounds["MiB beside a limit"].limit:
        raise Failed(f"the process took {beside_mib} MiB more than {cap} GiB")
    return f"{cap} GiB: {seconds(Rows(ran.output).first().number('total_s'))} s, {beside_mib} MiB beside;"


def refused(check: Check, command: list[Word]) -> None:
    folder = check.work / "refused"
    folder.mkdir()
    ran = attempt([*command, "-o", folder / "image.png"], stderr=subprocess.PIPE)
    if ran.code != 1:
        raise Failed(f"exit {ran.code} within 1 GiB, expected 1")
    if "image needs" not in ran.errors:
        raise Failed("the error within 1 GiB does not contain the required memory")
    left = [path.name for path in folder.iterdir()]
    if left:
        raise Failed(f"a refused image left a file: {' '.join(left)}")


def peak_bytes(output: str) -> float:
    return Rows(output).first().number("timings", "device", "peak_memory_bytes")


def formats(check: Check) -> str:
    """The distance of the final latents from float32, steps with resident and with streamed weights, and the memory with all
    weights in Q4_K."""
    check.needs_model()
    folder = reference.float32_latents(check)
    ran = tests.full_size(check, ["full_size_latents_of_weights_in_few_bits"], folder)
    if ran.code != 0:
        raise Failed("the latents are too far from float32, or the test failed")
    figures = [f"{'; '.join(re.findall(r'^.*latents .* from float32.*$', ran.output, re.MULTILINE))};"]
    for name in ("q8_0", "fp8", "q4_k"):
        on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--quantize", f"transformer={name}", "--steps", 4]
        row = Rows(check.bench_rows("stages/", *on, "--size", 1024, "--gpu-memory", 2.8).output).first()
        figures.append(f"{name} within 2.8 GiB: step {row.number('step_ms')}, peak {row.number('peak_gib')} GiB;")
    made: list[Word] = ["--quantize", "q4_k", "-o", check.work / "q4_k.png"]
    command = check.image(check.klein_4b, "--device", "cuda", *square(1024), *made)
    ran, driver_mib = memory_of(command, "no image in Q4_K")
    tensors = gib(peak_bytes(ran.output))
    return f"ms, {' '.join(figures)} 1024 x 1024 all in Q4_K: {driver_mib} MiB by the driver, tensors {tensors}"
