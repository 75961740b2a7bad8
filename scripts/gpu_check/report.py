"""The texts of a check: help, the machine, and the results of sections."""

from __future__ import annotations

import datetime
import re
import textwrap
from pathlib import Path
from typing import Iterable

import gpus
from check import Check
from table import SECTIONS

USE = "python3 scripts/gpu_check OUT all|SECTION..."

ABOUT = """Runs the bundle of `make gpu-bundle`, in the root of the project that contains gpu-bundle/, or in a standalone bundle.
A section writes OUT/SECTION.log, is stopped at its time limit, and adds a line to OUT/summary.txt."""

ENVIRONMENT = """Environment:
  MODEL_DIR        folder for models: 17 GB, and 35 GB more for `nine` and `kv` [default: /tmp/flux-models]
  MEMORY_DIR       folder for the 9B model if it does not fit in MODEL_DIR [default: /dev/shm]
  KEEP             if set, keeps the 9B model for a later section
  TOTAL_S          max seconds from the start to the end of the last section [default: 540]
  LIMIT_S          time limit of every section, instead of its own
  TESTS            parity tests to run: parts of their names
  BENCH            ops to measure: parts of their names
  BASE             program for `compare` [default: the PROGRAM of `make gpu-bundle BASE=PROGRAM`]
  PYTHON           a Python with torch and transformers [default: the running Python]

Exit codes: 0 all passed, 1 a section failed or had no time left, 2 wrong usage."""


def sections() -> str:
    """The sections, for the help."""

    def lines(in_all: bool) -> list[str]:
        width = 2 + max(len(section.name) for section in SECTIONS) + 2
        return [
            textwrap.fill(
                section.words, 130, initial_indent=f"  {section.name}".ljust(width), subsequent_indent=" " * width
            )
            for section in SECTIONS
            if section.in_all == in_all
        ]

    more = "  sanitize         memcheck, racecheck, initcheck"
    return "\n".join(["Sections, in the order of `all`:", *lines(True), "And:", *lines(False), more])


def machine(check: Check, words: Iterable[str]) -> str:
    """The head of a summary."""
    commit = check.bundle / "COMMIT"
    gpu = gpus.ask("name,driver_version,memory.total")[:1] or ["no driver"]
    cuda = re.search(r"CUDA Version: [0-9.]*", gpus.overview())
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    lines = {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
        "commit": commit.read_text(encoding="utf-8").strip() if commit.exists() else "unknown",
        "gpu": gpu[0],
        "cuda": cuda[0] if cuda else "no driver",
        "cpu": f"{model[1] if model else 'unknown'}, {gpus.cores()} cores",
        "command": f"python3 scripts/gpu_check OUT {' '.join(words)}",
    }
    return "".join(f"{name:<9}{value}\n" for name, value in lines.items())


def line_of(log: Path, limit_s: int | None) -> str:
    """The summary line of a section from its log, and its time limit if it was stopped there."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    results = [line[len("result: ") :] for line in lines if line.startswith("result: ")]
    line = results[-1] if results else lines[-1]
    return line if limit_s is None else f"stopped at its limit of {limit_s} s; {line}"


def summary_line(name: str, status: str, seconds: float, line: str) -> str:
    return f"{name:<10} {status:<8} {int(seconds):4d} s  {line}"
