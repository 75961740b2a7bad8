"""A check of this machine: paths, and settings from the environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping

import gpus
from measure import Bound, Failed, Ran, Word, run

PROMPT = "A cat holding a sign that says hello world"


class Refused(Exception):
    """Stops before anything runs: the error, a hint, and the exit code."""

    def __init__(self, text: str, hint: str = "", code: int = 1) -> None:
        super().__init__(f"{text}\n  hint: {hint}" if hint else text)
        self.code = code


@dataclass(frozen=True)
class Options:
    """The settings from the environment; see `--help`."""

    models: Path
    memory_dir: Path
    keep: bool
    total_s: int
    limit_s: int | None
    tests: list[str]
    bench: list[str]
    base: Path | None
    python: str

    @staticmethod
    def of_environment() -> Options:
        def text(name: str, default: str) -> str:
            return os.environ.get(name) or default

        def count(name: str) -> int | None:
            value = text(name, "")
            if value and not (value.isascii() and value.isdigit() and int(value) > 0):
                raise Refused(f"{name} is `{value}`, expected a number of seconds", code=2)
            return int(value) if value else None

        base = text("BASE", "")
        return Options(
            models=Path(text("MODEL_DIR", "/tmp/flux-models")).absolute(),
            memory_dir=Path(text("MEMORY_DIR", "/dev/shm")).absolute(),
            keep=bool(text("KEEP", "")),
            total_s=count("TOTAL_S") or 540,
            limit_s=count("LIMIT_S"),
            tests=text("TESTS", "").split(),
            bench=text("BENCH", "ops/").split(),
            base=Path(base).absolute() if base else None,
            python=text("PYTHON", sys.executable),
        )


@dataclass(frozen=True)
class Check:
    """`root` is the project's folder, or a folder with the files of the tests; `work` is deleted at the end, `out` is kept."""

    options: Options
    bundle: Path
    root: Path
    out: Path
    work: Path
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    @property
    def bin(self) -> Path:
        return self.work / "bin"

    @property
    def flux(self) -> Path:
        return self.bin / "flux"

    @property
    def gpu_tests(self) -> Path:
        return self.bin / "gpu"

    @property
    def tiny(self) -> Path:
        return self.root / "models/tiny"

    @property
    def klein_4b(self) -> Path:
        return self.options.models / "klein-4b"

    def script(self, name: str, *words: Word) -> list[Word]:
        """Runs a Python script from the parent folder, with the packages of the reference."""
        return [self.options.python, Path(__file__).resolve().parent.parent / name, *words]

    def image(self, model: Path, *words: Word, seed: int = 42) -> list[Word]:
        """The command for an image, the same in all sections."""
        start: list[Word] = [self.flux, "-d", model, "--prompt", PROMPT, "--seed", seed, "--steps", 4]
        return [*start, "--quiet", "--timings=json", *words]

    def bench_rows(self, *words: Word, env: dict[str, str] | None = None) -> Ran:
        return run([self.flux, "bench", *words, "--json"], "the bench failed", env)

    def needs_model(self) -> None:
        if not (self.klein_4b / "model_index.json").exists():
            raise Failed(f"no model in {self.klein_4b}: run the section `model`")

    def precisions(self) -> list[str]:
        return ["bf16", "fp8"] if gpus.is_hopper() else ["bf16"]

    def misses(self, what: str, shown: str) -> list[str]:
        """The message for a figure outside of its bound in the table, if any."""
        bound = self.bounds.get(what)
        return [] if bound is None or bound.holds(float(shown)) else [bound.missed_by(what, shown)]


def square(side: int) -> list[Word]:
    return ["-W", side, "-H", side]
