//! Whether all values of a tensor are numbers.

use rayon::prelude::*;

use super::dequantise::dequantise_rows;
use super::format::Format;
use super::tensor_view::TensorView;
use crate::error::{Error, Result};

const BYTES_AT_ONCE: usize = 1 << 18;

/// Errors with the name of a tensor that holds infinities or values that are no numbers. Reads all of them, on all
/// cores; those that `tensor` gives an error for are passed over.
pub fn check<'a>(
    names: impl Iterator<Item = &'a str>,
    tensor: impl Fn(&str) -> Result<TensorView> + Sync,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    match names.par_iter().filter(|name| tensor(name).is_ok_and(|view| !is_finite(&view))).min() {
        Some(name) => Err(Error::new(format!("tensor `{name}` holds values that are not numbers, or infinite"))
            .hint("the file is damaged: fetch it again")),
        None => Ok(()),
    }
}

/// Whether all values are finite: in the others all bits of the exponent are set.
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
        dequantise_rows(view, row..row + 1, &mut values);
        values.iter().all(|value| value.is_finite())
    })
}

/// Whether no value of `N` bytes is `bad`. All are looked at, because the compiler then takes many at once.
fn none<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> bool {
    let (values, _) = bytes.as_chunks::<N>();
    !values.iter().fold(false, |found, value| found | bad(*value))
}
