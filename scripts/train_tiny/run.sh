#!/usr/bin/env bash
# Trains the second edition on a machine with one GPU, from the data.zip in WORK, by the clock:
#   scripts/train_tiny/run.sh WORK SECONDS
# A first run begins with the shipped weights in models/tiny. A later one goes on where WORK holds base/ and vae/, and student/ (the final/ of the
# run before), to which `carry` adds what `tune` learned. Leaves base/ or tune/, carried/, final/, vae/, sheets/, scores.json and model/ in WORK.
# While scenes are encoded, a trial with little data captures every graph; the first error ends everything. What was left stays, so phases may
# be run again one by one.
set -euo pipefail
work=$1 total=$2
train=("${PYTHON:-python3}" "$(dirname "$0")")
export PYTHONUNBUFFERED=1
for_distill=140 # seconds after `base`, beside the training itself: loading and capture (60 s), the last steps, `export`, `score` (60 s)
for_teacher=60  # the same for `base` or `tune`

say() { echo "=== $SECONDS s: $*"; }

begin=(start) teacher=base carry=() share=40
if [[ -e "$work/base" ]]; then
    begin=() teacher=tune
    [[ ! -e "$work/student" ]] || carry=(carry) share=65
fi
mkdir -p "$work/trial"
for given in data.zip base vae student; do
    [[ ! -e "$work/$given" ]] || cp -r "$work/$given" "$work/trial/"
done
say "scenes and latents, beside them the trial"
"${train[@]}" ${begin[@]+"${begin[@]}"} scenes latents --work "$work" >"$work/latents.log" 2>&1 &
latents=$!
trap 'kill "$latents" 2>/dev/null || true' EXIT
"${train[@]}" ${begin[@]+"${begin[@]}"} scenes latents "$teacher" ${carry[@]+"${carry[@]}"} distill --trial --seconds 5 --work "$work/trial"
say "the trial is done"
rm -rf "$work/trial"
wait "$latents" || { cat "$work/latents.log"; exit 1; }
trap - EXIT
cat "$work/latents.log"

left=$((total - SECONDS - for_teacher - for_distill))
say "$teacher"
"${train[@]}" "$teacher" --seconds $((left * share / 100)) --work "$work"
say "distill"
"${train[@]}" ${carry[@]+"${carry[@]}"} distill --seconds $((total - SECONDS - for_distill)) --work "$work"
say "export and score"
"${train[@]}" export --work "$work"
"${train[@]}" score --work "$work"
say "done"
