#!/usr/bin/env bash
# Runs what `make gpu-bundle` gathered on a machine with a GPU. Needs no Rust there.
#
#   scripts/gpu_check.sh OUT [SECTION...]
#
# Sections: parity sanitize bench picture step; default: parity bench picture. Each writes OUT/<section>.log and ends after its limit.
#   parity    every op against the CPU and its composition, pictures against the reference
#   sanitize  the parity tests at small sizes under compute-sanitizer: memcheck, racecheck, initcheck
#   bench     every op at the sizes of a 1024 x 1024 picture
#   picture   one picture of the default model on the GPU, with --timings
#   step      the same of the full-size model in FLUX_FULL_MODEL, 1024 x 1024
# LIMIT_S changes the limit of a section, TESTS (a filter) which parity tests run, BENCH (words) which benches.
# The exit status is the number of sections that failed.
set -u

here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -lt 1 ]; then
    sed -n '2,14p' "$0"
    exit 2
fi
out=$1
shift
[ $# -gt 0 ] || set -- parity bench picture
mkdir -p "$out"
out=$(cd "$out" && pwd)
limit=${LIMIT_S:-240}
export FLUX_REQUIRE_GPU=1 FLUX_TEST_ROOT=$here
for packed in "$here"/bin/*.gz; do
    [ -e "$packed" ] && gunzip -f "$packed" && chmod +x "${packed%.gz}"
done

sanitizer() {
    command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1
}

sanitize() {
    local tool
    tool=$(sanitizer)
    [ -n "$tool" ] || { echo "compute-sanitizer is not on this machine"; return 1; }
    local status=0
    for check in memcheck racecheck initcheck; do
        echo "== $check"
        # The library's own kernels are not ours to check; --error-exitcode makes a finding a failure.
        FLUX_PARITY_SIZES=small "$tool" --tool "$check" --error-exitcode 9 --print-limit 20 \
            "$here/bin/gpu" --test-threads 1 ${TESTS:-} --skip pipeline::full || status=1
    done
    return $status
}

section() {
    case $1 in
        parity) "$here/bin/gpu" --test-threads 4 --nocapture ${TESTS:-} ;;
        sanitize) sanitize ;;
        bench) "$here/bin/ops" ${BENCH:-} ;;
        picture) (cd "$here" && bin/flux -d models/tiny --device cuda --seed 42 --timings -o "$out/picture.png" -p "a red circle on a blue background") ;;
        step) (cd "$here" && bin/flux -d "$FLUX_FULL_MODEL" --device cuda --seed 42 --width 1024 --height 1024 --timings -o "$out/step.png" \
            -p "A cat holding a sign that says hello world") ;;
        *) echo "no section \`$1\`"; return 2 ;;
    esac
}

export -f section sanitize sanitizer
export here out
nvidia-smi > "$out/nvidia-smi.log" 2>&1
failed=0
for name in "$@"; do
    start=$(date +%s)
    timeout --kill-after 10 "$limit" bash -c "section $name" > "$out/$name.log" 2>&1
    status=$?
    echo "$name: exit $status after $(($(date +%s) - start)) s, log in $out/$name.log"
    tail -n 3 "$out/$name.log" | sed 's/^/    /'
    [ $status -eq 0 ] || failed=$((failed + 1))
done
exit $failed
