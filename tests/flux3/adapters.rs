//! Adapters with every kind of name.

use std::fs;
use std::path::Path;

use flux::files::ModelFiles;
use flux::files::adapter::AdapterUse;
use flux::pipeline::Request;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

use super::{TRANSFORMER, assert_near, distilled, load, pixels, reference, small};
use crate::flux3_base::write_base;
use crate::golden::flux3::model_folder;
use crate::opening::renamed::{read, write_with};
use crate::process::folder;

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
/// [`Factors`] with the layer's name.
type NamedFactors = (String, Vec<f32>, Vec<f32>, [usize; 3]);

/// Writes an adapter of these layers, with the suffixes `[down, up]` of names.
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

/// Writes an adapter of one layer of the model in [`model_folder`].
pub fn write_one(path: &Path, layer: &str) {
    let own = read(&model_folder().join(TRANSFORMER));
    let (_, shape, _) = &own[&format!("{layer}.weight")];
    let low = LowRank { rank: 2, rows: shape[0], cols: shape[1] };
    let factors = (layer.to_string(), low.down(), low.up(), [2, shape[0], shape[1]]);
    write_adapter(path, &[factors], ["lora_A.weight", "lora_B.weight"]);
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
    let folder = folder();
    let own = read(&model_folder().join(TRANSFORMER));
    // The weights with their changes, in float32.
    let merged = folder.join("merged");
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
        let adapters = vec![AdapterUse::new(model.adapter(path).unwrap(), 1.0)];
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
    let peft = folder.join("peft.safetensors");
    write_adapter(
        &peft,
        &layers(&|i| format!("transformer.{}", LAYERS[i].0), false),
        ["lora_A.weight", "lora_B.weight"],
    );
    assert_near("diffusers", &with(&peft), &expected);
    let comfy = folder.join("comfy.safetensors");
    write_adapter(
        &comfy,
        &layers(&|i| format!("diffusion_model.{}", LAYERS[i].1), true),
        ["lora_A.weight", "lora_B.weight"],
    );
    assert_near("Black Forest Labs", &with(&comfy), &expected);
    let kohya = folder.join("kohya.safetensors");
    let flat = |i: usize| format!("lora_unet_{}", LAYERS[i].1.replace('.', "_"));
    write_adapter(&kohya, &layers(&flat, true), ["lora_down.weight", "lora_up.weight"]);
    assert_near("kohya", &with(&kohya), &expected);

    // q, k and v together change each of them.
    let dim = 64;
    let low = LowRank { rank: 2, rows: 3 * dim, cols: dim };
    let (down, up) = (low.down(), low.up());
    let fused = folder.join("fused.safetensors");
    write_adapter(
        &fused,
        &[("diffusion_model.single_blocks.0.qkv_proj".into(), down.clone(), up.clone(), [2, 3 * dim, dim])],
        ["lora_A.weight", "lora_B.weight"],
    );
    let apart = folder.join("apart.safetensors");
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

    // An adapter of FLUX.2 is refused by name.
    let other = folder.join("other.safetensors");
    write_adapter(
        &other,
        &[("diffusion_model.double_blocks.0.img_attn.proj".into(), down, up[..2 * dim].to_vec(), [2, dim, dim])],
        ["lora_A.weight", "lora_B.weight"],
    );
    let error = model.adapter(&other).map(drop).unwrap_err().to_string();
    assert!(error.contains("FLUX.1 or FLUX.2") && error.contains("FLUX.3"), "{error}");
}
