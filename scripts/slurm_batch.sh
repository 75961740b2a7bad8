#!/usr/bin/env bash
# Generates the images of a list as a Slurm job array: each task generates its share of the lines with `flux batch`, and
# keeps existing images. A task whose node dies is requeued, and running the same command again generates missing images.
#
#   sbatch --array=0-15 scripts/slurm_batch.sh prompts.jsonl /shared/images -d klein-4b
#
# `--array` sets the number of parts. GPU flags depend on the cluster, as in `--gpus-per-task=1`. All nodes must share the
# folder.
#SBATCH --job-name=flux
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --ntasks=1
set -euo pipefail

usage() {
    cat <<END
usage: sbatch --array=0-N scripts/slurm_batch.sh FILE FOLDER [FLAGS of \`flux batch\`]

environment:
  FLUX_BIN  the program (flux)
END
}

case "${1:-}" in
    -h | --help)
        usage
        exit
        ;;
esac
[[ $# -ge 2 ]] || {
    usage >&2
    exit 2
}
if [[ -z "${SLURM_ARRAY_TASK_ID:-}" ]]; then
    echo "error: this is not a task of a job array: start it with \`sbatch --array=0-N\`" >&2
    exit 2
fi
# Task numbers may start anywhere, parts start at 1.
part=$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / ${SLURM_ARRAY_TASK_STEP:-1} + 1))
exec "${FLUX_BIN:-flux}" batch "$1" "$2" --shard "$part/$SLURM_ARRAY_TASK_COUNT" "${@:3}"
