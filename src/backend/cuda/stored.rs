//! Weights that stay in the format of their file: the layout of their bytes and scales on the device, and their
//! dequantization to 16 bits.

use std::sync::Arc;

use super::device::Device;
use super::element::Element;
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::{Bytes, FileSlice, FirstNibble, Format, Kernel, ScaleLayout, Scales, TensorView, int8};

/// Values and scales begin at multiples of the driver's allocation alignment.
const ALIGNMENT: usize = 256;
/// Values that a kernel stores at once.
const CHUNK: usize = 8;
/// Values of a thread block: `TILE` in cuda/dequantize.cuh.
const TILE: usize = 8192;
/// `THREADS` in cuda/dequantize.cuh.
const THREADS: usize = 256;
/// Columns that a warp rotates: see cuda/dequantize_rotated.cuh.
const OF_WARP: usize = 256;
/// bitsandbytes multiplies by this instead of dividing by 127.
const PER_STEP: f32 = 1.0 / 127.0;

/// A weight in the format of its file, or of its parts, which are concatenated.
pub struct Stored {
    parts: Vec<StoredRows>,
    cols: usize,
    bytes: usize,
}

/// Rows of a weight in one format.
pub struct StoredRows {
    /// The values as in the file.
    pub values: TensorView,
    /// Other operands of the kernel, converted to its layout.
    pub scales: Option<TensorView>,
    /// Byte offset of the values in the weight's memory.
    pub values_at: usize,
    /// Byte offset of the scales.
    pub scales_at: usize,
    kernel: &'static str,
    arguments: Arguments,
}

/// Operands of a kernel besides values and their number.
enum Arguments {
    /// Blocks contain their scales.
    None,
    /// A scale for each row, and a common factor.
    Rows(f32),
    /// Groups of columns that were multiplied by a matrix.
    Rotated { group: usize },
    /// A scale for each block of columns; with two values per byte also a factor for all scales, and the nibble order.
    BlockScales { first_row: usize, is_swizzled: bool, packed: Option<(f32, FirstNibble)> },
    /// The 16 values of a codebook, followed by the block maxima.
    Codebook { block: usize, first_value: usize },
}

impl Stored {
    /// Returns the weight with the concatenated rows of the parts; `None` if the device can't dequantize one of them,
    /// or all are plain floats.
    pub fn from_parts(parts: &[TensorView]) -> Result<Option<Self>> {
        let cols = parts.first().map_or(0, TensorView::cols);
        if !cols.is_multiple_of(CHUNK) || parts.iter().any(|part| part.elements() == 0) {
            return Ok(None);
        }
        let (mut stored, mut bytes) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            let Some((kernel, scales, arguments)) = decoding_kernel(part)? else { return Ok(None) };
            let values_at = bytes;
            bytes = (bytes + part.bytes().len()).next_multiple_of(ALIGNMENT);
            let scales_at = bytes;
            bytes += scales.as_ref().map_or(0, |scales| scales.bytes().len()).next_multiple_of(ALIGNMENT);
            stored.push(StoredRows { values: part.clone(), scales, values_at, scales_at, kernel, arguments });
        }
        Ok(Some(Self { parts: stored, cols, bytes }))
    }

    /// Returns its total bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the parts, in the order of their rows.
    pub fn parts(&self) -> &[StoredRows] {
        &self.parts
    }

    /// Dequantizes it to 16-bit weights, rows without padding, by work on the compute stream.
    ///
    /// # Safety
    /// The weight is at `from`, and there is room at `to` for all of its values.
    pub unsafe fn dequantize(&self, device: &Arc<Device>, from: u64, to: u64) -> Result<()> {
        let mut row = 0;
        for part in &self.parts {
            let out = to + (row * self.cols * Element::BYTES) as u64;
            // SAFETY: as the caller promises.
            unsafe { part.dequantize(device, from, out, self.cols) }?;
            row += part.values.rows();
        }
        Ok(())
    }
}

impl StoredRows {
    /// # Safety
    /// As [`Stored::dequantize`].
    unsafe fn dequantize(&self, device: &Arc<Device>, from: u64, to: u64, cols: usize) -> Result<()> {
        let (elements, scales) = (self.values.elements(), from + self.scales_at as u64);
        let launch = device.launch("dequantize", self.kernel)?;
        let launch = launch.address(from + self.values_at as u64).address(to).int(elements);
        let launch = match self.arguments {
            Arguments::None => launch,
            Arguments::Rows(after) => launch.int(cols).address(scales).float(after),
            Arguments::Rotated { group } => {
                launch.int(cols).address(scales).int(group).float(1.0 / (group as f32).sqrt())
            }
            Arguments::BlockScales { first_row, is_swizzled, packed } => {
                let launch = launch.int(cols).address(scales).int(first_row).int(usize::from(is_swizzled));
                match packed {
                    None => launch,
                    Some((factor, first)) => launch.float(factor).int(usize::from(first == FirstNibble::High)),
                }
            }
            Arguments::Codebook { block, first_value } => {
                let maxima = scales + 16 * size_of::<f32>() as u64;
                launch.address(scales).address(maxima).int(block).int(first_value)
            }
        };
        // SAFETY: types and order match the kernel in cuda/dequantize.cu. The values are whole blocks, and `to` has
        // room for them; scales have the format's layout, from `decoding_kernel`.
        unsafe { launch.run([elements.div_ceil(TILE), 1, 1], [THREADS, 1, 1]) }
    }
}

/// Returns the kernel that decodes a part, other operands to upload, and other arguments; `None` for plain floats, and
/// if no kernel supports the part.
fn decoding_kernel(part: &TensorView) -> Result<Option<(&'static str, Option<TensorView>, Arguments)>> {
    let Some(kernel) = part.format().row().kernel else { return Ok(None) };
    let (kernel, scales, arguments) = match (kernel, part.scales()) {
        (Kernel::Blocks(kernel), _) => (kernel, None, Arguments::None),
        (Kernel::Rows(kernel), scales) => {
            let after = if matches!(scales, Scales::RowMaxima(_)) { PER_STEP } else { 1.0 };
            (kernel, Some(row_scales(part)?), Arguments::Rows(after))
        }
        (Kernel::Rotated { in_warp, wide }, _) => {
            let group = part.format().block().values;
            if !TILE.is_multiple_of(group) {
                return Ok(None);
            }
            let kernel = if group > OF_WARP { wide } else { in_warp };
            (kernel, Some(row_scales(part)?), Arguments::Rotated { group })
        }
        (Kernel::BlockScales(kernel, first), Scales::Blocks(scales)) => {
            let (view, first_row) = scales.bytes_for_rows(part.rows()).map_err(wrong)?;
            let is_swizzled = scales.layout() == ScaleLayout::Swizzled;
            let packed = first.map(|first| (scales.tensor(), first));
            (kernel, Some(raw(&view)?), Arguments::BlockScales { first_row, is_swizzled, packed })
        }
        (Kernel::Codebook(kernel), Scales::Codebook(book)) => {
            let (block, values) = (book.block(), part.elements());
            // Blocks run along the whole tensor, so the first one may begin before the part.
            let first_value = book.first_value % block;
            let blocks = (first_value + values).div_ceil(block);
            let maxima = (0..blocks).map(|index| book.maximum_of((index * block).saturating_sub(first_value)));
            let scales = computed(book.table().iter().copied().chain(maxima).collect())?;
            (kernel, Some(scales), Arguments::Codebook { block, first_value })
        }
        (Kernel::BlockScales(..) | Kernel::Codebook(_), _) => return Ok(None),
    };
    Ok(Some((kernel, scales, arguments)))
}

/// Returns a scale for each row, even if the file has one for all.
fn row_scales(part: &TensorView) -> Result<TensorView> {
    computed((0..part.rows()).map(|row| part.scales().row_scale(row)).collect())
}

/// Returns a part that is e4m3 in its file in the layout of fp8 matrix multiplications, with a scale for each row;
/// `None` if it has another format, the file asks for unquantized activations, or the rows have an unsupported length.
pub fn e4m3_rows(part: &TensorView) -> Result<Option<TensorView>> {
    if part.format() != Format::E4m3
        || part.is_weight_only()
        || part.shape().len() != 2
        || !part.cols().is_multiple_of(MULTIPLE)
    {
        return Ok(None);
    }
    with_row_scales(part, Format::E4m3Rows, &row_scales(part)?).map(Some)
}

/// Returns a part of 8-bit integers in the layout of int8 matrix multiplications, with a scale for each row. The part
/// must be a matrix.
pub fn int8_rows(part: &TensorView) -> Result<TensorView> {
    let scales = computed((0..part.rows()).map(|row| int8::scale_of_row(part, row)).collect())?;
    with_row_scales(part, part.format(), &scales)
}

/// Returns the values of a part in `format`, with these scales of its rows.
fn with_row_scales(part: &TensorView, format: Format, scales: &TensorView) -> Result<TensorView> {
    let of_rows = FileSlice::new(Arc::clone(scales.file()), 0..scales.bytes().len());
    let (start, scales) = (part.start(), of_rows.map_or(Scales::None, |scales| Scales::Rows(Box::new(scales))));
    let range = start..start + part.bytes().len();
    TensorView::new(Arc::clone(part.file()), range, format, part.shape().to_vec(), scales).map_err(wrong)
}

/// Returns bytes of a file.
fn raw(slice: &FileSlice) -> Result<TensorView> {
    let (range, count) = (slice.range(), slice.bytes().len());
    TensorView::new(Arc::clone(slice.file()), range, Format::E4m3, vec![count], Scales::None).map_err(wrong)
}

/// Returns computed float32 values.
fn computed(values: Vec<f32>) -> Result<TensorView> {
    let count = values.len();
    let bytes = Arc::new(Bytes::Computed(values));
    TensorView::new(bytes, 0..count * size_of::<f32>(), Format::F32, vec![count], Scales::None).map_err(wrong)
}

fn wrong(why: String) -> Error {
    Error::new(format!("a weight {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e4m3(cols: usize) -> TensorView {
        let bytes = Arc::new(Bytes::Embedded(vec![0x38; 4 * cols].leak()));
        TensorView::new(bytes, 0..4 * cols, Format::E4m3, vec![4, cols], Scales::Tensor(0.5)).unwrap()
    }

    #[test]
    fn products_of_fp8_read_e4m3_of_a_file_but_where_it_forbids_that() {
        let rows = e4m3_rows(&e4m3(32)).unwrap().unwrap();
        assert_eq!((rows.format(), rows.to_f32()), (Format::E4m3Rows, vec![0.5; 128]));
        assert!(e4m3_rows(&e4m3(32).with_weight_only(true)).unwrap().is_none());
        assert!(e4m3_rows(&e4m3(24)).unwrap().is_none(), "rows of another length");
        assert!(Stored::from_parts(&[e4m3(32).with_weight_only(true)]).unwrap().is_some(), "it is dequantized");
    }

    #[test]
    fn parts_lie_one_behind_the_other() {
        let stored = Stored::from_parts(&[e4m3(32), e4m3(32)]).unwrap().unwrap();
        let places: Vec<_> = stored.parts().iter().map(|part| [part.values_at, part.scales_at]).collect();
        assert_eq!((places, stored.bytes()), (vec![[0, 256], [512, 768]], 1024));
        assert!(Stored::from_parts(&[]).unwrap().is_none_or(|stored| stored.bytes() == 0));
    }
}
