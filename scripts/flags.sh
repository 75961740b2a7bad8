# Sourced by the scripts that pass flags to flux: `read_flag "$@"` parses the first flag as flux does. Sets `name` (the
# long form), `value`, `words` (the words to pass to flux) and `left` (the remaining arguments). `-qS5` is `-q` and `-S5`.
# The script defines `usage_error`, and lists its own flags with a value in `own_flags`.
# shellcheck shell=bash disable=SC2034 # the script that sources this file uses what it sets

read_flag() {
    local has_value=yes
    words=("$1") left=("${@:2}")
    if [[ "$1" =~ ^-[qvhV][^=] ]]; then
        words=("${1:0:2}") left=("-${1:2}" "${@:2}")
    fi
    case "${words[0]}" in
        --?*=*) name=${1%%=*} value=${1#*=} ;;
        -[!-]?*) name=${1:0:2} value=${1:2} value=${value#=} ;;
        *) name=${words[0]} value='' has_value=no ;;
    esac
    long_name
    [[ $has_value == no ]] || return 0
    # The value of a flag is the next word, even if it looks like a flag.
    if takes_value; then
        [[ ${#left[@]} -gt 0 ]] || usage_error "$(printable "${words[0]}") needs a value"
        value=${left[0]}
        words+=("$value") left=("${left[@]:1}")
    fi
}

# Short flags, and the aliases from other programs that flux accepts.
long_name() {
    [[ "$name" != --* ]] || name=${name//_/-}
    case "$name" in
        -p | --text-prompt | --positive-prompt) name=--prompt ;;
        --negative-prompt | --neg-prompt | --negative-text) name=--negative ;;
        -o | --output-path | --output-file | --out | --outfile | --save-path) name=--output ;;
        -n | --batch-count | --num-images | --num-images-per-prompt | --n-iter | --n-images | --num-samples | --n-samples)
            name=--count
            ;;
        -S | --random-seed | --manual-seed) name=--seed ;;
        -W) name=--width ;;
        -H) name=--height ;;
        --resolution | --image-size | --img-size) name=--size ;;
        -s | --num-inference-steps | --inference-steps | --num-steps | --sample-steps | --sampling-steps | --ddim-steps)
            name=--steps
            ;;
        -g | --guidance-scale | --cfg-scale | --true-cfg-scale | --scale) name=--guidance ;;
        -i | -r | --ref-image | --reference-image | --input-image | --image | --image-paths | --ref-images | --reference)
            name=--input
            ;;
        --mask-image | --mask-path | --masked-image-path | --mask-image-path) name=--mask ;;
        --denoise | --denoising-strength | --denoise-strength) name=--strength ;;
        -d | --model | --model-path | --model-dir | --ckpt | --ckpt-path | --checkpoint | --diffusion-model | --unet | --transformer)
            name=--dir
            ;;
        --text-encoder-path | --llm | --llm-path | --qwen3 | --qwen) name=--text-encoder ;;
        --vae-path | --autoencoder) name=--vae ;;
        --tokenizer-path) name=--tokenizer ;;
        --lora-path) name=--lora ;;
        --quantise | --quantization) name=--quantize ;;
        --num-threads | --n-threads | --cpu-threads) name=--threads ;;
        --no-overwrite) name=--no-clobber ;;
        -q | --silent) name=--quiet ;;
        -v) name=--verbose ;;
        -h) name=--help ;;
        -V) name=--version ;;
    esac
}

takes_value() {
    case "$name" in
        --prompt | --wildcards | --expand-seed | --box | --box-from | --boxes | --region | --negative | --max-sequence-length | --output | --width | --height | --size | --steps | --seed | --count | \
            --guidance | --schedule | --rng | --variation | --variety | --input | --input-weight | --control | --canny | --mask | --strength | --extend | --mask-padding | --feather | \
            --sign-cert | --sign-key | --tile | --tile-overlap | --hires | --hires-size | --hires-upscaler | --hires-strength | --hires-steps | --hires-prompt | \
            --noise | --latents | --embeddings | --save-latents | --save-embeddings | --dir | --text-encoder | --vae | \
            --tokenizer | --variant | --lora | --quantize | --device | --precision | --attention | --gpu-memory | --threads | --parallel | --progress | --preview-decoder | --server | \
            --upsample-url | --upsample-model | --upsample-system | --upsample-key-file | --upsample-timeout | --upsample-fails | --upsample-extra | \
            --recipe | --config-from-metadata | --format | --quality | --log)
            return 0
            ;;
    esac
    [[ " ${own_flags[*]-} " == *" $name "* ]]
}
