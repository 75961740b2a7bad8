//! Outputs that collide with an input or with another output, under any name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flux::files::Role;

use super::{Place, work};
use crate::expect::{Content, End};
use crate::folder;
use crate::rng::Rng;
use crate::run::Case;
use crate::sources::{adapter_of, weights};

/// The first seed of a run.
const SEED: usize = 7;
/// The names of input images and tensors.
const READ_FIRST: [&str; 5] = ["in.png", "mask.png", "noise.safetensors", "latents.safetensors", "e.safetensors"];
/// An image of an earlier run, which may be overwritten.
const OLD: &str = "old.png";

/// Writes to an input, or to one place twice; sometimes to neither.
pub fn over_inputs(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    case.expected.of_a_file = false;
    let model = copied(place, &place.sources.small, "model", rng);
    if rng.one_of(4) {
        conversion(&mut case, place, &model, rng)
    } else {
        image(&mut case, place, &model, rng)
    }
    case
}

/// A copy of a model's folder, or of its components.
fn copied(place: &Place<'_>, source: &Path, name: &str, rng: &mut Rng) -> PathBuf {
    let model = place.at(name);
    for path in folder::files(source) {
        let copy = model.join(path.strip_prefix(source).expect("a file below it"));
        fs::create_dir_all(copy.parent().expect("a folder")).expect("a temporary folder is writable");
        // The cache is large and not read.
        if !path.ends_with("flux-fp8.safetensors") || rng.one_of(8) {
            copy_file(&path, &copy);
        }
    }
    model
}

fn copy_file(from: &Path, to: &Path) -> PathBuf {
    fs::copy(from, to).expect("a temporary folder is writable");
    to.to_path_buf()
}

/// Runs `flux convert` onto a file of the model, of another component, or onto an unrelated file.
fn conversion(case: &mut Case, place: &Place<'_>, model: &Path, rng: &mut Rng) {
    let role = *rng.pick(&[Role::Transformer, Role::TextEncoder]);
    let quantized = rng.pick(&place.sources.quantized);
    let file = place.at("component.safetensors").with_extension(quantized.path.extension().expect("they have one"));
    let from = match rng.below(3) {
        0 => model.to_path_buf(),
        1 => weights(model, role),
        _ => copy_file(&quantized.path, &file),
    };
    let mut inputs = folder::files(model);
    if !from.starts_with(model) {
        inputs = vec![from.clone()];
    }
    case.command.arg("convert").arg(&from).args(["--format", *rng.pick(&["bf16", "q8_0", "fp8", "q4_0"])]);
    if from == model && role == Role::TextEncoder {
        case.command.args(["--component", "text"]);
    }
    if rng.one_of(6) {
        case.command.arg("--tokenizer").arg(copy_file(&model.join("tokenizer/tokenizer.json"), &place.at("t.json")));
        inputs.push(place.at("t.json"));
    }
    let ending = *rng.pick(&["gguf", "safetensors"]);
    let to = if rng.one_of(5) {
        place.out.join(format!("new.{ending}"))
    } else {
        let input = rng.pick(&inputs).clone();
        name_of(&input, &place.out, &format!("alias.{ending}"), rng)
    };
    case.what = format!("{from:?} to {to:?}");
    case.expected.writes.push((place.out.join(&to), Content::Tensors));
    case.command.arg(to);
}

/// An image and its tensors.
fn image(case: &mut Case, place: &Place<'_>, model: &Path, rng: &mut Rng) {
    let mut inputs = folder::files(model);
    case.command.arg("-d").arg(model).args(&work::SMALL[4..8]).args(["-S", &SEED.to_string()]);
    if rng.one_of(4) {
        // The model in single files.
        let role = *rng.pick(&[Role::TextEncoder, Role::Vae]);
        let file = copy_file(&place.sources.weights(role), &place.at("part.safetensors"));
        case.command.arg(if role == Role::Vae { "--vae" } else { "--text-encoder" }).arg(&file);
        inputs.push(file);
    }
    let has_embeddings = rng.one_of(5);
    if has_embeddings {
        inputs.push(given(case, place, "--embeddings", &place.sources.embeddings, "e.safetensors"));
    } else {
        case.command.args(&work::SMALL[..2]);
    }
    if rng.one_of(4) {
        inputs.push(given(case, place, "--lora", &adapter_of(&place.sources.small), "adapter.safetensors"));
    }
    let source = rng.pick(&place.sources.images).clone();
    match rng.below(5) {
        0 => inputs.push(given(case, place, "--noise", &place.sources.noise, "noise.safetensors")),
        1 => inputs.push(given(case, place, "--latents", &place.sources.noise, "latents.safetensors")),
        2 => inputs.push(given(case, place, "-i", &source, "in.png")),
        3 => {
            inputs.push(given(case, place, "-i", &source, "in.png"));
            inputs.push(given(case, place, "--mask", &place.sources.images[0], "mask.png"));
        }
        _ => {}
    }
    case.command.args(&work::SMALL[10..]);
    let count = 1 + rng.below(3) / 2 * 2;
    case.command.args(["-n", &count.to_string()]);
    copy_file(&place.sources.images[0], &place.out.join(OLD));
    case.expected.may_change.push(place.out.join(OLD));
    if rng.one_of(8) {
        // Inputs that are read completely before anything is written.
        case.command.arg("--force");
        let first = READ_FIRST.map(|name| place.at(name));
        case.expected.may_change.extend(first);
        // And the links to them.
        let seeds =
            ["", "-7", "-8", "-9"].iter().flat_map(|seed| [format!("{seed}.png"), format!("{seed}.safetensors")]);
        case.expected.may_change.extend(seeds.map(|end| place.out.join(format!("alias{end}"))));
    }
    outputs(case, place, &inputs, count, has_embeddings, rng);
}

/// Passes a copy of a file to a flag.
fn given(case: &mut Case, place: &Place<'_>, flag: &str, source: &Path, name: &str) -> PathBuf {
    let file = copy_file(source, &place.at(name));
    case.command.arg(flag).arg(&file);
    file
}

/// Adds output flags, some of them onto inputs and onto each other.
fn outputs(case: &mut Case, place: &Place<'_>, inputs: &[PathBuf], count: usize, has_embeddings: bool, rng: &mut Rng) {
    let mut names: Vec<PathBuf> = Vec::new();
    let mut flags = vec![("-o", "x.png", Content::Image)];
    if !rng.one_of(3) {
        flags.push(("--save-latents", "l.safetensors", Content::Tensors));
    }
    if !has_embeddings && !rng.one_of(3) {
        flags.push(("--save-embeddings", "t.safetensors", Content::Tensors));
    }
    for (flag, plain, content) in flags {
        let numbers = if flag == "--save-embeddings" { 1 } else { count };
        let of_seed = |name: &Path, seed: usize| match numbers {
            1 => name.to_path_buf(),
            _ => {
                let ending = name.extension().unwrap_or_default().to_string_lossy();
                name.with_extension("").with_file_name(format!(
                    "{}-{seed}.{ending}",
                    name.file_stem().unwrap_or_default().to_string_lossy()
                ))
            }
        };
        let ending = Path::new(plain).extension().and_then(|ending| ending.to_str()).expect("it has one");
        let name = match rng.below(7) {
            0..=1 => PathBuf::from(plain),
            2 if !names.is_empty() => rng.pick(&names).clone(),
            3 if flag == "-o" => PathBuf::from(OLD),
            4 if flag != "-o" && rng.one_of(2) => {
                case.expected.end = End::Error;
                PathBuf::from(*rng.pick(&["-", "l.png", "l.gguf", "l.json", "l"]))
            }
            _ => {
                // One of several images is written to the place of the input.
                let name = PathBuf::from(format!("alias.{ending}"));
                let seeded = of_seed(&name, SEED + rng.below(numbers));
                let input = rng.pick(inputs).clone();
                let alias = name_of(&input, &place.out, seeded.to_str().expect("a name of ours"), rng);
                if numbers == 1 { alias } else { name }
            }
        };
        case.command.arg(flag).arg(&name);
        case.what += &format!("{flag} {name:?} ");
        for seed in 0..numbers {
            case.expected.writes.push((place.out.join(of_seed(&name, SEED + seed)), content));
        }
        names.push(name);
    }
}

/// Returns a name of a file, seen from `out`: its path in one of many forms, or a new link `alias`.
fn name_of(file: &Path, out: &Path, alias: &str, rng: &mut Rng) -> PathBuf {
    let own = out.parent().expect("it is in the run's folder");
    let below = file.strip_prefix(own).expect("a file of the run");
    let alias_path = out.join(alias);
    // With several outputs an alias may already exist.
    let links = ["", "first-", "folder-"].map(|prefix| out.join(format!("{prefix}{alias}")));
    if links.iter().any(|link| link.symlink_metadata().is_ok()) {
        return file.to_path_buf();
    }
    match rng.below(7) {
        0 => file.to_path_buf(),
        1 => Path::new("..").join(below),
        2 => Path::new("./../out/.././").join(below),
        3 => {
            fs::hard_link(file, &alias_path).expect("a temporary folder takes links");
            alias.into()
        }
        4 => {
            let first = format!("first-{alias}");
            symlink(Path::new("..").join(below), out.join(&first)).expect("a temporary folder takes links");
            symlink(first, &alias_path).expect("a temporary folder takes links");
            alias.into()
        }
        5 => {
            let folder = file.parent().expect("it is in a folder");
            let link = format!("folder-{alias}");
            symlink(folder, out.join(&link)).expect("a temporary folder takes links");
            Path::new(&link).join(file.file_name().expect("it has a name"))
        }
        _ => {
            symlink(file, &alias_path).expect("a temporary folder takes links");
            alias.into()
        }
    }
}
