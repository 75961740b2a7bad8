#!/usr/bin/env bash
# Tests `flux submit`, `flux worker` and `flux batch` with a real RabbitMQ, a real Slurm and S3 by moto, with kills.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<END
usage: scripts/test_cluster.sh [SECTION...]
       scripts/test_cluster.sh short

Starts Debian's RabbitMQ and Slurm, and moto as S3, as plain processes on loopback with their own folders, and runs
workers with the built-in model. Sections, all except \`million\` by default:

  basics      a batch from its list to its pixels; repair, cancel, failed jobs, drain
  hostile     invalid messages and invalid input images
  tls         a broker with certificates and passwords
  alarms      a broker without free disk space
  full        a full queue
  away        a store that does not answer
  clock       a worker whose clock jumps
  hangs       a worker, a broker and a store that hang, and a job that never ends
  devices     a worker with two devices
  online      \`flux serve --queue\`: its bytes, cancel, kills, unavailable broker and store, a full queue
  chaos       2000 jobs under kills of workers, broker and store, with 5 jobs that crash every worker
  slurm       scripts/slurm_batch.sh on one node, with a task killed
  kubernetes  scripts/kubernetes against the schemas of Kubernetes and KEDA
  million     CLUSTER_JOBS (1000000) jobs and workers that generate nothing
  short       \`kubernetes\`, and \`chaos\` with 100 jobs and one kill of each

Missing packages are installed with apt-get. If that fails, the script prints the reason and does nothing.

environment:
  FLUX_BIN      the program (target/release/flux)
  CLUSTER       the folder for Python packages (target/cluster)
  CLUSTER_JOBS  the number of jobs of \`million\` (1000000)
  CLUSTER_CHAOS_JOBS  the number of jobs of \`chaos\` (2000)
  CLUSTER_DEVICE      the devices of \`devices\`, as in cuda:0,1 (cpu, as two devices)
  CLUSTER_PACE  a factor for timeouts and for the time between kills (1), for busy machines
END
}

sections=()
short=
for word in "$@"; do
    case "$word" in
        basics | hostile | tls | alarms | full | away | clock | hangs | devices | online | chaos | slurm | kubernetes | million)
            sections+=("$word")
            ;;
        short) short=--short ;;
        -h | --help)
            usage
            exit
            ;;
        *)
            echo "error: unknown section \`$word\`; see --help" >&2
            exit 2
            ;;
    esac
done
if [[ ${#sections[@]} -eq 0 ]]; then
    sections=(basics hostile tls alarms full away clock hangs devices online chaos slurm kubernetes)
    [[ -z "$short" ]] || sections=(chaos kubernetes)
fi

flux=$(realpath "${FLUX_BIN:-target/release/flux}")
[[ -x "$flux" ]] || {
    echo "error: $flux does not exist: run \`make build\`" >&2
    exit 1
}
cluster=$(mkdir -p "${CLUSTER:-target/cluster}" && cd "${CLUSTER:-target/cluster}" && pwd)

skip() {
    echo "skipped: $1"
    exit 0
}

installed() {
    [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] && PATH=$PATH:/usr/sbin command -v slurmctld slurmd munged sbatch >/dev/null
}

[[ $EUID -eq 0 ]] || skip "the scripts of Debian's RabbitMQ require root"

# RUNLEVEL keeps the packages from starting their daemons.
install_packages() {
    local quick=(-o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10)
    local packages=(rabbitmq-server slurm-wlm munge faketime)
    export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
    timeout 240 apt-get "${quick[@]}" install -y --no-install-recommends "${packages[@]}" ||
        { timeout 60 apt-get "${quick[@]}" update && timeout 240 apt-get "${quick[@]}" install -y --no-install-recommends "${packages[@]}"; }
}
if ! installed; then
    command -v apt-get >/dev/null || skip "RabbitMQ and Slurm are not installed, and apt-get is missing"
    (install_packages) >"$cluster/apt.log" 2>&1 || true
    installed || skip "RabbitMQ and Slurm cannot be installed: $(tail -n 1 "$cluster/apt.log")"
fi

venv=$cluster/venv
if [[ ! -e "$venv/done" ]]; then
    { python3 -m venv "$venv" && timeout 300 "$venv/bin/pip" install --quiet --timeout 10 --retries 1 \
        "moto[s3,server]" cryptography pika jsonschema pyyaml kubernetes-validate && touch "$venv/done"; } >"$cluster/pip.log" 2>&1 ||
        skip "Python's packages cannot be installed: $(tail -n 1 "$cluster/pip.log")"
fi

exec "$venv/bin/python" -B scripts/test_cluster/run.py "$flux" "$venv" "${sections[@]}" ${short:+"$short"}
