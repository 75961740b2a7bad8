//! FLUX.3 in all the ways in which models are used: files by the names of other programs, formats, adapters, batches,
//! several devices, references that keep their size, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::error::Field;
use flux::files::adapter::AdapterUse;
use flux::files::{ModelFiles, ModelPaths};
use flux::input;
use flux::model::{ModelInfo, OpenModel};
use flux::pipeline::{Model, Parallel, Request};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

use crate::flux3_base::write_base;
use crate::golden::flux3::{model_folder, picture};
use crate::opening::renamed::{Tensors, prefixed, read, write_gguf_with, write_with};
use crate::program::{Run, flux};
use crate::{gguf, support};

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";

fn load(files: &ModelFiles) -> Arc<Model<Cpu>> {
    Model::load(Cpu::new(Precision::F32), files).unwrap()
}

fn distilled() -> Arc<Model<Cpu>> {
    load(&ModelFiles::open(&model_folder()).unwrap())
}

fn small(prompt: &str, seed: u64) -> Request {
    Request { width: Some(64), height: Some(48), steps: Some(2), ..Request::new(prompt, seed) }
}

fn pixels(model: &Arc<Model<Cpu>>, request: &Request) -> Vec<u8> {
    model.generate(request).unwrap().rgb
}

#[track_caller]
fn assert_near(what: &str, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(worst <= Some(1), "{what}: {worst:?} levels");
}

/// The transformer as Black Forest Labs name it; norms end with `norm`.
fn bfl(tensors: &Tensors, prefix: &str, norm: &str) -> Tensors {
    let named = |name: &str| {
        let mut name = name.to_string();
        for (own, bfl) in [
            ("target_timestep_embedder.linear_1.", "ref_time_in.in_layer."),
            ("target_timestep_embedder.linear_2.", "ref_time_in.out_layer."),
            ("timestep_embedder.linear_1.", "time_in.in_layer."),
            ("timestep_embedder.linear_2.", "time_in.out_layer."),
            ("single_transformer_blocks.", "single_blocks."),
            ("x_embedders.", "emb_in."),
            ("context_embedder.", "txt_in."),
            ("norm_out.linear.", "final_layer.image.adaLN_modulation.1."),
            ("proj_out.", "final_layer.image.linear."),
            (".linear.weight", ".lin.weight"),
            ("attn.to_q.", "q_proj."),
            ("attn.to_k.", "k_proj."),
            ("attn.to_v.", "v_proj."),
            ("attn.to_out.0.", "attn_out."),
            ("attn.norm_q.weight", &format!("norm.query_norm{norm}")),
            ("attn.norm_k.weight", &format!("norm.key_norm{norm}")),
            ("ff.linear_in.", "mlp_in."),
            ("ff.linear_out.", "mlp_out."),
        ] {
            name = name.replace(own, bfl);
        }
        // Only the last layer's own name has `linear` in it.
        name = name.replace("final_layer.image.lin.", "final_layer.image.linear.");
        let is_stream = name.starts_with("mode_blocks.");
        format!("{prefix}{}{name}", if is_stream { "content_" } else { "" })
    };
    let tensor = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        let mut bytes = bytes.clone();
        if name == "norm_out.linear.weight" {
            let half = bytes.len() / 2;
            bytes.rotate_left(half);
        }
        (named(name), (*dtype, shape.clone(), bytes))
    };
    tensors.iter().map(tensor).collect()
}

/// The same with q, k and v as one matrix.
fn fused(tensors: &Tensors) -> Tensors {
    let mut fused = Tensors::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let Some(front) = name.strip_suffix("q_proj.weight") else {
            if !name.ends_with("k_proj.weight") && !name.ends_with("v_proj.weight") {
                fused.insert(name.clone(), (*dtype, shape.clone(), bytes.clone()));
            }
            continue;
        };
        let part = |part: &str| tensors[&format!("{front}{part}_proj.weight")].2.clone();
        let all = [bytes.clone(), part("k"), part("v")].concat();
        fused.insert(format!("{front}qkv_proj.weight"), (*dtype, vec![3 * shape[0], shape[1]], all));
    }
    fused
}

/// What a file says of itself.
fn config(folder: &Path, part: &str) -> String {
    fs::read_to_string(folder.join(part).join("config.json")).unwrap()
}

/// The model of which `transformer` is the transformer, with the parts of the golden model.
fn with_transformer(transformer: PathBuf) -> ModelFiles {
    let parts = Some(model_folder());
    let paths = ModelPaths {
        model: Some(transformer),
        text_encoder: parts.clone(),
        vae: parts.clone(),
        tokenizer: parts,
        variant: None,
    };
    paths.open(|| unreachable!("a model is named")).unwrap()
}

#[test]
fn single_files_by_every_name_draw_the_image_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let own = read(&model_folder().join(TRANSFORMER));
    let config = config(&model_folder(), "transformer");
    let expected = pixels(&distilled(), &small("a cat", 1));
    let plain = bfl(&own, "", ".scale");
    for (name, tensors) in [
        ("bfl", plain.clone()),
        ("comfy", bfl(&own, "model.diffusion_model.", ".weight")),
        ("fused", fused(&plain)),
        ("diffusers", own.clone()),
        ("prefixed", prefixed(&own, "model.diffusion_model.")),
        // What only training needed.
        (
            "more",
            plain
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.clone()))
                .chain([("repa_projectors.0.weight".to_string(), own["proj_out.weight"].clone())])
                .collect(),
        ),
    ] {
        let file = at(&format!("{name}-base.safetensors"));
        write_with(&file, &tensors, &[("config", &config)]);
        let files = with_transformer(file);
        let info = ModelInfo::read(&files).unwrap();
        assert!(info.is_distilled && info.default_steps == 16, "{name}: weights tell it, whatever the file is called");
        assert!(pixels(&load(&files), &small("a cat", 1)) == expected, "{name}");
    }
    let file = at("flux3.gguf");
    write_gguf_with(&file, &plain, &[("config", gguf::Value::Text(&config))]);
    assert!(pixels(&load(&with_transformer(file)), &small("a cat", 1)) == expected, "GGUF");

    // Its config is that of a distilled model.
    let base: Tensors = plain.into_iter().filter(|(name, _)| !name.starts_with("ref_time_in")).collect();
    let file = at("no-next-time.safetensors");
    write_with(&file, &base, &[("config", &config.replace("true", "false"))]);
    let files = with_transformer(file.clone());
    let info = ModelInfo::read(&files).unwrap();
    assert!(!info.is_distilled && (info.default_steps, info.default_guidance()) == (50, 3.5));
    write_with(&file, &base, &[("config", &config)]);
    let error = ModelInfo::read(&with_transformer(file)).unwrap_err().to_string();
    assert!(error.contains("flow_map"), "{error}");
}

#[test]
fn a_file_of_the_text_encoder_may_have_any_front_and_the_half_that_sees() {
    let folder = tempfile::tempdir().unwrap();
    let own = read(&model_folder().join("text_encoder/model.safetensors"));
    let expected = pixels(&distilled(), &small("a cat", 1));
    let text = serde_json::from_str::<serde_json::Value>(&config(&model_folder(), "text_encoder")).unwrap();
    let text = text["text_config"].to_string();
    let renamed = |front: &str| -> Tensors {
        let of = |(name, tensor): (&String, &_)| (name.replace("model.language_model.", front), Clone::clone(tensor));
        own.iter().map(of).collect()
    };
    let without_sight: Tensors = renamed("model.").into_iter().filter(|(name, _)| !name.contains("visual")).collect();
    for (name, tensors) in [
        ("sees", own.clone()),
        ("comfy", renamed("language_model.model.")),
        ("plain", renamed("model.")),
        ("qwen3vl_4b", without_sight),
    ] {
        let file = folder.path().join(format!("{name}.safetensors"));
        write_with(&file, &tensors, &[("config", &text)]);
        let paths = ModelPaths {
            model: Some(model_folder()),
            text_encoder: Some(file),
            tokenizer: Some(model_folder()),
            ..ModelPaths::default()
        };
        let files = paths.open(|| unreachable!("a model is named")).unwrap();
        assert_eq!(files.notes(), [""; 0], "{name}");
        assert!(pixels(&load(&files), &small("a cat", 1)) == expected, "{name}");
    }
}

#[test]
fn parts_are_found_in_the_folders_of_comfyui() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("models").join(name);
    let transformer = bfl(&read(&model_folder().join(TRANSFORMER)), "", ".scale");
    write_with(
        &at("diffusion_models/flux3.safetensors"),
        &transformer,
        &[("config", &config(&model_folder(), "transformer"))],
    );
    let encoder = read(&model_folder().join("text_encoder/model.safetensors"));
    let text: serde_json::Value = serde_json::from_str(&config(&model_folder(), "text_encoder")).unwrap();
    let text = text["text_config"].to_string();
    write_with(&at("text_encoders/some.safetensors"), &encoder, &[("config", &text)]);
    // One of FLUX.2 has the same width, and does not see.
    let reads: Tensors = encoder.into_iter().filter(|(name, _)| !name.contains("visual")).collect();
    write_with(&at("text_encoders/qwen_3_4b.safetensors"), &reads, &[("config", &text)]);
    let vae = read(&model_folder().join("vae/diffusion_pytorch_model.safetensors"));
    write_with(&at("vae/flux2-vae.safetensors"), &vae, &[("config", &config(&model_folder(), "vae"))]);
    let open = |tokenizer| {
        let paths = ModelPaths { model: Some(folder.path().to_path_buf()), tokenizer, ..ModelPaths::default() };
        paths.open(|| unreachable!("a model is named"))
    };
    let files = open(Some(model_folder())).unwrap();
    assert!(files.notes()[0].contains("some.safetensors"), "{:?}", files.notes());
    assert!(pixels(&load(&files), &small("a cat", 1)) == pixels(&distilled(), &small("a cat", 1)));
    fs::remove_file(at("text_encoders/some.safetensors")).unwrap();
    let error = open(None).map(drop).unwrap_err().to_string();
    assert!(error.contains("without a text encoder") && error.contains("Qwen3-VL"), "{error}");
}

#[test]
fn a_part_that_is_in_another_repository_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let index = folder.path().join("modular_model_index.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    json["vae"][2]["pretrained_model_name_or_path"] = "someone/a-vae".into();
    fs::write(&index, json.to_string()).unwrap();
    assert!(ModelFiles::open(folder.path()).is_ok(), "what is in the folder wins");
    fs::remove_dir_all(folder.path().join("vae")).unwrap();
    let error = ModelFiles::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("`someone/a-vae`") && error.contains("hint: "), "{error}");
    let paths =
        ModelPaths { model: Some(folder.path().to_path_buf()), vae: Some(model_folder()), ..ModelPaths::default() };
    assert!(paths.open(|| unreachable!("a model is named")).is_ok());
}

#[test]
fn what_the_model_cannot_do_is_an_error() {
    let (model, folder) = (distilled(), tempfile::tempdir().unwrap());
    let error = model.plan(&Request { width: Some(70), ..small("a cat", 1) }).unwrap_err();
    assert_eq!(error.field(), Some(Field::Width));
    assert!(error.to_string().contains("64 and 80"), "{error}");
    let paths = |variant| ModelPaths { model: Some(model_folder()), variant: Some(variant), ..ModelPaths::default() };
    for variant in [flux::files::Variant::Base, flux::files::Variant::Kv] {
        let files = paths(variant).open(|| unreachable!("a model is named")).unwrap();
        let error = ModelInfo::read(&files).unwrap_err();
        assert_eq!(error.field(), Some(Field::Variant), "{error}");
    }
    let files = ModelFiles::open(&model_folder()).unwrap();
    let error = OpenModel::open(&files).unwrap().cache_references().unwrap_err().to_string();
    assert!(error.contains("no FLUX.3-klein was trained so"), "{error}");
    // The transformer of one kind, the index of the other.
    write_base(folder.path());
    fs::remove_file(folder.path().join("modular_model_index.json")).unwrap();
    fs::write(folder.path().join("model_index.json"), r#"{"_class_name": "Flux2KleinPipeline"}"#).unwrap();
    let error = ModelInfo::read(&ModelFiles::open(folder.path()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("Flux2KleinPipeline") && error.contains("FLUX.3"), "{error}");
    // A text encoder that reads only, and one that sees where none is wanted.
    let change = |key: &str, value: serde_json::Value| {
        write_base(folder.path());
        let _ = fs::remove_file(folder.path().join("model_index.json"));
        let path = folder.path().join("text_encoder/config.json");
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["text_config"]["rope_parameters"][key] = value;
        fs::write(&path, json.to_string()).unwrap();
        ModelInfo::read(&ModelFiles::open(folder.path()).unwrap()).map(drop)
    };
    assert!(change("rope_theta", 5e6.into()).is_ok());
    assert!(change("rope_theta", 1e6.into()).unwrap_err().to_string().contains("Qwen3-VL"));
    let paths = ModelPaths {
        model: Some(support::root().join("models/tiny")),
        text_encoder: Some(model_folder()),
        ..ModelPaths::default()
    };
    let error = ModelInfo::read(&paths.open(|| unreachable!("a model is named")).unwrap()).unwrap_err().to_string();
    assert!(error.contains("sees images") || error.contains("vocabulary"), "{error}");
}

#[test]
fn guidance_is_off_at_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let model = load(&ModelFiles::open(folder.path()).unwrap());
    let guided = |guidance| Request { guidance, negative: Some("blurry".to_string()), ..small("a cat", 1) };
    let plan = |guidance| model.plan(&guided(guidance)).unwrap();
    assert_eq!((plan(None).guidance, plan(None).guided()), (3.5, true));
    assert!(plan(Some(0.5)).guided() && !plan(Some(1.0)).guided());
    let images = [0.5, 1.0, 2.0].map(|guidance| pixels(&model, &guided(Some(guidance))));
    assert!(images[0] != images[1] && images[1] != images[2]);
    let plain = pixels(&model, &Request { guidance: Some(1.0), ..small("a cat", 1) });
    assert!(images[1] == plain, "without guidance nothing reads the negative prompt");
}

/// Words of more tokens than one window has.
fn long() -> String {
    "a very long caption of a picture ".repeat(6)
}

#[test]
fn windows_follow_the_prompt_and_may_differ() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let model = load(&ModelFiles::open(folder.path()).unwrap());
    let request = |negative: &str| Request { negative: Some(negative.to_string()), ..small("a cat", 1) };
    let plan = model.plan(&request(&long())).unwrap();
    assert_eq!((plan.text_tokens, plan.negative_tokens), (80, 240));
    let image = pixels(&model, &request(&long()));
    assert!(image != pixels(&model, &request("")));
    // Text features take the same way as prompts.
    let mut session = model.session(&request(&long()), 1, &CancelFlag::default()).unwrap();
    let features = session.embeddings().unwrap();
    let given = Request { embeddings: Some(features), ..small("", 1) };
    assert!(pixels(&model, &given) == image);
    let cut = Request { max_sequence_length: Some(60), ..request(&long()) };
    let plan = model.plan(&cut).unwrap();
    assert_eq!((plan.text_tokens, plan.negative_tokens), (60, 60));
    assert!(plan.notes.iter().any(|note| note.contains("longer than the model reads")), "{:?}", plan.notes);
}

fn reference(width: usize, height: usize) -> Arc<Rgb> {
    Arc::new(input::reference(&picture(width, height)).unwrap())
}

#[test]
fn images_of_a_batch_are_those_that_are_made_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let base = load(&ModelFiles::open(folder.path()).unwrap());
    let guided = Request { negative: Some(long()), ..small("a cat", 5) };
    let references = vec![reference(100, 70), reference(64, 96)];
    for (what, model, request) in [
        ("distilled", distilled(), small("a cat", 5)),
        ("distilled with references", distilled(), Request { references: references.clone(), ..small("a cat", 5) }),
        ("base", Arc::clone(&base), small("a cat", 5)),
        ("base with windows that differ", Arc::clone(&base), guided.clone()),
        ("base with references", Arc::clone(&base), Request { references, ..guided }),
    ] {
        let batch = model.generate_batch(&request, 3).unwrap();
        assert_eq!(batch.len(), 3, "{what}");
        for (seed, image) in (5..).zip(&batch) {
            assert_near(what, &image.rgb, &pixels(&model, &Request { seed, ..request.clone() }));
        }
    }
}

/// Has the transformer in a folder four heads of 16 features in place of two of 32.
fn divide_heads(folder: &Path) {
    let path = folder.join(TRANSFORMER);
    let mut tensors = read(&path);
    for (name, (_, shape, bytes)) in &mut tensors {
        if name.contains(".norm_q.") || name.contains(".norm_k.") {
            (*shape, *bytes) = (vec![16], bytes[..32].to_vec());
        }
    }
    write_with(&path, &tensors, &[]);
    let path = folder.join("transformer/config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["num_attention_heads"] = 4.into();
    json["attention_head_dim"] = 16.into();
    json["axes_dims_rope"] = vec![4; 4].into();
    fs::write(&path, json.to_string()).unwrap();
}

#[test]
fn several_devices_make_the_image_of_one() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    divide_heads(folder.path());
    let (distilled, base) = (ModelFiles::open(&model_folder()).unwrap(), ModelFiles::open(folder.path()).unwrap());
    let references = vec![reference(100, 70), reference(64, 96)];
    let guided = Request { negative: Some(long()), ..small("a cat", 1) };
    for (what, files, world, request, count) in [
        ("distilled", &distilled, 2, small("a cat", 1), 2),
        ("references", &distilled, 2, Request { references: references.clone(), ..small("a cat", 1) }, 1),
        ("guidance in halves", &base, 2, guided.clone(), 1),
        ("guidance, two devices each", &base, 4, guided.clone(), 1),
        ("guidance of a batch", &base, 4, Request { negative: None, ..guided.clone() }, 2),
        ("guidance with references", &base, 4, Request { references, ..guided }, 1),
    ] {
        let limit = Duration::from_secs(60);
        let ranks = Cpu::group(Precision::F32, world, limit).unwrap();
        let parallel = Parallel::load(ranks, files).unwrap().with_grace(limit);
        let made = parallel.generate_batch(&request, count, &CancelFlag::default(), &mut |_| {}).unwrap();
        let expected = load(files).generate_batch(&request, count).unwrap();
        assert_eq!(made.len(), expected.len(), "{what}");
        for (made, expected) in made.iter().zip(&expected) {
            assert_near(what, &made.rgb, &expected.rgb);
        }
    }
}

/// `scale * up down`, in float32 of bf16 weights of a file.
struct LowRank {
    rank: usize,
    rows: usize,
    cols: usize,
}

impl LowRank {
    fn down(&self) -> Vec<f32> {
        (0..self.rank * self.cols).map(|i| ((i * 7 % 13) as f32 - 6.0) / 64.0).collect()
    }

    fn up(&self) -> Vec<f32> {
        (0..self.rows * self.rank).map(|i| ((i * 5 % 11) as f32 - 5.0) / 32.0).collect()
    }

    fn product(&self) -> Vec<f32> {
        let (down, up) = (self.down(), self.up());
        let cell =
            |row: usize, col: usize| (0..self.rank).map(|k| up[row * self.rank + k] * down[k * self.cols + col]).sum();
        (0..self.rows * self.cols).map(|i| cell(i / self.cols, i % self.cols)).collect()
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The factors of a layer, down and up, and its [rank, rows, columns].
type Factors = (Vec<f32>, Vec<f32>, [usize; 3]);
/// The same with the layer's name.
type NamedFactors = (String, Vec<f32>, Vec<f32>, [usize; 3]);

/// Writes an adapter of these layers, whose halves of names are `[down, up]`.
fn write_adapter(path: &Path, layers: &[NamedFactors], halves: [&str; 2]) {
    let mut tensors = Vec::new();
    for (name, down, up, [rank, rows, cols]) in layers {
        tensors.push((format!("{name}.{}", halves[0]), vec![*rank, *cols], bytes(down)));
        tensors.push((format!("{name}.{}", halves[1]), vec![*rows, *rank], bytes(up)));
    }
    let views =
        tensors.iter().map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

#[test]
fn adapters_by_every_name_are_as_weights_with_them() {
    const LAYERS: [(&str, &str); 7] = [
        ("mode_blocks.image.1.attn.to_q", "content_mode_blocks.image.1.q_proj"),
        ("mode_blocks.image_cond.0.ff.linear_out", "content_mode_blocks.image_cond.0.mlp_out"),
        ("txt_mode_blocks.0.attn.to_out.0", "txt_mode_blocks.0.attn_out"),
        ("single_transformer_blocks.2.ff.linear_in", "single_blocks.2.mlp_in"),
        ("x_embedders.image", "emb_in.image"),
        ("single_stream_modulations.image_cond.linear", "single_stream_modulations.image_cond.lin"),
        ("norm_out.linear", "final_layer.image.adaLN_modulation.1"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let own = read(&model_folder().join(TRANSFORMER));
    // The weights with what is added to them, in float32.
    let merged = at("merged");
    write_base(&merged);
    for name in ["transformer/config.json", "modular_model_index.json"] {
        fs::copy(model_folder().join(name), merged.join(name)).unwrap();
    }
    let mut weights = own.clone();
    let mut factors = Vec::new();
    for (name, _) in LAYERS {
        let (dtype, shape, values) = weights.get_mut(&format!("{name}.weight")).unwrap();
        let low = LowRank { rank: 2, rows: shape[0], cols: shape[1] };
        let value = |pair: &[u8]| bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
        let sum: Vec<f32> = values.chunks_exact(2).map(value).zip(low.product()).map(|(a, b)| a + b).collect();
        (*dtype, *values) = (Dtype::F32, bytes(&sum));
        factors.push((low.down(), low.up(), [2, shape[0], shape[1]]));
    }
    write_with(&merged.join(TRANSFORMER), &weights, &[]);
    let request = Request { references: vec![reference(100, 70)], ..small("a cat", 1) };
    let expected = pixels(&load(&ModelFiles::open(&merged).unwrap()), &request);
    let model = distilled();
    assert!(pixels(&model, &request) != expected);
    let with = |path: &Path| {
        let adapters = vec![AdapterUse { adapter: model.adapter(path).unwrap(), strength: 1.0 }];
        pixels(&model, &Request { adapters, ..request.clone() })
    };
    let layers = |name: &dyn Fn(usize) -> String, swaps: bool| -> Vec<_> {
        let layer = |(index, (down, up, shape)): (usize, &Factors)| {
            let mut up = up.clone();
            if swaps && LAYERS[index].0 == "norm_out.linear" {
                let half = up.len() / 2;
                up.rotate_left(half);
            }
            (name(index), down.clone(), up, *shape)
        };
        factors.iter().enumerate().map(layer).collect()
    };
    let peft = at("peft.safetensors");
    write_adapter(
        &peft,
        &layers(&|i| format!("transformer.{}", LAYERS[i].0), false),
        ["lora_A.weight", "lora_B.weight"],
    );
    assert_near("diffusers", &with(&peft), &expected);
    let comfy = at("comfy.safetensors");
    write_adapter(
        &comfy,
        &layers(&|i| format!("diffusion_model.{}", LAYERS[i].1), true),
        ["lora_A.weight", "lora_B.weight"],
    );
    assert_near("Black Forest Labs", &with(&comfy), &expected);
    let kohya = at("kohya.safetensors");
    let flat = |i: usize| format!("lora_unet_{}", LAYERS[i].1.replace('.', "_"));
    write_adapter(&kohya, &layers(&flat, true), ["lora_down.weight", "lora_up.weight"]);
    assert_near("kohya", &with(&kohya), &expected);

    // q, k and v at once are each of them.
    let dim = 64;
    let low = LowRank { rank: 2, rows: 3 * dim, cols: dim };
    let (down, up) = (low.down(), low.up());
    let fused = at("fused.safetensors");
    write_adapter(
        &fused,
        &[("diffusion_model.single_blocks.0.qkv_proj".into(), down.clone(), up.clone(), [2, 3 * dim, dim])],
        ["lora_A.weight", "lora_B.weight"],
    );
    let apart = at("apart.safetensors");
    let part = |(i, name): (usize, &str)| {
        let up = up[i * dim * 2..(i + 1) * dim * 2].to_vec();
        (format!("diffusion_model.single_blocks.0.{name}_proj"), down.clone(), up, [2, dim, dim])
    };
    write_adapter(
        &apart,
        &["q", "k", "v"].into_iter().enumerate().map(part).collect::<Vec<_>>(),
        ["lora_A.weight", "lora_B.weight"],
    );
    assert!(with(&fused) == with(&apart));

    // One of FLUX.2 is refused by name.
    let other = at("other.safetensors");
    write_adapter(
        &other,
        &[("diffusion_model.double_blocks.0.img_attn.proj".into(), down, up[..2 * dim].to_vec(), [2, dim, dim])],
        ["lora_A.weight", "lora_B.weight"],
    );
    let error = model.adapter(&other).map(drop).unwrap_err().to_string();
    assert!(error.contains("made for FLUX.1 or FLUX.2, not for FLUX.3"), "{error}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn png(path: &Path, image: &Rgb) {
    let file = fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, image.width as u32, image.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&image.bytes).unwrap();
}

#[test]
fn a_result_has_the_size_of_its_only_reference_and_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    png(&at("picture.png"), &picture(100, 70));
    let model = model_folder();
    let draw = |flags: &[&str], to: &str| {
        let mut command = flux();
        command.args(["-p", "make it night", "-d", text(&model), "-s", "4", "-S", "0", "--device", "cpu"]).args(flags);
        Run::of(command.args(["-i", text(&at("picture.png")), "-o", text(&at(to))])).succeeds();
        input::read(&at(to)).unwrap()
    };
    let image = draw(&[], "night.png");
    let expected = input::read(&support::root().join("tests/golden/flux3/distilled-ref.png")).unwrap();
    assert_eq!((image.width, image.height), (100, 70));
    assert_near("the golden image", &image.bytes, &expected.bytes);
    let mut again = flux();
    Run::of(again.args([
        "again",
        text(&at("night.png")),
        "-d",
        text(&model),
        "--device",
        "cpu",
        "-o",
        text(&at("again.png")),
    ]))
    .succeeds();
    assert!(input::read(&at("again.png")).unwrap() == image, "made again");
    let sized = draw(&["--width", "112"], "sized.png");
    assert_eq!((sized.width, sized.height), (112, 80), "a side that is not said is that of the canvas");
    let strength = draw(&["--strength", "0.5"], "strength.png");
    assert_eq!((strength.width, strength.height), (96, 64), "an image to change is changed as with FLUX.2");
}

#[test]
fn converted_files_draw_the_same_and_quantised_ones_alike() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = model_folder();
    let draw = |flags: &[&str]| {
        let mut command = flux();
        command.args(["-p", "a cat", "-S", "3", "--size", "64", "-s", "2", "--device", "cpu"]).args(flags);
        Run::of(command.args(["-o", text(&at("image.png"))])).succeeds();
        input::read(&at("image.png")).unwrap().bytes
    };
    let convert = |from: &str, to: &Path, format: &str, part: &str| {
        let args = ["convert", from, text(to), "--format", format, "--component", part];
        Run::of(flux().args(args)).succeeds();
    };
    let expected = draw(&["-d", text(&model)]);
    for (format, ending) in [("bf16", "safetensors"), ("bf16", "gguf"), ("q8_0", "gguf"), ("fp8", "safetensors")] {
        let [transformer, encoder] = ["t", "qwen3vl"].map(|name| at(&format!("{name}-{format}.{ending}")));
        convert(text(&model), &transformer, format, "transformer");
        convert(text(&model), &encoder, format, "text");
        let quantised = |what: &str| match format {
            "bf16" => expected.clone(),
            _ => draw(&["-d", text(&model), "--quantize", &format!("{what}{format}")]),
        };
        let parts = ["-d", text(&transformer), "--text-encoder", text(&model), "--vae", text(&model)];
        assert!(draw(&parts) == quantised("transformer="), "the transformer in {format}");
        assert!(
            draw(&["-d", text(&model), "--text-encoder", text(&encoder), "--tokenizer", text(&model)])
                == quantised("text="),
            "the text encoder in {format}"
        );
    }
    let said = Run::of(flux().args(["info", text(&model)])).succeeds().stdout;
    for words in ["distilled model", "16 steps", "up to 8192 tokens", "FLUX.3, 2 blocks each", "clause for outputs"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
