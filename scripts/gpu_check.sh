#!/usr/bin/env bash
# Measures every GPU figure in one run, on a machine with a GPU and a Python that has torch, but without Rust and without network.
# shellcheck disable=SC2329 # sections are called by their names
set -uo pipefail
export LC_ALL=C

usage() {
    cat <<'USAGE'
usage: scripts/gpu_check.sh OUT all|SECTION...

Runs what `make gpu-bundle` gathered, in the root of the project with gpu-bundle/ in it, or inside a standalone bundle.
A section writes OUT/SECTION.log, ends after its limit, and gives a line in OUT/summary.txt.

Sections, in the order of `all`:
  parity     every op against the CPU and its composition, images against the reference
  image      one image of the default model through the command line
  model      writes the 4B model with random weights, unless it is there
  bench      every op at the sizes of a 1024 x 1024 image of klein 4B
  stages     the stages of warm images of the 4B model: 256, 512, 1024, 2048
  fp8        the same in fp8; needs a Hopper GPU
  half       the parity tests and images in fp16, as GPUs without bf16 compute: of the default model against the reference, of the 4B
             model at 512 and 1024, in which nothing may be cut off or no number
  adapters   a step with LoRA of rank 32, and changing from one to another, at 1024 with the 4B model, in bf16 and fp8
  cold       the command line from start to PNG at 1024 x 1024, three times
  memory     the same within 12, 8, 6, 4 and 3 GiB of GPU memory, and within 1 GiB, which must be refused
  streaming  the stages of warm images at 1024 x 1024 within 4, 6, 8 and 10.5 GiB
  formats    weights in fewer bits: distance of the final latents from float32, steps, resident and streamed, and the memory where all are in Q4_K
  reference  speed of the reference (diffusers) at 512, 1024, 2048, and its cold start at 1024
  fidelity   final latents at 512 and 1024 against the reference in float32: ours, and the reference's in bf16
  cpu        images of the 4B model on 2 cores in f32 and bf16, the reference's in bf16, and the tests of the tile unit; needs AMX-BF16
  memcheck, racecheck, initcheck
             the parity tests at small sizes under compute-sanitizer
  nine       writes the 9B model unless it is there, draws one image with all memory and within 5 GiB, deletes what it wrote
And:
  edits      images from one and two references by the 4B model at 512 and 1024, in fp8 too on a Hopper GPU, and encoding at 1024, 2048
  kv         the same by the 9B model with keys and values of 1, 2 and 4 references made once, beside none; writes and deletes it as `nine`
  gpus       several ranks on one GPU and on two: collectives and images; then the stages of warm images by two GPUs beside one
             of them, also from a reference and in fp8, and images from start to PNG; needs two GPUs
  exchange   what two GPUs give each other in a block of klein 4B at 512, 1024, 2048, beside NCCL, with access to each other's
             memory and without; needs two GPUs
  sanitize   memcheck, racecheck, initcheck
  compile    speed of the reference through torch.compile at 512, 1024; takes minutes, so not part of `all`
  editing    what images from images add to the reference: encoding at 512, 1024, 2048, steps with references at 512, 1024
  compile_editing
             the same through torch.compile; takes minutes
  replicas   images of the 4B model by two GPUs, and by one of them: 512 and 1024, cold starts, bytes; needs two GPUs
  compare    another program and this one in turn, three times each: stages at 512 and 1024, in fp8 at 1024, cold starts

Environment:
  MODEL_DIR  where models are written; 17 GB, for `nine` and `kv` 35 GB more [default: /tmp/flux-models]
  MEMORY_DIR where the 9B model is written when it does not fit there [default: /dev/shm]
  KEEP       keeps the 9B model for a later section where it is set
  TOTAL_S    when the last section ends, in seconds after the start [default: 540]
  LIMIT_S    the limit of every section, in place of its own
  TESTS      which parity tests run: parts of their names
  BENCH      which ops are measured: parts of their names
  BASE       what `compare` measures beside [default: what `make gpu-bundle BASE=PROGRAM` brought]
  PYTHON     a Python with torch and transformers [default: python3]

Exit codes: 0 all passed, 1 a section failed or had no time left, 2 wrong usage.
USAGE
}

ALL=(parity image model bench stages fp8 half adapters cold memory streaming formats reference fidelity cpu memcheck racecheck initcheck nine)
PROMPT="A cat holding a sign that says hello world"
unset SIDE # of images that `drawn_on` draws; only sections set it
python=${PYTHON:-python3}
models=${MODEL_DIR:-/tmp/flux-models}
klein_4b=$models/klein-4b
klein_9b=$models/klein-9b
memory_dir=${MEMORY_DIR:-/dev/shm}
klein_9b_in_memory=$memory_dir/flux-klein-9b
here=$(cd "$(dirname "$0")/.." && pwd)

limit_of() { # SECTION
    case "$1" in
        image) echo 30 ;;
        adapters | cold) echo 60 ;;
        gpus) echo 240 ;;
        memory | streaming | bench | model | stages | fp8 | edits | memcheck) echo 90 ;;
        half | reference | editing | exchange | fidelity) echo 120 ;;
        formats) echo 300 ;;
        racecheck | initcheck) echo 300 ;;
        parity | cpu | nine | replicas) echo 180 ;;
        kv | compare) echo 200 ;;
        compile | compile_editing) echo 420 ;;
        *) return 1 ;;
    esac
}

result() { echo "result: $*"; }

fail() { # MESSAGE
    result "$1"
    exit 1
}

seconds_since() { # MICROSECONDS, of EPOCHREALTIME
    local us=$((${EPOCHREALTIME/./} - $1))
    printf '%d.%02d\n' $((us / 1000000)) $((us % 1000000 / 10000))
}

field() { # NAME < JSON: the last number of that name in the first line
    sed -n "1s/.*\"$1\": *\([0-9.]*\).*/\1/p"
}

gib() { # BYTES
    awk -v bytes="$1" 'BEGIN { printf "%.2f GiB\n", bytes / 2 ^ 30 }'
}

totals() { # FILE SIZE...: one line of what the rows of a stage bench say
    local file=$1 line="total ms" size
    shift
    for size in "$@"; do
        line+=", $size: $(grep "\"size\": *$size\b" "$file" | field total_ms)"
    done
    echo "$line; step at 1024: $(grep '"size": *1024\b' "$file" | field step_ms)"
}

named() { # NAME FIELD: a number of the row of that name in $work/rows
    grep -F "\"name\":\"$1\"" "$work/rows" | field "$2"
}

needs_model() {
    [[ -e "$klein_4b/model_index.json" ]] || fail "no model in $klein_4b: run the section \`model\`"
}

needs_two_gpus() { # WHAT
    local gpus
    gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
    [[ $gpus -ge 2 ]] || fail "$1 need two GPUs, this machine shows $gpus"
}

# Sets `flux`: the command for one image of a model, the same in all sections.
program() { # FOLDER [SEED]
    flux=("$bin/flux" -d "$1" --prompt "$PROMPT" --seed "${2:-42}" --steps 4 --quiet --timings=json)
}

# --- The sections. Each runs in a process of its own; what it prints is its log, `result` the line for the summary.

parity() {
    # shellcheck disable=SC2086 # TESTS may be several words
    # One queue, as the program has where GPUs make no image together.
    CUDA_DEVICE_MAX_CONNECTIONS=1 "$bin/gpu" --test-threads 4 --nocapture --skip full_size --skip parallel:: ${TESTS:-} | tee "$work/tests"
    local status=$?
    result "$(grep '^test result' "$work/tests" | cut -d ';' -f 1,2)"
    return "$status"
}

image() {
    program "$root/models/tiny"
    "${flux[@]}" --device cuda -o "$out/image.png" | tee "$work/row" || fail "no image"
    result "256 x 256 in $(field total_s <"$work/row") s"
}

write_model() { # SIZE FOLDER
    local from=${EPOCHREALTIME/./}
    "$python" "$here/scripts/make_full_size_model.py" "$1" "$2" --tokenizer "$root/tests/golden/qwen3-tokenizer.json.gz" || return 1
    written_s=$(seconds_since "$from")
}

model() {
    if [[ -e "$klein_4b/model_index.json" ]]; then
        result "$klein_4b is there"
    else
        write_model 4b "$klein_4b" || fail "not written"
        result "written in $written_s s"
    fi
}

bench() {
    # shellcheck disable=SC2086 # BENCH may be several words
    FLUX_MODEL='' "$bin/flux" bench --device cuda --size 1024 ${BENCH:-ops/} | tee "$work/rows" || fail "the bench broke off"
    result "$(grep -c '^ops/' "$work/rows") ops measured; $(grep '^ceiling/' "$work/rows" | awk '{ print $1, $(NF - 4), $(NF - 3) }' | paste -s -d ',')"
}

stages() {
    needs_model
    "$bin/flux" bench stages/ -d "$klein_4b" --device cuda --steps 4 --size 256,512,1024,2048 --json | tee "$work/rows" || fail "the bench broke off"
    result "$(totals "$work/rows" 256 512 1024 2048)"
}

fp8() {
    needs_model
    "$bin/flux" bench stages/ -d "$klein_4b" --device cuda --precision fp8 --steps 4 --size 256,512,1024,2048 --json | tee "$work/rows" || fail "the bench broke off"
    result "$(totals "$work/rows" 256 512 1024 2048)"
}

half() {
    export FLUX_COMPUTE=fp16
    needs_model
    program "$klein_4b"
    local size psnr figures=() status=0 name skip=(--skip full_size)
    # Left out is what is the same in any type, and what takes a weight for a tensor, which one in fp16 is not.
    for name in dequantise fp8 memory graph streaming adapters meaning parallel; do skip+=(--skip "$name::"); done
    for size in 512 1024; do
        "$bin/flux" -d "$klein_4b" --prompt "$PROMPT" --seed 42 --steps 4 --timings=json --device cuda -W "$size" -H "$size" \
            -o "$out/half-$size.png" >"$work/row" 2>"$work/words" || fail "no image of $size x $size: $(cat "$work/words")"
        cat "$work/row" "$work/words"
        grep -q fp16 "$work/row" || fail "it did not compute in fp16"
        ! grep -q 'cut off' "$work/words" || fail "at $size x $size values were too large"
        FLUX_COMPUTE='' "${flux[@]}" --device cuda -W "$size" -H "$size" -o "$work/bf16-$size.png" >"$work/bf16" || fail "no image in bf16"
        psnr=$("$bin/flux" compare "$work/bf16-$size.png" "$out/half-$size.png") || fail "the images cannot be compared"
        figures+=("$size: $(field total_s <"$work/row") s, in bf16 $(field total_s <"$work/bf16") s, apart $psnr;")
    done
    # shellcheck disable=SC2086 # TESTS may be several words
    FLUX_PARITY_SIZES=small "$bin/gpu" --test-threads 8 --nocapture "${skip[@]}" ${TESTS:-} >"$work/tests" 2>&1 || status=$?
    cat "$work/tests"
    result "$(grep '^test result' "$work/tests" | cut -d ';' -f 1,2); default model $(
        sed -n 's/^[0-9]*\.png .*: \([0-9.]* dB\)$/\1/p' "$work/tests" | sort -n | head -n 1) from float32; ${figures[*]}"
    return "$status"
}

# Benches images from references; adds the main figures to `figures`.
edits_in() { # PRECISION NAME...
    local name size
    "$bin/flux" bench stages/edit-512x512+1 stages/edit-1024x1024 "${@:2}" -d "$klein_4b" --device cuda --precision "$1" --steps 4 \
        --size 512,1024,2048 --references 1,2 --json | tee "$work/rows" || fail "the bench broke off"
    figures+=("$1:")
    for size in 512x512+1 1024x1024+1 1024x1024+2; do
        name=stages/edit-$size
        figures+=("$size step $(named "$name" step_ms), image $(named "$name" total_ms), read $(named "$name" read_ms);")
    done
    for name in "${@:2}"; do figures+=("$name $(named "$name" ms);"); done
}

edits() {
    needs_model
    local figures=()
    edits_in bf16 vae_encode/1024x1024 vae_encode/2048x2048
    if is_hopper; then edits_in fp8; fi
    result "ms, ${figures[*]}"
}

# Adds what two GPUs take beside one of them to `figures`.
gpus_in() { # PRECISION SIZES NAME... [FLAGS...]
    local name field one both label=$1
    [[ "$*" != *--variant\ base* ]] || label+=" with guidance"
    [[ ${FLUX_PEER_ACCESS:-1} == 1 ]] || label+=" through the host"
    "$bin/flux" bench "${@:3}" -d "$klein_4b" --device cuda:0,1 --precision "$1" --steps 4 --size "$2" --references 1 --runs 3 --json \
        | tee "$work/rows" || fail "the bench broke off"
    printf '\n%-40s %10s %10s %10s\n' "$label, ms" 'one GPU' 'two GPUs' 'two / one'
    while read -r name; do
        for field in text_ms encode_ms prepare_ms step_ms decode_ms total_ms second_ms; do
            one=$(named "$name" "$field") both=$(named "$name over 2" "$field")
            [[ -n $one && -n $both ]] || continue
            printf '%-40s %10.2f %10.2f %10.3f\n' "$name $field" "$one" "$both" "$(ratio "$both" "$one")"
        done
        figures+=("$label ${name#stages/}")
        shares_of "$label ${name#stages/}" step "$(ratio "$(named "$name over 2" step_ms)" "$(named "$name" step_ms)")"
        shares_of "$label ${name#stages/}" decode "$(ratio "$(named "$name over 2" decode_ms)" "$(named "$name" decode_ms)")"
        shares_of "$label ${name#stages/}" image "$(ratio "$(named "$name over 2" total_ms)" "$(named "$name" total_ms)")"
        figures[-1]+=";"
    done < <(sed -n 's/.*"name":"\([^"]*\) over 2".*/\1/p' "$work/rows")
}

# What two GPUs take at most, of the time of one.
declare -A MOST=(
    ["bf16 512x512 step"]=0.70 ["bf16 1024x1024 step"]=0.60 ["bf16 2048x2048 step"]=0.56 ["bf16 edit-1024x1024+1 step"]=0.57
    ["bf16 1024x1024 decode"]=0.68 ["bf16 2048x2048 decode"]=0.60 ["bf16 1024x1024 image"]=0.66 ["fp8 1024x1024 step"]=0.66
    ["bf16 with guidance 1024x1024 step"]=0.53 ["bf16 through the host 1024x1024 step"]=1
)

# Adds a share to `figures`, and to `too_slow` where it is above its limit.
shares_of() { # LABEL STAGE SHARE
    local most=${MOST["$1 $2"]:-}
    figures+=("$2 $3")
    [[ -z $most ]] || is_at_most "$3" "$most" || too_slow+=("$1 $2: $3, expected at most $most;")
}

# Whether VALUE is a number above 0, and at most MOST.
is_at_most() { # VALUE MOST
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 > 0 && a + 0 <= b + 0) }'
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }

gpus() {
    local status=0 figures=() too_slow=() run one=() both=() one_large=() auto=() one_s both_s large_s auto_s
    # Streams beyond the connections share one, where a GPU that waits would hold up what it waits for.
    CUDA_DEVICE_MAX_CONNECTIONS=32 "$bin/gpu" --test-threads 1 --nocapture parallel:: | tee "$work/tests" || status=1
    result "$(grep '^test result' "$work/tests" | cut -d ';' -f 1,2)"
    needs_two_gpus "images by two"
    needs_model
    gpus_in bf16 512,1024,2048 stages/512x512 stages/1024x1024 stages/2048x2048 stages/edit-1024x1024
    if is_hopper; then gpus_in fp8 1024 stages/1024x1024; fi
    gpus_in bf16 1024 stages/1024x1024 --variant base
    FLUX_PEER_ACCESS=0 gpus_in bf16 1024 stages/1024x1024
    program "$klein_4b"
    drawn_on cuda:0 1 one
    drawn_on cuda:0,1 1 both --parallel 2
    "$bin/flux" compare --min-psnr 45 "$work/one/image.png" "$work/both/image.png" || fail "two GPUs gave another image than one"
    # What `--parallel auto` chooses for this size and these steps is sooner there.
    "$bin/flux" -d "$klein_4b" --prompt "$PROMPT" --steps 4 -v --device cuda:0,1 -W 2048 -H 2048 -o "$work/auto.png" >"$work/words" 2>&1 \
        || fail "no image: $(cat "$work/words")"
    cat "$work/words"
    grep -q "^two GPUs make each image together\|out of each other's reach" "$work/words" \
        || fail "two GPUs do not make an image of 2048 x 2048 together by themselves"
    for run in 1 2 3; do
        drawn_on cuda:0 1 one
        one+=("$cold_s")
        drawn_on cuda:0,1 1 both --parallel 2
        both+=("$cold_s")
        SIDE=2048 drawn_on cuda:0 1 large
        one_large+=("$cold_s")
        SIDE=2048 drawn_on cuda:0,1 1 auto
        auto+=("$cold_s")
    done
    one_s=$(printf '%s\n' "${one[@]}" | median) both_s=$(printf '%s\n' "${both[@]}" | median)
    large_s=$(printf '%s\n' "${one_large[@]}" | median) auto_s=$(printf '%s\n' "${auto[@]}" | median)
    result "two GPUs / one: ${figures[*]} from start to PNG at 1024 x 1024 $both_s s by two, $one_s s by one, at 2048 x 2048 $auto_s s by two, $large_s s by one"
    at_most "start to PNG at 2048 x 2048 by two GPUs, beside one" "$(ratio "$auto_s" "$large_s")" 1
    [[ ${#too_slow[@]} -eq 0 ]] || fail "${too_slow[*]}"
    return "$status"
}

exchange() {
    local reached label size own nccl figures=() slower=() flags=()
    needs_two_gpus exchanges
    for reached in 1 0; do
        label="into each other's memory"
        [[ $reached == 1 ]] || label="through memory of the host" flags=(--no-peer-access)
        # Without a model, shapes are those of klein 4B, as NCCL's are.
        FLUX_MODEL='' FLUX_PEER_ACCESS=$reached "$bin/flux" bench exchange/ --device cuda:0,1 --size 512,1024,2048 --json \
            | tee "$work/rows" || fail "the bench broke off"
        [[ $reached == 0 ]] || ! grep -q '"note"' "$work/rows" || fail "these GPUs do not reach each other's memory: $(cat "$work/rows")"
        "$python" "$here/scripts/bench_nccl.py" "${flags[@]}" --size 512,1024,2048 | tee -a "$work/rows" || fail "NCCL was not measured"
        figures+=("$label")
        for size in 512 1024 2048; do
            own=$(named "exchange/${size}x$size over 2" block_us) nccl=$(named "nccl/${size}x$size over 2" block_us)
            figures+=("$size: $own / $nccl;")
            is_at_most "$own" "$nccl" || slower+=("$label at $size: $own, NCCL $nccl;")
        done
    done
    result "us of a block, ours / NCCL: ${figures[*]}"
    [[ ${#slower[@]} -eq 0 ]] || fail "slower than NCCL: ${slower[*]}"
}

adapters() {
    needs_model
    local precision precisions=(bf16) figures=()
    is_hopper && precisions+=(fp8)
    for precision in "${precisions[@]}"; do
        "$bin/flux" bench adapters/ -d "$klein_4b" --device cuda --precision "$precision" --steps 4 --size 1024 --json | tee "$work/row" || fail "the bench broke off"
        of() { field "$1" <"$work/row"; }
        figures+=("$precision, ms: step $(of step_ms), merged $(of merged_step_ms), beside $(of beside_step_ms); open $(of open_ms), ready $(of first_ms) (factors $(of factors_ms), merge $(of merge_ms)), cached $(of again_ms), none $(of without_ms);")
    done
    result "${figures[*]}"
}

cold() {
    needs_model
    program "$klein_4b"
    local from walls=() run
    for run in 1 2 3; do
        from=${EPOCHREALTIME/./}
        "${flux[@]}" --device cuda -W 1024 -H 1024 -o "$work/cold-$run.png" || fail "no image"
        walls+=("$(seconds_since "$from")")
        echo "run $run: ${walls[-1]} s by the clock"
    done
    cp "$work/cold-1.png" "$out/cold.png"
    for run in 2 3; do
        cmp "$work/cold-1.png" "$work/cold-$run.png" || fail "the same seed gave another image"
    done
    result "${walls[*]} s from start to PNG"
}

used_mib() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits "$@"; }

# Runs a command; sets driver_mib: the most GPU memory that the driver counts for it, looked at 50 times a second.
gpu_sampled() { # COMMAND...
    local status=0 idle_mib sampler
    idle_mib=$(used_mib | head -n 1)
    used_mib -lms 20 >"$work/used" &
    sampler=$!
    "$@" || status=$?
    kill "$sampler"
    driver_mib=$(($(sort -n "$work/used" | tail -n 1) - idle_mib))
    return "$status"
}

memory() {
    needs_model
    local status=0 driver_mib beside_mib context_mib tensors_mib
    program "$root/models/tiny"
    gpu_sampled "${flux[@]}" --device cuda -o "$work/tiny.png" >"$work/row" || fail "no image of the default model"
    tensors_mib=$(($(field peak_memory_bytes <"$work/row") >> 20))
    context_mib=$((driver_mib - tensors_mib))
    echo "default model: $driver_mib MiB by the driver, $tensors_mib MiB of them tensors"
    [[ $context_mib -le 640 ]] || fail "context, code and what the pool reserves take $context_mib MiB"
    program "$klein_4b"
    "${flux[@]}" --device cuda -W 1024 -H 1024 -o "$work/resident.png" >"$work/row" || fail "no image with all memory"
    local cap figures=() cap_mib
    for cap in 12 8 6 4 3; do
        gpu_sampled "${flux[@]}" --device cuda -W 1024 -H 1024 --gpu-memory "$cap" -o "$work/capped.png" >"$work/row" || fail "no image within $cap GiB"
        cat "$work/row"
        cmp "$work/resident.png" "$work/capped.png" || fail "within $cap GiB the same seed gave another image"
        cap_mib=$((cap << 10))
        beside_mib=$((driver_mib - cap_mib))
        echo "klein 4B: $driver_mib MiB by the driver: $beside_mib MiB more than $cap GiB"
        [[ $beside_mib -le 640 ]] || fail "the process took $beside_mib MiB more than $cap GiB"
        figures+=("$cap GiB: $(field total_s <"$work/row") s, $beside_mib MiB beside;")
    done
    "${flux[@]}" --device cuda -W 512 -H 512 --gpu-memory 2.5 -o "$work/small.png" >"$work/row" || fail "no image of 512 x 512 within 2.5 GiB"
    mkdir -p "$work/refused"
    "${flux[@]}" --device cuda -W 1024 -H 1024 --gpu-memory 1 -o "$work/refused/image.png" 2>"$work/error" || status=$?
    cat "$work/error"
    [[ $status -eq 1 ]] || fail "exit $status within 1 GiB, expected 1"
    grep -q 'image needs' "$work/error" || fail "the error within 1 GiB does not say what the image needs"
    [[ -z "$(ls -A "$work/refused")" ]] || fail "a refused image left a file: $(ls -A "$work/refused")"
    result "start to PNG within ${figures[*]} 512 x 512 within 2.5 GiB; context and code at most $context_mib MiB; refused within 1 GiB"
}

# Steps and images where blocks are streamed.
streaming() {
    needs_model
    local cap figures=()
    for cap in 4 6 8 10.5; do
        "$bin/flux" bench stages/1024x1024 -d "$klein_4b" --device cuda --gpu-memory "$cap" --steps 4 --size 1024 --json | tee "$work/row" || fail "the bench broke off"
        figures+=("$cap GiB: text $(field text_ms <"$work/row"), step $(field step_ms <"$work/row"), decode $(field decode_ms <"$work/row"), image $(field total_ms <"$work/row");")
    done
    result "ms at 1024 x 1024 within ${figures[*]}"
}

# What weights in fewer bits give and cost: how far the final latents are from float32, steps where all of them are resident and where
# they are streamed, and the memory where all are in Q4_K.
formats() {
    needs_model
    local format driver_mib figures=()
    needs_float32_latents
    FLUX_FULL_MODEL=$klein_4b FLUX_REFERENCE=$work/reference "$bin/gpu" --nocapture full_size_latents_of_weights_in_few_bits | tee "$work/tests" \
        || fail "the latents are too far from float32, or the test broke off"
    figures+=("$(grep 'latents .* from float32' "$work/tests" | paste -s -d ';' | sed 's/;/; /g');")
    for format in q8_0 fp8 q4_k; do
        "$bin/flux" bench stages/ -d "$klein_4b" --device cuda --quantize "transformer=$format" --steps 4 --size 1024 --gpu-memory 2.8 --json \
            | tee "$work/rows" || fail "the bench broke off"
        figures+=("$format within 2.8 GiB: step $(field step_ms <"$work/rows"), peak $(field peak_gib <"$work/rows") GiB;")
    done
    program "$klein_4b"
    gpu_sampled "${flux[@]}" --device cuda -W 1024 -H 1024 --quantize q4_k -o "$work/q4_k.png" >"$work/row" || fail "no image in Q4_K"
    cat "$work/row"
    result "ms, ${figures[*]} 1024 x 1024 all in Q4_K: $driver_mib MiB by the driver, tensors $(gib "$(field peak_memory_bytes <"$work/row")")"
}

# Makes diffusers importable: as it is installed, or from the wheels of the bundle.
needs_reference() {
    "$python" -c 'import torch, transformers' || fail "$python has no torch or no transformers"
    export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
    "$python" -c 'import importlib.util as u; raise SystemExit(not u.find_spec("diffusers"))' && return
    compgen -G "$bundle/wheels/*.whl" >/dev/null || fail "no diffusers, and no wheels of it in the bundle"
    "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" "$bundle"/wheels/*.whl || fail "cannot install diffusers"
}

bench_reference() { # FLAGS...
    "$python" "$here/scripts/bench_reference.py" "$klein_4b" --out "$work/reference" "$@"
}

reference() {
    needs_model
    needs_reference
    bench_reference --size 512 1024 2048 | tee "$work/rows" || fail "the reference broke off"
    local from=${EPOCHREALTIME/./}
    bench_reference --size 1024 --cold || fail "the reference broke off"
    result "$(totals "$work/rows" 512 1024 2048); cold at 1024: $(seconds_since "$from") s"
}

# The reference's final latents in float32, unless they are there.
needs_float32_latents() {
    needs_reference
    [[ -e "$work/reference/diffusers_latents_512.safetensors" ]] || bench_reference --size 512 1024 --fidelity || fail "the reference broke off"
}

compile() {
    needs_model
    needs_reference
    bench_reference --size 512 1024 --compile | tee "$work/rows" || fail "the reference broke off"
    result "$(totals "$work/rows" 512 1024)"
}

editing() { # FLAGS...
    needs_model
    needs_reference
    bench_reference --editing --size 512 1024 2048 "$@" | tee "$work/rows" || fail "the reference broke off"
    row() { grep "\"size\": *$1\b" "$work/rows" | field "$2"; }
    result "ms, encode at 1024: $(row 1024 encode_ms), 2048: $(row 2048 encode_ms); step with one reference at 512: $(row 512 step_1_ms), at 1024: $(row 1024 step_1_ms), with two: $(row 1024 step_2_ms)"
}

compile_editing() {
    editing --compile
}

median() { # < NUMBERS, one a line
    sort -n | awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

is_hopper() { [[ $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1) == 9.0 ]]; }

# Adds what a program measures to the files $work/WHO-FIGURE, a line each.
compare_once() { # WHO PROGRAM
    local who=$1 program=$2 rows=$work/rows-$1 row from
    "$program" bench stages/ -d "$klein_4b" --device cuda --steps 4 --size 512,1024 --json >"$rows" || return 1
    cat "$rows"
    row=$(grep '"size": *1024\b' "$rows")
    field step_ms <<<"$row" >>"$work/$who-step"
    field decode_ms <<<"$row" >>"$work/$who-decode"
    field total_ms <<<"$row" >>"$work/$who-image"
    field step_ms <<<"$(grep '"size": *512\b' "$rows")" >>"$work/$who-step_512"
    if is_hopper; then
        "$program" bench stages/ -d "$klein_4b" --device cuda --precision fp8 --steps 4 --size 1024 --json >"$rows" || return 1
        cat "$rows"
        field step_ms <"$rows" >>"$work/$who-step_fp8"
        field total_ms <"$rows" >>"$work/$who-image_fp8"
    fi
    from=${EPOCHREALTIME/./}
    "$program" "${flux[@]:1}" --device cuda -W 1024 -H 1024 -o "$work/$who.png" || return 1
    seconds_since "$from" >>"$work/$who-cold"
}

compare() {
    local base=${BASE:-$bin/base} run figure what ours theirs figures=() pixels
    [[ -x "$base" ]] || fail "no program to compare with: name it in BASE, or bring it with \`make gpu-bundle BASE=PROGRAM\`"
    needs_model
    program "$klein_4b"
    # An image that is not measured brings the weights into the page cache.
    "${flux[@]}" --device cuda -W 1024 -H 1024 -o "$work/warm.png" || fail "no image"
    for run in 1 2 3; do
        echo "run $run"
        compare_once base "$base" || fail "the base broke off"
        compare_once new "$bin/flux" || fail "the bench broke off"
    done
    printf '\n%-32s %10s %10s %10s\n' 'median of 3' base new 'new / base'
    while read -r figure what; do
        [[ -s $work/base-$figure && -s $work/new-$figure ]] || continue
        theirs=$(median <"$work/base-$figure") ours=$(median <"$work/new-$figure")
        printf '%-32s %10s %10s %10s\n' "$what" "$theirs" "$ours" "$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.4f", a / b }')"
        figures+=("$figure $ours / $theirs,")
    done <<'FIGURES'
step_512 step 512, bf16, ms
step step 1024, bf16, ms
step_fp8 step 1024, fp8, ms
decode decode 1024, ms
image image 1024, bf16, ms
image_fp8 image 1024, fp8, ms
cold start to PNG 1024, s
FIGURES
    is_hopper || echo "no fp8: this is no Hopper GPU"
    pixels=$("$bin/flux" compare "$work/base.png" "$work/new.png") || fail "the images cannot be compared"
    result "new / base: ${figures[*]} the images: $pixels"
}

# Draws images of SIDE x SIDE pixels, or 1024, on some GPUs; sets cold_s: seconds from start to the last PNG.
drawn_on() { # DEVICE COUNT FOLDER [FLAGS...]
    local from=${EPOCHREALTIME/./}
    mkdir -p "$work/$3"
    "${flux[@]}" --device "$1" -n "$2" -W "${SIDE:-1024}" -H "${SIDE:-1024}" -o "$work/$3/image.png" "${@:4}" || fail "no images by $1"
    cold_s=$(seconds_since "$from")
    echo "$1: $2 images in $cold_s s by the clock"
}

# Fails unless VALUE is at least LEAST, or at most MOST.
at_least() { # WHAT VALUE LEAST
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a >= b) }' || fail "$1: $2, expected at least $3"
}
at_most() { # WHAT VALUE MOST
    is_at_most "$2" "$3" || fail "$1: $2, expected at most $3"
}

same_image() { # BY_ONE BY_TWO
    cmp "$work/$1.png" "$work/$2.png" || fail "$2: two GPUs gave another image than one"
}

replicas() {
    local batch size factor factors=() seed run one=() two=() one_s two_s more copied
    needs_two_gpus replicas
    needs_model
    program "$klein_4b"
    drawn_on cuda:0 1 warm
    "$bin/flux" -d "$klein_4b" --prompt "$PROMPT" --seed 42 --steps 4 -v --device cuda:0,1 -n 2 -W 1024 -H 1024 -o "$work/copied.png" \
        >"$work/words" 2>&1 || fail "no images: $(cat "$work/words")"
    cat "$work/words"
    copied=$(sed -n 's/^cuda:1: \(.* GB of weights were copied\) .*/\1/p' "$work/words")
    # One image each, so that the bytes are those of images that are made alone.
    for run in 1 2 3; do
        drawn_on cuda:0 1 "one-$run"
        one+=("$cold_s")
        drawn_on cuda:0,1 2 "two-$run"
        two+=("$cold_s")
    done
    # Eight are made as 4 and 4, the same as by one GPU that makes 4 of the last seeds.
    drawn_on cuda:0,1 8 shared
    program "$klein_4b" 43
    drawn_on cuda:1 1 second
    program "$klein_4b" 46
    drawn_on cuda:1 4 half
    for run in 1 2 3; do
        same_image one-"$run"/image two-"$run"/image-42
        same_image second/image two-"$run"/image-43
    done
    for seed in 46 47 48 49; do same_image "half/image-$seed" "shared/image-$seed"; done
    for batch in 1 4; do
        "$bin/flux" bench replicas -d "$klein_4b" --device cuda:0,1 --steps 4 --size 512,1024 --batch "$batch" --json | tee "$work/rows" \
            || fail "the bench broke off"
        for size in 512 1024; do
            factor=$(named "replicas/${size}x$size x 2" factor)
            factors+=("$size by $batch: $factor,")
        done
    done
    one_s=$(printf '%s\n' "${one[@]}" | median) two_s=$(printf '%s\n' "${two[@]}" | median)
    more=$(awk -v a="$two_s" -v b="$one_s" 'BEGIN { printf "%.3f", a / b }')
    result "two GPUs make ${factors[*]} times the images of one; from start to PNG two images $two_s s by two, one $one_s s by one ($more); the same bytes; ${copied:-no weights were copied}"
    for factor in "${factors[@]}"; do
        factor=${factor%,}
        at_least "the factor of ${factor%: *}" "${factor##*: }" 1.95
    done
    at_most "start to PNG of two GPUs, beside one" "$more" 1.15
}

fidelity() {
    needs_model
    needs_float32_latents
    # Each stream has a queue of its own, because ranks may share the GPU.
    CUDA_DEVICE_MAX_CONNECTIONS=32 FLUX_FULL_MODEL=$klein_4b FLUX_REFERENCE=$work/reference \
        "$bin/gpu" --nocapture --test-threads 1 --skip few_bits full_size | tee "$work/tests"
    local status=$?
    grep -q '1024 x 1024: ' "$work/tests" || fail "ours did not get to 1024 x 1024"
    result "$(grep -oE '[0-9]+ x [0-9]+( edited)?: .* bf16 [0-9.]+' "$work/tests" | paste -s -d ';' | sed 's/;/; /g')"
    return "$status"
}

# Runs a command; sets wall_s, and peak_mib: the most memory that it held and that no file backs, looked at 20 times a second.
sampled() { # COMMAND...
    local from=${EPOCHREALTIME/./} pid peak_kib=0 name value
    "$@" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        while read -r name value _; do
            if [[ "$name" == RssAnon: && "$value" -gt $peak_kib ]]; then peak_kib=$value; fi
        done <"/proc/$pid/status"
        sleep 0.05
    done 2>/dev/null # the process may end between two lines
    wait "$pid" || return 1
    wall_s=$(seconds_since "$from") peak_mib=$((peak_kib / 1024))
}

cpu() {
    if ! grep -q amx_bf16 /proc/cpuinfo; then
        result "skipped: this processor has no AMX-BF16"
        return
    fi
    needs_model
    program "$klein_4b"
    local precision figures=() psnr
    for precision in f32 bf16; do
        sampled taskset -c 0,1 "${flux[@]}" --device cpu --precision "$precision" -W 256 -H 256 -o "$out/cpu-$precision.png" >"$work/$precision" \
            || fail "no image in $precision"
        cat "$work/$precision"
        figures+=("$precision $wall_s s, $peak_mib MiB of its own;")
        echo "$precision: $wall_s s by the clock, peak of RssAnon $peak_mib MiB"
    done
    needs_reference
    # The same cores, one after the other; ours with all that a process does, theirs without the start of Python and loading.
    local ours theirs
    ours=$(field total_s <"$work/bf16")
    OMP_NUM_THREADS=2 taskset -c 0,1 "$python" "$here/scripts/bench_reference.py" "$klein_4b" --out "$work" --device cpu --size 256 --cold \
        | tee "$work/row" || fail "the reference broke off"
    theirs=$(field image_s <"$work/row")
    figures+=("in bf16 from start to PNG $ours s, the reference from prompt to image $theirs s;")
    psnr=$("$bin/flux" compare "$out/cpu-f32.png" "$out/cpu-bf16.png") || fail "the images cannot be compared"
    export FLUX_REQUIRE_AMX=1
    "$bin/units" --nocapture backend::cpu || fail "the unit tests of the CPU failed"
    "$bin/cpu_gemm" --nocapture || fail "the products of the tile unit are wrong"
    timeout 30 taskset -c 0,1 "$bin/cpu_gemm" --ignored --nocapture --test-threads 1 # speeds, for the log
    result "${figures[*]} $psnr"
}

sanitizer() {
    command -v compute-sanitizer || compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | tail -n 1
}

# Runs one test under a tool in a process of its own; what it printed goes to the log at once, and a line to $work/tests.
checked_test() { # NAME
    local from=${EPOCHREALTIME/./} printed status=0
    printed=$(timeout --kill-after 10 150 "${tool[@]}" "$bin/gpu" --test-threads 1 --exact "$1" 2>&1) || status=$?
    printf '%s\n== %s: exit %s\n' "$printed" "$1" "$status"
    echo "$(seconds_since "$from") $1 $status" >>"$work/tests"
}

# Runs the parity tests under a tool of compute-sanitizer. What a test does in a child is run here by itself: attention kept off the
# kernel that the GPU would get. A test that makes the driver refuse a call, on purpose, is left out, and one that needs no GPU.
sanitized() { # TOOL
    local tool name names failed count
    local skip=(--skip full_size --skip asked_for --skip single_blocks_and_pairs --skip an_unknown_kernel --skip work_that_cannot_be_captured
        --skip the_definition_rounds)
    [[ ${TESTS:-} == *parallel* ]] || skip+=(--skip parallel::) # ranks share the GPU, and under a tool have little time to spare
    export CUDA_DEVICE_MAX_CONNECTIONS=32 # where they share it, each stream has a queue of its own
    tool=("$(sanitizer)" --tool "$1" --target-processes application-only --error-exitcode 9 --print-limit 200)
    [[ -n "${tool[0]}" ]] || fail "compute-sanitizer is not on this machine"
    # Two of the tools fail with products by cuBLASLt on Hopper: racecheck breaks some of them (with an illegal address, also when no
    # kernel is asked to be checked) and finds races in others, initcheck does not see what they write (values that the same test finds
    # right). So our own kernels compute all products there, and what remains to be skipped is what tests of cuBLASLt itself need and
    # whole images, which take too long. The kernels whose blocks write to each other's shared memory give way to those for all GPUs: with
    # that of `project` under these tools a machine stopped to answer.
    if [[ $1 != memcheck ]]; then
        for name in pipeline:: linear::the_choice linear::without_a_cache linear::timing fp8::sums fp8::the_default fp8::images \
            norm_conv2d::an_image; do
            skip+=(--skip "$name")
        done
        export FLUX_GEMM=own
        ! is_hopper || export FLUX_ATTENTION=sm90-single FLUX_PROJECT=base FLUX_LOW_RANK=base
    fi
    export FLUX_PARITY_SIZES=small
    [[ $1 != racecheck ]] || FLUX_PARITY_SIZES=few # it is the slowest
    # shellcheck disable=SC2086 # TESTS may be several words
    mapfile -t names < <("$bin/gpu" --list --format terse "${skip[@]}" ${TESTS:-} | sed -n 's/: test$//p')
    echo "${#names[@]} tests; FLUX_GEMM=${FLUX_GEMM:-} FLUX_ATTENTION=${FLUX_ATTENTION:-} FLUX_PROJECT=${FLUX_PROJECT:-}"
    # A tool keeps one processor busy, and racecheck the GPU as well, so some tests run at once.
    : >"$work/tests"
    (
        FLUX_ATTENTION=base checked_test attention::every_head_size_matches_the_cpu &
        for name in "${names[@]}"; do
            while [[ $(jobs -rp | wc -l) -ge $((($(nproc) + 1) / 2)) ]]; do wait -n; done
            checked_test "$name" &
        done
        wait
    ) | tee "$work/checked"
    grep -o 'at [A-Za-z_][A-Za-z0-9_:]*' "$work/checked" | sort | uniq -c | sort -rn | head -n 20 >"$work/kernels"
    if [[ -s "$work/kernels" ]]; then
        echo "Where findings are, and how often:"
        cat "$work/kernels"
    fi
    echo "The slowest tests, in seconds:"
    sort -rn "$work/tests" | head -n 10
    failed=$(awk '$3 != 0 { printf " %s", $2 }' "$work/tests")
    count=$(wc -l <"$work/tests")
    result "$((count - $(wc -w <<<"$failed"))) of $((${#names[@]} + 1)) tests passed; $(
        grep -E '(ERROR|RACECHECK) SUMMARY' "$work/checked" | sed 's/^=* *//' | sort | uniq -c | sed 's/^ *//' | paste -s -d ';')"
    [[ -z "$failed" && $count -eq $((${#names[@]} + 1)) ]] || fail "failed:$failed"
}

memcheck() { sanitized memcheck; }
racecheck() { sanitized racecheck; }
initcheck() { sanitized initcheck; }

# Sets klein_9b, and how it came there; the model is written unless it is there, and deleted at the end unless KEEP is set.
needs_nine() {
    for klein_9b in "$klein_9b_in_memory" "$models/klein-9b"; do
        if [[ -e "$klein_9b/model_index.json" ]]; then
            came="$klein_9b was there"
            return
        fi
    done
    rm -rf "$klein_9b" "$klein_9b_in_memory"
    mkdir -p "$models"
    # 35 GB; a disk that already holds the 4B model may be too small, and memory large enough.
    if [[ $(df --output=avail -k "$models" | tail -n 1) -lt 36000000 && $(df --output=avail -k "$memory_dir" | tail -n 1) -gt 36000000 ]]; then
        klein_9b=$klein_9b_in_memory
    fi
    [[ -n ${KEEP:-} ]] || trap 'rm -rf "$klein_9b"' EXIT
    write_model 9b "$klein_9b" || fail "not written"
    came="written in $written_s s"
}

nine() {
    needs_nine
    program "$klein_9b"
    "${flux[@]}" --device cuda -W 1024 -H 1024 -o "$out/nine.png" | tee "$work/row" || fail "no image"
    gpu_sampled "${flux[@]}" --device cuda -W 1024 -H 1024 --gpu-memory 5 -o "$work/capped.png" >"$work/capped" || fail "no image within 5 GiB"
    cat "$work/capped"
    cmp "$out/nine.png" "$work/capped.png" || fail "within 5 GiB the same seed gave another image"
    result "$came; 1024 x 1024 in $(field total_s <"$work/row") s, peak $(gib "$(field peak_memory_bytes <"$work/row")"); within 5 GiB in $(field total_s <"$work/capped") s, $driver_mib MiB by the driver, the same bytes"
}

kv() {
    needs_nine
    "$bin/flux" bench stages/1024x1024 stages/edit-1024x1024 -d "$klein_9b" --kv --device cuda --steps 4 --size 1024 \
        --references 1,2,4 --runs 3 --json | tee "$work/rows" || fail "the bench broke off"
    local alone step name references figures=()
    alone=$(named stages/1024x1024 step_ms)
    for references in 1 2 4; do
        name=stages/edit-1024x1024+$references
        step=$(named "$name" step_ms)
        figures+=("with $references: step $step ($(awk -v a="$step" -v b="$alone" 'BEGIN { printf "%.3f", a / b }') x), made in $(named "$name" references_ms), prompts $(named "$name" total_ms), $(named "$name" second_ms);")
    done
    result "$came; ms, step without references $alone; ${figures[*]}"
}

# --- Around them.

# Sets root (with tests/golden and models/tiny) and bundle (with bin.tar.xz).
find_files() {
    if [[ -e "$here/bin.tar.xz" ]]; then bundle=$here; else bundle=$here/gpu-bundle; fi
    [[ -e "$bundle/bin.tar.xz" ]] || {
        echo "error: no bundle in $bundle" >&2
        echo "  hint: run \`make gpu-bundle\` on a machine with Rust and bring gpu-bundle/ here" >&2
        exit 1
    }
    for root in "$here" "$here/.."; do
        if [[ -d "$root/tests/golden" && -d "$root/models/tiny" ]]; then return; fi
    done
    echo "error: neither $here nor the folder above has tests/golden and models/tiny" >&2
    echo "  hint: run this in the root of the project, or make a bundle that has them with \`make gpu-bundle STANDALONE=1\`" >&2
    exit 1
}

unpack() {
    bin=$work/bin
    mkdir "$bin"
    tar -xJf "$bundle/bin.tar.xz" -C "$bin" 2>/dev/null || "$python" -m tarfile -e "$bundle/bin.tar.xz" "$bin" || exit 1
    chmod +x "$bin"/*
}

describe_machine() {
    date -u '+date     %Y-%m-%d %H:%M:%S UTC'
    echo "commit   $(cat "$bundle/COMMIT" 2>/dev/null || echo unknown)"
    echo "gpu      $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1)"
    echo "cuda     $(nvidia-smi 2>/dev/null | grep -o 'CUDA Version: [0-9.]*' || echo 'no driver')"
    echo "cpu      $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
    echo "command  scripts/gpu_check.sh OUT $*"
}

# Runs a section in a process of its own and prints its line of the summary.
run() { # SECTION
    local name=$1 left=$((total_s - SECONDS)) limit from=$SECONDS status=0 line
    limit=${LIMIT_S:-$(limit_of "$name")}
    if [[ $limit -gt $left ]]; then limit=$left; fi
    if [[ $limit -lt 5 ]]; then
        status=not-run line="no time left"
    else
        timeout --kill-after 10 "$limit" bash "$here/scripts/gpu_check.sh" --section "$name" >"$out/$name.log" 2>&1 || status=$?
        line=$(sed -n 's/^result: //p' "$out/$name.log" | tail -n 1)
        if [[ $status -eq 124 || $status -eq 137 ]]; then line="stopped at its limit of $limit s; ${line:-$(tail -n 1 "$out/$name.log")}"; fi
        if [[ -z "$line" ]]; then line=$(tail -n 1 "$out/$name.log"); fi
    fi
    case "$status" in
        0) status=ok ;;
        not-run) failed=1 ;;
        *) failed=1 status="exit $status" ;;
    esac
    printf '%-10s %-8s %4d s  %s\n' "$name" "$status" $((SECONDS - from)) "$line" | tee -a "$out/summary.txt"
}

if [[ ${1:-} == --section ]]; then # by `run` below, which exports what sections need
    "$2"
    exit
fi

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    "" | -*)
        echo "error: the first argument is OUT, a folder" >&2
        usage >&2
        exit 2
        ;;
esac
out=$1
shift
sections=()
for name in "$@"; do
    case "$name" in
        all) sections+=("${ALL[@]}") ;;
        sanitize) sections+=(memcheck racecheck initcheck) ;;
        *)
            limit_of "$name" >/dev/null || {
                echo "error: unknown section: $name" >&2
                usage >&2
                exit 2
            }
            sections+=("$name")
            ;;
    esac
done
if [[ ${#sections[@]} -eq 0 ]]; then
    echo "error: no section is named" >&2
    usage >&2
    exit 2
fi

total_s=${TOTAL_S:-540}
failed=0
find_files
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
unpack
export bundle root work out bin FLUX_REQUIRE_GPU=1 FLUX_TEST_ROOT=$root PYTHONUNBUFFERED=1
describe_machine "$@" | tee "$out/summary.txt"
nvidia-smi >"$out/nvidia-smi.log" 2>&1
echo
for name in "${sections[@]}"; do run "$name"; done
exit $failed
