//! Unsupported formats are refused by name, with an alternative.

use std::fs;

use flux::Result;
use flux::files::{Container, TensorView};
use safetensors::Dtype;
use safetensors::tensor::TensorView as Tensor;

/// Name, dtype, shape and bytes.
type Entry<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

/// Opens a file with these tensors and this metadata.
fn file(entries: &[Entry<'_>], metadata: &[(&str, &str)]) -> Result<Container> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let views = entries.iter().map(|(name, dtype, shape, bytes)| {
        (name.to_string(), Tensor::new(*dtype, shape.to_vec(), bytes).expect("as many bytes as the shape has"))
    });
    let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    safetensors::serialize_to_file(views, Some(metadata), &path).unwrap();
    Container::open(&path, "fetch it again")
}

/// Returns the tensor `x.weight` of a file.
fn tensor(entries: &[Entry<'_>], metadata: &[(&str, &str)]) -> Result<TensorView> {
    file(entries, metadata)?.tensor("x.weight")
}

#[track_caller]
fn refused(result: Result<impl Sized>, words: &[&str]) {
    let error = result.err().expect("refused").to_string();
    assert!(words.iter().chain(&["in: ", "model"]).all(|word| error.contains(word)), "{error}");
}

const VALUES: Entry<'_> = ("x.weight", Dtype::F8_E4M3, &[2, 2], &[1, 2, 3, 4]);
const ONE: [u8; 4] = 1f32.to_le_bytes();
const INTEGERS: Entry<'_> = ("x.weight", Dtype::I8, &[1, 4], &[1, 2, 3, 4]);
const CODES: Entry<'_> = ("x.weight", Dtype::U8, &[1, 8], &[1; 8]);

/// Returns a layer with the declaration `what`.
fn said<'a>(values: Entry<'a>, what: &'a str) -> Vec<Entry<'a>> {
    let shape: &'static [usize] = Box::leak(Box::new([what.len()]));
    vec![values, ("x.comfy_quant", Dtype::U8, shape, what.as_bytes()), ("x.weight_scale", Dtype::F32, &[], &ONE)]
}

#[test]
fn formats_that_are_not_known_are_refused_with_the_name_of_the_layer() {
    let unknown = said(VALUES, r#"{"format": "float7"}"#);
    refused(tensor(&unknown, &[]), &["layer `x` has the unknown format `float7`", "hint: ", "GGUF"]);
    let layers = r#"{"layers": {"x": {"format": "float9"}}}"#;
    refused(tensor(&[VALUES], &[("_quantization_metadata", layers)]), &["layer `x`", "`float9`"]);
    for known in ["convrot_w4a4", "asym_w4a8_int8", "awq_w4a16", "tint4_rowwise"] {
        let what = format!(r#"{{"format": "{known}"}}"#);
        refused(tensor(&said(VALUES, &what), &[]), &["tensor `x.weight` is quantized with", known, "GGUF"]);
    }
    refused(tensor(&said(VALUES, "{}"), &[]), &["tensor `x.comfy_quant` declares no format"]);
    refused(file(&[VALUES], &[("_quantization_metadata", "[")]), &["not a valid safetensors file", "metadata"]);
}

#[test]
fn a_rotation_may_be_said_in_params_and_of_integers_alone() {
    // 1, 2, 3 and 4 are rotated to the same values.
    let integers = ("x.weight", Dtype::I8, &[1, 4][..], &[5, 2, 3, 4][..]);
    let rotated = |what: &str| tensor(&said(integers, what), &[]).map(|view| view.to_f32());
    let beside = r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 4}"#;
    let within = r#"{"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 4}}"#;
    assert_eq!(rotated(within).unwrap(), rotated(beside).unwrap());
    let plain = r#"{"format": "int8_tensorwise", "params": null}"#;
    assert_ne!(rotated(plain).unwrap(), rotated(beside).unwrap());
    let first = r#"{"format": "int8_tensorwise", "convrot": false, "params": {"convrot": true}}"#;
    assert_eq!(rotated(first).unwrap(), rotated(plain).unwrap());
    let wrong = r#"{"format": "int8_tensorwise", "params": {"convrot": "yes"}}"#;
    refused(rotated(wrong), &["tensor `x.comfy_quant` declares no format"]);
    for (values, format) in [(VALUES, "float8_e4m3fn"), (VALUES, "mxfp8"), (CODES, "nvfp4")] {
        let what = format!(r#"{{"format": "{format}", "convrot": true}}"#);
        refused(tensor(&said(values, &what), &[]), &["`x.weight` is quantized", &format!("{format} with convrot")]);
    }
}

#[test]
fn the_tensor_beside_a_layer_counts_before_the_header() {
    let layers = r#"{"layers": {"x": {"format": "float9"}}}"#;
    let entries = said(VALUES, r#"{"format": "float8_e4m3fn"}"#);
    tensor(&entries, &[("_quantization_metadata", layers)]).unwrap();
}

#[test]
fn methods_of_other_programs_are_refused_by_name() {
    let beside = |name: &'static str| [CODES, (name, Dtype::F32, &[][..], &ONE[..])];
    for (name, method) in [
        ("x.zero_point", "SDNQ"),
        ("x.svd_up", "SDNQ"),
        ("x.wscales", "SVDQuant"),
        ("x._weight_qdata", "torchao"),
        ("x.weight._data", "quanto"),
    ] {
        refused(tensor(&beside(name), &[]), &["`x.weight` is quantized with", method, "hint: "]);
    }
    let alone = [("x.qweight", Dtype::I32, &[1][..], &ONE[..]), ("x.qzeros", Dtype::I32, &[1], &ONE)];
    refused(tensor(&alone, &[]), &["`x.weight` is quantized with AWQ"]);
    for values in [CODES, INTEGERS] {
        refused(tensor(&[values], &[]), &["tensor `x.weight` has dtype", "expected BF16, F16 or F32", "hint: "]);
    }
}

#[test]
fn nvfp4_whose_order_nothing_says_is_refused() {
    let scales = ("x.weight_scale", Dtype::F8_E4M3, &[1, 1][..], &[0x38][..]);
    let entries = [CODES, scales, ("x.weight_scale_2", Dtype::F32, &[], &ONE)];
    refused(tensor(&entries, &[]), &["`x.weight`", "nvfp4", "order", "hint: "]);
    tensor(&entries, &[("quantization", "nvfp4")]).unwrap();
    let layers = r#"{"layers": {"x": {"format": "nvfp4"}}}"#;
    let swizzled = tensor(&entries, &[("_quantization_metadata", layers)]);
    refused(swizzled, &["layer `x` has 1 block scales, which do not match 1 rows of 1 blocks"]);
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let fp8 = r#"{"format": "float8_e4m3fn"}"#;
    let with = |shape: &'static [usize], dtype, bytes: &'static [u8]| {
        let mut entries = said(VALUES, fp8);
        entries[2] = ("x.weight_scale", dtype, shape, bytes);
        tensor(&entries, &[])
    };
    let nan: &'static [u8] = &[0, 0, 0xc0, 0x7f];
    refused(with(&[3], Dtype::F32, &[1; 12]), &["`x.weight_scale` has shape [3], expected one value or 2"]);
    refused(with(&[], Dtype::F32, nan), &["`x.weight_scale` contains NaN"]);
    refused(with(&[4], Dtype::U8, &[1; 4]), &["`x.weight_scale`", "U8, expected F32"]);
    refused(tensor(&said(VALUES, fp8)[..2], &[]), &["`x.weight_scale` is missing"]);
    refused(tensor(&said(INTEGERS, fp8), &[]), &["I8", "`float8_e4m3fn`"]);
    assert_eq!(
        with(&[2], Dtype::BF16, &[0x80, 0x3f, 0, 0x40]).unwrap().row_range(1..2).to_f32(),
        [3.0, 4.0].map(|q| {
            // 3 and 4 are the third and fourth multiples of 2^-9, times 2.
            q / 512.0 * 2.0
        })
    );
}

#[test]
fn groups_that_are_no_power_of_four_are_refused() {
    for group in [0u64, 2, 8, 1 << 15, u64::MAX] {
        let what = format!(r#"{{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": {group}}}"#);
        refused(tensor(&said(INTEGERS, &what), &[]), &["layer `x` has groups of", "power of 4"]);
    }
    let wide = r#"{"format": "int8_tensorwise", "convrot": true}"#;
    refused(tensor(&said(INTEGERS, wide), &[]), &["`x.weight`", "[1, 4]", "int8 (convrot)"]);
}

#[test]
fn a_state_of_bitsandbytes_that_does_not_fit_is_refused() {
    let with = |state: &str, maxima: usize| {
        let (state_shape, maxima_shape) = ([state.len()], [maxima]);
        let (table, maxima) = ([0; 64], vec![0; 4 * maxima]);
        tensor(
            &[
                CODES,
                ("x.weight.quant_state.bitsandbytes__nf4", Dtype::U8, &state_shape, state.as_bytes()),
                ("x.weight.quant_map", Dtype::F32, &[16], &table),
                ("x.weight.absmax", Dtype::F32, &maxima_shape, &maxima),
            ],
            &[],
        )
    };
    let state = |block: usize, shape: &str| format!(r#"{{"blocksize": {block}, "shape": {shape}}}"#);
    assert_eq!(with(&state(8, "[2, 8]"), 2).unwrap().shape(), [2, 8]);
    refused(with(&state(8, "[2, 8]"), 3), &["`x.weight`", "2 blocks"]);
    refused(with(&state(0, "[2, 8]"), 2), &["empty blocks"]);
    refused(with(&state(8, "[4, 8]"), 4), &["`x.weight`", "8 bytes, expected 16"]);
    refused(with(&state(8, "[3, 5]"), 2), &["`x.weight`", "[3, 5]"]);
    refused(with(&state(8, "[4294967296, 4294967296]"), 2), &["[4294967296, 4294967296]"]);
    refused(with("{", 2), &["bitsandbytes__nf4"]);
}

#[test]
fn pickles_are_refused_and_never_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pth");
    for magic in [&b"PK\x03\x04 and the rest of an archive"[..], b"\x80\x02}q\x00."] {
        fs::write(&path, magic).unwrap();
        refused(Container::open(&path, "fetch it again"), &["PyTorch pickle", "GGUF", "model.pth"]);
    }
}
