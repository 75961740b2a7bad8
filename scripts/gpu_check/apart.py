"""Runs a section in its own process, with a log and a time limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Callable

from measure import Failed, say

# The exit codes of `timeout`.
STOPPED, KILLED = 124, 137
GRACE_S = 10


def run_apart(section: Callable[[], str], log: Path, limit_s: float) -> int:
    """Returns the exit code of the process, or STOPPED or KILLED if it reached its limit."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(section, log))
    process.start()
    try:
        process.join(limit_s)
        at_limit = process.exitcode is None
    finally:
        # Also if this process is stopped, so that the section deletes its files.
        if process.exitcode is None:
            _signal(process.pid, signal.SIGTERM)
            process.join(GRACE_S)
        killed = process.exitcode is None
        process.kill()
        _signal(process.pid, signal.SIGKILL)  # also processes that the section started and left
        process.join()
    if killed:
        return KILLED
    return STOPPED if at_limit else process.exitcode or 0


def _signal(group: int | None, number: int) -> None:
    if group is not None:
        try:
            os.killpg(group, number)
        except OSError:
            pass  # it has not started, or has ended


def _run(section: Callable[[], str], log: Path) -> None:
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        say(f"result: {section()}")
    except Failed as failed:
        say(f"result: {failed.line}")
        sys.exit(failed.code)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
