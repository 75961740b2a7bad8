"""What a program holds that runs for long, for the scripts that have it do so."""

import os
import subprocess

MOST_MIB, MOST_FILES = 16, 2
"""What it may hold more at the end than once it was warm. A file may be open for a moment."""


class Held:
    """MiB of the host that no file backs, MiB of the GPU, and open files; nothing of a program that has ended."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/status") as status:
            kib = next((int(line.split()[1]) for line in status if line.startswith("RssAnon:")), 0)
        try:
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            files = 0
        self.host, self.gpu, self.files = kib / 1024, gpu_mib(), files

    def __str__(self):
        return f"{self.host:.1f} MiB, {self.gpu:.0f} of the GPU and {self.files} files"

    def grown(self, warm):
        """What it holds more of than it may."""
        for where, before, after in (("the host", warm.host, self.host), ("the GPU", warm.gpu, self.gpu)):
            if after > before + MOST_MIB:
                yield f"it holds {after - before:.1f} MiB of {where} more"
        if self.files > warm.files + MOST_FILES:
            yield f"it holds {self.files - warm.files} files more"


def gpu_mib():
    """What the first GPU holds in all, 0 where there is none: a driver may not know the process by its number."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError):
        return 0.0
