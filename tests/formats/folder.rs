//! Whole files in every format, each next to its values in float32, in the folder `FLUX_WEIGHT_FILES`:
//! `<folder>/<format>/about.json` with `component` and `files`, and `<folder>/<format>/dequantized`, a model folder.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::{Container, Format, ModelFiles, TensorView};
use flux::transformer::TransformerConfig;
use serde_json::Value;

/// Formats whose values are sums, or products in another order: their maximum error, relative to the largest value.
const ROUNDED: [(&str, f32); 3] = [("int8-convrot", 1e-6), ("bnb-nf4", 1e-6), ("bnb-nf4-nested", 1e-6)];
/// llama.cpp's names of the layers of a text encoder, and those of the checkpoint.
const LLAMA_NAMES: [(&str, &str); 11] = [
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_norm", "input_layernorm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Some rows of a tensor, under its name in the checkpoint.
struct Rows {
    key: String,
    first: usize,
    view: TensorView,
}

/// The maximum difference from the truth relative to the largest value, and the compared tensors.
#[derive(Default)]
struct Comparison {
    worst: f32,
    tensors: usize,
    values: usize,
    formats: Vec<Format>,
}

#[test]
fn whole_files_mean_what_is_said_beside_them() {
    let Some(root) = std::env::var_os("FLUX_WEIGHT_FILES").map(PathBuf::from) else {
        return println!("skipped: FLUX_WEIGHT_FILES names no folder");
    };
    let mut folders: Vec<PathBuf> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut failed = Vec::new();
    for folder in folders.iter().filter(|folder| folder.join("about.json").exists()) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let about: Value = serde_json::from_slice(&fs::read(folder.join("about.json")).unwrap()).unwrap();
        let component = about["component"].as_str().unwrap();
        let is_adapter = ["lora", "lokr", "loha", "dora", "diff"].iter().any(|kind| name.starts_with(kind));
        if is_adapter || name.starts_with("vae") {
            continue;
        }
        let compared = compare(folder, component, about["files"][0].as_str().unwrap());
        let bound = ROUNDED.iter().find(|(format, _)| *format == name).map_or(0.0, |(_, bound)| *bound);
        let Comparison { worst, tensors, values, formats } = &compared;
        println!("{name}: {tensors} tensors, {values} values in {formats:?}, off by {worst:e}");
        if *worst > bound || *tensors == 0 {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

fn compare(folder: &Path, component: &str, file: &str) -> Comparison {
    let truth_file = if component == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
    let truth_folder = folder.join("dequantized");
    let truth = Container::open(&truth_folder.join(component).join(format!("{truth_file}.safetensors")), "").unwrap();
    let mut path = folder.join(file);
    if path.is_dir() {
        path = path.join(format!("{truth_file}.safetensors"));
    }
    let container = Container::open(&path, "").unwrap();
    let mut compared = Comparison::default();
    for name in container.names() {
        let view = container.tensor(name).unwrap_or_else(|e| panic!("{e}"));
        for Rows { key, first, view } in rows(&truth_folder, component, &truth, name, view) {
            let whole = truth.tensor(&key).unwrap_or_else(|e| panic!("{e}"));
            let whole = if whole.shape() == view.shape() { whole } else { whole.row_range(first..first + view.rows()) };
            assert_eq!(view.shape(), whole.shape(), "{name}");
            let (got, want) = (view.to_f32(), whole.to_f32());
            let largest = want.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
            let off =
                |(got, want): (&f32, &f32)| if got.to_bits() == want.to_bits() { 0.0 } else { (got - want).abs() };
            let worst = got.iter().zip(&want).map(off).fold(0.0, f32::max) / largest;
            compared.worst = compared.worst.max(worst);
            compared.values += got.len();
            if !compared.formats.contains(&view.format()) {
                compared.formats.push(view.format());
            }
        }
        compared.tensors += 1;
    }
    compared
}

/// Returns the rows of a tensor of a file, under the names of the checkpoint.
fn rows(folder: &Path, component: &str, truth: &Container, name: &str, view: TensorView) -> Vec<Rows> {
    if truth.contains(name) {
        return vec![Rows { key: name.to_string(), first: 0, view }];
    }
    if component == "text_encoder" {
        return vec![Rows { key: key_of_llama(name), first: 0, view }];
    }
    let config = TransformerConfig::read(&ModelFiles::open(folder).unwrap()).unwrap();
    let modules = config.adapter_modules().unwrap();
    let layer = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".scale")).unwrap_or(name);
    let module = modules.get(modules.find(layer).or_else(|| modules.find(name)).expect(name));
    assert_eq!(module.shape, view.shape(), "{name}");
    let of_place = |place: &flux::files::adapter::ModuleRows| Rows {
        key: place.key.clone(),
        first: place.first,
        view: view.row_range(place.rows.clone()),
    };
    module.places.iter().map(of_place).collect()
}

fn key_of_llama(name: &str) -> String {
    match name {
        "token_embd.weight" => return "model.embed_tokens.weight".to_string(),
        "output_norm.weight" => return "model.norm.weight".to_string(),
        _ => {}
    }
    let (block, layer) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).expect(name);
    let layer = layer.strip_suffix(".weight").expect(name);
    let (_, own) = LLAMA_NAMES.iter().find(|(llama, _)| *llama == layer).expect(name);
    format!("model.layers.{block}.{own}.weight")
}
