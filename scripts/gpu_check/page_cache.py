"""The page cache of Linux: evicts files, and measures the disk below it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Failed

THREADS = 8
PIECE = 8 << 20


def resident_bytes(path: Path) -> int:
    """The bytes of a file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        pages = (len(mapped) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        states = (ctypes.c_ubyte * pages)()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), states)
        del view
        if failed:
            raise Failed(f"mincore: {os.strerror(ctypes.get_errno())}")
        return sum(state & 1 for state in states) * mmap.PAGESIZE


def evict(files: list[Path]) -> None:
    """Removes files from the page cache. Fails if the system keeps them."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left, size = sum(map(resident_bytes, files)), sum(path.stat().st_size for path in files)
    if left > size // 100:
        raise Failed(f"{left} of {size} bytes are still in the page cache")


def rate_of_reads(files: list[Path]) -> float:
    """Reads all files in several threads. Returns GB/s."""
    pieces = [(path, start) for path in files for start in range(0, path.stat().st_size, PIECE)]
    opened = {path: os.open(path, os.O_RDONLY) for path in files}
    start = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        read = sum(pool.map(lambda piece: len(os.pread(opened[piece[0]], PIECE, piece[1])), pieces))
    spent = time.monotonic() - start
    for descriptor in opened.values():
        os.close(descriptor)
    return read / spent / 1e9
