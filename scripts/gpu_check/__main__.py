"""Measures all GPU figures in one run, on a machine with a GPU and a Python with torch, but without Rust and network.
`python3 scripts/gpu_check --help`"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import gpus
import report
from apart import KILLED, STOPPED, run_apart
from check import Check, Options, Refused
from measure import say
from table import BY_NAME, GROUPS, Section

PACKAGE = Path(__file__).resolve().parent
LEAST_S = 5
"""The min time to start a section."""


def arguments() -> tuple[Path, list[str], list[Section]]:
    parser = argparse.ArgumentParser(
        prog="python3 scripts/gpu_check",
        usage=report.USE,
        description=report.ABOUT,
        epilog=f"{report.sections()}\n\n{report.ENVIRONMENT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", metavar="OUT", help="a folder for logs and the summary")
    parser.add_argument("sections", metavar="SECTION", nargs="*", help="sections to run: `all` or names from the list below")
    given = parser.parse_args()
    sections: list[Section] = []
    for name in given.sections:
        if name not in BY_NAME and name not in GROUPS:
            parser.error(f"unknown section: {name}")
        sections += GROUPS.get(name) or [BY_NAME[name]]
    if not sections:
        parser.error("no section was given")
    return Path(given.out), given.sections, sections


def bundle_and_root() -> tuple[Path, Path]:
    """The folder with bin.tar.xz, and the folder with the files of the tests."""
    here = PACKAGE.parent.parent
    bundle = here if (here / "bin.tar.xz").exists() else here / "gpu-bundle"
    if not (bundle / "bin.tar.xz").exists():
        raise Refused(
            f"no bundle in {bundle}", "run `make gpu-bundle` on a machine with Rust, and copy gpu-bundle/ here"
        )
    folders = (PACKAGE / "folders.txt").read_text(encoding="utf-8").split()
    for root in (here, here.parent):
        if all((root / folder).is_dir() for folder in folders):
            return bundle, root
    raise Refused(
        f"neither {here} nor the folder above has {', '.join(folders)}",
        "run this in the root of the project, or create a bundle with these folders: `make gpu-bundle STANDALONE=1`",
    )


def unpack(check: Check) -> None:
    archive = check.bundle / "bin.tar.xz"
    check.bin.mkdir()
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(check.bin)
    except tarfile.TarError:  # also a Python without lzma
        if subprocess.run(["tar", "-xJf", archive, "-C", check.bin], check=False).returncode != 0:
            raise Refused(f"{archive} cannot be unpacked", "create the bundle again with `make gpu-bundle`") from None
    for program in check.bin.iterdir():
        program.chmod(0o755)


def run_section(section: Section, check: Check, left_s: float) -> tuple[bool, str]:
    """Runs a section. Returns True if it passed, and its line of the summary."""
    limit_s = min(check.options.limit_s or section.limit_s, int(left_s))
    if limit_s < LEAST_S:
        return False, report.summary_line(section.name, "not-run", 0, "no time left")
    start, log = time.monotonic(), check.out / f"{section.name}.log"
    code = run_apart(lambda: section.run(dataclasses.replace(check, bounds=section.bounds)), log, limit_s)
    line = report.line_of(log, limit_s if code in (STOPPED, KILLED) else None)
    status = "ok" if code == 0 else f"exit {code}"
    return code == 0, report.summary_line(section.name, status, time.monotonic() - start, line)


def run_sections(check: Check, words: list[str], sections: list[Section]) -> int:
    start, failed = time.monotonic(), False
    with (check.out / "summary.txt").open("w", encoding="utf-8") as summary:

        def tell(text: str) -> None:
            say(text)
            print(text, file=summary, flush=True)

        tell(report.machine(check, words).rstrip("\n"))
        (check.out / "nvidia-smi.log").write_text(gpus.overview(), encoding="utf-8")
        for section in sections:
            passed, line = run_section(section, check, check.options.total_s - (time.monotonic() - start))
            failed |= not passed
            tell(line)
    return int(failed)


def main() -> int:
    out, words, sections = arguments()
    # If this process is stopped, it still deletes its files and ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = Options.of_environment()
    bundle, root = bundle_and_root()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.update(FLUX_REQUIRE_GPU="1", FLUX_TEST_ROOT=str(root), PYTHONUNBUFFERED="1", LC_ALL="C")
    with tempfile.TemporaryDirectory() as work:
        check = Check(options, bundle, root, out.resolve(), Path(work))
        unpack(check)
        return run_sections(check, words, sections)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(getattr(error, "code", 1))
    except KeyboardInterrupt:
        sys.exit(130)
