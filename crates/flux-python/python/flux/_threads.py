"""Blocking work for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

# Threads only wait for devices. With fewer threads than waiting calls, calls could not share a batch.
MAX_THREADS = 256


@functools.cache
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(MAX_THREADS, "flux")


async def in_thread(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Runs work on a thread. If the task is cancelled, calls `cancel`, which ends the work."""
    import asyncio

    try:
        return await asyncio.get_running_loop().run_in_executor(_pool(), work)
    except asyncio.CancelledError:
        cancel()
        raise
