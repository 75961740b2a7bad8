//! Flags of other programs of this family: stable-diffusion.cpp, diffusers and its scripts, mflux, iris.c, ComfyUI and
//! the web UIs. Those that mean the same as one of ours are it; of all others an error says what does it here, or why
//! nothing does. Everywhere an underscore is as good as a hyphen.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use flux::Error;
use flux::files::fetch_a_model;

/// Ours, and those that mean the same. A name of one letter is a short flag.
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
            "model",
            "model-path",
            "model-dir",
            "ckpt",
            "ckpt-path",
            "checkpoint",
            "diffusion-model",
            "unet",
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

/// Theirs, and what to tell whoever gives one of them.
const OTHERS: [(&[&str], &str); 36] = [
    (
        &["sampler", "sampler-name", "sampling-method", "sample-method", "sampling", "solver"],
        "there is none to choose: flow models are sampled by Euler's method; `--schedule` says how the noise levels fall",
    ),
    (
        &["scheduler", "schedule-type", "karras", "eta", "flow-shift", "shift", "base-shift", "max-shift", "mu"],
        "there is one scheduler, Euler's method over a flow; `--schedule flow|linear|power:A|sigmas:1,0.8,..` says how its \
         noise levels fall",
    ),
    (&["sigmas", "timesteps"], "give the noise levels with `--schedule sigmas:1,0.8,..`"),
    (&["linear", "power", "power-alpha"], "`--schedule linear` and `--schedule power:A` do that"),
    (
        &["cfg", "embedded-guidance", "distilled-guidance", "img-cfg-scale", "slg-scale", "guidance-rescale", "apg"],
        "the only scale is `--guidance` (`-g`), for undistilled models; distilled ones take none",
    ),
    (
        &["init-img", "init-image", "i2i", "img2img", "image-path", "input-img"],
        "name the image with `-i`: a reference, or with `--strength X` the image to change",
    ),
    (
        &["image-strength", "init-image-strength", "img2img-strength", "prompt-strength"],
        "`--strength` is how far from the image to go: 0.3 where others keep 0.7 of it",
    ),
    (&["m"], "a model is named with `-d`"),
    (&["b", "B"], "the number of images is `-n`"),
    (&["t"], "threads are `--threads`, and how far from the image to go is `--strength`"),
    (&["M", "mode"], "there are no modes: with `-i` images are made from images, `flux convert` converts"),
    (&["N"], "what the image should lean away from is `--negative`, and the number of images `-n`"),
    (
        &["c", "config", "C", "config-file"],
        "what holds where no flag says otherwise is in flux.toml, see `flux config`",
    ),
    (
        &["output-dir", "outdir", "out-dir", "output-folder", "save-dir"],
        "`-o FOLDER/` writes `flux-SEED.png` into a folder",
    ),
    (&["batch-size", "batch"], "the number of images is `-n`; so many as memory allows are made at once"),
    (
        &["prompt-file", "prompts-file", "from-file", "prompts", "file"],
        "`flux batch FILE FOLDER` makes an image of each line; one prompt of a file is `-p - < FILE`",
    ),
    (&["seeds", "auto-seeds"], "`-S N -n K` makes K images with the seeds from N on"),
    (
        &[
            "lora-paths",
            "loras",
            "lora-scale",
            "lora-scales",
            "lora-weight",
            "lora-weights",
            "lora-strength",
            "lora-multiplier",
        ],
        "`--lora FILE:STRENGTH` names an adapter and its strength, once for each",
    ),
    (
        &["lora-model-dir", "lora-dir", "lora-style", "lora-name", "lora-repo-id", "lora-apply-mode", "fuse-lora"],
        "`--lora FILE:STRENGTH` names the file of an adapter; prompts name none",
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
        "klein models have one text encoder, Qwen3: `--text-encoder PATH`",
    ),
    (
        &["tae", "taesd", "taesd-preview-only", "preview", "preview-path"],
        "`--show-steps` shows what each step leads to, with `--preview-decoder FILE` as TAEF2 draws it; images are those \
         of the VAE, and `--vae` also takes the small decoder",
    ),
    (
        &[
            "fa",
            "diffusion-fa",
            "flash-attn",
            "flash-attention",
            "xformers",
            "sdpa",
            "diffusion-conv-direct",
            "vae-conv-direct",
            "compile",
            "torch-compile",
        ],
        "leave it out: the fastest kernels that the device has are used",
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
        "leave it out: weights stay on the GPU as far as they fit, and take turns where they do not; `--gpu-memory GIB` is a \
         cap, `--quantize` makes them smaller",
    ),
    (
        &[
            "vae-tiling",
            "vae-tile-size",
            "vae-tile-overlap",
            "vae-relative-tile-size",
            "tiled-vae",
            "enable-vae-tiling",
            "vae-slicing",
            "enable-vae-slicing",
        ],
        "leave it out: where memory is short the VAE works in bands by itself, with the same result",
    ),
    (&["mmap", "no-mmap", "disable-mmap"], "leave it out: weights are mapped"),
    (
        &["metadata", "embed-metadata", "disable-image-metadata"],
        "leave it out: a PNG says how it was made, and `--timings=json` more",
    ),
    (&["overwrite", "y", "yes"], "leave it out: files are overwritten unless `--no-clobber` is given"),
    (&["aspect-ratio", "ar"], "give the size, as in `--size 768x512`"),
    (
        &["cpu", "use-cpu", "gpu", "cuda", "mps", "gpu-id", "device-id"],
        "`--device cpu`, `--device cuda` or `--device cuda:N` says where to compute",
    ),
    (
        &["dtype", "torch-dtype", "weight-type", "tensor-type-rules"],
        "`--precision` is how to compute, and `--quantize` how to store weights",
    ),
    (
        &["type", "fp16", "bf16", "fp8", "fp32", "half", "q8", "q4"],
        "weights in fewer bits are `--quantize FORMAT`, and how to compute is `--precision`",
    ),
    (&["base", "distilled"], "`--variant base` or `--variant distilled` says how a model was trained"),
    (
        &[
            "control-image",
            "control-net",
            "controlnet",
            "controlnet-image-path",
            "controlnet-strength",
            "control-strength",
            "ip-adapter",
            "pm-id-images-dir",
            "photo-maker",
            "redux-image-paths",
            "depth-image-path",
        ],
        "klein models have no control nets and image adapters: give images with `-i`, and say in the prompt what to make of \
         them",
    ),
    (
        &[
            "upscale-model",
            "upscale-repeats",
            "upscale",
            "hires",
            "hires-fix",
            "restore-faces",
            "clip-skip",
            "tiling",
            "canny",
        ],
        "there is no such thing here: `--size` gives the size, and an image may be drawn again with `-i` and `--strength`",
    ),
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
        "a model on the disk is named with `-d FOLDER`; {fetch}",
    ),
    (
        &["listen", "listen-ip", "listen-port", "port", "host", "api", "share"],
        "this command makes its images and ends: `flux serve` is the server, and `flux serve --help` tells its flags",
    ),
];

/// Words that other programs, or later versions of this one, have as commands: nobody draws them by chance.
const NO_COMMANDS: &[(&str, &str)] = &[("server", "`flux serve` is one"), ("worker", ""), ("submit", "")];

/// A name with hyphens for underscores.
fn plain(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('_', "-");
    // Short flags differ in their case.
    if name.chars().count() == 1 { name } else { name.to_lowercase() }
}

/// The command, whose flags are known by their other names, too.
pub fn with_other_names(command: Command) -> Command {
    let own: Vec<String> = command.get_arguments().filter_map(|arg| arg.get_long().map(String::from)).collect();
    let command = command.mut_args(|arg| {
        let Some(long) = arg.get_long().map(String::from) else { return arg };
        let theirs = SAME.iter().find(|(name, _)| *name == long).map_or(&[][..], |(_, theirs)| theirs);
        let (short, theirs): (Vec<_>, Vec<_>) = theirs.iter().partition(|name| name.len() == 1);
        let mut names = Vec::new();
        // Where a command has two flags that others call the same, it is the first of them.
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

/// A hint, where `{fetch}` is how to get a model.
fn filled(hint: &str) -> String {
    hint.replace("{fetch}", &fetch_a_model())
}

/// What to say of a flag that is not ours, if it is one of another program.
pub fn explain(error: &clap::Error) -> Option<Error> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().unwrap_or(flag);
    let name = plain(flag);
    let (_, hint) = OTHERS.iter().find(|(names, _)| names.contains(&name.as_str()))?;
    Some(Error::usage(format!("there is no flag `{flag}`")).hint(filled(hint)))
}

/// The error of a word that is a command elsewhere, if it is one.
pub fn no_command(word: &str) -> Option<Error> {
    let (name, instead) = NO_COMMANDS.iter().find(|(name, _)| *name == word)?;
    let draw = format!("`flux -p {name}` draws the word");
    let hint = if instead.is_empty() { draw } else { format!("{}; {draw}", filled(instead)) };
    Some(Error::usage(format!("this version has no command `{name}`")).hint(hint))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

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
            assert!(!known.iter().any(|known| known == name), "`{name}` is a flag of ours");
            assert_eq!(plain(name), *name);
        }
        let count = told.len();
        told.sort();
        told.dedup();
        assert_eq!(told.len(), count, "one of them is there twice");
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
        // With the checks of clap itself, where they are built.
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
