//! Damaged model folders: each is refused in the user's words, before any work and without a panic.

use crate::model_copy::{self, ModelCopy};
use crate::program::{self, Run, draw, names, takes_long_form};
use flux::backend::cpu::{Cpu, Precision};
use flux::files::ModelFiles;
use flux::pipeline::{Model, Request};
use image::ImageFormat;
use serde_json::{Map, Value, json};

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";
const VAE: &str = "vae/diffusion_pytorch_model.safetensors";
const ENCODER: &str = "text_encoder/model.safetensors";
const WEIGHTS: [&str; 3] = [TRANSFORMER, VAE, ENCODER];
/// The files that a model needs.
const FILES: [&str; 8] = [
    "model_index.json",
    "text_encoder/config.json",
    "tokenizer/tokenizer.json",
    "transformer/config.json",
    "vae/config.json",
    ENCODER,
    TRANSFORMER,
    VAE,
];

fn run(model: &ModelCopy) -> (Run, Vec<String>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run =
        draw(folder.path(), &["-p", "a cat", "-S", "1", "-o", "out.png", "-d", model.path().to_str().expect("UTF-8")]);
    (run, names(folder.path()))
}

/// Checks that the model is refused: exit code 1, every word in the message, the place and a hint, nothing written.
#[track_caller]
fn refused(model: &ModelCopy, words: &[&str]) {
    let (run, left) = run(model);
    let run = run.fails(1, words);
    assert!(["\n  in: ", "\n  hint: "].iter().all(|part| run.stderr.contains(part)), "{}", run.stderr);
    assert!(left.is_empty(), "{left:?}");
}

/// Returns a copy of the model with another value of a config.
fn with_value(file: &str, key: &str, value: Value) -> ModelCopy {
    let model = ModelCopy::new();
    model.change_json(file, |config| drop(config.insert(key.into(), value)));
    model
}

/// Returns a copy of the model with a changed header of a weight file.
fn with_header(file: &str, change: impl FnOnce(&mut Map<String, Value>)) -> ModelCopy {
    let model = ModelCopy::new();
    model.change_header(file, change);
    model
}

/// Returns a copy of the model with other bytes in a file.
fn with_bytes(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> ModelCopy {
    let model = ModelCopy::new();
    model.change(file, change);
    model
}

#[test]
fn an_undamaged_copy_works() {
    run(&ModelCopy::new()).0.succeeds();
}

#[test]
fn a_missing_file_is_named() {
    for name in FILES {
        let model = ModelCopy::new();
        model.remove(name);
        let folder = name.split('/').next().expect("a name");
        refused(&model, &[folder, "hint: "]);
    }
}

/// Reading a pipe in place of a file would block, and reading a device would never end.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    for name in FILES {
        let model = ModelCopy::new();
        model.remove(name);
        let made = std::process::Command::new("mkfifo").arg(model.file(name)).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo is there");
        refused(&model, &["not a regular file", name, "hint: "]);
        model.remove(name);
        std::os::unix::fs::symlink("/dev/zero", model.file(name)).expect("a temporary folder takes links");
        refused(&model, &["not a regular file", name, "hint: "]);
    }
}

#[test]
fn a_file_that_is_longer_than_any_of_its_kind_is_refused_with_the_bound() {
    let index = "text_encoder/model.safetensors.index.json";
    for (name, limit) in [("vae/config.json", 1), ("tokenizer/tokenizer.json", 64), (index, 16)] {
        let model = ModelCopy::new();
        model.remove(if name == index { ENCODER } else { name });
        // It is sparse on the disk, and in memory it is bounded.
        std::fs::File::create(model.file(name)).and_then(|file| file.set_len(1 << 40)).expect("a long file");
        refused(&model, &["too long", &format!("{limit} MiB"), name, "hint: "]);
    }
}

#[test]
fn a_file_that_is_no_json_is_named() {
    for name in FILES.into_iter().filter(|name| name.ends_with(".json")) {
        for content in ["", "{", "[]", "null", "{} trailing", "\u{0}"] {
            refused(&with_bytes(name, |bytes| *bytes = content.as_bytes().to_vec()), &[name]);
        }
    }
}

#[test]
fn an_empty_tokenizer_is_refused() {
    let model = ModelCopy::new();
    model.change_json("tokenizer/tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"] = json!({});
        tokenizer["model"]["merges"] = json!([]);
        tokenizer["added_tokens"] = json!([]);
    });
    refused(&model, &["tokenizer/tokenizer.json"]);
}

#[test]
fn a_tokenizer_of_another_model_is_named() {
    let model = ModelCopy::new();
    model.change_json("tokenizer/tokenizer.json", |tokenizer| {
        // A token of every prompt.
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
        vocabulary.insert("Ċ".to_string(), json!(99_999));
    });
    let (run, _) = run(&model);
    let file = model.file("tokenizer/tokenizer.json").display().to_string();
    run.fails(1, &["token id 99999 is outside the encoder's vocabulary of ", &file, "hint: "]);
}

/// Another thread reads the tokenizer, and every call that needs it returns its error.
#[test]
fn a_damaged_tokenizer_is_told_each_time_and_before_any_work() {
    let model = with_bytes("tokenizer/tokenizer.json", |bytes| bytes.truncate(1000));
    let dir = ModelFiles::open(model.path()).expect("the folder is there");
    let model = Model::load(Cpu::new(Precision::F32), &dir).expect("the rest is whole");
    let request = Request::new("a cat", 1);
    for _ in 0..2 {
        let planned = model.plan(&request).map(drop).expect_err("no tokenizer").to_string();
        assert!(planned.contains("not a tokenizer") && planned.contains("tokenizer/tokenizer.json"), "{planned}");
        let made = model.generate(&request).map(drop).expect_err("no tokenizer").to_string();
        assert_eq!(made, planned);
    }
}

#[test]
fn another_kind_of_model_is_refused() {
    let model = with_value("model_index.json", "_class_name", json!("StableDiffusionPipeline"));
    refused(&model, &["`StableDiffusionPipeline`", "model_index.json", "`black-forest-labs/"]);
}

#[test]
fn a_text_encoder_that_computes_otherwise_is_refused() {
    for (key, value, words) in [
        ("model_type", json!("llama"), "model_type is `llama`"),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 }), "rope_type `yarn`"),
        ("rope_scaling", json!({ "type": "linear", "factor": 2.0 }), "rope_type `linear`"),
        ("rope_parameters", json!({ "rope_type": "dynamic", "rope_theta": 1e6 }), "rope_type `dynamic`"),
    ] {
        let model = with_value("text_encoder/config.json", key, value);
        refused(&model, &[words, "text_encoder/config.json", "hint: "]);
    }
}

#[test]
fn a_truncated_weight_file_is_named() {
    for name in WEIGHTS {
        for keep in [0, 4, 8, 1000, 100_000] {
            refused(&with_bytes(name, |bytes| bytes.truncate(keep)), &[name, "hint: "]);
        }
        refused(&with_bytes(name, |bytes| bytes.truncate(bytes.len() - 1)), &[name, "hint: "]);
    }
}

/// A terminal would obey it.
#[test]
fn names_of_files_and_what_is_in_them_are_spelled_out() {
    let model = ModelCopy::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = folder.path().join("tiny\x1b[31m\r\u{202e}");
    std::os::unix::fs::symlink(model.path(), &link).expect("a temporary folder takes links");
    let link = link.to_str().expect("UTF-8");
    let spelled = r"tiny\u{1b}[31m\r\u{202e}";
    let output = "a\x1b[2Jb.png";
    let run = |model: &str| draw(folder.path(), &["-p", "a cat", "-S", "1", "-v", "-o", output, "-d", model]);
    let good = run(link).succeeds();
    assert!(good.stderr.contains(r"wrote a\u{1b}[2Jb.png") && !good.stderr.contains('\x1b'), "{}", good.stderr);
    model.change_json("model_index.json", |index| drop(index.insert("_class_name".into(), json!("\x1b[2J\n"))));
    let bad = run(link).fails(1, &[spelled, r"`\u{1b}[2J\n`"]);
    assert!(!bad.stderr.contains('\x1b'), "{}", bad.stderr);
}

/// Weights are in mapped files, and reading the truncated part of one ends the program.
#[test]
fn a_file_that_changes_before_its_weights_are_loaded_is_named() {
    for name in WEIGHTS {
        let copy = with_bytes(name, |_| {});
        let dir = ModelFiles::open(copy.path()).expect("the folder is there");
        let model = Model::load(Cpu::new(Precision::F32), &dir).expect("it is whole");
        let file = std::fs::File::options().write(true).open(copy.file(name)).expect("a file of ours");
        file.set_len(4096).expect("it can be cut off");
        let request = Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", 1) };
        let error = model.generate(&request).map(drop).expect_err("cut off").to_string();
        assert!(error.contains("4096 now") && error.contains(name) && error.contains("hint: "), "{error}");
    }
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    for length in [u64::MAX, i64::MAX as u64, 1 << 40, 20_000_000] {
        refused(&with_bytes(VAE, |bytes| bytes[..8].copy_from_slice(&length.to_le_bytes())), &[VAE]);
    }
}

#[test]
fn a_header_that_is_no_json_is_refused() {
    refused(&with_bytes(TRANSFORMER, |bytes| bytes[8..40].fill(b'x')), &[TRANSFORMER]);
}

/// Returns the name of some tensor and its entry.
fn some_tensor(header: &mut Map<String, Value>) -> (String, &mut Value) {
    let found =
        header.iter_mut().find(|(name, _)| name.ends_with("conv_in.weight") || name.ends_with("x_embedder.weight"));
    let (name, entry) = found.expect("the model has this tensor");
    (name.clone(), entry)
}

#[test]
fn offsets_that_overlap_or_leave_the_file_are_refused() {
    for offsets in [json!([0, 8]), json!([1u64 << 40, 1u64 << 41]), json!([8, 0]), json!([0, u64::MAX])] {
        refused(&with_header(VAE, |header| some_tensor(header).1["data_offsets"] = offsets), &[VAE]);
    }
}

#[test]
fn a_wrong_shape_tells_both_shapes_and_the_tensor() {
    let mut tensor = String::new();
    let model = with_header(TRANSFORMER, |header| {
        let (name, entry) = some_tensor(header);
        assert_eq!(entry["shape"], json!([256, 32]));
        entry["shape"] = json!([32, 256]);
        tensor = name;
    });
    refused(&model, &[&tensor, "[32, 256]", "[256, 32]", TRANSFORMER, "hint: "]);
}

#[test]
fn a_shape_beyond_all_bounds_is_refused() {
    for shape in [json!([u64::MAX, u64::MAX]), json!([0, 32]), json!([]), json!([-1, 32]), json!([1u64 << 63, 2])] {
        refused(&with_header(TRANSFORMER, |header| some_tensor(header).1["shape"] = shape), &[TRANSFORMER]);
    }
}

#[test]
fn a_wrong_dtype_is_named() {
    for (dtype, words) in [("I16", &["I16", TRANSFORMER, "x_embedder.weight"][..]), ("Q4", &[TRANSFORMER])] {
        refused(&with_header(TRANSFORMER, |header| some_tensor(header).1["dtype"] = json!(dtype)), words);
    }
}

#[test]
fn a_missing_tensor_is_named() {
    for file in WEIGHTS {
        let mut lost = String::new();
        let model = with_header(file, |header| {
            let found = header.keys().find(|name| {
                name.ends_with("norm_q.weight")
                    || name.ends_with("decoder.conv_in.weight")
                    || name.ends_with("layers.3.mlp.up_proj.weight")
            });
            lost = found.expect("the model has this tensor").clone();
            let entry = header.remove(&lost).expect("just found");
            header.insert(format!("{lost}.renamed"), entry);
        });
        refused(&model, &[&lost, file]);
    }
}

#[test]
fn the_encoder_of_another_size_is_told() {
    let model = with_value("text_encoder/config.json", "hidden_size", json!(128));
    refused(&model, &["384", "288", "text_encoder"]);
    let model = with_value("transformer/config.json", "num_layers", json!(3));
    refused(&model, &["transformer_blocks.2", TRANSFORMER]);
}

#[test]
fn an_index_that_names_a_missing_or_foreign_shard_is_refused() {
    for shard in ["model-00001-of-00002.safetensors", "../vae/diffusion_pytorch_model.safetensors", "/etc/passwd", ""] {
        let model = ModelCopy::new();
        let index = json!({ "weight_map": { "model.norm.weight": shard } });
        model.remove(ENCODER);
        std::fs::write(model.file("text_encoder/model.safetensors.index.json"), index.to_string())
            .expect("a temporary folder is writable");
        refused(&model, &["text_encoder"]);
    }
}

/// For any config, loading reports an error or ignores the value: it never panics, hangs or takes all memory.
#[test]
fn no_value_in_a_config_makes_loading_panic() {
    let hostile = json!([0, -1, 1, 3, 1u64 << 40, u64::MAX, 1e300, "x", null, []]);
    let hostile = hostile.as_array().expect("an array");
    for name in ["model_index.json", "text_encoder/config.json", "transformer/config.json", "vae/config.json"] {
        let real: Value =
            serde_json::from_slice(&std::fs::read(model_copy::tiny().join(name)).expect("the file is there"))
                .expect("JSON");
        for (place, key) in real.as_object().expect("an object").keys().enumerate() {
            // The short form tests three values for each key, and some keys for each value.
            let asked = if takes_long_form() { 0..hostile.len() } else { 3 * place..3 * place + 3 };
            for value in asked.map(|value| &hostile[value % hostile.len()]) {
                let model = with_value(name, key, value.clone());
                let dir = ModelFiles::open(model.path()).expect("the folder is there");
                let planned =
                    Model::load(Cpu::new(Precision::F32), &dir).and_then(|model| model.plan(&Request::new("a cat", 1)));
                if let Err(error) = planned {
                    let (error, end) = (error.to_string(), format!("{name}\n  hint: "));
                    // Errors for sizes that contradict the weights or another config name these.
                    let fits = [
                        "expected", "has dtype", "is missing", "features", "do not fit", "channels", "positions",
                        "no such tensor",
                    ];
                    assert!(
                        error.contains(&end)
                            || fits.iter().any(|word| error.contains(word)) && error.contains("hint: "),
                        "{name}, {key} = {value}: {error}"
                    );
                    assert!(!error.contains("in: --"), "nobody gave an option: {error}");
                }
            }
        }
    }
}

/// Creates a copy of the model with all bytes of a tensor set to `byte`.
fn filled(name: &str, tensor: &str, byte: u8) -> ModelCopy {
    with_bytes(name, |bytes| {
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..start]).expect("a JSON header");
        let offset = |i: usize| header[tensor]["data_offsets"][i].as_u64().expect("an offset") as usize;
        bytes[start + offset(0)..start + offset(1)].fill(byte);
    })
}

const COMPONENTS: [(&str, &str); 3] = [
    (TRANSFORMER, "x_embedder.weight"),
    (VAE, "decoder.conv_in.weight"),
    (ENCODER, "model.layers.0.mlp.up_proj.weight"),
];

#[test]
fn weights_that_are_no_numbers_or_give_pixels_that_are_none_are_named() {
    for (name, tensor) in COMPONENTS {
        // 0xffff is a NaN in bfloat16, and 0xffffffff in float32.
        refused(&filled(name, tensor, 0xff), &["NaN", tensor, name, "hint: "]);
        // 3.39e38 in bfloat16 and in float32: the largest weights are in this file.
        refused(&filled(name, tensor, 0x7f), &["not numbers", name, "hint: "]);
    }
}

#[test]
fn numbers_without_sense_in_a_config_are_refused() {
    for (file, key, value) in [
        ("transformer/config.json", "rope_theta", json!(-2000)),
        ("transformer/config.json", "eps", json!(-1)),
        ("text_encoder/config.json", "rms_norm_eps", json!(1e30)),
        ("vae/config.json", "batch_norm_eps", json!(-1)),
        // Errors do not blame an option that was not passed.
        ("vae/config.json", "sample_size", json!(15)),
        ("vae/config.json", "sample_size", json!(1 << 20)),
        ("model_index.json", "default_image_size", json!([256, 8])),
        ("model_index.json", "default_steps", json!(0)),
        ("model_index.json", "text_encoder_out_layers", json!([0, 9, 18])),
        ("model_index.json", "text_encoder_out_layers", json!([9, 18, 28])),
        ("text_encoder/config.json", "num_hidden_layers", json!(3)),
        ("model_index.json", "max_sequence_length", json!(100_000)),
        // The prompt has 512 tokens.
        ("text_encoder/config.json", "max_position_embeddings", json!(511)),
        // Products of these would overflow.
        ("text_encoder/config.json", "head_dim", json!(1 << 24)),
        ("text_encoder/config.json", "num_hidden_layers", json!(1 << 20)),
        ("transformer/config.json", "num_attention_heads", json!(1 << 20)),
        ("transformer/config.json", "mlp_ratio", json!(5000)),
        ("transformer/config.json", "axes_dims_rope", json!([u64::MAX - 1, 2, 32, 0])),
        ("vae/config.json", "layers_per_block", json!(1 << 16)),
        ("vae/config.json", "block_out_channels", json!([32, 64, 128, 1 << 20])),
        ("vae/config.json", "decoder_block_out_channels", json!([32, 64, 128])),
    ] {
        refused(&with_value(file, key, value), &[file, key]);
    }
}

/// Errors for files that are no models name the kind of file, for every flag that takes a model, and suggest no
/// resumed download.
#[test]
fn a_file_that_is_no_model_is_named_as_what_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = |format| {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::DynamicImage::new_rgb8(7, 5).write_to(&mut bytes, format).expect("memory takes all");
        bytes.into_inner()
    };
    let files: [(&str, Vec<u8>, &[&str]); 9] = [
        ("a.png", image(ImageFormat::Png), &["a PNG image of 7x5 pixels", "name a model"]),
        ("a.jpg", image(ImageFormat::Jpeg), &["a JPEG image of 7x5 pixels", "name a model"]),
        ("a.webp", image(ImageFormat::WebP), &["a WebP image of 7x5 pixels", "name a model"]),
        ("a.gif", b"GIF89a\x07\0\x05\0\xf7\0\0".to_vec(), &["a GIF image of 7x5 pixels", "name a model"]),
        ("a.pt", b"PK\x03\x04\0archive/data.pkl".to_vec(), &["PyTorch pickle", "GGUF"]),
        ("a.ckpt", vec![9; 64], &["a PyTorch pickle"]),
        ("a.onnx", b"\x08\x07\x12".to_vec(), &["ONNX"]),
        ("a.json", b"{}".to_vec(), &["JSON text", "the folder that this file describes"]),
        ("a.zip", b"PK\x03\x04\x14\0".to_vec(), &["a zip archive", "unpack it"]),
    ];
    for (name, bytes, words) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a temporary folder is writable");
        let place = format!("\n  in: {name}\n  hint: ");
        let check = |args: &[&str]| {
            let run = Run::new(program::flux().current_dir(folder.path()).args(args)).fails(1, words);
            assert!(run.stderr.contains(&place) && !run.stderr.contains("resume"), "{args:?}: {}", run.stderr);
        };
        // `info` describes images.
        if !words[0].contains(" image") {
            check(&["info", name]);
        }
        check(&["convert", name, "out.gguf", "--format", "q8_0"]);
        for flag in ["-d", "--text-encoder", "--vae"] {
            check(&["-p", "a cat", "-o", "out.png", flag, name]);
        }
    }
}

/// A name of a megabyte from a file gives no megabyte of text.
#[test]
fn names_from_files_are_shortened_in_every_message() {
    let long = format!("begin{}end", "x".repeat(900_000));
    let class = with_value("model_index.json", "_class_name", json!(long));
    let tensor = with_header(TRANSFORMER, |header| {
        let entry = json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] });
        header.insert(format!("double_blocks.{long}.qweight"), entry);
    });
    let value = with_value("transformer/config.json", "num_layers", json!(long));
    for model in [class, tensor, value] {
        let run = run(&model).0.fails(1, &["begin", "end"]);
        assert!(run.stderr.len() < 6000, "{}", run.stderr.len());
    }
}
