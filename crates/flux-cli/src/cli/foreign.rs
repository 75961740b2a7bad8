//! Flags of other programs for these models: stable-diffusion.cpp, diffusers and its scripts, mflux, iris.c, ComfyUI
//! and the web UIs. Equivalent flags are accepted as aliases; for other flags an error names the equivalent, or the
//! reason why there is none. Underscores are accepted in place of hyphens.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use flux::Error;
use flux::files::fetch_a_model;

use super::Cli;

/// Flags of this program and their aliases. A one-letter name is a short flag.
const SAME: [(&str, &[&str]); 21] = [
    ("prompt", &["text-prompt", "positive-prompt"]),
    ("negative", &["negative-prompt", "neg-prompt", "negative-text"]),
    ("guidance", &["guidance-scale", "cfg-scale", "true-cfg-scale", "scale"]),
    ("steps", &["num-inference-steps", "inference-steps", "num-steps", "sample-steps", "sampling-steps", "ddim-steps"]),
    (
        "count",
        &["batch-count", "num-images", "num-images-per-prompt", "n-iter", "n-images", "num-samples", "n-samples"],
    ),
    ("size", &["resolution", "image-size", "img-size"]),
    ("seed", &["random-seed", "manual-seed"]),
    ("input", &["r", "ref-image", "reference-image", "input-image", "image", "image-paths", "ref-images", "reference"]),
    ("mask", &["mask-image", "mask-path", "masked-image-path", "mask-image-path"]),
    ("strength", &["denoise", "denoising-strength", "denoise-strength"]),
    ("output", &["output-path", "output-file", "out", "outfile", "save-path"]),
    ("no-clobber", &["no-overwrite"]),
    (
        "dir",
        &[
            "model", "model-path", "model-dir", "ckpt", "ckpt-path", "checkpoint", "diffusion-model", "unet",
            "transformer",
        ],
    ),
    ("text-encoder", &["text-encoder-path", "llm", "llm-path", "qwen3", "qwen"]),
    ("vae", &["vae-path", "autoencoder"]),
    ("tokenizer", &["tokenizer-path"]),
    ("lora", &["lora-path"]),
    ("quantize", &["quantise", "quantization"]),
    ("format", &["quantize", "quantise", "type", "outtype"]),
    ("threads", &["num-threads", "n-threads", "cpu-threads"]),
    ("quiet", &["silent"]),
];

/// Flags of other programs without an alias, and their hints.
const OTHERS: [(&[&str], &str); 40] = [
    (
        &["sampler", "sampler-name", "sampling-method", "sample-method", "sampling", "solver"],
        "leave it out: flow models use Euler's method only; set the noise levels with `--schedule`",
    ),
    (
        &["scheduler", "schedule-type", "karras", "eta", "flow-shift", "shift", "base-shift", "max-shift", "mu"],
        "leave it out: flow models use Euler's method only; set the noise levels with \
         `--schedule flow|linear|power:A|sigmas:1,0.8,..`",
    ),
    (&["sigmas", "timesteps"], "set the noise levels with `--schedule sigmas:1,0.8,..`"),
    (&["linear", "power", "power-alpha"], "use `--schedule linear` or `--schedule power:A`"),
    (
        &["cfg", "embedded-guidance", "distilled-guidance", "img-cfg-scale", "slg-scale", "guidance-rescale", "apg"],
        "use `--guidance` (`-g`), the only scale, with undistilled models; distilled models have none",
    ),
    (
        &["init-img", "init-image", "i2i", "img2img", "image-path", "input-img"],
        "name the image with `-i`: as a reference, or with `--strength X` as the image to edit",
    ),
    (
        &["image-strength", "init-image-strength", "img2img-strength", "prompt-strength"],
        "use `--strength` for the part to change: 0.3 if another program keeps 0.7 of the image",
    ),
    (&["m"], "select a model with `-d`"),
    (&["b", "B"], "set the number of images with `-n`"),
    (&["t"], "set the number of threads with `--threads`, and the edit strength with `--strength`"),
    (&["M", "mode"], "there are no modes: edit images with `-i`, convert models with `flux convert`"),
    (&["N"], "set a negative prompt with `--negative`, and the number of images with `-n`"),
    (&["c", "config", "C", "config-file"], "set defaults in flux.toml, see `flux config`"),
    (
        &["output-dir", "outdir", "out-dir", "output-folder", "save-dir"],
        "use `-o FOLDER/` to write `flux-SEED.png` to a folder",
    ),
    (&["batch-size", "batch"], "set the number of images with `-n`; as many as fit into memory are generated at once"),
    (
        &["prompt-file", "prompts-file", "from-file", "prompts", "file"],
        "use `flux batch FILE FOLDER` for an image per line, or `-p - < FILE` for a single prompt",
    ),
    (&["seeds", "auto-seeds"], "use `-S N -n K` for K images with seeds from N on"),
    (
        &[
            "lora-paths", "loras", "lora-scale", "lora-scales", "lora-weight", "lora-weights", "lora-strength",
            "lora-multiplier",
        ],
        "use `--lora FILE:STRENGTH` once for each adapter",
    ),
    (
        &["lora-model-dir", "lora-dir", "lora-style", "lora-name", "lora-repo-id", "lora-apply-mode", "fuse-lora"],
        "name the file of an adapter with `--lora FILE:STRENGTH`; prompts cannot select adapters",
    ),
    (
        &[
            "clip-l",
            "clip-g",
            "t5xxl",
            "t5",
            "clip",
            "clip-vision",
            "qwen2vl",
            "qwen2vl-vision",
            "llm-vision",
            "high-noise-diffusion-model",
        ],
        "use `--text-encoder PATH`: klein models have a single text encoder, Qwen3",
    ),
    (
        &["tae", "taesd", "taesd-preview-only", "preview", "preview-path"],
        "use `--show-steps` for previews of each step, and `--preview-decoder FILE` to decode them with TAEF2; images \
         are decoded by the VAE, and `--vae` also accepts the small decoder",
    ),
    (
        &[
            "fa", "diffusion-fa", "flash-attn", "flash-attention", "xformers", "sdpa", "diffusion-conv-direct",
            "vae-conv-direct", "compile", "torch-compile",
        ],
        "leave it out: the fastest kernels of the device are used",
    ),
    (
        &[
            "offload-to-cpu",
            "cpu-offload",
            "offload",
            "enable-model-cpu-offload",
            "enable-sequential-cpu-offload",
            "model-cpu-offload",
            "lowvram",
            "medvram",
            "low-vram",
            "low-ram",
            "novram",
            "highvram",
            "mlx-cache-limit-gb",
            "max-vram",
            "clip-on-cpu",
            "vae-on-cpu",
            "control-net-cpu",
            "free-memory",
        ],
        "leave it out: weights that do not fit on the GPU are streamed to it; `--gpu-memory GIB` limits the memory, \
         `--quantize` makes weights smaller",
    ),
    (
        &[
            "vae-tiling", "vae-tile-size", "vae-tile-overlap", "vae-relative-tile-size", "tiled-vae",
            "enable-vae-tiling", "vae-slicing", "enable-vae-slicing",
        ],
        "leave it out: if memory is short, the VAE uses tiles automatically, with the same result",
    ),
    (&["mmap", "no-mmap", "disable-mmap"], "leave it out: weights are memory-mapped"),
    (
        &["metadata", "embed-metadata", "disable-image-metadata"],
        "leave it out: a PNG contains its metadata, and `--timings=json` prints more",
    ),
    (&["overwrite", "y", "yes"], "leave it out: files are overwritten unless you use `--no-clobber`"),
    (&["aspect-ratio", "ar"], "set the size, as in `--size 768x512`"),
    (
        &["cpu", "use-cpu", "gpu", "cuda", "mps", "gpu-id", "device-id"],
        "use `--device cpu`, `--device cuda` or `--device cuda:N`",
    ),
    (
        &["dtype", "torch-dtype", "weight-type", "tensor-type-rules"],
        "use `--precision` for the arithmetic, and `--quantize` for the weight format",
    ),
    (
        &["type", "fp16", "bf16", "fp8", "fp32", "half", "q8", "q4"],
        "use `--quantize FORMAT` for quantized weights, and `--precision` for the arithmetic",
    ),
    (&["base", "distilled"], "use `--variant base` or `--variant distilled`"),
    (
        &[
            "control-image", "control-net", "controlnet", "controlnet-image-path", "controlnet-strength",
            "control-strength", "ip-adapter", "pm-id-images-dir", "photo-maker", "redux-image-paths",
            "depth-image-path",
        ],
        "klein models do not support control nets and image adapters: pass images with `-i`, and describe their use in \
         the prompt",
    ),
    (
        &["restore-faces", "clip-skip", "tiling"],
        "this is not supported: set the size with `--size`, or regenerate an image with `-i` and `--strength`",
    ),
    (
        &["upscale-model", "upscale-repeats", "upscale"],
        "enlarge an image with `flux upscale`, or while it is generated with `--hires FACTOR` and `--hires-upscaler FILE`",
    ),
    (&["hires-fix", "hires-scale", "enable-hr", "hr-scale"], "use `--hires FACTOR`, such as `--hires 2`"),
    (&["hires-width", "hires-height", "hr-resize-x", "hr-resize-y"], "use `--hires-size WIDTHxHEIGHT`"),
    (&["hires-denoising-strength", "hr-denoising-strength"], "use `--hires-strength`"),
    (
        &[
            "hf-token",
            "token",
            "revision",
            "cache-dir",
            "hf-repo",
            "repo-id",
            "repo",
            "pretrained-model-name-or-path",
            "download",
        ],
        "select a local model with `-d FOLDER`; {fetch}",
    ),
    (
        &["listen", "listen-ip", "listen-port", "port", "host", "api", "share"],
        "use `flux serve` to run a server; `flux serve --help` lists its flags",
    ),
];

/// Command names of other programs, or of other builds of this one, which are unlikely as prompts.
const NO_COMMANDS: &[(&str, &str)] = &[("server", "use `flux serve` to run a server"), ("worker", ""), ("submit", "")];

/// English words that are similar to a command. They are prompts.
const WORDS: &[&str] = &[
    "alive", "arid", "bath", "beach", "belch", "botch", "bunch", "catch", "cat", "chant", "chap", "char", "chart",
    "cheat", "chit", "chow", "coat", "compared", "compass", "company", "compete", "compose", "compute", "concert",
    "convent", "converge", "convex", "cover", "covert", "device", "devils", "dive", "fist", "five", "gain", "gist",
    "give", "grad", "grim", "grin", "grind", "grip", "grit", "hat", "hatch", "hive", "how", "into", "jive", "last",
    "latch", "lest", "lice", "lie", "life", "lift", "like", "lilt", "lime", "line", "lint", "lisp", "lists", "lit",
    "lite", "liver", "lost", "love", "lust", "match", "mist", "nerve", "olive", "patch", "porker", "rid", "served",
    "services", "sheen", "sheep", "sheer", "shoe", "shoo", "shop", "shot", "shown", "skeet", "sleet", "slow", "snow",
    "sow", "stow", "summit", "sweet", "swerve", "tench", "that", "verve", "watch", "wench", "what", "worked",
    "workers",
];

/// Returns the command that an unknown word may be a typo for.
fn near_command(word: &str) -> Option<String> {
    let command = Cli::command();
    if command.find_subcommand(word).is_some() {
        return None;
    }
    let word = word.to_lowercase();
    if WORDS.contains(&word.as_str()) {
        return None;
    }
    let names = command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    let sorted = |text: &str| {
        let mut letters: Vec<_> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let distance = |name: &str| {
        let distance = strsim::damerau_levenshtein(&word, name);
        let most = match name.len() {
            // For a short name, one additional letter makes another word.
            ..4 => usize::from(sorted(&word) == sorted(name)),
            4..7 => 1,
            _ => 2,
        };
        (distance <= most).then_some(distance)
    };
    let found = names.filter_map(|name| Some((distance(name)?, name.to_string())));
    found.min().map(|(_, name)| name)
}

/// Normalizes a name: hyphens for underscores.
fn plain(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('_', "-");
    // Short flags are case-sensitive.
    if name.chars().count() == 1 { name } else { name.to_lowercase() }
}

/// Returns the command with aliases for its flags.
pub fn with_other_names(command: Command) -> Command {
    let own: Vec<String> = command.get_arguments().filter_map(|arg| arg.get_long().map(String::from)).collect();
    let command = command.mut_args(|arg| {
        let Some(long) = arg.get_long().map(String::from) else { return arg };
        let theirs = SAME.iter().find(|(name, _)| *name == long).map_or(&[][..], |(_, theirs)| theirs);
        let (short, theirs): (Vec<_>, Vec<_>) = theirs.iter().partition(|name| name.len() == 1);
        let mut names = Vec::new();
        // If an alias could stand for two flags of a command, it stands for the first.
        let is_taken = |name: &str| {
            let mut flags = SAME.iter().filter(|(flag, _)| own.iter().any(|own| own == flag));
            own.iter().any(|own| own == name)
                || flags.find(|(_, theirs)| theirs.contains(&name)).is_some_and(|(flag, _)| *flag != long)
        };
        for name in theirs.into_iter().copied().filter(|name: &&str| !is_taken(name)).chain([long.as_str()]) {
            names.extend([name.to_string(), name.replace('-', "_")]);
        }
        names.sort();
        names.dedup();
        names.retain(|name| *name != long);
        arg.aliases(names).short_aliases(short.iter().filter_map(|name| name.chars().next()))
    });
    command.mut_subcommands(with_other_names)
}

/// Fills in a hint, with `{fetch}` replaced by the way to get a model.
fn filled(hint: &str) -> String {
    hint.replace("{fetch}", &fetch_a_model())
}

/// Returns the flag of this program with the same meaning.
pub fn ours(name: &str) -> Option<&'static str> {
    let name = plain(name);
    SAME.iter().find(|(_, theirs)| theirs.contains(&name.as_str())).map(|(ours, _)| *ours)
}

/// Returns the hint for a flag of another program without an alias.
pub fn hint(name: &str) -> Option<String> {
    let name = plain(name);
    OTHERS.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, hint)| filled(hint))
}

/// Returns the error for an unknown flag, if another program has this flag.
pub fn explain(error: &clap::Error) -> Option<Error> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().filter(|flag| flag.starts_with('-'))?;
    Some(Error::usage(format!("unknown flag `{flag}`")).hint(hint(flag)?))
}

/// Returns the error for a word that is a command in other programs, or a typo of a command.
pub fn no_command(word: &str) -> Option<Error> {
    let Some((name, instead)) = NO_COMMANDS.iter().find(|(name, _)| *name == word) else {
        let near = near_command(word).filter(|_| word.chars().all(char::is_alphanumeric))?;
        return Some(
            Error::usage(format!("unknown command `{word}`"))
                .hint(format!("did you mean `flux {near}`? use `flux -p {word}` for a prompt of this word")),
        );
    };
    let draw = format!("use `flux -p {name}` for a prompt of this word");
    let hint = if instead.is_empty() { draw } else { format!("{}; {draw}", filled(instead)) };
    Some(Error::usage(format!("unknown command `{name}`")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_told_of_twice_and_none_of_ours_is_another_ones() {
        let command = with_other_names(Cli::command());
        command.clone().debug_assert();
        let known: Vec<String> = command
            .get_arguments()
            .flat_map(|arg| {
                let long = arg.get_long_and_visible_aliases().unwrap_or_default().into_iter().map(String::from);
                long.chain(arg.get_short().map(String::from)).collect::<Vec<_>>()
            })
            .collect();
        let same: Vec<&str> =
            SAME.iter().filter(|(own, _)| *own != "format").flat_map(|(_, theirs)| *theirs).copied().collect();
        let mut told: Vec<&str> = OTHERS.iter().flat_map(|(names, _)| *names).copied().chain(same).collect();
        for name in &told {
            assert!(!known.iter().any(|known| known == name), "`{name}` is one of our flags");
            assert_eq!(plain(name), *name);
        }
        let count = told.len();
        told.sort();
        told.dedup();
        assert_eq!(told.len(), count, "a name is listed twice");
        for (own, _) in SAME.iter().filter(|(own, _)| *own != "format") {
            assert!(known.iter().any(|known| known == own), "{own}");
        }
    }

    #[test]
    fn no_command_has_a_name_twice() {
        fn check(command: &clap::Command) {
            let names = command.get_arguments().flat_map(|flag| {
                let others = flag.get_all_aliases().unwrap_or_default().into_iter().map(String::from);
                flag.get_long().map(String::from).into_iter().chain(others).collect::<Vec<_>>()
            });
            let mut names: Vec<_> = names.collect();
            names.sort();
            let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
            assert!(twice.is_empty(), "{}: {twice:?}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&with_other_names(Cli::command()));
        // This includes clap's own checks in debug builds.
        with_other_names(Cli::command()).debug_assert();
    }

    #[test]
    fn what_hints_name_is_there() {
        let command = Cli::command();
        for (_, hint) in OTHERS {
            for word in hint.split(['`', ' ', ':', '=', '|', ',', ';']).filter(|word| word.starts_with("--")) {
                let long = word.trim_start_matches('-');
                assert!(command.get_arguments().any(|arg| arg.get_long() == Some(long)), "{word} in: {hint}");
            }
        }
    }
}
