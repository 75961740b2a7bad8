//! A check that all values of a tensor are finite.

use rayon::prelude::*;

use crate::formats::dequantize::dequantize_rows;
use crate::formats::format::Format;
use crate::formats::tensor_view::TensorView;
use flux_base::error::{Error, Result};

const BYTES_AT_ONCE: usize = 1 << 18;

/// Errors with the name of a tensor that holds infinities or NaN. Reads all tensors, on all cores, except those for
/// which `tensor` errors.
pub fn check<'a>(
    names: impl Iterator<Item = &'a str>,
    tensor: impl Fn(&str) -> Result<TensorView> + Sync,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    match names.par_iter().filter(|name| tensor(name).is_ok_and(|view| !is_finite(&view))).min() {
        Some(name) => Err(Error::new(format!("tensor `{name}` contains NaN or infinite values"))
            .hint("the file is damaged: fetch it again")),
        None => Ok(()),
    }
}

/// Returns `true` if all values are finite. Infinities and NaN have all bits of the exponent set.
fn is_finite(view: &TensorView) -> bool {
    let all_finite = |bytes: &[u8]| match view.format() {
        Format::Bf16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7f80 == 0x7f80),
        Format::F16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7c00 == 0x7c00),
        _ => none(bytes, |value| u32::from_le_bytes(value) & 0x7f80_0000 == 0x7f80_0000),
    };
    if view.format().is_float() {
        return view.bytes().par_chunks(BYTES_AT_ONCE).all(all_finite);
    }
    if view.shape().len() < 2 {
        return view.to_f32().iter().all(|value| value.is_finite());
    }
    (0..view.rows()).into_par_iter().all(|row| {
        let mut values = vec![0.0; view.cols()];
        dequantize_rows(view, row..row + 1, &mut values);
        values.iter().all(|value| value.is_finite())
    })
}

/// Returns `true` if no value of `N` bytes is `bad`. The loop has no early exit, so that the compiler vectorizes it.
fn none<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> bool {
    let (values, _) = bytes.as_chunks::<N>();
    !values.iter().fold(false, |found, value| found | bad(*value))
}
