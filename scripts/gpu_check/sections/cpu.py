"""The section of the CPU's tile unit."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Sequence

from check import Check, square
from measure import Failed, Rows, Word, attempt, run, say, seconds

from . import reference

TWO_CORES = ["taskset", "-c", "0,1"]
AMX = {"FLUX_REQUIRE_AMX": "1"}


def cpu(check: Check) -> str:
    if "amx_bf16" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return "skipped: this processor has no AMX-BF16"
    check.needs_model()
    figures, ours = [], 0.0
    for precision in ("f32", "bf16"):
        made = check.out / f"cpu-{precision}.png"
        on: list[Word] = ["--device", "cpu", "--precision", precision, *square(256), "-o", made]
        output, wall_s, peak_mib = sampled([*TWO_CORES, *check.image(check.klein_4b, *on)], f"no image in {precision}")
        ours = Rows(output).first().number("total_s")
        figures.append(f"{precision} {seconds(wall_s)} s, {peak_mib} MiB of its own;")
        say(f"{precision}: {seconds(wall_s)} s by the clock, peak of RssAnon {peak_mib} MiB")
    figures.append(f"in bf16 from start to PNG {seconds(ours)} s, {of_reference(check)};")
    both = [check.out / f"cpu-{precision}.png" for precision in ("f32", "bf16")]
    psnr = run([check.flux, "compare", *both], "the images cannot be compared").output.strip()
    units(check)
    return f"{' '.join(figures)} {psnr}"


def of_reference(check: Check) -> str:
    """The reference on the same cores. Its time excludes the start of Python and loading; ours is the whole process."""
    env = {**reference.environment(check), "OMP_NUM_THREADS": "2"}
    words: list[Word] = [check.klein_4b, "--out", check.work, "--device", "cpu", "--size", 256, "--cold"]
    command = [*TWO_CORES, *check.script("bench_reference.py", *words)]
    row = Rows(run(command, "the reference failed", env).output).first()
    return f"the reference from prompt to image {row.number('image_s')} s"


def units(check: Check) -> None:
    products = check.bin / "cpu_gemm"
    run(
        ["env", "-C", check.root, check.bin / "units", "--nocapture", "backend::cpu"],
        "the unit tests of the CPU failed",
        AMX,
    )
    run([products, "--nocapture"], "the matrix multiplications of the tile unit are wrong", AMX)
    # Speeds, for the log.
    speeds: list[Word] = [products, "--ignored", "--nocapture", "--test-threads", 1]
    attempt(["timeout", 30, *TWO_CORES, *speeds], AMX)


def sampled(command: Sequence[Word], failure: str) -> tuple[str, float, int]:
    """Runs a program; returns its output, its seconds, and its max anonymous memory in MiB, sampled 20 times per second."""
    start, peak_kib = time.monotonic(), 0
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        peak_kib = max(peak_kib, own_kib(process.pid))
        time.sleep(0.05)
    output = process.stdout.read() if process.stdout else ""
    say(output.rstrip("\n"))
    if process.returncode != 0:
        raise Failed(failure)
    return output, time.monotonic() - start, peak_kib // 1024


def own_kib(process: int) -> int:
    """The anonymous memory, or 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0
