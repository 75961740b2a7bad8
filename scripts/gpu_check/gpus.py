"""Queries of the GPU driver."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from typing import IO, Sequence

from measure import Failed, Ran, Word, attempt

USED = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]


def ask(what: str) -> list[str]:
    """A line for each GPU; none without a driver."""
    try:
        command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return []


def overview() -> str:
    """The output of nvidia-smi without arguments."""
    try:
        ran = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return ran.stdout
    except OSError:
        return "no nvidia-smi\n"


def is_hopper() -> bool:
    return ask("compute_cap")[:1] == ["9.0"]


def multiplies_fp8() -> bool:
    capability = (ask("compute_cap") or [""])[0]
    return capability in ("8.9", "9.0") or capability.startswith("12.")


def needs_two(what: str) -> None:
    count = len(ask("name"))
    if count < 2:
        raise Failed(f"{what} need two GPUs, this machine shows {count}")


def memory_of(command: Sequence[Word], failure: str) -> tuple[Ran, int]:
    """Runs a program, and samples the driver's used memory 50 times per second. Also returns the max, in MiB."""
    idle = [int(line) for line in subprocess.run(USED, capture_output=True, text=True, check=False).stdout.split()]
    if not idle:
        raise Failed("the driver does not report the used memory")
    with tempfile.TemporaryFile("w+") as used:
        sampler = subprocess.Popen([*USED, "-lms", "20"], stdout=used)
        try:
            wait_for_first(sampler, used)
            ran = attempt(command)
        finally:
            sampler.terminate()
            sampler.wait()
        most = most_above(idle, used)
    if ran.code != 0:
        raise Failed(failure)
    return ran, most


def wait_for_first(sampler: subprocess.Popen[bytes], used: IO[str]) -> None:
    """Waits for a sample, at most as long as the start may take."""
    for _ in range(500):
        if os.fstat(used.fileno()).st_size or sampler.poll() is not None:
            return
        time.sleep(0.01)


def most_above(idle: list[int], used: IO[str]) -> int:
    """The max of the samples, which have a line for each GPU in turn."""
    used.seek(0)
    samples = re.findall(r"^ *(\d+)\n", used.read(), re.MULTILINE)
    if not samples:
        raise Failed("the used memory was not sampled")
    return max(int(value) - idle[at % len(idle)] for at, value in enumerate(samples))


def cores() -> int:
    return len(os.sched_getaffinity(0))
