"""What a run says: lines with the time, how long each phase took, and what the user can mend."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

from settings import Settings

started = time.monotonic()

# Files that phases leave for others, by name: which phase.
LEFT_BY = {"data.zip": "data", "scenes.npz": "scenes", "vae": "vae", "latents": "latents", "start": "start", "base": "base", "tune": "tune",
           "final": "distill` or `refine"}  # fmt: skip


class UserError(Exception):
    """What is wrong, and a hint that mends it: printed without a traceback."""

    def __init__(self, what: str, hint: str):
        super().__init__(f"error: {what}\n  hint: {hint}")


def left(settings: Settings, name: str) -> Path:
    """A file or folder that an earlier phase left. Errors when it is not there."""
    path = settings.work / name
    if not path.exists():
        raise UserError(f"`{path}` is missing", f"run the phase `{LEFT_BY[name]}` before, or pass the `--work` in which it ran")
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
