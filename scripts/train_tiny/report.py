"""What a run says: lines with the time, and how long each phase took."""

import functools
import time
from collections.abc import Callable

from settings import Settings

started = time.monotonic()


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
