#!/usr/bin/env bash
# Trains the second edition on a machine with one GPU, from the shipped weights in models/tiny and the data.zip in WORK, by the clock:
#   scripts/train_tiny/run.sh WORK SECONDS
# Leaves base/, final/, vae/, sheets/, scores.json and model/ in WORK. While scenes are encoded, a trial with little data captures every
# graph of `base` and `distill`; the first error ends everything. What was left stays, so phases may be run again one by one.
set -euo pipefail
work=$1 total=$2
train=("${PYTHON:-python3}" "$(dirname "$0")")
export PYTHONUNBUFFERED=1
for_distill=140 # seconds after `base`, beside the training itself: loading and capture (60 s), the last steps, `export`, `score` (60 s)
for_base=60     # the same for `base`

say() { echo "=== $SECONDS s: $*"; }

mkdir -p "$work/trial"
cp "$work/data.zip" "$work/trial/"
say "scenes and latents, beside them the trial"
"${train[@]}" start scenes latents --work "$work" >"$work/latents.log" 2>&1 &
latents=$!
trap 'kill "$latents" 2>/dev/null || true' EXIT
"${train[@]}" start scenes latents base distill --trial --seconds 5 --work "$work/trial"
say "the trial is done"
rm -rf "$work/trial"
wait "$latents" || { cat "$work/latents.log"; exit 1; }
trap - EXIT
cat "$work/latents.log"

left=$((total - SECONDS - for_base - for_distill))
say "base"
"${train[@]}" base --seconds $((left * 6 / 10)) --work "$work"
say "distill"
"${train[@]}" distill --seconds $((total - SECONDS - for_distill)) --work "$work"
say "export and score"
"${train[@]}" export --work "$work"
"${train[@]}" score --work "$work"
say "done"
