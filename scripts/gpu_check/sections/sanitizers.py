"""Sections that run the parity tests under the tools of compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import gpus
from check import Check
from measure import Failed, Word, say

from .tests import SEPARATE_QUEUES

# The work of a test in a child process is run here directly: attention without the kernel that the GPU would get. Tests that
# make the driver refuse a call on purpose, or need no GPU, are skipped.
SKIPPED = [
    "full_size",
    "asked_for",
    "single_blocks_and_pairs",
    "an_unknown_kernel",
    "work_that_cannot_be_captured",
    "the_definition_rounds",
]
# Two of the tools fail with matrix multiplications by cuBLASLt on Hopper: racecheck breaks some of them (with an illegal address,
# even if it checks no kernel) and finds races in others, and initcheck does not see their writes (although the same test finds
# the values right). So our own kernels compute all multiplications there. Tests of cuBLASLt itself are skipped, and whole
# images, which take too long.
SKIPPED_BUT_BY_MEMCHECK = [
    "pipeline::",
    "linear::the_choice",
    "linear::without_a_cache",
    "linear::timing",
    "fp8::sums",
    "fp8::the_default",
    "fp8_weights::images",
    "norm_conv2d::an_image",
]
# Kernels whose blocks write to each other's shared memory are replaced by those for all GPUs: with the one of `project` under
# these tools, a machine stopped responding.
PLAIN_KERNELS = {"FLUX_ATTENTION": "sm90-single", "FLUX_PROJECT": "base", "FLUX_LOW_RANK": "base"}
ATTENTION = "attention::every_head_size_matches_the_cpu"
LIMIT_S = 150


class Checked(NamedTuple):
    """A test that ran under a tool."""

    name: str
    code: int
    seconds: float
    printed: str


def memcheck(check: Check) -> str:
    return sanitized(check, "memcheck")


def racecheck(check: Check) -> str:
    return sanitized(check, "racecheck")


def initcheck(check: Check) -> str:
    return sanitized(check, "initcheck")


def sanitized(check: Check, tool: str) -> str:
    flags = ["--tool", tool, "--target-processes", "application-only", "--error-exitcode", "9", "--print-limit", "200"]
    command: list[Word] = [sanitizer(), *flags]
    skip, env = list(SKIPPED), {**SEPARATE_QUEUES, "FLUX_PARITY_SIZES": "few" if tool == "racecheck" else "small"}
    if not any("parallel" in name for name in check.options.tests):
        skip.append("parallel::")  # ranks share the GPU, and are slow under a tool
    if tool != "memcheck":
        skip += SKIPPED_BUT_BY_MEMCHECK
        env |= {"FLUX_GEMM": "own", **(PLAIN_KERNELS if gpus.is_hopper() else {})}
    names = tests_of(check, skip)
    chosen = " ".join(f"{name}={env.get(name, '')}" for name in ("FLUX_GEMM", "FLUX_ATTENTION", "FLUX_PROJECT"))
    say(f"{len(names)} tests; {chosen}")
    tests = [(ATTENTION, {**env, "FLUX_ATTENTION": "base"}), *((name, env) for name in names)]
    return told(tests_under(command, check.gpu_tests, tests))


def sanitizer() -> Path:
    found = shutil.which("compute-sanitizer")
    places = [Path(found)] if found else sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    if not places:
        raise Failed("compute-sanitizer is not installed")
    return places[-1]


def tests_of(check: Check, skip: list[str]) -> list[str]:
    flags = [word for name in skip for word in ("--skip", name)]
    command = [check.gpu_tests, "--list", "--format", "terse", *flags, *check.options.tests]
    listed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False).stdout
    return re.findall(r"^(.*): test$", listed, re.MULTILINE)


def tests_under(command: list[Word], program: Path, tests: list[tuple[str, dict[str, str]]]) -> list[Checked]:
    """Runs each test in its own process. A tool keeps one CPU core busy, and racecheck also the GPU, so several tests run at
    once; the output of a test goes to the log when it ends."""
    alone, running = threading.Lock(), set()

    def one(name: str, env: dict[str, str]) -> Checked:
        words = ["timeout", "--kill-after", "10", str(LIMIT_S), *command, program, "--test-threads", 1, "--exact", name]
        start = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        with alone:
            running.add(process)
        printed = process.communicate()[0]
        with alone:
            running.remove(process)
            say(f"{printed}\n== {name}: exit {process.returncode}")
        return Checked(name, process.returncode, time.monotonic() - start, printed)

    pool = ThreadPoolExecutor((gpus.cores() + 1) // 2)
    try:
        return [future.result() for future in [pool.submit(one, *test) for test in tests]]
    finally:
        # Also if the section is stopped: `timeout` has its own process group, which a signal to the section does not reach.
        for process in list(running):
            process.terminate()
        pool.shutdown(cancel_futures=True)


def told(checked: list[Checked]) -> str:
    printed = "\n".join(test.printed for test in checked)
    found = Counter(re.findall(r"at [A-Za-z_][A-Za-z0-9_:]*", printed)).most_common(20)
    if found:
        say("Findings by location:")
        for what, count in found:
            say(f"{count:7} {what}")
    say("The slowest tests, in seconds:")
    for test in sorted(checked, key=lambda test: -test.seconds)[:10]:
        say(f"{test.seconds:.2f} {test.name} {test.code}")
    failed = [test.name for test in checked if test.code != 0]
    summaries = re.findall(r"^=* *(.*(?:ERROR|RACECHECK) SUMMARY.*)$", printed, re.MULTILINE)
    ends = ";".join(f"{count} {summary}" for summary, count in sorted(Counter(summaries).items()))
    line = f"{len(checked) - len(failed)} of {len(checked)} tests passed; {ends}"
    if failed:
        say(f"result: {line}")
        raise Failed(f"failed: {' '.join(failed)}")
    return line
