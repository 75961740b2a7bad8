"""Runs the named sections; scripts/test_cluster.sh lists them."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import faults
import manifests
import million
import online
import sections
import security
import slurm
from cluster import Cluster


# Sections with a broker, a store and workers.
SECTIONS = {
    section.__name__: section
    for section in (
        sections.basics, sections.chaos, security.hostile, security.tls, faults.alarms, faults.full, faults.away, faults.clock,
        faults.hangs, faults.devices,
    )
} | {"online": online.run}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("flux")
    parser.add_argument("venv")
    parser.add_argument("sections", nargs="+")
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flux-cluster-") as folder:
        for name in args.sections:
            began = time.monotonic()
            if name == "slurm":
                slurm.run(args.flux, Path(folder) / name)
            elif name == "kubernetes":
                manifests.run()
            elif name == "million":
                million.run(args.flux, Path(folder) / name)
            else:
                cluster = Cluster(args.flux, args.venv, Path(folder) / name)
                try:
                    if name != "basics":
                        cluster.run("worker", "--name", "tiny", "--register")
                    SECTIONS[name](cluster, args.short)
                except BaseException:
                    sys.stderr.write(cluster.logs()[-4000:])
                    raise
                finally:
                    cluster.close()
            print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)


main()
