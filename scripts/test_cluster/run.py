"""Runs the sections that are named; scripts/test_cluster.sh says which there are."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import manifests
import million
import sections
import slurm
from cluster import Cluster


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
                    getattr(sections, name)(cluster, args.short)
                except BaseException:
                    sys.stderr.write(cluster.logs()[-4000:])
                    raise
                finally:
                    cluster.close()
            print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)


main()
