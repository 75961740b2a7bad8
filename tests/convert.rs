//! `--quantize` and `flux convert`: quantized weights are the same in memory and in files.

mod carried;
mod refused;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::program::{Run, SMALL, draw, flux, names};
use crate::support::random_model::RandomModel;
use flux::error::ErrorKind;
use flux::files::{Container, Format, Role};
use flux::input::read;
use flux::model::Conversion;
use flux::stage::CancelFlag;

/// Formats by name, with the extension of their files.
const FORMATS: [(&str, &str, Format); 13] = [
    ("fp8", "safetensors", Format::E4m3),
    ("int8", "safetensors", Format::Int8),
    ("mxfp8", "safetensors", Format::Mxfp8),
    ("nvfp4", "safetensors", Format::Nvfp4),
    ("bf16", "safetensors", Format::Bf16),
    ("q8_0", "gguf", Format::Q8_0),
    ("q6_k", "gguf", Format::Q6K),
    ("q5_k", "gguf", Format::Q5K),
    ("q5_1", "gguf", Format::Q5_1),
    ("q5_0", "gguf", Format::Q5_0),
    ("q4_k", "gguf", Format::Q4K),
    ("q4_1", "gguf", Format::Q4_1),
    ("q4_0", "gguf", Format::Q4_0),
];
const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";

/// Returns a model whose rows are whole blocks of 256 in the transformer, and of 32 in the text encoder; single files
/// determine all of its sizes.
fn model() -> &'static Path {
    static MODEL: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = MODEL.get_or_init(|| {
        let mut model = RandomModel::tiny();
        (model.transformer.heads, model.transformer.double_blocks, model.transformer.single_blocks) = (8, 1, 1);
        let folder = tempfile::tempdir().unwrap();
        model.write(folder.path()).unwrap();
        folder
    });
    folder.path()
}

/// Returns the pixels of the smallest image.
fn drawn(folder: &Path, flags: &[&str]) -> Vec<u8> {
    let output = folder.join("image.png");
    let mut command = flux();
    command.args(SMALL).args(["-p", "a cat", "-S", "3", "--max-sequence-length", "32"]);
    Run::new(command.args(flags).arg("-o").arg(&output)).succeeds();
    read(&output).unwrap().bytes
}

fn convert(args: &[&str]) -> Run {
    Run::new(flux().arg("convert").args(args))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the formats of matrices in a file, each once.
fn formats(path: &Path, is_layer: impl Fn(&str) -> bool) -> Vec<String> {
    let file = Container::open(path, "").unwrap();
    let mut found: Vec<String> = file
        .names()
        .filter(|name| is_layer(name))
        .map(|name| file.tensor(name).unwrap())
        .filter(|view| view.shape().len() == 2)
        .map(|view| view.format().to_string())
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn a_transformer_draws_the_same_from_a_file_and_from_memory_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let model = text(model());
    let original = drawn(folder.path(), &["-d", model]);
    for (name, ending, format) in FORMATS {
        let file = folder.path().join(format!("{name}.{ending}"));
        let run = convert(&[model, text(&file), "--format", name]).succeeds();
        assert!(run.stderr.contains("wrote ") && run.stdout.is_empty(), "{}", run.stderr);
        let from_file = drawn(folder.path(), &["-d", text(&file), "--text-encoder", model, "--vae", model]);
        let block = |name: &str| name.starts_with("double_blocks.") || name.starts_with("single_blocks.");
        assert_eq!(formats(&file, block), [format.to_string()]);
        assert_eq!(formats(&file, |name| !block(name)), ["bf16"]);
        if format == Format::Bf16 {
            assert!(from_file == original, "{name}");
            continue;
        }
        let wanted = format!("transformer={name}");
        assert!(from_file == drawn(folder.path(), &["-d", model, "--quantize", &wanted]), "{name}");
        assert!(from_file != original, "{name} are other weights");
        let size = fs::metadata(&file).unwrap().len();
        let before = fs::metadata(Path::new(model).join(TRANSFORMER)).unwrap().len();
        assert!(size < before, "{name}: {size} of {before}");
    }
}

#[test]
fn a_text_encoder_draws_the_same_from_a_file_and_from_memory_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let model = text(model());
    let original = drawn(folder.path(), &["-d", model]);
    for (name, ending, format) in FORMATS {
        let file = folder.path().join(format!("{name}.{ending}"));
        let run = convert(&[model, text(&file), "--format", name, "--component", "text"]).succeeds();
        let from_file = drawn(folder.path(), &["-d", model, "--text-encoder", text(&file)]);
        if format == Format::Bf16 {
            assert!(from_file == original, "{name}");
            continue;
        }
        // 64 and 160 columns are no whole blocks of 256.
        let has_small_rows = format.block().values == 256;
        assert_eq!(run.stderr.contains("not whole blocks of"), has_small_rows, "{}", run.stderr);
        let wanted = format!("text={name}");
        assert!(from_file == drawn(folder.path(), &["-d", model, "--quantize", &wanted]), "{name}");
    }
    // The tokenizer in the GGUF file makes the same tokens.
    let file = folder.path().join("bf16.gguf");
    convert(&[&format!("{model}/text_encoder"), text(&file), "--format", "bf16"]).succeeds();
    let vae_and_text = ["--text-encoder", text(&file), "--vae", model];
    let single = folder.path().join("transformer.gguf");
    convert(&[model, text(&single), "--format", "bf16"]).succeeds();
    let all_files = [&["-d", text(&single)], &vae_and_text[..]].concat();
    assert!(drawn(folder.path(), &all_files) == original);
}

#[test]
fn fused_and_single_matrices_are_quantized_alike_and_both_components_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = text(model());
    let fused = folder.path().join("fused.safetensors");
    convert(&[model, text(&fused), "--format", "bf16"]).succeeds();
    for format in ["fp8", "nvfp4"] {
        let single = drawn(folder.path(), &["-d", model, "--quantize", format]);
        let parts = ["-d", text(&fused), "--text-encoder", model, "--vae", model, "--quantize", format];
        assert!(drawn(folder.path(), &parts) == single, "{format}");
        let one = drawn(folder.path(), &["-d", model, "--quantize", &format!("transformer={format}")]);
        assert!(one != single, "the text encoder too");
    }
    let run = draw(folder.path(), &["-d", model, "-p", "a cat", "-v", "--quantize", "text=q8_0"]).succeeds();
    assert!(run.stderr.contains("text encoder to q8_0"), "{}", run.stderr);
    let narrower = folder.path().join("q4_0.gguf");
    let wide = folder.path().join("q8_0.gguf");
    convert(&[model, text(&wide), "--format", "q8_0"]).succeeds();
    convert(&[text(&wide), text(&narrower), "--format", "q4_0"]).succeeds();
    let from_file = drawn(folder.path(), &["-d", text(&narrower), "--text-encoder", model, "--vae", model]);
    let parts = ["-d", text(&wide), "--text-encoder", model, "--vae", model, "--quantize", "transformer=q4_0"];
    assert!(from_file == drawn(folder.path(), &parts));
}

#[test]
fn a_conversion_that_is_cancelled_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let conversion = Conversion::new(model(), Some(Role::TextEncoder), None, Format::Q8_0, &out, false).unwrap();
    let cancel = CancelFlag::default();
    let mut reports = 0;
    let ended = conversion.write(&cancel, &mut |_| {
        reports += 1;
        if reports == 3 {
            assert_eq!(names(folder.path()).len(), 1, "a part of the file is there");
            cancel.cancel();
        }
    });
    assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Cancelled));
    assert!(names(folder.path()).is_empty());
    let done = conversion.write(&CancelFlag::default(), &mut |_| {}).unwrap();
    assert_eq!((names(folder.path()), fs::metadata(&out).unwrap().len()), (vec!["out.gguf".to_string()], done.bytes));
}
