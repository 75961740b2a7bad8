"""Runs a section in a process of its own, which has a log and a limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Callable

from measure import Failed, say

# What `timeout` ends with.
STOPPED, KILLED = 124, 137
GRACE_S = 10


def run_apart(section: Callable[[], str], log: Path, limit_s: float) -> int:
    """Returns what the process ended with; STOPPED or KILLED where it was at its limit."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(section, log))
    process.start()
    try:
        process.join(limit_s)
        at_limit = process.exitcode is None
    finally:
        # Also where this process is stopped: a section deletes what it may not leave.
        if process.exitcode is None:
            _signal(process.pid, signal.SIGTERM)
            process.join(GRACE_S)
        killed = process.exitcode is None
        process.kill()
        _signal(process.pid, signal.SIGKILL)  # also what the section has started and left
        process.join()
    if killed:
        return KILLED
    return STOPPED if at_limit else process.exitcode or 0


def _signal(group: int | None, number: int) -> None:
    if group is not None:
        try:
            os.killpg(group, number)
        except OSError:
            pass  # it has not begun, or nothing is left of it


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
