"""Runs programs and reads their measurements."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Sequence, Union

RUNS = 5
"""The number of runs for a median."""

Word = Union[str, Path, int, float]


class Failed(Exception):
    """Ends a section: its line of the summary, and its exit code."""

    def __init__(self, line: str, code: int = 1) -> None:
        super().__init__(line)
        self.line, self.code = line, code


@dataclass(frozen=True)
class Ran:
    """A program that has ended. `errors` is empty if they went to the log directly."""

    code: int
    output: str
    errors: str
    seconds: float


def say(text: object = "") -> None:
    print(text, flush=True)


def attempt(command: Sequence[Word], env: dict[str, str] | None = None, stderr: int | None = None) -> Ran:
    """Runs a program; its output goes to the log line by line and is returned. Errors go to the log, or are also returned:
    in the output with STDOUT, separately with PIPE."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as beside:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=beside if stderr == subprocess.PIPE else stderr,
            encoding="utf-8",
            errors="replace",
        )
        lines = []
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
        code = process.wait()
        seconds = time.monotonic() - start
        beside.seek(0)
        errors = beside.read()
    if errors:
        say(errors.rstrip("\n"))
    return Ran(code, "".join(lines), errors, seconds)


def run(command: Sequence[Word], failure: str, env: dict[str, str] | None = None, stderr: int | None = None) -> Ran:
    """Runs a program that must exit with 0: otherwise the section ends with `failure` and the errors of the program, if they
    were captured."""
    ran = attempt(command, env, stderr)
    if ran.code != 0:
        kept = {subprocess.PIPE: ran.errors, subprocess.STDOUT: ran.output}.get(stderr or 0, "")
        raise Failed(f"{failure}: {kept.strip()}" if kept.strip() else failure)
    return ran


class Row(dict[str, Any]):
    """A line of JSON."""

    def number(self, *names: str) -> float:
        """A number, by the names of its parent objects and its own name."""
        value: Any = self
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Failed(f"no number {'.'.join(names)} in {json.dumps(self)}")
        return value

    def has(self, name: str) -> bool:
        return self.get(name) is not None


class Rows(list[Row]):
    """The JSON lines in the output of a program."""

    def __init__(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("{"):
                try:
                    self.append(Row(json.loads(line)))
                except ValueError:
                    raise Failed(f"not JSON: {line}") from None

    def named(self, name: str) -> Row:
        return self._first("name", name)

    def of_size(self, size: int) -> Row:
        return self._first("size", size)

    def first(self) -> Row:
        if not self:
            raise Failed("nothing was measured")
        return self[0]

    def _first(self, key: str, value: object) -> Row:
        for row in self:
            if row.get(key) == value:
                return row
        raise Failed(f"no row with {key} {value}")


@dataclass(frozen=True)
class Bound:
    """The bound of a figure. NaN, and values up to 0 with a max bound, are outside."""

    words: str
    limit: float

    def holds(self, value: float) -> bool:
        return 0 < value <= self.limit if self.words == "at most" else value >= self.limit

    def missed_by(self, what: str, value: str) -> str:
        limit = self.limit if isinstance(self.limit, int) else f"{self.limit:.2f}"
        return f"{what}: {value}, expected {self.words} {limit}"


def at_most(limit: float) -> Bound:
    return Bound("at most", limit)


def at_least(limit: float) -> Bound:
    return Bound("at least", limit)


def ratio(of: float, to: float) -> float:
    return of / to if to else math.nan


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def seconds(value: float) -> str:
    return f"{value:.2f}"


def gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"
