//! The inputs of a run are not overwritten, and no file is written twice.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::folder;
use crate::program::{Folder, Run, SMALL, draw, flux, project};
use crate::support::copy_folder;

/// Creates a folder with a copy of the built-in model in `model`, an adapter, an image and a mask.
fn workplace() -> Folder {
    let folder = folder();
    copy_folder(&project("models/tiny"), &folder.join("model"));
    let image = ["-p", "a cat", "-S", "1", "--size", "64", "-s", "1", "--device", "cpu", "-q", "-o", "in.png"];
    Run::new(flux().current_dir(&folder).args(image)).succeeds();
    fs::copy(folder.join("in.png"), folder.join("mask.png")).unwrap();
    fs::write(folder.join("lora.safetensors"), "an adapter, which is not opened yet").unwrap();
    folder
}

/// Returns all files below a folder with their bytes; links as their targets.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
    found
}

#[track_caller]
fn refused(folder: &Path, flags: &[&str], words: &[&str]) {
    let before = contents(folder);
    draw(folder, &[&["-S", "7"], flags].concat()).fails(2, &[words, &["hint: "]].concat());
    assert!(contents(folder) == before, "{flags:?}");
}

#[test]
fn files_of_the_model_and_of_adapters_are_never_written_over() {
    let folder = workplace();
    fs::hard_link(folder.join("model/vae/diffusion_pytorch_model.safetensors"), folder.join("hard.safetensors"))
        .unwrap();
    fs::hard_link(folder.join("model/tokenizer/tokenizer.json"), folder.join("hard.png")).unwrap();
    symlink("model/text_encoder/model.safetensors", folder.join("link.safetensors")).unwrap();
    symlink("model/transformer/config.json", folder.join("link.webp")).unwrap();
    symlink("lora.safetensors", folder.join("lora.png")).unwrap();
    for force in [&[][..], &["--force"]] {
        let model = |flags: &[&str], words: &[&str]| {
            refused(&folder, &[&["-p", "a cat", "-d", "model"], force, flags].concat(), words);
        };
        for file in ["model/transformer/diffusion_pytorch_model.safetensors", "hard.safetensors", "link.safetensors"] {
            model(&["--save-latents", file], &["is never overwritten", "--save-latents"]);
            model(&["--save-embeddings", &format!("./{file}")], &["is never overwritten", "--save-embeddings"]);
        }
        model(&["-o", "hard.png"], &["`hard.png` is a file of the model", "tokenizer.json", "in: --output"]);
        model(&["-o", "link.webp"], &["`link.webp` is a file of the model", "config.json"]);
        let lora = |flags: &[&str], words: &[&str]| {
            let flags = [&["-p", "a cat", "--lora", "lora.safetensors:0.5"], force, flags].concat();
            refused(&folder, &flags, words);
        };
        lora(&["--save-latents", "./lora.safetensors"], &["a file of the adapter in `--lora`", "in: --save-latents"]);
        lora(&["-o", "lora.png"], &["`lora.png` is a file of the adapter in `--lora`", "in: --output"]);
    }
    // Components that are named individually, and a model from the environment.
    let part = ["--vae", "model/vae", "-o", "hard.png"];
    refused(&folder, &[&["-p", "a cat"], &part[..]].concat(), &["`hard.png` is a file of the model"]);
    let mut command = flux();
    command.current_dir(&folder).env("FLUX_MODEL", "model").args(SMALL).args(["-p", "a cat", "-o", "hard.png"]);
    Run::new(&mut command).fails(2, &["`hard.png` is a file of the model"]);
    // Files next to them may be written.
    let flags =
        ["-p", "a cat", "-d", "model", "-S", "1", "-o", "model/new.png", "--save-latents", "model/new.safetensors"];
    draw(&folder, &flags).succeeds();
    draw(&folder, &flags).succeeds();
}

#[test]
fn what_is_read_is_written_over_by_force_alone() {
    let folder = workplace();
    fs::hard_link(folder.join("mask.png"), folder.join("hard.png")).unwrap();
    let save = ["-p", "a cat", "-S", "7", "-q", "-o", "a.png", "--save-latents", "l.safetensors"];
    draw(&folder, &[&save[..], &["--save-embeddings", "e.safetensors"]].concat()).succeeds();
    let force = "--force";
    for (flags, words) in [
        (&["-p", "a cat", "-i", "in.png", "-o", "in.png"][..], ["file that `-i` reads", "in: --output", force]),
        (&["-p", "a cat", "-i", "in.png", "-o", "./in.png"], ["`./in.png` is the file that `-i`", "`in.png`", force]),
        (&["-p", "a cat", "-i", "in.png", "--mask", "mask.png", "-o", "hard.png"], ["that `--mask` reads", "", force]),
        (&["-p", "a cat", "-i", "in-7.png", "-n", "2", "-o", "in.png"], ["`in-7.png` is the file that", "-i", force]),
        (
            &["-p", "a cat", "--latents", "l.safetensors", "--save-latents", "l.safetensors"],
            ["the file that `--latents` reads", "", force],
        ),
        (
            &["-p", "a cat", "--noise", "l.safetensors", "--save-embeddings", "l.safetensors"],
            ["the file that `--noise` reads", "", force],
        ),
        (
            &["--embeddings", "e.safetensors", "--save-latents", "e.safetensors"],
            ["the file that `--embeddings` reads", "", force],
        ),
    ] {
        fs::copy(folder.join("in.png"), folder.join("in-7.png")).unwrap();
        refused(&folder, flags, &words);
    }
    let piped = |flags: &[&str]| {
        let mut command = flux();
        command.current_dir(&folder).args(SMALL).args(["-p", "a cat", "-S", "7", "-i", "-", "-o", "in.png"]);
        Run::new(command.args(flags).stdin(File::open(folder.join("in.png")).unwrap()))
    };
    piped(&[]).fails(2, &["`in.png` is standard input", "--force"]);
    draw(&folder, &["-p", "a cat", "-S", "7", "-i", "in.png", "-o", "other.png"]).succeeds();
    let (before, made) =
        (fs::read(folder.join("in.png")).unwrap(), flux::input::read(&folder.join("other.png")).unwrap());
    draw(&folder, &["-p", "a cat", "-S", "7", "-i", "in.png", "-o", "in.png", force]).succeeds();
    assert!(flux::input::read(&folder.join("in.png")).unwrap().bytes == made.bytes);
    fs::write(folder.join("in.png"), before).unwrap();
    piped(&[force]).succeeds();
    assert!(flux::input::read(&folder.join("in.png")).unwrap().bytes == made.bytes);
    draw(&folder, &["-p", "x", force, "--no-clobber"]).fails(2, &["--force", "--no-clobber"]);
}

#[test]
fn no_file_is_written_twice() {
    let folder = workplace();
    symlink("cat-8.png", folder.join("cat-7.png")).unwrap();
    fs::write(folder.join("cat-8.png"), "old").unwrap();
    fs::hard_link(folder.join("cat-8.png"), folder.join("cat.safetensors")).unwrap();
    let both = ["`--save-latents`", "`--save-embeddings`", "written twice"];
    for (flags, words) in [
        (&["--save-latents", "x.safetensors", "--save-embeddings", "./x.safetensors"][..], both),
        (&["-n", "2", "--save-latents", "x.safetensors", "--save-embeddings", "x-8.safetensors"], both),
        (
            &["-n", "2", "-o", "cat.png"],
            ["`cat-7.png` and `cat-8.png` are the same file", "in: --output", "remove the link"],
        ),
        (
            &["-o", "cat-7.png", "--save-latents", "cat.safetensors"],
            ["written twice", "`--output`", "`--save-latents`"],
        ),
    ] {
        refused(&folder, &[&["-p", "a cat"], flags].concat(), &words);
        refused(&folder, &[&["-p", "a cat", "--force"], flags].concat(), &words);
    }
    for name in ["x.png", "x", "x.gguf", "in.png"] {
        for flag in ["--save-latents", "--save-embeddings"] {
            refused(&folder, &["-p", "a cat", flag, name], &[name, flag, "ends with .safetensors"]);
        }
    }
}

#[test]
fn convert_writes_over_no_file_of_the_model_and_over_no_other_weights() {
    let folder = workplace();
    let convert = |args: &[&str]| Run::new(flux().current_dir(&folder).args(["convert", "-q"]).args(args));
    copy_folder(&project("models/tiny/vae"), &folder.join("apart"));
    fs::hard_link(
        folder.join("model/transformer/diffusion_pytorch_model.safetensors"),
        folder.join("hard.safetensors"),
    )
    .unwrap();
    symlink("model/text_encoder/config.json", folder.join("link.safetensors")).unwrap();
    convert(&["model", "t.gguf", "--format", "q8_0"]).succeeds();
    fs::hard_link(folder.join("t.gguf"), folder.join("hard.gguf")).unwrap();
    let before = contents(&folder);
    for (from, to, format) in [
        ("model", "model/vae/diffusion_pytorch_model.safetensors", "bf16"),
        ("model", "model/text_encoder/model.safetensors", "bf16"),
        ("model/transformer", "model/text_encoder/model.safetensors", "bf16"),
        ("model/transformer/diffusion_pytorch_model.safetensors", "link.safetensors", "bf16"),
        ("model", "hard.safetensors", "bf16"),
        ("model", "apart/diffusion_pytorch_model.safetensors", "bf16"),
        ("t.gguf", "./t.gguf", "q4_0"),
        ("t.gguf", "hard.gguf", "q4_0"),
    ] {
        convert(&[from, to, "--format", format]).fails(2, &["`", to, "hint: "]);
        assert!(contents(&folder) == before, "{from} {to}");
    }
    // An older file of the same kind may be overwritten.
    convert(&["model", "hard.gguf", "--format", "q4_0"]).succeeds();
}

#[test]
fn a_hyphen_is_refused_where_it_is_no_file() {
    let folder = folder();
    for flag in [
        "-d", "--text-encoder", "--vae", "--tokenizer", "--lora", "--noise", "--latents", "--embeddings",
        "--save-latents", "--save-embeddings",
    ] {
        let prompt: &[&str] = if flag == "--embeddings" { &[] } else { &["-p", "a cat"] };
        draw(&folder, &[prompt, &[flag, "-"]].concat()).fails(2, &["standard input and output"]);
    }
    draw(&folder, &["-p", "a cat", "--negative", "-"]).fails(2, &["only the prompt can be read from standard input"]);
    for args in [
        &["info", "-"][..],
        &["info", "-d", "-"],
        &["compare", "a.png", "-"],
        &["convert", "-", "x.gguf", "--format", "q8_0"],
        &["convert", "x", "-", "--format", "q8_0"],
        &["bench", "--vae", "-"],
    ] {
        Run::new(flux().current_dir(&folder).args(args)).fails(2, &["standard input and output", "name a file"]);
    }
}
