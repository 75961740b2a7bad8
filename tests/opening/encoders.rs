//! Text encoders in 8 bits as Qwen and vLLM's tools publish them: values, and scales of tiles, rows or the whole
//! tensor.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::{Container, Folder, ModelFiles, e4m3};
use flux::model::OpenModel;
use half::bf16;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use super::renamed::{Tensors, read, write_with};
use super::{FILES, sizes};

/// Rows and columns that share a scale, `None` for all of them, their dtype, and the name of the scales.
struct Layout {
    tile: [Option<usize>; 2],
    dtype: Dtype,
    most: f32,
    scale: &'static str,
    scale_dtype: Dtype,
}

const TILES: Layout = Layout {
    tile: [Some(128), Some(128)],
    dtype: Dtype::F8_E4M3,
    most: 448.0,
    scale: "weight_scale_inv",
    scale_dtype: Dtype::F32,
};
const ROWS: Layout = Layout { tile: [Some(1), None], scale: "weight_scale", scale_dtype: Dtype::BF16, ..TILES };
const ROWS_INT8: Layout = Layout { dtype: Dtype::I8, most: 127.0, ..ROWS };

fn fp8() -> Value {
    json!({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3",
           "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.down_proj"]})
}

fn compressed(kind: &str, strategy: &str) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format!("{kind}-quantized"), "ignore": ["lm_head"],
           "quantization_status": "compressed", "kv_cache_scheme": null, "sparsity_config": {}, "version": "0.12.2",
           "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 8, "dynamic": true},
                             "weights": {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": true}}}})
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()).collect()
}

/// Creates a model whose encoder has sides that are no multiples of 128, in a folder of its own.
fn folder(name: &str) -> PathBuf {
    let mut model = sizes();
    model.text_encoder.hidden = 160;
    let folder = FILES.at(&format!("encoders/{name}"));
    model.write(&folder).unwrap();
    folder
}

fn weights(folder: &Path) -> PathBuf {
    folder.join("text_encoder/model.safetensors")
}

/// Returns the tensors in 8 bits, and their true values.
fn quantized(tensors: &Tensors, layout: &Layout, is_left: impl Fn(&str) -> bool) -> (Tensors, Vec<(String, Vec<f32>)>) {
    let (mut out, mut meant) = (tensors.clone(), Vec::new());
    for (name, (_, shape, bytes)) in tensors {
        let Some(layer) = name.strip_suffix(".weight").filter(|_| shape.len() == 2 && name.contains("layers")) else {
            continue;
        };
        let values = floats(bytes);
        if is_left(name) {
            meant.push((name.clone(), values));
            continue;
        }
        let (rows, cols) = (shape[0], shape[1]);
        let tile = [layout.tile[0].unwrap_or(rows), layout.tile[1].unwrap_or(cols)];
        let tiles = [rows.div_ceil(tile[0]), cols.div_ceil(tile[1])];
        let place = |at: usize| (at / cols / tile[0]) * tiles[1] + at % cols / tile[1];
        let mut scales = vec![1e-6f32; tiles[0] * tiles[1]];
        values
            .iter()
            .enumerate()
            .for_each(|(at, value)| scales[place(at)] = scales[place(at)].max(value.abs() / layout.most));
        if layout.scale_dtype == Dtype::BF16 {
            scales.iter_mut().for_each(|scale| *scale = bf16::from_f32(*scale).to_f32());
        }
        let code = |value: f32| match layout.dtype {
            Dtype::I8 => value.round().clamp(-127.0, 127.0) as i8 as u8,
            _ => e4m3::from_f32(value),
        };
        let value = |code: u8| if layout.dtype == Dtype::I8 { f32::from(code as i8) } else { e4m3::to_f32(code) };
        let codes: Vec<u8> = values.iter().enumerate().map(|(at, value)| code(value / scales[place(at)])).collect();
        meant.push((
            name.clone(),
            codes.iter().enumerate().map(|(at, code)| value(*code) * scales[place(at)]).collect(),
        ));
        out.insert(name.clone(), (layout.dtype, shape.clone(), codes));
        let scale_bytes = scales.iter().flat_map(|scale| match layout.scale_dtype {
            Dtype::BF16 => bf16::from_f32(*scale).to_le_bytes().to_vec(),
            _ => scale.to_le_bytes().to_vec(),
        });
        let shape = if tiles == [1, 1] && layout.tile == [None, None] { vec![1] } else { tiles.to_vec() };
        out.insert(format!("{layer}.{}", layout.scale), (layout.scale_dtype, shape, scale_bytes.collect()));
    }
    (out, meant)
}

fn set_config(folder: &Path, quantized: &Value) {
    let path = folder.join("text_encoder/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = quantized.clone();
    fs::write(&path, config.to_string()).unwrap();
}

#[track_caller]
fn means(files: &[Container], meant: &[(String, Vec<f32>)]) {
    assert!(meant.len() > 10);
    for (name, values) in meant {
        let file = files.iter().find(|file| file.contains(name)).expect(name);
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{e}"));
        assert!(view.to_f32() == *values, "{name}");
        // Some of the rows, as threads share them.
        let (first, cols) = (view.rows() / 3, view.cols());
        assert!(view.row_range(first..view.rows()).to_f32() == values[first * cols..], "{name}");
        assert!(!file.names().any(|name| name.contains("scale")), "scales are no tensors of their own");
    }
}

fn opens(folder: &Path) -> flux::Result<Vec<String>> {
    let files = ModelFiles::open(folder)?;
    OpenModel::open(&files).map(|_| files.notes().to_vec())
}

#[test]
fn eight_bits_mean_their_value_times_the_scale_of_their_tile_row_or_tensor() {
    let left = |name: &str| name == "model.layers.0.mlp.down_proj.weight";
    for (name, layout, config) in [
        ("tiles", TILES, fp8()),
        ("tiles-bf16", Layout { scale_dtype: Dtype::BF16, ..TILES }, fp8()),
        ("blocks", Layout { scale: "weight_scale", ..TILES }, compressed("float", "block")),
        ("groups", Layout { tile: [Some(1), Some(32)], ..ROWS }, compressed("float", "group")),
        ("rows", ROWS, compressed("float", "channel")),
        ("tensor", Layout { tile: [None; 2], ..ROWS }, compressed("float", "tensor")),
        ("rows-int8", ROWS_INT8, compressed("int", "channel")),
        ("tensor-int8", Layout { tile: [None; 2], ..ROWS_INT8 }, compressed("int", "tensor")),
    ] {
        let folder = folder(name);
        let (tensors, meant) = quantized(&read(&weights(&folder)), &layout, left);
        write_with(&weights(&folder), &tensors, &[("format", "pt")]);
        set_config(&folder, &config);
        means(&Folder::Disk(folder.join("text_encoder")).weights("model").unwrap(), &meant);
        means(&[Container::open(&weights(&folder), "").unwrap()], &meant);
        assert_eq!(opens(&folder).unwrap_or_else(|e| panic!("{name}: {e}")), Vec::<String>::new(), "{name}");

        // In two shards, with all scales in the other one.
        let (scales, others): (Tensors, Tensors) = tensors.into_iter().partition(|(name, _)| name.contains("scale"));
        fs::remove_file(weights(&folder)).unwrap();
        let map: serde_json::Map<String, Value> = [("1", &others), ("2", &scales)]
            .into_iter()
            .flat_map(|(shard, tensors)| {
                let file = format!("model-0000{shard}-of-00002.safetensors");
                write_with(&folder.join("text_encoder").join(&file), tensors, &[("format", "pt")]);
                tensors.keys().map(move |name| (name.clone(), Value::from(file.clone()))).collect::<Vec<_>>()
            })
            .collect();
        let index = json!({ "metadata": {}, "weight_map": map }).to_string();
        fs::write(folder.join("text_encoder/model.safetensors.index.json"), index).unwrap();
        means(&Folder::Disk(folder.join("text_encoder")).weights("model").unwrap(), &meant);
        opens(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn what_is_missing_or_not_understood_is_named() {
    let folder = folder("faults");
    let (tensors, _) = quantized(&read(&weights(&folder)), &TILES, |_| false);
    let refused = |words: &[&str]| {
        let error = opens(&folder).expect_err("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    };
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors.clone();
        change(&mut tensors);
        write_with(&weights(&folder), &tensors, &[("format", "pt")]);
    };
    const LAYER: &str = "model.layers.1.mlp.gate_proj";
    set_config(&folder, &fp8());
    with(&|tensors| drop(tensors.remove(&format!("{LAYER}.weight_scale_inv"))));
    refused(&[&format!("`{LAYER}.weight`"), "scale"]);
    with(&|tensors| {
        let (_, shape, bytes) = tensors.get_mut(&format!("{LAYER}.weight_scale_inv")).unwrap();
        *shape = vec![shape[0] + 1, shape[1]];
        bytes.extend(vec![0; 4 * shape[1]]);
    });
    refused(&[&format!("`{LAYER}.weight_scale_inv`"), "scales"]);
    with(&|_| ());
    opens(&folder).unwrap();
    for (key, value, word) in [
        ("weight_block_size", json!([64, 64]), "[64,64]"),
        ("fmt", json!("e5m2"), "e5m2"),
        ("quant_method", json!("fbgemm_fp8"), "fbgemm_fp8"),
    ] {
        let mut config = fp8();
        config[key] = value;
        set_config(&folder, &config);
        refused(&["quantized with `", word, "text_encoder/config.json", "hint: "]);
    }
    for (change, word) in [
        (json!({"format": "pack-quantized"}), "pack-quantized"),
        (json!({"sparsity_config": {"format": "sparse-24-bitmask"}}), "sparse-24-bitmask"),
        (json!({"transform_config": {"config_groups": {"R1": {}}}}), "transform_config"),
        (json!({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}), "num_bits"),
        (json!({"config_groups": {"g": {"weights": {"symmetric": false}}}}), "symmetric"),
        (json!({"config_groups": {"g": {"weights": {"strategy": "token"}}}}), "token"),
    ] {
        let mut config = compressed("float", "channel");
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        set_config(&folder, &config);
        refused(&["compressed-tensors", word, "hint: "]);
    }
    let mut config = fp8();
    config["rotation"] = json!(3);
    set_config(&folder, &config);
    let notes = opens(&folder).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("`rotation`"), "{notes:?}");
}
