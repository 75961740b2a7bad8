#!/usr/bin/env bash
# Continues training of the shipped weights on a machine with one GPU, from the data.zip in WORK, for a fixed time:
#   scripts/train_tiny/run.sh WORK SECONDS [FLAGS of start]
# Writes final/, vae/, sheets/, scores.json and model/ to WORK. The first error ends the script; the files written so far stay,
# so you can run single phases again.
set -euo pipefail
work=$1 total=$2
shift 2
train=("${PYTHON:-python3}" "$(dirname "$0")")
export PYTHONUNBUFFERED=1
around=190 # seconds of `refine` for loading and capture, and of `export` and `score`

say() { echo "=== $SECONDS s: $*"; }

say "scenes and latents"
"${train[@]}" start scenes latents --scenes 50000 --edits 130000 --work "$work" "$@"
say "refine"
"${train[@]}" refine --seconds $((total - SECONDS - around)) --work "$work"
say "export and score"
"${train[@]}" export --work "$work"
"${train[@]}" score --work "$work"
say "done"
