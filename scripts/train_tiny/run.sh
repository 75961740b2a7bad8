#!/usr/bin/env bash
# Trains the shipped weights further on a machine with one GPU, from the data.zip in WORK, by the clock:
#   scripts/train_tiny/run.sh WORK SECONDS [FLAGS of start]
# Leaves final/, vae/, sheets/, scores.json and model/ in WORK. The first error ends everything; what was left stays, so phases may be run again
# one by one.
set -euo pipefail
work=$1 total=$2
shift 2
train=("${PYTHON:-python3}" "$(dirname "$0")")
export PYTHONUNBUFFERED=1
around=190 # seconds of `refine` beside the training itself, loading and capture, and of `export` and `score`

say() { echo "=== $SECONDS s: $*"; }

say "scenes and latents"
"${train[@]}" start scenes latents --scenes 50000 --edits 130000 --work "$work" "$@"
say "refine"
"${train[@]}" refine --seconds $((total - SECONDS - around)) --work "$work"
say "export and score"
"${train[@]}" export --work "$work"
"${train[@]}" score --work "$work"
say "done"
