"""What a check says of itself, of the machine, and of how sections ended."""

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

ABOUT = """Runs what `make gpu-bundle` gathered, in the root of the project with gpu-bundle/ in it, or inside a standalone bundle.
A section writes OUT/SECTION.log, ends after its limit, and gives a line in OUT/summary.txt."""

ENVIRONMENT = """Environment:
  MODEL_DIR        where models are written; 17 GB, for `nine` and `kv` 35 GB more [default: /tmp/flux-models]
  MEMORY_DIR       where the 9B model is written when it does not fit there [default: /dev/shm]
  KEEP             keeps the 9B model for a later section where it is set
  TOTAL_S          when the last section ends, in seconds after the start [default: 540]
  LIMIT_S          the limit of every section, in place of its own
  TESTS            which parity tests run: parts of their names
  BENCH            which ops are measured: parts of their names
  BASE             what `compare` measures beside [default: what `make gpu-bundle BASE=PROGRAM` brought]
  PYTHON           a Python with torch and transformers [default: the one that runs this]

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
    """The line of a section whose log is given, and which was stopped at a limit or ended by itself."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    results = [line[len("result: ") :] for line in lines if line.startswith("result: ")]
    line = results[-1] if results else lines[-1]
    return line if limit_s is None else f"stopped at its limit of {limit_s} s; {line}"


def summary_line(name: str, status: str, seconds: float, line: str) -> str:
    return f"{name:<10} {status:<8} {int(seconds):4d} s  {line}"
