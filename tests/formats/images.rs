//! Images of a model with quantized weights, compared with those of the same values in float32.

use std::fs;
use std::path::Path;

use flux::compare::difference;
use flux::files::Container;
use flux::input::read;
use safetensors::Dtype;
use safetensors::tensor::TensorView as Tensor;

use crate::model_copy::{ModelCopy, tiny};
use crate::program::{Run, flux};

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";
const TEXT_ENCODER: &str = "text_encoder/model.safetensors";

/// A tensor to write.
struct Part {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Returns the tensors of a file. Matrices with `sign` in their names are int8 with a scale for each row, or e4m3
/// without a scale; the others are unchanged.
fn quantized(path: &Path, sign: &str, dtype: Dtype) -> Vec<Part> {
    let file = Container::open(path, "").unwrap();
    let mut parts = Vec::new();
    for name in file.names() {
        let view = file.tensor(name).unwrap();
        let shape = view.shape().to_vec();
        if shape.len() != 2 || !name.contains(sign) {
            parts.push(Part { name: name.to_string(), dtype: Dtype::BF16, shape, bytes: view.bytes().to_vec() });
            continue;
        }
        let values = view.to_f32();
        if dtype == Dtype::F8_E4M3 {
            let bytes = values.iter().map(|value| flux::files::e4m3::from_f32(*value)).collect();
            parts.push(Part { name: name.to_string(), dtype, shape, bytes });
            continue;
        }
        let layer = name.strip_suffix(".weight").expect("a layer");
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        for row in values.chunks(shape[1]) {
            let scale = row.iter().fold(0.0f32, |most, value| most.max(value.abs())) / 127.0;
            bytes.extend(row.iter().map(|value| (value / scale).round() as i8 as u8));
            scales.extend(scale.to_le_bytes());
        }
        let what = br#"{"format": "int8_tensorwise"}"#.to_vec();
        let declared = format!("{layer}.comfy_quant");
        parts.push(Part { name: declared, dtype: Dtype::U8, shape: vec![what.len()], bytes: what });
        let name_of_scales = format!("{layer}.weight_scale");
        parts.push(Part { name: name_of_scales, dtype: Dtype::F32, shape: vec![shape[0], 1], bytes: scales });
        parts.push(Part { name: name.to_string(), dtype, shape, bytes });
    }
    parts
}

fn write(path: &Path, parts: &[Part]) {
    let views = parts.iter().map(|part| {
        (&part.name, Tensor::new(part.dtype, part.shape.clone(), &part.bytes).expect("as long as its shape"))
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// Returns the same values in float32.
fn widened(path: &Path) -> Vec<Part> {
    let file = Container::open(path, "").unwrap();
    let widen = |name: &str| {
        let view = file.tensor(name).unwrap();
        let bytes = view.to_f32().iter().flat_map(|value| value.to_le_bytes()).collect();
        Part { name: name.to_string(), dtype: Dtype::F32, shape: view.shape().to_vec(), bytes }
    };
    file.names().map(widen).collect()
}

#[test]
fn a_quantized_model_draws_what_its_values_draw_in_float32() {
    let (quantized_model, wide_model) = (ModelCopy::new(), ModelCopy::new());
    let kinds = [(TRANSFORMER, "blocks.", Dtype::I8), (TEXT_ENCODER, "", Dtype::F8_E4M3)];
    for (name, sign, dtype) in kinds {
        let parts = quantized(&tiny().join(name), sign, dtype);
        assert!(parts.iter().any(|part| part.dtype == dtype));
        for model in [&quantized_model, &wide_model] {
            model.remove(name);
        }
        write(&quantized_model.file(name), &parts);
        write(&wide_model.file(name), &widened(&quantized_model.file(name)));
    }
    let folder = tempfile::tempdir().unwrap();
    let draw = |model: &ModelCopy, name: &str| {
        let path = folder.path().join(name);
        let mut command = flux();
        command
            .args(["-W", "32", "-H", "32", "-s", "2", "--device", "cpu", "-p", "a red ball", "-S", "1", "-d"])
            .arg(model.path())
            .arg("-o")
            .arg(&path);
        Run::new(&mut command).succeeds();
        (read(&path).unwrap(), fs::read(&path).unwrap())
    };
    let (quantized, wide) = (draw(&quantized_model, "quantized.png"), draw(&wide_model, "wide.png"));
    let apart = difference(&quantized.0, &wide.0).unwrap();
    // Without AMX both are the same multiplications.
    let most = if flux::backend::cpu::tiles::bf16().is_some_and(|unit| unit.is_fast_in_terms) { 1 } else { 0 };
    assert!(apart.max <= most, "{apart:?}");
    let original = draw(&ModelCopy::new(), "original.png");
    assert!(original.1 != quantized.1, "the weights are others");
}
