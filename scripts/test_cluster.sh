#!/usr/bin/env bash
# Runs `flux submit`, `flux worker` and `flux batch` on a real RabbitMQ, a real Slurm and an S3 of moto, and kills them.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<END
usage: scripts/test_cluster.sh [SECTION...]
       scripts/test_cluster.sh short

Starts Debian's RabbitMQ and Slurm, and moto as S3, as plain processes on loopback, with folders of their own, and runs
workers with the built-in model. Sections, all but \`million\` in turn where none is named:

  basics      a batch from its list to its pixels; repair, cancel, what fails, drain
  hostile     messages that are no jobs, and inputs that are no pictures
  tls         a broker with certificates and passwords: who is let in
  alarms      a broker without disk
  full        a queue that takes no more
  away        a store that does not answer
  clock       a worker whose clock jumps
  hangs       a worker, a broker and a store that do nothing, and a job without an end
  devices     a worker with two devices
  online      \`flux serve --queue\`: its bytes, cancel, kills, broker and store away, a full queue
  chaos       2000 jobs under kills of workers, broker and store, with 5 that no worker survives
  slurm       scripts/slurm_batch.sh on one node, with a task killed
  kubernetes  scripts/kubernetes against the schemas of Kubernetes and KEDA
  million     CLUSTER_JOBS (1000000) jobs and workers that draw nothing
  short       \`kubernetes\`, and \`chaos\` with 100 jobs and one kill of each

Packages that are missing are installed where apt-get may; where they cannot be, it says so and does nothing.

environment:
  FLUX_BIN      the program (target/release/flux)
  CLUSTER       where Python's packages are installed (target/cluster)
  CLUSTER_JOBS  jobs of \`million\`
  CLUSTER_CHAOS_JOBS  jobs of \`chaos\` (2000)
  CLUSTER_DEVICE      what \`devices\` runs on, as in cuda:0,1 (cpu, as two devices)
  CLUSTER_PACE  how many times as long as usual everything may take, and kills are apart (1), for busy machines
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
            echo "error: \`$word\` is not known; --help tells the usage" >&2
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
    echo "error: there is no $flux: \`make build\` makes it" >&2
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

[[ $EUID -eq 0 ]] || skip "the scripts of Debian's RabbitMQ are run by root alone"

# RUNLEVEL keeps the packages from starting their daemons.
install_packages() {
    local quick=(-o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10)
    local packages=(rabbitmq-server slurm-wlm munge faketime)
    export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
    timeout 240 apt-get "${quick[@]}" install -y --no-install-recommends "${packages[@]}" ||
        { timeout 60 apt-get "${quick[@]}" update && timeout 240 apt-get "${quick[@]}" install -y --no-install-recommends "${packages[@]}"; }
}
if ! installed; then
    command -v apt-get >/dev/null || skip "RabbitMQ and Slurm are not installed, and there is no apt-get"
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
