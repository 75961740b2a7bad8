#!/usr/bin/env bash
# Ends the program by signals at random times, and checks the files that it leaves behind.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/fuzz_signals.sh PROGRAM COUNT SEED

  PROGRAM   flux, with its built-in model
  COUNT     the number of images to start, 64 x 64 pixels in two steps on the CPU
  SEED      a number from 0 to 32767 for the random signals and times; times are fractions of the usual duration of a run

Each run gets SIGINT, SIGTERM or SIGHUP before its usual end, and every third run a second signal at most 20 ms later. A run
must end within a minute, by itself or by one of its signals, without a panic, and may leave only a complete image.

Exit codes: 0 no findings, 1 findings (all are printed), 2 wrong usage.
USAGE
}

usage_error() {
    echo "error: $1" >&2
    usage >&2
    exit 2
}

# shellcheck source=scripts/printable.sh
source "$(dirname "$0")/printable.sh"

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
[[ $# -eq 3 ]] || usage_error "expected a program, a count and a seed"
program=$1 count=$2 seed=$3
command -v -- "$program" >/dev/null || usage_error "no such program: $(printable "$program")"
[[ "$count" =~ ^[1-9][0-9]{0,6}$ ]] || usage_error "the count is not a number from 1 to 9999999: $(printable "$count")"
[[ "$seed" =~ ^(0|[1-9][0-9]{0,4})$ && $seed -le 32767 ]] \
    || usage_error "the seed is not a number up to 32767: $(printable "$seed")"

unset FLUX_MODEL
export LC_ALL=C # decimal points in numbers
work=$(mktemp -d)
pid=
trap 'if [[ -n "$pid" ]]; then kill -KILL "$pid" 2>/dev/null; fi; rm -rf "$work"' EXIT
out=$work/out
image=$out/image.png

draw() {
    exec "$program" --prompt="a red circle" --width=64 --height=64 --steps=2 --seed=1 --device=cpu "--output=$image" \
        </dev/null >"$work/stdout" 2>"$work/stderr"
}

seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); } # MILLISECONDS

# Sets usual_ms: the time of an image when the program and its model are in memory.
measure() {
    local TIMEFORMAT=%3R time
    mkdir "$out"
    if ! (draw); then
        cat "$work/stderr" >&2
        return 1
    fi
    time=$({ time (draw & wait); } 2>&1) # in the background, because bash cannot time a command that replaces it
    usual_ms=$((10#${time/./}))
}

# Generates an image until the signals end the run. Sets status.
run() { # SIGNAL AFTER_MS [SIGNAL AFTER_MS]
    rm -rf "$out"
    mkdir "$out"
    draw &
    pid=$!
    while [[ $# -gt 0 ]]; do
        sleep "$(seconds "$2")"
        kill -s "$1" "$pid" 2>/dev/null || true # it may have ended
        shift 2
    done
    local waits=0
    while kill -0 "$pid" 2>/dev/null && [[ $waits -lt 6000 ]]; do
        sleep 0.01
        waits=$((waits + 1))
    done
    if [[ $waits -eq 6000 ]]; then kill -KILL "$pid" || true; fi
    status=0
    wait "$pid" || status=$?
    pid=
    if [[ $waits -eq 6000 ]]; then finding "did not end within a minute"; fi
} 2>/dev/null # hides the messages of bash about signals

finding() {
    findings=$((findings + 1))
    echo "finding in run $number ($described, exit $status): $1"
}

# Checks the exit code, messages and files of a run.
check() { # SIGNAL_NUMBERS...
    local signal expected=no name
    for signal in "$@"; do
        if [[ $status -eq $((128 + signal)) ]]; then expected=yes; fi
    done
    case "$status" in
        0)
            done=$((done + 1))
            [[ -e "$image" ]] || finding "no image"
            ;;
        1) ;; # an error with a message
        *) [[ $expected == yes ]] || finding "neither an exit code of flux nor of its signals" ;;
    esac
    if grep -q -e panicked -e RUST_BACKTRACE "$work/stderr"; then finding "a panic: $(printable "$(cat "$work/stderr")")"; fi
    while IFS= read -r name; do
        if [[ "$name" != image.png ]]; then
            finding "$(printable "$name") is left behind"
        elif ! "$program" compare "$image" "$image" >/dev/null 2>&1; then
            finding "$name is incomplete"
        fi
    done < <(ls -A "$out")
}

signals=(INT TERM HUP)
numbers=(2 15 1)
findings=0
done=0
if ! measure; then
    echo "error: the run without a signal failed, see the message above" >&2
    exit 1
fi
RANDOM=$seed
# Each job gets its own process group: otherwise background processes of a script ignore SIGINT.
set -m
for ((number = 1; number <= count; number++)); do
    first=$((RANDOM % 3)) after_ms=$((usual_ms * (RANDOM % 1000) / 1000))
    second=$((RANDOM % 3)) later_ms=$((RANDOM % 63)) # 21 of 63 values mean a second signal
    described="SIG${signals[first]} after $after_ms ms"
    if [[ $later_ms -le 20 ]]; then
        described+=", SIG${signals[second]} $later_ms ms later"
        run "${signals[first]}" "$after_ms" "${signals[second]}" "$later_ms"
        check "${numbers[first]}" "${numbers[second]}"
    else
        run "${signals[first]}" "$after_ms"
        check "${numbers[first]}"
    fi
done
echo "$count runs: $done done, $((count - done)) ended by signals, $findings findings; seed $seed, usual time $usual_ms ms"
if [[ $findings -gt 0 ]]; then
    echo "to reproduce: scripts/fuzz_signals.sh $(printable "$program") $count $seed"
    exit 1
fi
