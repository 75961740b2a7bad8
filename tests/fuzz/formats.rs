//! Components in every format of files, with valid scales.

use std::path::{Path, PathBuf};

use flux::files::{Container, Format, Role};
use flux::model::Conversion;
use flux::stage::CancelFlag;
use serde_json::json;

use super::gguf::{Gguf, KINDS};
use super::tensors::{Tensor, TensorFile};

/// A component in a format.
pub struct Quantized {
    pub path: PathBuf,
    pub role: Role,
}

/// Formats that `flux convert` writes.
const CONVERTED: [(Role, Format, &str); 14] = [
    (Role::Transformer, Format::Bf16, "safetensors"),
    (Role::Transformer, Format::E4m3, "safetensors"),
    (Role::Transformer, Format::Int8, "safetensors"),
    (Role::Transformer, Format::Mxfp8, "safetensors"),
    (Role::Transformer, Format::Nvfp4, "safetensors"),
    (Role::Transformer, Format::Bf16, "gguf"),
    (Role::Transformer, Format::Q8_0, "gguf"),
    (Role::Transformer, Format::Q4_0, "gguf"),
    (Role::Transformer, Format::Q5_1, "gguf"),
    (Role::TextEncoder, Format::E4m3, "safetensors"),
    (Role::TextEncoder, Format::Nvfp4, "safetensors"),
    (Role::TextEncoder, Format::Q4K, "gguf"),
    (Role::TextEncoder, Format::Q6K, "gguf"),
    (Role::TextEncoder, Format::Bf16, "gguf"),
];
/// Formats that other programs write, in safetensors.
const FOREIGN: &str = "\
    fp8-older fp8-rows fp8-comfy fp8-e5m2 fp8-cast int8-comfy int8-rotated nvfp4-script nf4 nf4-nested fp4 int8-bnb";

/// Writes all formats into `folder`, from a model's components.
pub fn write_all(folder: &Path, model: &Path) -> Vec<Quantized> {
    let mut all = Vec::new();
    for (role, format, ending) in CONVERTED {
        let path = folder.join(format!("{}-{format}.{ending}", role.folder()).replace(' ', "-"));
        let conversion = Conversion::new(model, Some(role), None, format, &path, false).expect("a model without fault");
        conversion.write(&CancelFlag::default(), &mut |_| {}).expect("a model without fault");
        all.push(Quantized { path, role });
    }
    let plain = TensorFile::read(&all[0].path);
    for name in FOREIGN.split(' ') {
        let path = folder.join(format!("{name}.safetensors"));
        foreign(&plain, name).write(&path);
        all.push(Quantized { path, role: Role::Transformer });
    }
    let encoder = Gguf::read(&all[13].path);
    for kind in &KINDS {
        let path = folder.join(format!("text_encoder-as-{}.gguf", kind.name));
        with_kind(&encoder, kind.id).write(&path);
        all.push(Quantized { path, role: Role::TextEncoder });
    }
    for Quantized { path, .. } in &all {
        let file = Container::open(path, "").expect("a file without fault");
        let unreadable = file.names().find(|name| file.tensor(name).is_err());
        assert_eq!(unreadable, None, "{}", path.display());
        file.check_finite().expect("a file without fault");
    }
    all
}

/// Returns differing bytes.
fn codes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7919 % 1013 / 3) as u8).collect()
}

/// Returns a text encoder whose matrices of whole blocks have a given type.
fn with_kind(file: &Gguf, id: u32) -> Gguf {
    let mut file = file.clone();
    let kind = KINDS.iter().find(|kind| kind.id == id).expect("one of them");
    let [values, bytes] = kind.block;
    for tensor in &mut file.tensors {
        let is_matrix = tensor.shape.len() == 2 && tensor.name.starts_with("blk.");
        if !is_matrix || !tensor.shape[0].is_multiple_of(values as u64) {
            continue;
        }
        let blocks = tensor.shape.iter().product::<u64>() as usize / values;
        tensor.kind = id;
        tensor.bytes = codes(blocks * bytes);
        for block in tensor.bytes.chunks_exact_mut(bytes) {
            for at in kind.scales {
                let scale = if values == 256 { 1e-4 } else { 1e-3 };
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }
        }
    }
    file
}

/// Returns a transformer whose blocks are in a format of another program.
fn foreign(plain: &TensorFile, format: &str) -> TensorFile {
    let mut file = TensorFile { metadata: plain.metadata.clone(), tensors: Vec::new() };
    for tensor in &plain.tensors {
        let is_layer = tensor.shape.len() == 2 && tensor.name.contains("_blocks.");
        match tensor.name.strip_suffix(".weight") {
            Some(layer) if is_layer => file.tensors.extend(in_format(layer, tensor, format)),
            _ => file.tensors.push(tensor.clone()),
        }
    }
    match format {
        "fp8-older" => file.tensors.push(Tensor::new("scaled_fp8", "F8_E4M3", &[0], Vec::new())),
        "nvfp4-script" => drop(file.metadata.insert("quantization".to_string(), json!("nvfp4"))),
        _ => {}
    }
    file
}

/// Returns the tensors of a layer in a format.
fn in_format(layer: &str, tensor: &Tensor, format: &str) -> Vec<Tensor> {
    let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
    let named = |end: &str| format!("{layer}.{end}");
    let one = |end: &str, value: f32| Tensor::f32(named(end), &[], &[value]);
    let says = |what: serde_json::Value| {
        let text = what.to_string().into_bytes();
        Tensor::new(named("comfy_quant"), "U8", &[text.len()], text)
    };
    // Floats with one exponent, so that all have the same magnitude and none is NaN.
    let floats = |dtype: &str, exponent: u8, mantissa: u8| {
        let bytes = codes(rows * cols).into_iter().map(|code| code & 0x80 | exponent | code & mantissa).collect();
        Tensor::new(named("weight"), dtype, &[rows, cols], bytes)
    };
    let e4m3 = || floats("F8_E4M3", 0x30, 7);
    let bytes =
        |dtype: &str, shape: &[usize]| Tensor::new(named("weight"), dtype, shape, codes(shape.iter().product()));
    match format {
        "fp8-older" => vec![e4m3(), one("scale_weight", 0.1), one("scale_input", 1.0)],
        "fp8-rows" => vec![e4m3(), Tensor::f32(named("weight_scale"), &[rows, 1], &vec![0.1; rows])],
        "fp8-comfy" => vec![e4m3(), one("weight_scale", 0.1), says(json!({ "format": "float8_e4m3fn" }))],
        "fp8-e5m2" => {
            vec![floats("F8_E5M2", 0x38, 3), one("weight_scale", 0.1), says(json!({ "format": "float8_e5m2" }))]
        }
        "fp8-cast" => vec![floats("F8_E4M3", 0x18, 7)],
        "int8-comfy" => {
            let scales = Tensor::f32(named("weight_scale"), &[rows, 1], &vec![1e-3; rows]);
            vec![bytes("I8", &[rows, cols]), scales, says(json!({ "format": "int8_tensorwise" }))]
        }
        "int8-rotated" => {
            let says = says(json!({ "format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16 }));
            vec![bytes("I8", &[rows, cols]), one("weight_scale", 1e-3), says]
        }
        "nvfp4-script" => {
            let scales =
                Tensor::new(named("weight_scale"), "F8_E4M3", &[rows, cols / 16], vec![0x38; rows * cols / 16]);
            vec![bytes("U8", &[rows, cols / 2]), scales, one("weight_scale_2", 0.02)]
        }
        "int8-bnb" => vec![bytes("I8", &[rows, cols]), Tensor::f32(named("SCB"), &[rows], &vec![0.1; rows])],
        "nf4" | "fp4" => four_bits(&named("weight"), rows, cols, format, false),
        "nf4-nested" => four_bits(&named("weight"), rows, cols, "nf4", true),
        unknown => panic!("no format {unknown}"),
    }
}

/// Returns a weight of bitsandbytes in 4 bits.
fn four_bits(name: &str, rows: usize, cols: usize, kind: &str, is_nested: bool) -> Vec<Tensor> {
    const BLOCK: usize = 64;
    let blocks = (rows * cols).div_ceil(BLOCK);
    let table: Vec<f32> = (0..16).map(|i| i as f32 / 7.5 - 1.0).collect();
    let mut state = json!({ "quant_type": kind, "blocksize": BLOCK, "dtype": "bfloat16", "shape": [rows, cols] });
    let mut tensors = vec![
        Tensor::new(name, "U8", &[rows * cols / 2, 1], codes(rows * cols / 2)),
        Tensor::f32(format!("{name}.quant_map"), &[16], &table),
    ];
    if is_nested {
        (state["nested_blocksize"], state["nested_offset"]) = (json!(256), json!(0.05));
        let table: Vec<f32> = (0..256).map(|i| i as f32 / 127.5 - 1.0).collect();
        let outer = blocks.div_ceil(256);
        tensors.push(Tensor::new(format!("{name}.absmax"), "U8", &[blocks], codes(blocks)));
        tensors.push(Tensor::f32(format!("{name}.nested_quant_map"), &[256], &table));
        tensors.push(Tensor::f32(format!("{name}.nested_absmax"), &[outer], &vec![0.04; outer]));
    } else {
        tensors.push(Tensor::f32(format!("{name}.absmax"), &[blocks], &vec![0.1; blocks]));
    }
    let state = state.to_string().into_bytes();
    tensors.push(Tensor::new(format!("{name}.quant_state.bitsandbytes__{kind}"), "U8", &[state.len()], state));
    tensors
}
