"""Sections that measure the reference, diffusers, on the same machine."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from check import Check
from measure import Failed, Ran, Rows, Word, run, seconds

from .speed import totals


def environment(check: Check) -> dict[str, str]:
    """Makes diffusers importable: the installed one, or the wheels of the bundle."""
    return _environment(check.options.python, check.work / "site", check.bundle / "wheels")


@cache
def _environment(python: str, site: Path, folder: Path) -> dict[str, str]:
    run([python, "-c", "import torch, transformers"], f"{python} lacks torch or transformers")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    finds = [python, "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('diffusers'))"]
    if subprocess.run(finds, env={**os.environ, **env}, check=False).returncode == 0:
        return env
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise Failed("diffusers is not installed, and the bundle has no wheels of it")
    install: list[Word] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        site,
        *wheels,
    ]
    run(install, "cannot install diffusers")
    return env


def bench(check: Check, *words: Word) -> Ran:
    env = environment(check)
    command = check.script("bench_reference.py", check.klein_4b, "--out", latents_folder(check), *words)
    return run(command, "the reference failed", env)


def latents_folder(check: Check) -> Path:
    return check.work / "reference"


def float32_latents(check: Check) -> Path:
    """The folder of the reference's final latents in float32, which are generated unless they exist."""
    folder = latents_folder(check)
    if not (folder / "diffusers_latents_512.safetensors").exists():
        bench(check, "--size", 512, 1024, "--fidelity")
    return folder


def reference(check: Check) -> str:
    check.needs_model()
    rows = Rows(bench(check, "--size", 512, 1024, 2048).output)
    cold = bench(check, "--size", 1024, "--cold")
    return f"{totals(rows, 512, 1024, 2048)}; cold at 1024: {seconds(cold.seconds)} s"


def compile(check: Check) -> str:
    check.needs_model()
    return totals(Rows(bench(check, "--size", 512, 1024, "--compile").output), 512, 1024)


def editing(check: Check, *words: Word) -> str:
    check.needs_model()
    rows = Rows(bench(check, "--editing", "--size", 512, 1024, 2048, *words).output)

    def of(size: int, name: str) -> float:
        return rows.of_size(size).number(name)

    return (
        f"ms, encode at 1024: {of(1024, 'encode_ms')}, 2048: {of(2048, 'encode_ms')}; "
        f"step with one reference at 512: {of(512, 'step_1_ms')}, at 1024: {of(1024, 'step_1_ms')}, "
        f"with two: {of(1024, 'step_2_ms')}"
    )


def compile_editing(check: Check) -> str:
    return editing(check, "--compile")
