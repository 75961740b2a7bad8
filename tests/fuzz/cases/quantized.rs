//! Quantized weights with wrong scales, in every format of files.

use std::path::Path;

use flux::files::Role;

use super::{Place, link, work};
use crate::expect::End;
use crate::formats::Quantized;
use crate::gguf::{self, Gguf};
use crate::mutate;
use crate::rng::Rng;
use crate::run::Case;
use crate::tensors::{Tensor, TensorFile};

/// Suffixes of scales and of format declarations.
const SCALES: &str = "\
    weight_scale weight_scale_2 scale_weight input_scale scale_input comfy_quant scaled_fp8 .absmax .quant_map \
    .nested_absmax .nested_quant_map quant_state.bitsandbytes__nf4 .SCB";

/// A valid file.
pub fn sound(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let quantized = rng.pick(&place.sources.quantized);
    let path = place.at("weights").with_extension(quantized.path.extension().expect("they have one"));
    link(&quantized.path, &path);
    case.what = format!("nothing is wrong with {:?}", quantized.path);
    draw(&mut case, place, &path, quantized.role);
    case
}

/// A file with wrong scales.
pub fn with_damaged_scales(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let Quantized { path: source, role } = rng.pick(&place.sources.quantized);
    let is_gguf = source.extension().is_some_and(|ending| ending == "gguf");
    let path = place.at(if is_gguf { "weights.gguf" } else { "weights.safetensors" });
    let (bytes, what, is_zero) = if is_gguf { in_gguf(source, rng) } else { in_safetensors(source, rng) };
    std::fs::write(&path, bytes).expect("a temporary folder is writable");
    case.what = format!("{source:?}: {what}");
    case.expected.blames = vec!["weights.".to_string()];
    match rng.below(8) {
        0..=1 => work::info(&mut case, &path, rng),
        2..=4 => {
            work::convert(&mut case, place, &path, rng);
            case.expected.end = if is_zero { End::Error } else { End::Any };
        }
        _ => {
            draw(&mut case, place, &path, *role);
            // The last layer of the text encoder is not read.
            let is_read = !what.contains("blk.3.") && !what.contains("layers.3.");
            case.expected.end = if is_zero && is_read { End::Error } else { End::Any };
        }
    }
    case
}

/// Generates an image with a component of the smallest model from another file.
pub fn draw(case: &mut Case, place: &Place<'_>, path: &Path, role: Role) {
    let small = &place.sources.small;
    match role {
        Role::Transformer => {
            work::draw(case, place, path);
            case.command.arg("--text-encoder").arg(small).arg("--vae").arg(small);
        }
        Role::TextEncoder => {
            work::draw(case, place, small);
            case.command.arg("--text-encoder").arg(path);
        }
        Role::Vae => {
            work::draw(case, place, small);
            case.command.arg("--vae").arg(path);
        }
    }
}

/// Returns the bytes, a description of the change, and `true` if a matrix is now all zeros.
fn in_safetensors(source: &Path, rng: &mut Rng) -> (Vec<u8>, String, bool) {
    let mut file = TensorFile::read(source);
    let names: Vec<String> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let is_scale = |name: &str| SCALES.split(' ').any(|end| name.ends_with(end));
    let change = rng.below(11);
    let Some(tensor) = file.pick(rng, |tensor| is_scale(&tensor.name)) else {
        // Without scales: then the values themselves are invalid.
        let tensor = file.pick(rng, |tensor| tensor.dtype.starts_with("F8")).map(|tensor| {
            let value = *rng.pick(&[0x7f, 0xff, 0x80]);
            tensor.bytes.fill(value);
            value == 0x80
        });
        return (file.bytes(), "codes of one kind".to_string(), tensor.unwrap_or(false));
    };
    let what = format!("`{}`, {change}", tensor.name);
    let is_json = tensor.dtype == "U8" && tensor.bytes.starts_with(b"{");
    let mut is_zero = false;
    match change {
        _ if is_json && rng.one_of(2) => {
            tensor.bytes = mutate::json(&tensor.bytes, rng);
            tensor.shape = vec![tensor.bytes.len()];
        }
        0 => {
            let name = tensor.name.clone();
            file.tensors.retain(|tensor| tensor.name != name);
        }
        1 => {
            tensor.shape = match rng.below(5) {
                0 => vec![],
                1 => vec![0],
                2 => [tensor.shape.as_slice(), &[1, 1]].concat(),
                3 => tensor.shape.iter().rev().copied().collect(),
                _ => vec![tensor.shape.iter().product::<usize>() / 2],
            };
            let length = tensor.shape.iter().product::<usize>() * tensor.size().unwrap_or(1);
            tensor.bytes.resize(length, 1);
        }
        2 => tensor.bytes.truncate(rng.below(tensor.bytes.len() + 1)),
        3 => tensor.dtype = (*rng.pick(&["F16", "BF16", "I32", "U8", "F8_E4M3", "F8_E8M0", "F64", "BOOL", "X"])).into(),
        4 => tensor.name = rng.pick(&names).clone(),
        _ => is_zero = wrong_values(tensor, rng),
    }
    (file.bytes(), what, is_zero)
}

/// Sets scales to invalid values. Returns `true` if the scaled weights are zeros.
fn wrong_values(tensor: &mut Tensor, rng: &mut Rng) -> bool {
    let is_of_all = ["weight_scale", "scale_weight", "weight_scale_2", ".absmax", ".SCB"];
    let is_scale = is_of_all.iter().any(|end| tensor.name.ends_with(end)) && !tensor.name.contains("nested");
    let (value, is_zero) = if tensor.is_float() {
        let value =
            *rng.pick(&[f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, 1e38, -1.0, 1e-45, 3e38, -1e20, 1e39]);
        (tensor.encode(value), value == 0.0)
    } else {
        // NaN, zero and the largest of e4m3 and e8m0.
        let value = *rng.pick(&[0x7f, 0xff, 0, 0x80, 0x7e, 0xfe, 1]);
        (vec![value], tensor.dtype == "F8_E4M3" && value & 0x7f == 0)
    };
    let how = tensor.fill(&value, rng);
    is_zero && is_scale && (how == "all" || tensor.bytes.len() == value.len())
}

/// As [`in_safetensors`].
fn in_gguf(source: &Path, rng: &mut Rng) -> (Vec<u8>, String, bool) {
    let mut file = Gguf::read(source);
    let with_scales: Vec<usize> = (0..file.tensors.len()).filter(|i| file.tensors[*i].kind().is_some()).collect();
    if with_scales.is_empty() || rng.one_of(6) {
        let bytes = mutate::damaged(&file.bytes(), rng);
        return (bytes, "bytes".to_string(), false);
    }
    let tensor = &mut file.tensors[*rng.pick(&with_scales)];
    let (what, is_zero) = wrong_blocks(tensor, rng);
    (file.bytes(), what, is_zero)
}

/// Returns a description of the change, and `true` if the tensor is now all zeros.
fn wrong_blocks(tensor: &mut gguf::Tensor, rng: &mut Rng) -> (String, bool) {
    let kind = tensor.kind().expect("chosen for it");
    let [_, size] = kind.block;
    let name = &tensor.name;
    match rng.below(8) {
        0 => {
            tensor.kind = rng.below(42) as u32;
            (format!("the type of `{name}` is {}", tensor.kind), false)
        }
        1 => {
            let axis = rng.below(tensor.shape.len());
            tensor.shape[axis] = *rng.pick(&[0, 1, 31, 33, 257, tensor.shape[axis] * 2, u64::MAX, 1 << 32]);
            (format!("`{name}` is {:?}", tensor.shape), false)
        }
        2 => {
            let length = rng.below(tensor.bytes.len());
            tensor.bytes.truncate(length);
            (format!("`{name}` has {length} bytes"), false)
        }
        _ => {
            // NaN, infinite, zero, the largest, negative, the smallest.
            let value: u16 = *rng.pick(&[0x7e00, 0x7c00, 0xfc00, 0, 0x8000, 0x7bff, 0xfbff, 1, 0x8001]);
            let is_of_all = rng.one_of(2);
            let blocks = tensor.bytes.len() / size;
            let only = rng.below(blocks);
            for (block, bytes) in tensor.bytes.chunks_exact_mut(size).enumerate() {
                if is_of_all || block == only {
                    kind.scales.iter().for_each(|at| bytes[*at..at + 2].copy_from_slice(&value.to_le_bytes()));
                }
            }
            let what = format!("scales of `{name}` are {value:04x}, of all {is_of_all}");
            (what, value & 0x7fff == 0 && (is_of_all || blocks == 1))
        }
    }
}
