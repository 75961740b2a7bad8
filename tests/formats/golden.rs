//! Small tensors in every format.

use flux::files::{Container, Format, TensorView, dequantize_rows};

fn open(name: &str) -> Container {
    let path = crate::program::project("").join("tests/formats").join(name);
    Container::open(&path, "make it anew with scripts/dump_formats.py").unwrap()
}

/// Returns the tensors of a file with their true values, by name.
fn tensors(name: &str) -> Vec<(String, TensorView, Vec<f32>)> {
    let stem = name.split_once('.').expect("a name with an ending").0;
    let (file, truth) = (open(name), open(&format!("{stem}.truth.safetensors")));
    let mut names: Vec<&str> = file.names().collect();
    names.sort_unstable();
    let mut expected: Vec<&str> = truth.names().collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "{name}: what belongs to another tensor is none of its own");
    let tensor = |name: &&str| {
        let (view, truth) = (file.tensor(name).unwrap(), truth.tensor(name).unwrap());
        assert_eq!(view.shape(), truth.shape(), "{name}");
        (name.to_string(), view, truth.to_f32())
    };
    names.iter().map(tensor).collect()
}

/// Checks a file and returns the formats of its tensors, by name.
fn check(name: &str) -> Vec<Format> {
    let mut formats = Vec::new();
    for (tensor, view, truth) in tensors(name) {
        let values = view.to_f32();
        // A rotation is a sum whose terms may be in any order.
        let is_sum = matches!(view.format(), Format::Int8Rotated { .. });
        let largest = truth.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        assert!(largest > 0.0);
        for (index, (value, truth)) in values.iter().zip(&truth).enumerate() {
            let is_right =
                if is_sum { (value - truth).abs() <= 1e-6 * largest } else { value.to_bits() == truth.to_bits() };
            assert!(is_right, "{name}, {tensor}: value {index} is {value}, expected {truth}");
        }
        check_ranges(&tensor, &view, &values);
        formats.push(view.format());
    }
    formats
}

/// Checks that rows alone are the same as in the whole, also rows of rows.
fn check_ranges(tensor: &str, view: &TensorView, whole: &[f32]) {
    let (rows, cols) = (view.rows(), view.cols());
    for first in (0..rows).step_by(rows.div_ceil(9)) {
        for end in [first, first + 1, rows] {
            let expected = &whole[first * cols..end * cols];
            let mut values = vec![f32::NAN; expected.len()];
            dequantize_rows(view, first..end, &mut values);
            assert_eq!(values, expected, "{tensor}: rows {first}..{end}");
            assert_eq!(view.row_range(first..rows).row_range(0..end - first).to_f32(), expected, "{tensor}: of rows");
        }
    }
}

#[test]
fn gguf_blocks_mean_what_the_reference_says() {
    let expected = [
        Format::Bf16,
        Format::F16,
        Format::F32,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Q2K,
        Format::Q3K,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q4K,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q5K,
        Format::Q6K,
        Format::Q8_0,
    ];
    assert_eq!(check("blocks.gguf"), expected);
}

#[test]
fn layers_are_in_the_format_of_the_tensor_beside_them() {
    let rotated = Format::Int8Rotated { group: 64 };
    let expected = [rotated, Format::E4m3, Format::E5m2, Format::Int8, Format::Int8, Format::Bf16, Format::Mxfp8];
    assert_eq!(check("comfy.safetensors"), [&expected[..], &[Format::Nvfp4; 2]].concat());
    let is_weight_only = |name: &str| open("comfy.safetensors").tensor(name).unwrap().is_weight_only();
    assert_eq!(["e4m3.weight", "e5m2.weight"].map(is_weight_only), [false, true]);
}

#[test]
fn layers_are_in_the_format_that_the_header_says() {
    assert_eq!(check("header.safetensors"), [Format::E4m3, Format::Nvfp4, Format::Bf16]);
}

#[test]
fn older_fp8_files_name_their_scales_otherwise() {
    assert_eq!(check("older.safetensors"), [Format::E4m3]);
}

#[test]
fn fp8_without_any_scale_is_as_it_is() {
    assert_eq!(check("cast.safetensors"), [Format::E4m3, Format::E5m2]);
}

#[test]
fn formats_of_scripts_are_told_by_the_metadata() {
    assert_eq!(check("fp8r.safetensors"), [Format::E4m3]);
    assert_eq!(check("nvfp4-script.safetensors"), [Format::Nvfp4LowFirst]);
}

#[test]
fn weights_of_bitsandbytes_are_read() {
    let four_bits = Format::Codebook4;
    assert_eq!(check("bitsandbytes.safetensors"), [four_bits, Format::Int8, four_bits, four_bits]);
}
