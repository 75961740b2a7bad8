"""The output of a run: lines with the time, the duration of each phase, and errors with hints."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

from settings import Settings

started = time.monotonic()

# The phases that write files for others, by file name.
LEFT_BY = {"data.zip": "data", "scenes.npz": "scenes", "vae": "vae", "latents": "latents", "start": "start", "base": "base", "tune": "tune",
           "final": "distill` or `refine"}  # fmt: skip


class UserError(Exception):
    """An error and its hint, printed without a traceback."""

    def __init__(self, what: str, hint: str):
        super().__init__(f"error: {what}\n  hint: {hint}")


def left(settings: Settings, name: str) -> Path:
    """A file or folder of an earlier phase. Errors if it does not exist."""
    path = settings.work / name
    if not path.exists():
        raise UserError(f"`{path}` is missing", f"run the phase `{LEFT_BY[name]}` first, or pass its `--work`")
    return path


def log(text: str) -> None:
    print(f"[{time.monotonic() - started:7.1f} s] {text}", flush=True)


def phase(run: Callable[[Settings], None]) -> Callable[[Settings], None]:
    @functools.wraps(run)
    def timed(settings: Settings) -> None:
        log(f"phase {run.__name__}")
        from_s = time.monotonic()
        run(settings)
        seconds = time.monotonic() - from_s
        log(f"phase {run.__name__} took {seconds:.0f} s")
        with open(settings.work / "phases.txt", "a") as file:
            file.write(f"{run.__name__}\t{seconds:.0f} s\n")

    return timed
