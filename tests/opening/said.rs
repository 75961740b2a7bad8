//! Model properties of a single file apart from its shapes: in its metadata, or in a config next to it.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::{Component, ModelPaths};
use flux::model::{ModelInfo, OpenModel};
use flux::text_encoder::TextEncoderConfig;
use flux::transformer::TransformerConfig;
use serde_json::{Value, json};

use super::renamed::{CONFIG, Tensors, bfl, ldm, llama, read, write_gguf_with, write_with};
use super::{EXPECTED, FILES, image};
use crate::gguf::Value as Gguf;

/// A component of the model as a single file in a folder of its own.
pub struct Single {
    folder: PathBuf,
    part: &'static str,
    pub tensors: Tensors,
}

impl Single {
    /// Creates a file of the component `part` of the model, in the folder `name`.
    pub fn new(name: &str, part: &'static str) -> Self {
        let folder = FILES.at(&format!("said/{name}"));
        fs::create_dir_all(&folder).unwrap();
        let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
        let tensors = read(&FILES.at(&format!("folder/{part}/{stem}.safetensors")));
        let tensors = match part {
            "transformer" => bfl(&tensors, "", ".scale"),
            "vae" => ldm(&tensors),
            _ => tensors,
        };
        Self { folder, part, tensors }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the file with this metadata.
    pub fn write(&self, metadata: &[(&str, &str)]) -> &Self {
        write_with(&self.at("one.safetensors"), &self.tensors, metadata);
        self
    }

    /// Writes a config next to the file: the component's own, changed.
    fn beside(&self, name: &str, change: impl FnOnce(&mut Value)) -> &Self {
        let own = fs::read(FILES.at(&format!("folder/{}/config.json", self.part))).unwrap();
        let mut config = serde_json::from_slice(&own).unwrap();
        change(&mut config);
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, config.to_string()).unwrap();
        self
    }

    pub fn paths(&self, file: &Path) -> ModelPaths {
        let mut paths = ModelPaths {
            model: Some(FILES.at("folder")),
            text_encoder: Some(FILES.at("folder")),
            vae: Some(FILES.at("folder")),
            ..ModelPaths::default()
        };
        let place = match self.part {
            "transformer" => &mut paths.model,
            "vae" => &mut paths.vae,
            _ => &mut paths.text_encoder,
        };
        *place = Some(file.to_path_buf());
        paths
    }

    fn open(&self, file: &Path) -> flux::Result<(ModelInfo, Vec<String>)> {
        let files = self.paths(file).open(|| unreachable!("a model is named"))?;
        OpenModel::open(&files)?;
        Ok((ModelInfo::read(&files)?, files.notes().to_vec()))
    }

    fn opens(&self) -> ModelInfo {
        self.open(&self.at("one.safetensors")).unwrap_or_else(|e| panic!("{e}")).0
    }

    #[track_caller]
    fn refused(&self, words: &[&str]) {
        refused(self.open(&self.at("one.safetensors")), words);
    }
}

#[track_caller]
fn refused<T>(result: flux::Result<T>, words: &[&str]) {
    let error = result.err().expect("refused").to_string();
    for word in words.iter().chain(&["in: ", "hint: "]) {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn a_file_of_no_published_sizes_needs_a_config_and_says_where_to_put_it() {
    for (part, untold) in [
        ("transformer", &["`axes_dims_rope`", "`rope_theta`", "`eps`"][..]),
        ("text_encoder", &["`rope_theta`", "`rms_norm_eps`"]),
        ("vae", &["`norm_num_groups`", "`batch_norm_eps`"]),
    ] {
        let file = Single::new(&format!("alone-{part}"), part);
        file.write(&[]).refused(&[untold, &["published", "one.safetensors", "`one.json`", "`config.json`"]].concat());
        let drawn = |file: &Single| image(&file.paths(&file.at("one.safetensors")).open(|| unreachable!()).unwrap());
        for name in ["one.json".to_string(), "config.json".to_string(), format!("{part}/config.json")] {
            file.beside(&name, |_| {});
            assert!(drawn(&file) == *EXPECTED, "{name}");
            fs::remove_file(file.at(&name)).unwrap();
        }
        // As some programs write it: the config of the component alone.
        let own = fs::read_to_string(FILES.at(&format!("folder/{part}/config.json"))).unwrap();
        file.write(&[("config", &own)]);
        assert!(drawn(&file) == *EXPECTED);
    }
}

/// Creates a sparse file of bf16 tensors with these shapes.
fn hollow(name: &str, tensors: &[(&str, &[u64])]) -> flux::Result<Component> {
    let path = FILES.at(&format!("hollow/{name}.safetensors"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut end = 0;
    let entries = tensors.iter().map(|(name, shape)| {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        (name.to_string(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }))
    });
    let header = Value::Object(entries.collect()).to_string();
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(8 + header.len() as u64 + end).unwrap();
    Component::at(&path, None)
}

#[test]
fn files_of_published_sizes_need_no_config_also_where_blocks_were_pruned() {
    let transformer = |name: &str, [dim, head_dim, text]: [u64; 3]| {
        hollow(
            name,
            &[
                ("img_in.weight", &[dim, 128]),
                ("txt_in.weight", &[dim, text]),
                ("time_in.in_layer.weight", &[dim, 256]),
                ("single_stream_modulation.lin.weight", &[3 * dim, dim]),
                ("double_blocks.0.img_attn.norm.query_norm.scale", &[head_dim]),
                ("double_blocks.0.img_mlp.0.weight", &[6 * dim, dim]),
                ("single_blocks.2.linear2.weight", &[dim, 4 * dim]),
                ("final_layer.linear.weight", &[128, dim]),
            ],
        )
        .unwrap()
    };
    for (name, sizes) in [("4b", [3072, 128, 7680]), ("9b", [4096, 128, 12288])] {
        let config = TransformerConfig::from_component(&transformer(name, sizes)).unwrap();
        assert_eq!((&config.axes_dims_rope[..], config.rope_theta, config.eps), (&[32; 4][..], 2000.0, 1e-6));
        assert_eq!((config.num_layers, config.num_single_layers), (1, 3));
    }
    for (name, sizes) in [("heads", [3072, 96, 7680]), ("width", [2048, 128, 7680]), ("text", [3072, 128, 4096])] {
        refused(TransformerConfig::from_component(&transformer(name, sizes)), &["no published model", name]);
    }
    let encoder = |name: &str, hidden: u64, more: &[(&str, &[u64])]| {
        let layer = [
            ("model.embed_tokens.weight", &[151_936, hidden][..]),
            ("model.layers.0.self_attn.q_norm.weight", &[128]),
            ("model.layers.0.self_attn.q_proj.weight", &[4096, hidden]),
            ("model.layers.0.self_attn.k_proj.weight", &[1024, hidden]),
            ("model.layers.0.mlp.gate_proj.weight", &[9728, hidden]),
        ];
        TextEncoderConfig::from_component(&hollow(name, &[&layer[..], more].concat())?)
    };
    let config = encoder("qwen", 2560, &[]).unwrap();
    assert_eq!((config.rope_theta, config.rms_norm_eps, config.max_position_embeddings), (1e6, 1e-6, Some(40960)));
    refused(encoder("wider", 2816, &[]), &["`rope_theta`, `rms_norm_eps`", "wider"]);
    // A vision-language encoder has the same sizes, and another base of the rotary frequencies.
    let sees = encoder("sees", 2560, &[("visual.patch_embed.proj.weight", &[16])]).unwrap();
    assert_eq!(sees.rope_theta, 5e6);
}

#[test]
fn the_files_own_values_count_before_those_beside_it() {
    let file = Single::new("order", "transformer");
    let theta = |file: &Single| file.opens().transformer.rope_theta;
    file.write(&[]).beside("transformer/config.json", |config| config["rope_theta"] = json!(4000));
    assert_eq!(theta(&file), 4000.0);
    file.beside("config.json", |config| config["rope_theta"] = json!(3000));
    assert_eq!(theta(&file), 3000.0);
    file.beside("one.json", |config| config["rope_theta"] = json!(2500));
    assert_eq!(theta(&file), 2500.0);
    file.write(&[("config", r#"{"transformer": {"rope_theta": 1500}}"#)]);
    assert_eq!(theta(&file), 1500.0, "and what it does not say is beside it");
    file.write(&[("config", CONFIG)]);
    assert_eq!(theta(&file), 2000.0);
    // Files next to it may belong to others.
    for name in ["one.json", "config.json"] {
        fs::remove_file(file.at(name)).unwrap();
    }
    file.write(&[]).beside("transformer/config.json", |config| config["num_layers"] = json!(7));
    file.refused(&["does not specify `axes_dims_rope`"]);
    file.beside("config.json", |config| config["_class_name"] = json!("WanTransformer3DModel"));
    file.refused(&["does not specify `axes_dims_rope`"]);
    fs::write(file.at("one.json"), r#"{"description": "of a gallery", "sd version": "Flux"}"#).unwrap();
    file.refused(&["does not specify `axes_dims_rope`"]);
    file.beside("transformer/config.json", |_| {});
    file.opens();
}

#[test]
fn values_that_contradict_the_tensors_are_refused_by_name() {
    let cases: [(&str, &str, Value, &[&str]); 14] = [
        ("transformer", "num_layers", json!(3), &["`num_layers`", "is 3, expected 2"]),
        ("transformer", "attention_head_dim", json!(64), &["`attention_head_dim`", "is 64, expected 32"]),
        ("transformer", "mlp_ratio", json!(2.5), &["mlp_ratio", "2.5"]),
        ("transformer", "patch_size", json!(2), &["`patch_size`", "is 2, expected 1"]),
        ("transformer", "axes_dims_rope", json!([8, 8, 8, 4]), &["axes_dims_rope", "32"]),
        ("transformer", "rope_theta", json!("many"), &["`rope_theta`", "is `many`, expected a number"]),
        ("transformer", "eps", json!(-1), &["eps"]),
        ("text_encoder", "hidden_size", json!(65), &["`hidden_size`", "is 65, expected 64"]),
        ("text_encoder", "hidden_act", json!("gelu"), &["`hidden_act`", "`gelu`, expected `silu`"]),
        ("text_encoder", "rope_scaling", json!({"type": "yarn", "factor": 4}), &["`rope_scaling.type`", "`yarn`"]),
        ("text_encoder", "rms_norm_eps", json!([1e-6]), &["`rms_norm_eps`", "expected a number"]),
        ("text_encoder", "model_type", json!("gemma3_text"), &["`gemma3_text`", "qwen3"]),
        ("vae", "norm_num_groups", json!(-8), &["`norm_num_groups`", "is -8, expected a whole number"]),
        ("vae", "latent_channels", json!(16), &["`latent_channels`", "is 16, expected 32"]),
    ];
    for (part, key, value, words) in cases {
        let file = Single::new(&format!("contradicts-{part}-{key}"), part);
        let change = |config: &mut Value| config[key] = value.clone();
        file.write(&[]).beside("one.json", change);
        file.refused(&[words, &["one.json"]].concat());
        let text = fs::read_to_string(file.at("one.json")).unwrap();
        fs::remove_file(file.at("one.json")).unwrap();
        file.write(&[("config", &format!(r#"{{"{part}": {text}}}"#))]);
        file.refused(&[words, &["one.safetensors"]].concat());
    }
    for (text, words) in [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("a text", "not a JSON object"),
        (r#"{"transformer": 5}"#, "`transformer` in `config` is 5, expected a config"),
        (r#"{"_class_name": "WanTransformer3DModel", "axes_dims_rope": [1]}"#, "is for a `WanTransformer3DModel`"),
        (r#"{"is_distilled": 1, "transformer": {}}"#, "`is_distilled` in `config` is 1, expected true or false"),
    ] {
        Single::new("malformed", "transformer").write(&[("config", text)]).refused(&[words, "one.safetensors"]);
    }
    let damaged = Single::new("damaged-beside", "transformer");
    damaged.write(&[]);
    for name in ["config.json", "one.json"] {
        fs::write(damaged.at(name), "{").unwrap();
        damaged.refused(&["invalid JSON", name]);
    }
}

/// Opens the transformer or the text encoder as a GGUF file with these values.
fn gguf(name: &str, values: &[(&str, Gguf<'_>)]) -> flux::Result<(ModelInfo, Vec<String>)> {
    let part = if name.starts_with("text") { "text_encoder" } else { "transformer" };
    let file = Single::new(&format!("gguf-{name}"), part);
    let path = file.at("one.gguf");
    let tensors = if part == "text_encoder" { llama(&file.tensors) } else { file.tensors.clone() };
    write_gguf_with(&path, &tensors, values);
    file.open(&path)
}

#[test]
fn values_under_the_architecture_are_read_whatever_its_name_is() {
    for name in ["qwen3", "qwen3vl", "pig", "cow", "my-own"] {
        let key = |end: &str| format!("{name}.{end}");
        let [theta, eps, context] = ["rope.freq_base", "attention.layer_norm_rms_epsilon", "context_length"].map(key);
        let values = [
            ("general.architecture", Gguf::Text(name)),
            (&*theta, Gguf::Float(5e6)),
            (&*eps, Gguf::Double(1e-5)),
            (&*context, Gguf::Int(300)),
        ];
        let (info, notes) = gguf("text-names", &values).unwrap();
        let text = info.text_encoder;
        assert_eq!(
            (text.rope_theta, text.rms_norm_eps, text.max_position_embeddings),
            (5e6, 1e-5, Some(300)),
            "{name}"
        );
        let is_noted = notes.iter().any(|note| note.contains("`my-own`"));
        assert_eq!(is_noted, name == "my-own", "{notes:?}");
    }
    for name in ["flux", "flux2", "pig", "my-own"] {
        let key = |end: &str| format!("{name}.{end}");
        let [theta, axes, eps] = ["rope.freq_base", "rope.dimension_sections", "attention.layer_norm_epsilon"].map(key);
        let values = [
            ("general.architecture", Gguf::Text(name)),
            (&*theta, Gguf::Float(1000.0)),
            (&*axes, Gguf::Ints(vec![4, 12, 12, 4])),
            (&*eps, Gguf::Float(1e-5)),
        ];
        let transformer = gguf("names", &values).unwrap().0.transformer;
        assert_eq!(transformer.axes_dims_rope, [4, 12, 12, 4], "{name}");
        assert_eq!((transformer.rope_theta, transformer.eps), (1000.0, 1e-5));
    }
    // Under another name they mean something else.
    let other = [("general.architecture", Gguf::Text("qwen3")), ("qwen2.rope.freq_base", Gguf::Float(5e6))];
    refused(gguf("text-other", &other), &["does not specify `rope_theta`", "one.gguf"]);
    let unknown = [
        ("general.architecture", Gguf::Text("qwen3")),
        ("qwen3.rope.freq_base", Gguf::Float(5e6)),
        ("qwen3.attention.layer_norm_rms_epsilon", Gguf::Float(1e-6)),
        ("qwen3.attention.logit_softcapping", Gguf::Float(30.0)),
    ];
    let (_, notes) = gguf("text-unknown", &unknown).unwrap();
    assert!(notes.iter().any(|note| note.contains("`qwen3.attention.logit_softcapping`")), "{notes:?}");
}

#[test]
fn an_architecture_that_computes_otherwise_is_refused_by_name() {
    for name in ["llama", "qwen2", "qwen3moe", "gemma3", "mistral3", "phi3", "hunyuan-dense", "exaone4", "flux"] {
        let values = [("general.architecture", Gguf::Text(name)), ("config", Gguf::Text(CONFIG))];
        refused(
            gguf("text-others", &values),
            &[&*format!("architecture `{name}`"), "text encoder", "one.gguf", "qwen3"],
        );
    }
    for name in ["wan", "sd3", "sdxl", "ltxv", "qwen_image", "lumina2", "flux1", "llama", "z_image"] {
        let values = [("general.architecture", Gguf::Text(name)), ("config", Gguf::Text(CONFIG))];
        refused(gguf("others", &values), &[&*format!("architecture `{name}`"), "transformer", "one.gguf", "flux"]);
    }
    let number = [("general.architecture", Gguf::Int(3)), ("config", Gguf::Text(CONFIG))];
    refused(gguf("number", &number), &["`general.architecture` is an integer, expected a string"]);
}

#[test]
fn gguf_values_that_are_malformed_or_contradict_are_refused_by_name() {
    let qwen3 = || ("general.architecture", Gguf::Text("qwen3"));
    let config = || ("config", Gguf::Text(CONFIG));
    for (value, words) in [
        (("qwen3.embedding_length", Gguf::Int(65)), "`qwen3.embedding_length` is 65, expected 64"),
        (("qwen3.block_count", Gguf::Int(36)), "`qwen3.block_count` is 36, expected 5"),
        (("qwen3.attention.head_count_kv", Gguf::Int(4)), "`qwen3.attention.head_count_kv` is 4, expected 2"),
        (("qwen3.rope.dimension_count", Gguf::Int(8)), "`qwen3.rope.dimension_count` is 8, expected 16"),
        (("qwen3.rope.scaling.type", Gguf::Text("yarn")), "`qwen3.rope.scaling.type` is `yarn`"),
        (("qwen3.expert_count", Gguf::Int(8)), "`qwen3.expert_count`"),
        (("qwen3.rope.freq_base", Gguf::Text("many")), "`qwen3.rope.freq_base` is a string, expected a float"),
        (("qwen3.rope.freq_base", Gguf::Float(f32::NAN)), "`qwen3.rope.freq_base` is `NaN`"),
        (
            ("qwen3.rope.freq_base", Gguf::Float(2e6)),
            "`qwen3.rope.freq_base` is 2000000.0, but `rope_theta` in `config`",
        ),
    ] {
        refused(gguf("text-malformed", &[qwen3(), config(), value]), &[words, "one.gguf"]);
    }
    let twice = ("qwen3.rope.freq_base", Gguf::Float(1e6));
    gguf("text-twice", &[qwen3(), config(), twice]).unwrap();
    refused(gguf("number-config", &[("config", Gguf::Int(1))]), &["`config` is an integer, expected a string"]);
}

#[test]
fn what_a_file_says_of_the_whole_model_counts() {
    let file = Single::new("whole", "transformer");
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["_class_name"] = json!("Flux2KleinPipeline");
    config["is_distilled"] = json!(false);
    config["default_steps"] = json!(7);
    config["default_image_size"] = json!([48, 32]);
    file.write(&[("config", &config.to_string())]);
    let info = file.opens();
    assert_eq!((info.is_distilled, info.default_steps, info.default_image_size), (false, 7, [48, 32]));
    let (_, notes) = file.open(&file.at("one.safetensors")).unwrap();
    assert!(!notes.iter().any(|note| note.contains("runs as")), "{notes:?}");
    let named = file.at("klein-kv.safetensors");
    fs::copy(file.at("one.safetensors"), &named).unwrap();
    let (info, notes) = file.open(&named).unwrap();
    assert!(!info.is_distilled && notes.iter().any(|note| note.contains("runs as a base model because the file")));
    config["_class_name"] = json!("WanPipeline");
    file.write(&[("config", &config.to_string())]).refused(&["a `WanPipeline` model", "one.safetensors"]);
}
