//! Values that no shape determines are written with a file: its images are those of the folder.

use std::fs;
use std::path::Path;

use flux::input::read;
use serde_json::{Value, json};

use super::{FORMATS, TRANSFORMER, convert, text};
use crate::program::{Run, flux, folder, takes_long_form};
use crate::support::random_model::{Kind, RandomModel};

/// Returns the pixels of a small image.
fn pixels(folder: &Path, flags: &[&str]) -> Vec<u8> {
    let output = folder.join("image.png");
    let mut command = flux();
    command.args(["-p", "a red circle", "-S", "3", "--size", "32", "-s", "1", "--device", "cpu"]).args(flags);
    Run::new(command.arg("-o").arg(&output)).succeeds();
    read(&output).unwrap().bytes
}

#[test]
fn the_built_in_model_draws_the_same_from_files_in_every_format_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let model = &crate::program::project("models/tiny").display().to_string();
    let original = pixels(folder.path(), &["-d", model]);
    // The short form tests some formats of the random models.
    let asked = |name: &str| takes_long_form() || ["fp8", "bf16", "q4_k"].contains(&name);
    for (name, ending, _) in FORMATS.into_iter().filter(|(name, _, _)| asked(name)) {
        let [transformer, encoder] =
            ["transformer", "text"].map(|part| folder.path().join(format!("{part}-{name}.{ending}")));
        convert(&[model, text(&transformer), "--format", name]).succeeds();
        convert(&[model, text(&encoder), "--format", name, "--component", "text"]).succeeds();
        let quantized = |what: &str| match name {
            "bf16" => original.clone(),
            _ => pixels(folder.path(), &["-d", model, "--quantize", &format!("{what}{name}")]),
        };
        let parts = ["-d", text(&transformer), "--text-encoder", model, "--vae", model];
        assert!(pixels(folder.path(), &parts) == quantized("transformer="), "the transformer in {name}");
        let parts = ["-d", model, "--text-encoder", text(&encoder)];
        assert!(pixels(folder.path(), &parts) == quantized("text="), "the text encoder in {name}");
        let parts = ["-d", text(&transformer), "--text-encoder", text(&encoder), "--vae", model, "--tokenizer", model];
        assert!(pixels(folder.path(), &parts) == quantized(""), "both in {name}");
    }
}

/// Returns a model with values that no shape determines, and unusual defaults.
fn strange() -> RandomModel {
    let mut model = RandomModel::tiny();
    model.transformer.axes_dims_rope = [4, 12, 12, 4];
    model.transformer.rope_theta = 1777;
    model.text_encoder.rope_theta = 1_234_567.8;
    model.kind = Kind::Base;
    model.max_sequence_length = Some(48);
    model.text_encoder_out_layers = Some([1, 3, 4]);
    model.default_image_size = Some([48, 32]);
    model
}

#[test]
fn what_no_shape_tells_goes_with_the_file() {
    let folder = folder();
    let odd = folder.join("odd");
    strange().write(&odd).unwrap();
    // Values in a config that this model does not have.
    for (path, key, value) in [
        ("transformer/config.json", "eps", json!(3e-6)),
        ("text_encoder/config.json", "rms_norm_eps", json!(2e-6)),
        ("model_index.json", "default_steps", json!(2)),
        ("model_index.json", "image_sides", json!([32, 64])),
    ] {
        let mut config: Value = serde_json::from_slice(&fs::read(odd.join(path)).unwrap()).unwrap();
        config[key] = value;
        fs::write(odd.join(path), config.to_string()).unwrap();
    }
    let image = |flags: &[&str]| {
        let output = folder.join("image.png");
        let run =
            Run::new(flux().args(["-p", "a cat", "-S", "3", "--device", "cpu"]).args(flags).arg("-o").arg(&output));
        let is_noted = run.succeeds().stderr.contains("32x48");
        (read(&output).unwrap().bytes, is_noted)
    };
    let info = |flags: &[&str]| -> Value {
        let run = Run::new(flux().args(["info", "--json"]).args(flags)).succeeds();
        serde_json::from_str(&run.stdout).unwrap()
    };
    let model = text(&odd);
    let (expected, expected_info) = (image(&["-d", model]), info(&[model]));
    for ending in ["gguf", "safetensors"] {
        let [one, two, encoder] = ["one", "two", "encoder"].map(|name| folder.join(format!("{name}.{ending}")));
        convert(&[model, text(&one), "-f", "bf16"]).succeeds();
        // A converted file can be converted again.
        convert(&[text(&one), text(&two), "-f", "bf16"]).succeeds();
        convert(&[model, text(&encoder), "-f", "bf16", "--component", "text"]).succeeds();
        for file in [one, two] {
            let parts = ["--text-encoder", text(&encoder), "--vae", model, "--tokenizer", model];
            assert!(image(&[&["-d", text(&file)], &parts[..]].concat()) == expected, "{}", file.display());
            let said = info(&[&[text(&file)], &parts[..]].concat());
            for key in ["variant", "default_steps", "default_guidance", "default_image_size", "text_tokens"] {
                assert_eq!(said[key], expected_info[key], "{key} of {}", file.display());
            }
            for part in 0..2 {
                assert_eq!(said["components"][part]["config"], "the metadata of the file");
                let sizes = |info: &Value| info["components"][part]["sizes"].as_object().unwrap().clone();
                let said = sizes(&said);
                // Shapes determine the values that a config leaves out.
                for (key, value) in sizes(&expected_info).iter().filter(|(_, value)| !value.is_null()) {
                    assert_eq!(&said[key], value, "{key} of {}", file.display());
                }
            }
        }
    }
    for (kind, word) in [(Kind::Kv, "kv"), (Kind::Distilled, "distilled")] {
        let (model, file) = (folder.join(word), folder.join(format!("{word}-one.gguf")));
        RandomModel { kind, ..strange() }.write(&model).unwrap();
        convert(&[text(&model), text(&file), "-f", "q8_0"]).succeeds();
        let model = text(&model);
        let said = info(&[text(&file), "--text-encoder", model, "--vae", model]);
        assert_eq!(said["variant"], word);
    }
    // A name is used if nothing else has the information, and its meaning is written to the file, too.
    let base = folder.join("klein-base.safetensors");
    let config = fs::read_to_string(odd.join("transformer/config.json")).unwrap();
    fs::copy(odd.join(TRANSFORMER), &base).unwrap();
    fs::write(base.with_extension("json"), config).unwrap();
    convert(&[text(&base), text(&folder.join("q8.gguf")), "-f", "q8_0"]).succeeds();
    let said = info(&[text(&folder.join("q8.gguf")), "--text-encoder", model, "--vae", model]);
    assert_eq!(said["variant"], "base");
}
