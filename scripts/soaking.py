"""The resources of a long-running program, for the soak scripts."""

import os
import subprocess

MAX_MIB, MAX_FILES = 16, 2
"""The max growth from the warm state to the end. A file may be open for a moment."""


class Held:
    """Anonymous host memory in MiB, GPU memory in MiB, and open files; zeros for a program that has ended."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/status") as status:
            kib = next((int(line.split()[1]) for line in status if line.startswith("RssAnon:")), 0)
        try:
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            files = 0
        self.host, self.gpu, self.files = kib / 1024, gpu_mib(), files

    def __str__(self):
        return f"{self.host:.1f} MiB, {self.gpu:.0f} MiB on the GPU and {self.files} files"

    def grown(self, warm):
        """The resources that have grown too much."""
        for where, before, after in (("the host", warm.host, self.host), ("the GPU", warm.gpu, self.gpu)):
            if after > before + MAX_MIB:
                yield f"memory of {where} grew by {after - before:.1f} MiB"
        if self.files > warm.files + MAX_FILES:
            yield f"{self.files - warm.files} more files are open"


def gpu_mib():
    """The used memory of the first GPU, or 0 without a GPU. It is not per process, because a driver may not know the PID."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError):
        return 0.0
