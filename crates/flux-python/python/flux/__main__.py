"""The command line: `python -m flux` and the script `flux` are the program `flux`."""

from __future__ import annotations

import signal
import sys

from flux._flux import run_program


def main() -> None:
    """Runs the command line, and exits with its code."""
    # The program has its own handler, which Python's would turn into a traceback at the end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(run_program(["flux", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
