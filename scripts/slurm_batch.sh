#!/usr/bin/env bash
# The images of a list, as an array of Slurm: each task makes its part of the lines with `flux batch`, and what is there is
# not made again. A task whose node dies is queued again, and the same command makes what is missing at any time.
#
#   sbatch --array=0-15 scripts/slurm_batch.sh prompts.jsonl /shared/images -d klein-4b
#
# `--array` says how many parts there are. Flags for GPUs are those of the cluster, as in `--gpus-per-task=1`; the folder
# is one that all nodes have.
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
    echo "error: this is no task of an array: start it with \`sbatch --array=0-N\`" >&2
    exit 2
fi
# Numbers of tasks may begin anywhere, parts begin at 1.
part=$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / ${SLURM_ARRAY_TASK_STEP:-1} + 1))
exec "${FLUX_BIN:-flux}" batch "$1" "$2" --shard "$part/$SLURM_ARRAY_TASK_COUNT" "${@:3}"
