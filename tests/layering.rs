//! Dependencies point one way: reads the `use` lines and paths of src/ and fails when an arrow points up.
//!
//! ```text
//! main, commands -> cli, progress, report, bench -> pipeline -> text_encoder, transformer, vae, sampler -> nn, tensor, ops -> backend
//! backend <- cpu, cuda
//! files: used by whoever opens or loads tensors, and uses nothing but error, which all use
//! output, compare, default_model: used by commands only, output by bench
//! ```

use std::fs;
use std::path::Path;

/// A part of src/ and the parts of this crate that it may use besides itself and [`COMMON`].
const LAYERS: [(&str, &[&str]); 22] = [
    ("main.rs", ANY),
    ("commands/device.rs", &["cli", "progress", "backend", "backend::cpu", "backend::cuda"]),
    (
        "commands",
        &["cli", "progress", "report", "bench", "pipeline", "output", "compare", "default_model", "files", "backend"],
    ),
    ("cli.rs", &["pipeline"]),
    ("progress.rs", &["pipeline"]),
    ("report.rs", &["pipeline"]),
    ("bench", &["pipeline", "output", "files", "tensor", "ops", "backend"]),
    ("lib.rs", ANY),
    // Loading checks every tensor on the host, where that costs nothing.
    (
        "pipeline",
        &["text_encoder", "transformer", "vae", "sampler", "nn", "files", "tensor", "ops", "backend", "backend::cpu"],
    ),
    ("text_encoder", &["nn", "files", "tensor", "ops", "backend"]),
    ("transformer", &["nn", "files", "tensor", "ops", "backend"]),
    ("vae", &["nn", "files", "tensor", "ops", "backend"]),
    ("sampler", &["transformer", "tensor", "ops", "backend"]),
    ("output.rs", &["files"]),
    ("compare.rs", &["output"]),
    ("default_model.rs", &["files"]),
    ("tensor.rs", &["ops", "backend"]),
    ("ops", &["tensor", "backend"]),
    ("backend", &["files", "tensor", "ops"]),
    ("nn.rs", &["files", "tensor", "backend"]),
    ("files", &[]),
    ("error.rs", &[]),
];
const COMMON: [&str; 3] = ["error", "Error", "Result"];
const ANY: &[&str] = &["*"];

/// A crate and the only places where it may be named. (The CUDA backend has a module `gemm` of its own.)
const CRATES: [(&str, &[&str]); 11] = [
    ("cudarc", &["backend/cuda/"]),
    ("gemm", &["backend/cpu/", "backend/cuda/"]),
    ("clap", &["cli.rs", "main.rs"]),
    ("indicatif", &["progress.rs"]),
    ("image", &["output.rs"]),
    ("png", &["output.rs"]),
    // The program replaces files in one way; measurements write weights to a folder of their own.
    ("tempfile", &["files/atomic.rs", "bench/weights.rs"]),
    ("tokenizers", &["text_encoder/prompt.rs"]),
    ("rand_mt", &["sampler/noise.rs"]),
    ("rand", &["sampler/noise.rs", "cli.rs"]),
    ("signal_hook", &["commands/signals.rs"]),
];

/// Names that may carry unsafe code.
const UNSAFE: [&str; 5] =
    ["backend/cuda/", "backend/cpu/gemm.rs", "backend/cpu/amx", "backend/cpu/math.rs", "files/bytes.rs"];

/// What is wrong with `line` of the file `file` (relative to src/), if anything.
fn complaint(file: &str, line: &str) -> Option<String> {
    let code = line.split("//").next().unwrap_or("").trim();
    for (name, places) in CRATES {
        let named = code.contains(&format!("{name}::")) && !follows_path_or_name(code, &format!("{name}::"));
        if named && !places.iter().any(|place| file.starts_with(place)) {
            return Some(format!("`{name}` may be named in {places:?} only"));
        }
    }
    if (code.contains("unsafe ") || code.contains("allow(unsafe_code)"))
        && !UNSAFE.iter().any(|place| file.starts_with(place))
    {
        return Some(format!("unsafe code may be in {UNSAFE:?} only"));
    }
    let (own, allowed) =
        LAYERS.iter().find(|(layer, _)| file.starts_with(layer)).unwrap_or_else(|| panic!("{file} has no layer"));
    for used in ["crate::", "flux::"].iter().flat_map(|root| parts(code, root)) {
        let top = used.split("::").next().unwrap_or_default();
        let deep = used.starts_with("backend::cpu") || used.starts_with("backend::cuda");
        let inside = own.trim_end_matches(".rs") == top && !own.is_empty();
        // A backend may use itself, but not the other one; everyone else names the trait only.
        let fine = if deep {
            file.starts_with(&used.replace("::", "/")[.."backend/cpu".len()])
                || allowed.iter().any(|a| used.starts_with(a) && a.contains("::"))
        } else {
            inside || COMMON.contains(&top) || allowed.contains(&top)
        };
        if !fine && *allowed != ANY {
            return Some(format!("`{used}` is above it, or beside it"));
        }
    }
    None
}

/// Whether every `needle` in `code` is the end of a longer name or path, as `rand::` is in `operand::` and
/// `crate::rand::`.
fn follows_path_or_name(code: &str, needle: &str) -> bool {
    code.match_indices(needle)
        .all(|(at, _)| code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'))
}

/// Paths of two names that follow `root` in `code`, with those in braces: `crate::{a, b::c}` gives `a` and `b::c`.
fn parts(code: &str, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(root) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + root.len()..];
        let list = match rest.strip_prefix('{') {
            Some(inner) => inner.split('}').next().unwrap_or(inner).split(',').collect(),
            None => vec![rest],
        };
        for path in list {
            let path: String =
                path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
            if !path.is_empty() {
                found.push(path.split("::").filter(|name| !name.is_empty()).take(2).collect::<Vec<_>>().join("::"));
            }
        }
    }
    found
}

fn complaints(folder: &Path, below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("src is a folder") {
        let entry = entry.expect("readable");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            complaints(&entry.path(), &format!("{name}/"), found);
        } else if name.ends_with(".rs") && !name.ends_with("/tests.rs") {
            let text = fs::read_to_string(entry.path()).expect("UTF-8");
            // Tests stand at the end of a file or in a `tests.rs`, and may use what they like.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = code.lines().enumerate();
            found.extend(lines.filter_map(|(i, line)| {
                complaint(&name, line).map(|why| format!("src/{name}:{}: {why}: {}", i + 1, line.trim()))
            }));
        }
    }
}

#[test]
fn no_arrow_points_up() {
    let mut found = Vec::new();
    complaints(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_file_has_a_layer_and_every_layer_a_file() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (layer, _) in LAYERS {
        assert!(src.join(layer).exists(), "{layer}");
    }
}

#[test]
fn arrows_that_point_up_are_found() {
    let bad = [
        ("transformer/mod.rs", "use crate::pipeline::Model;"),
        ("transformer/mod.rs", "use crate::{error::Result, pipeline::Request};"),
        ("vae/mod.rs", "use crate::backend::cuda::Cuda;"),
        ("ops/linear.rs", "let x = crate::vae::Decoder::new();"),
        ("ops/linear.rs", "use crate::backend::cpu::Cpu;"),
        ("backend/cuda/linear.rs", "use crate::transformer::Transformer;"),
        ("backend/cuda/linear.rs", "use crate::backend::cpu::Cpu;"),
        ("pipeline/mod.rs", "use crate::backend::cuda::Cuda;"),
        ("pipeline/mod.rs", "use crate::output::Rgb;"),
        ("nn.rs", "use crate::pipeline::Stage;"),
        ("files/tensor_files.rs", "use crate::backend::Backend;"),
        ("files/tensor_files.rs", "use crate::{Error, Tensor};"),
        ("files/quantised_cache.rs", "use crate::transformer;"),
        ("error.rs", "use crate::files::Bytes;"),
        ("ops/linear.rs", "use crate::files::TensorView;"),
        ("progress.rs", "use flux::backend::cpu::Cpu;"),
        ("commands/generate.rs", "use flux::backend::cpu::Cpu;"),
        ("commands/generate.rs", "use flux::transformer::Transformer;"),
        ("pipeline/mod.rs", "use cudarc::driver::CudaContext;"),
        ("pipeline/mod.rs", "fn f() { clap::Command::new(\"x\"); }"),
        ("main.rs", "image::open(path)"),
        ("output.rs", "use tempfile::NamedTempFile;"),
        ("sampler/mod.rs", "use rand::Rng;"),
        ("vae/mod.rs", "unsafe { x() }"),
    ];
    for (file, line) in bad {
        assert!(complaint(file, line).is_some(), "{file}: {line}");
    }
    let good = [
        ("transformer/mod.rs", "use crate::tensor::Tensor;"),
        ("transformer/mod.rs", "use crate::transformer::config::TransformerConfig;"),
        ("pipeline/mod.rs", "use crate::backend::cpu::{Cpu, Precision};"),
        ("backend/cuda/linear.rs", "use crate::backend::cuda::pool::Buffer;"),
        ("backend/cuda/mod.rs", "use cudarc::driver::sys;"),
        ("ops/mod.rs", "//! the kernels use crate::backend::cuda::Cuda"),
        ("main.rs", "use flux::backend::cuda::Cuda;"),
        ("commands/device.rs", "use flux::backend::cuda::{self, Cuda};"),
        ("tensor.rs", "let x = operand::f();"),
        ("vae/mod.rs", "use super::mid_block::MidBlock;"),
        ("files/model_files.rs", "use crate::error::{Error, Result};"),
    ];
    for (file, line) in good {
        assert_eq!(complaint(file, line), None, "{file}: {line}");
    }
}
