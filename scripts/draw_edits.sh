#!/usr/bin/env bash
# Generates the images of a list of edits. For each line `INSTRUCTION | PROMPT`, before-N.png is the image of the prompt,
# and after-N.png is that image edited by the instruction, both with seed 1. `make gallery` runs this script.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: scripts/draw_edits.sh LIST FOLDER [FLAGS OF flux ...]" >&2; exit 2; }
list=$1 folder=$2
shift 2
flux=${FLUX_BIN:-flux}

mkdir -p "$folder"
n=0
while IFS='|' read -r instruction prompt; do
    n=$((n + 1))
    "$flux" "$@" -S 1 -p "${prompt# }" -o "$folder/before-$n.png" </dev/null
    "$flux" "$@" -S 1 -p "${instruction% }" -i "$folder/before-$n.png" -o "$folder/after-$n.png" </dev/null
done <"$list"
