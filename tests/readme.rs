//! Every command in README.md and in the documents next to it is run, or leads to something that is run; the list of
//! variables is complete, and the explained messages are those of the program.

mod draws;
mod gallery;
mod models;
mod names;
mod pages;
pub mod text;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Folder, Run, folder, project};
use flux::files::ModelFiles;
use flux::input::read;
use flux::model::ModelInfo;
use flux::output::Rgb;
use safetensors::tensor::{Dtype, TensorView};

/// Documents with commands.
pub const DOCUMENTS: [&str; 53] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/SUMMARY.md",
    "docs/a1111.md",
    "docs/adapters.md",
    "docs/architecture.md",
    "docs/batch.md",
    "docs/changelog.md",
    "docs/chat.md",
    "docs/comfyui.md",
    "docs/config.md",
    "docs/deploying.md",
    "docs/editing.md",
    "docs/environment.md",
    "docs/files.md",
    "docs/flux3.md",
    "docs/gpus.md",
    "docs/http-api.md",
    "docs/installing.md",
    "docs/kernels-attention.md",
    "docs/kernels-conv.md",
    "docs/kernels-gemm.md",
    "docs/kernels-norms.md",
    "docs/kernels-quantized.md",
    "docs/kernels-transfers.md",
    "docs/kernels.md",
    "docs/library.md",
    "docs/live.md",
    "docs/looking.md",
    "docs/mcp.md",
    "docs/measured.md",
    "docs/models.md",
    "docs/occupancy.md",
    "docs/options.md",
    "docs/privacy.md",
    "docs/prompts.md",
    "docs/python.md",
    "docs/quick-start.md",
    "docs/recipes.md",
    "docs/sampling.md",
    "docs/scaling.md",
    "docs/serving.md",
    "docs/several-gpus.md",
    "docs/troubleshooting.md",
    "docs/upscaling.md",
    "models/README.md",
    "scripts/train_tiny/README.md",
    "tests/bench/runs/README.md",
    "tests/formats/README.md",
    "tests/golden/README.md",
    "tests/input/README.md",
    "tests/meaning/README.md",
];

pub fn text_of(document: &str) -> String {
    fs::read_to_string(project(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// Returns the lines of a document's `sh` blocks, without comments.
pub fn commands_in(document: &str) -> Vec<String> {
    let text = text_of(document);
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_string());
    blocks
        .flat_map(|block| {
            block.lines().map(|line| line.split('#').next().unwrap_or_default().trim().to_string()).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the commands of the README.
fn commands() -> Vec<String> {
    commands_in("README.md")
}

/// An empty folder for the commands of a page, with `flux` installed and the named models downloaded. The built-in
/// model stands in for them.
struct EmptyFolder {
    folder: Folder,
}

impl EmptyFolder {
    fn new() -> Self {
        let folder = folder();
        for inner in [HERE, TOOLS, MODELS] {
            fs::create_dir(folder.join(inner)).expect("a temporary folder is writable");
        }
        let link = |from: &Path, to: &str| {
            std::os::unix::fs::symlink(from, folder.join(to)).expect("a temporary folder takes links")
        };
        link(Path::new(env!("CARGO_BIN_EXE_flux")), &format!("{TOOLS}/flux"));
        for name in ["klein-4b", "klein-base-4b", "klein-9b-kv"] {
            link(&project("models/tiny"), &format!("{MODELS}/{name}"));
        }
        Self { folder }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.join(HERE)
    }
}

/// The folders of an [`EmptyFolder`].
const HERE: &str = "here";
const TOOLS: &str = "tools";
const MODELS: &str = "models";

/// Creates a folder with the files that the README's commands use; the built-in model stands in for the downloaded
/// one.
fn checkout() -> Folder {
    let folder = folder();
    let link = |from: &Path, to: &str| {
        std::os::unix::fs::symlink(from, folder.join(to)).expect("a temporary folder takes links")
    };
    fs::create_dir(folder.join("models")).expect("a temporary folder is writable");
    link(&project("models/tiny"), "models/klein-4b");
    link(&project("models/tiny"), "models/klein-base-4b");
    link(&project("models/tiny"), "models/klein-9b-kv");
    link(&project("scripts"), "scripts");
    link(&project("docs"), "docs");
    link(Path::new(env!("CARGO_BIN_EXE_flux")), "flux");
    fs::write(folder.join("style.safetensors"), adapter()).expect("a temporary folder is writable");
    write_noise(&folder.join("noise.safetensors"));
    fs::write(folder.join("prompts.txt"), "a red circle\n").expect("a temporary folder is writable");
    folder
}

/// Returns an adapter of the built-in model, without visible effects.
pub fn adapter() -> Vec<u8> {
    let dir = ModelFiles::open(&project("models/tiny")).expect("the built-in model");
    let dim = ModelInfo::read(&dir).expect("the built-in model").transformer.dim();
    let values: Vec<u8> = (0..dim).flat_map(|i| (i as f32 / dim as f32).to_le_bytes()).collect();
    let half = |name: &str, shape| {
        let tensor = TensorView::new(Dtype::F32, shape, &values).expect("as many values as the shape has");
        (format!("transformer.transformer_blocks.0.attn.to_out.0.lora_{name}.weight"), tensor)
    };
    let pair = [half("A", vec![1, dim]), half("B", vec![dim, 1])];
    safetensors::serialize(pair, None).expect("a file")
}

/// Writes noise of variance 1 for an image of 256 x 256 by the built-in model.
fn write_noise(path: &Path) {
    let dir = ModelFiles::open(&project("models/tiny")).expect("the built-in model");
    let shape = vec![1, ModelInfo::read(&dir).expect("the built-in model").transformer.in_channels, 16, 16];
    let values: Vec<u8> = (0..shape.iter().product::<usize>() as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32)
        .flat_map(|value| ((value - 0.5) * 12_f32.sqrt()).to_le_bytes())
        .collect();
    let noise = TensorView::new(Dtype::F32, shape, &values).expect("as many values as the shape has");
    safetensors::serialize_to_file([("latents", noise)], None, path).expect("a temporary folder is writable");
}

fn run(line: &str, folder: &Path) -> Run {
    let beside = |name: &str| folder.with_file_name(name);
    let old = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{old}", folder.display(), beside(TOOLS).display());
    Run::new(
        Command::new("sh")
            .args(["-c", line])
            .current_dir(folder)
            .env("PATH", path)
            .env("FLUX_MODELS", beside(MODELS))
            .env_remove("FLUX_MODEL")
            .env_remove("FLUX_BIN"),
    )
}

/// Returns the commands of a document's blocks with shell output.
fn console_commands_in(document: &str) -> Vec<String> {
    let text = text_of(document);
    let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(String::from).collect()
}

/// Returns the commands of the first block of a document.
fn commands_of(document: &str) -> Vec<String> {
    let text = text_of(document);
    let block = text.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has commands");
    block.lines().map(String::from).collect()
}

/// Runs a command on the CPU. Returns the last image that it names.
fn image_of(line: &str, folder: &Path) -> Rgb {
    // Flags must precede the shell's redirection of the image.
    let (flags, pipes) = line.split_at(line.find(" < ").unwrap_or(line.len()));
    run(&format!("{flags} --device cpu{pipes}"), folder).succeeds();
    let name = line.rsplit(' ').next().expect("the image comes last");
    read(&folder.join(name)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn every_command_is_of_a_kind_that_is_tested() {
    let makefile = text_of("Makefile");
    let found: Vec<_> = DOCUMENTS.iter().flat_map(|document| commands_in(document)).collect();
    assert!(found.len() >= 12, "{found:?}");
    for line in found {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["make", target, ..] => assert!(makefile.contains(&format!("\n{target}:")), "no target: {line}"),
            ["flux", "download" | "list" | "rm", ..] => {} // run in tests/download/pages.rs
            ["flux", "serve" | "key" | "mcp", ..] | ["curl", ..] | ["flux", .., "--server", _] | ["chmod", ..] => {} // run in tests/serve/book.rs
            ["flux", ..] | ["printf", ..] | ["echo", .., "base64", "-d", ">", _] => {} // run below
            ["ffmpeg", ..] if line.contains("| flux live ") => {}                      // run in tests/live/book.rs
            ["scripts/generate_batch.sh" | "scripts/compare_cpu_gpu.sh", ..] => {}     // run below
            // `make test-training` does the same in an environment of its own, with `--toy`.
            ["python3", "-m", "venv", ".venv", "&&", ".venv/bin/pip", "install", "-r", requirements] => {
                assert!(makefile.contains(&format!("/bin/python: {requirements}\n")), "{line}");
            }
            [".venv/bin/python", script, "all", "--work", _] => {
                assert!(makefile.contains(&format!("$(TRAIN_PYTHON) {script} all --toy --work")), "{line}");
            }
            // `make golden` is this block.
            ["for", ..] | ["done"] => assert!(makefile.contains(&line), "{line}"),
            ["cargo", "build" | "check" | "clippy" | "test", ..] => text::has_package(&line),
            ["cargo", "run", "--example", example, ..] => {
                assert!(makefile.contains(&format!("--example {example} --")), "{line}");
            }
            ["python3", "scripts/gpu_check", ..] => text::has_sections(&line),
            ["python3", script, ..] => assert!(makefile.contains(&format!("$(PYTHON) {script} ")), "{line}"),
            _ => panic!("nothing tests this command: {line}"),
        }
    }
}
