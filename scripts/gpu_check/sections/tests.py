"""Sections that run tests of the bundle."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Sequence

import gpus
from check import Check, square
from measure import Failed, Ran, Rows, Word, attempt, run, seconds

from . import reference

SEPARATE_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Each stream gets its own queue, which ranks that share a GPU need: with a shared queue, a waiting stream could block the
stream that it waits for."""


def test_line(output: str) -> str:
    """The summary of the tests: `test result: ok. 193 passed; 0 failed`."""
    for line in output.splitlines():
        if line.startswith("test result"):
            return ";".join(line.split(";")[:2])
    return "no test result"


def passed(ran: Ran, line: str) -> str:
    if ran.code != 0:
        raise Failed(line, ran.code)
    return line


def parity(check: Check) -> str:
    skip = ["--skip", "full_size", "--skip", "parallel::"]
    command: list[Word] = [check.gpu_tests, "--test-threads", 4, "--nocapture", *skip, *check.options.tests]
    # One queue, as in the program if GPUs do not share an image.
    ran = attempt(command, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    return passed(ran, test_line(ran.output))


def machine(check: Check) -> str:
    """The output of `flux devices` and `flux selftest` for the first GPU. The bundle's program has no model."""
    found = json.loads(run([check.flux, "devices", "--json"], "`flux devices` failed").output)
    gpu = next(iter(found["gpus"]), None)
    if gpu is None or gpu["device"] != "cuda:0" or gpu["unusable"] or gpu["computes_in"] not in ("bf16", "fp16"):
        raise Failed(f"the first GPU is not reported as usable: {gpu or found['no_gpu']}")
    if gpu["fp8"] != gpus.multiplies_fp8():
        raise Failed(f"fp8 is {gpu['fp8']}: {gpu['without_fp8']}")
    if not 0 < (gpu["free_bytes"] or 0) <= gpu["memory_bytes"]:
        raise Failed(f"{gpu['free_bytes']} bytes of {gpu['memory_bytes']} are free")
    ran = attempt([check.flux, "selftest", "--device", "cuda:0", "--json"])
    # If a test fails, an error follows.
    tested, _ = json.JSONDecoder().raw_decode(ran.output)
    wrong = [row["name"] for row in tested["findings"] if not row["ok"]]
    line = f"{gpu['name']}, {gpu['kernels']}; {len(tested['findings'])} tests in {ran.seconds:.0f} s, {len(wrong)} failed"
    return passed(ran, ": ".join([line, *filter(None, [", ".join(wrong)])]))


# Skips tests that are the same in any type, and tests that use a weight as a tensor, which fails in fp16.
NOT_IN_FP16 = [
    "dequantize::",
    "fp8::",
    "fp8_weights::",
    "memory::",
    "graph::",
    "streaming::",
    "adapters::",
    "meaning::",
    "parallel::",
]


def half(check: Check) -> str:
    check.needs_model()
    figures = [image_in_fp16(check, size) for size in (512, 1024)]
    skip = [word for name in ["full_size", *NOT_IN_FP16] for word in ("--skip", name)]
    command: list[Word] = [check.gpu_tests, "--test-threads", 8, "--nocapture", *skip, *check.options.tests]
    ran = attempt(command, {"FLUX_COMPUTE": "fp16", "FLUX_PARITY_SIZES": "small"}, stderr=subprocess.STDOUT)
    apart = re.findall(r"^[0-9]*\.png .*: ([0-9.]*) dB$", ran.output, re.MULTILINE)
    least = [f"default model {min(apart, key=float)} dB from float32;"] if apart else []
    return passed(ran, " ".join([f"{test_line(ran.output)};", *least, *figures]))


def image_in_fp16(check: Check, size: int) -> str:
    made, beside = check.out / f"half-{size}.png", check.work / f"bf16-{size}.png"
    command = check.image(check.klein_4b, "--device", "cuda", *square(size), "-o")
    loud = [word for word in command if word != "--quiet"]
    ran = run([*loud, made], f"no image of {size} x {size}", {"FLUX_COMPUTE": "fp16"}, stderr=subprocess.PIPE)
    if "fp16" not in ran.output:
        raise Failed("it did not compute in fp16")
    if "clamped" in ran.errors:
        raise Failed(f"at {size} x {size} values were clamped")
    bf16 = run([*command, beside], "no image in bf16", {"FLUX_COMPUTE": ""})
    psnr = run([check.flux, "compare", beside, made], "the images cannot be compared").output.strip()
    fp16_s, bf16_s = (seconds(Rows(one.output).first().number("total_s")) for one in (ran, bf16))
    return f"{size}: {fp16_s} s, in bf16 {bf16_s} s, apart {psnr};"


def fidelity(check: Check) -> str:
    check.needs_model()
    folder = reference.float32_latents(check)
    words = ["--test-threads", "1", "--skip", "few_bits", "full_size"]
    ran = full_size(check, words, folder, SEPARATE_QUEUES)
    if "1024 x 1024: " not in ran.output:
        raise Failed("ours did not get to 1024 x 1024")
    return passed(ran, "; ".join(re.findall(r"[0-9]+ x [0-9]+(?: edited)?: .* bf16 [0-9.]+", ran.output)))


def full_size(
    check: Check, words: Sequence[str], folder: Path, env: dict[str, str] | None = None, model: Path | None = None
) -> Ran:
    """Tests of the 4B model, or another model, against the reference's latents in a folder."""
    env = {**(env or {}), "FLUX_FULL_MODEL": str(model or check.klein_4b), "FLUX_REFERENCE": str(folder)}
    return attempt([check.gpu_tests, "--nocapture", *words], env)
