//! Launches cuda/quantize.cu and cuda/quantize_int8.cu, and defines quantized tensors: rows of e4m3 or of 8-bit
//! integers, with one float32 scale per row (see cuda/e4m3.cuh and cuda/int8.cuh).
//!
//! Only matrix multiplications read such tensors. Weights are quantized when they are loaded: e4m3 with the scale of
//! least error for each row, which is an output channel (see cuda/quantize_weight.cu), integers as activations are.
//! Activations are quantized in the kernel that computes them, if it holds a whole row, and otherwise here.

use std::ops::Range;

use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::capability::HOPPER;
use crate::backend::cuda::device::Device;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Precision, Tensor, all_aligned, kernels};
use crate::error::{Error, Field, Result};
use crate::files::e4m3::{self, MULTIPLE};
use crate::files::{int8, w4a8};
use crate::nn::Linear;

/// The alignment of a split of rows between two matrix multiplications: cuBLASLt takes scales only at multiples of 16
/// bytes.
pub const SPLIT_MULTIPLE: usize = 16 / size_of::<f32>();
/// The max threads of a block that the vector kernels are compiled for.
const MAX_THREADS: usize = 512;

/// Errors if a GPU doesn't support `precision`.
pub fn check(precision: Precision, device: &Device) -> Result<()> {
    if precision == Precision::Fp8 { check_fp8(device, Field::Precision) } else { Ok(()) }
}

/// Errors if a GPU doesn't support fp8, as `field` requests.
pub fn check_fp8(device: &Device, field: Field) -> Result<()> {
    if device.element() != Element::Bf16 {
        return Err(fp8_error(
            Error::new("fp8 requires a GPU that computes everything else in bf16, not in fp16"),
            field,
        ));
    }
    check_capability(device.capability, device.name(), field)
}

/// As [`check_fp8`], for GPUs that compute other values in bf16.
pub fn check_capability((major, minor): (i32, i32), name: &str, field: Field) -> Result<()> {
    let what = match (major, minor) {
        HOPPER => return Ok(()),
        (8, 9) | (12, _) if kernels::built().multiply_e4m3((major, minor)) => return Ok(()),
        (8, 9) | (12, _) => format!("this program was built without the fp8 kernels for {name}"),
        // 10.x supports mma.sync only for old kernels: with it fp8 would be slower than bf16.
        _ => format!("fp8 needs a GPU of compute capability 8.9, 9.0 or 12.x, {name} has {major}.{minor}"),
    };
    Err(fp8_error(Error::new(what), field).hint(format!("leave out `{field}`: 16 bits work on this GPU")))
}

/// Attributes the error to the request for fp8.
fn fp8_error(error: Error, field: Field) -> Error {
    error.at(format!("{field:#} fp8")).for_field(field)
}

/// Returns the threads of a block that holds one row of `cols` values in registers to quantize it; `None` if it doesn't
/// fit.
pub fn quantized_block(cols: usize) -> Option<usize> {
    row_block(cols.next_multiple_of(MULTIPLE) / 8).filter(|threads| *threads <= MAX_THREADS)
}

/// Quantizes rows 0..first and first..rows, for two matrix multiplications. `make` quantizes a range of rows: all of
/// them at once if the scales of the second part are then aligned for cuBLASLt, otherwise each part separately.
pub fn split_quantized(
    rows: usize,
    first: usize,
    make: impl Fn(Range<usize>) -> Result<Tensor<Cuda>>,
) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
    if first.is_multiple_of(SPLIT_MULTIPLE) {
        return Ok(make(0..rows)?.split_rows(first));
    }
    Ok((make(0..first)?, make(first..rows)?))
}

impl Cuda {
    /// Allocates quantized [rows, cols], uninitialized; kernels write the rows' padding too.
    pub(crate) fn empty_quantized(&self, kind: BufferKind, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let stride = cols.next_multiple_of(MULTIPLE);
        let buffer = Buffer::quantized(self.device(), kind, rows, stride)?;
        let [x, _] = Tensor::from_buffer(self, buffer, rows, stride).split_cols([cols, stride - cols]);
        Ok(x)
    }

    /// Quantizes `x` to e4m3: each row divided by its scale, its largest magnitude / 448; rounded to nearest even.
    ///
    /// Matrix multiplications with weights in [`Storage::Fp8`](crate::backend::Storage::Fp8) do this themselves. No
    /// other op reads the result; downloads multiply by the scales.
    pub fn quantize(&self, x: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.empty_quantized(BufferKind::E4m3, x.rows(), x.cols())?;
        let block = quantized_block(x.cols()).filter(|_| all_aligned(&[x]));
        let kernel = if block.is_some() { "quantize_bf16" } else { "quantize_bf16_any" };
        let launch = self.launch("quantize", kernel)?.matrix(x).quantized(&out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `quantize_bf16` and `quantize_bf16_any` in cuda/quantize.cu; `out` was
        // made of the shape of x above, its rows padded. A block writes one row of `out`, and its scale.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// Quantizes `x` to 8-bit integers, with each `group` columns of its rows rotated: see [`int8::quantize_row`]. On a
    /// GPU that computes in fp16 the scales are relative to stored activations.
    ///
    /// Matrix multiplications with weights in [`Storage::Int8`](crate::backend::Storage::Int8) do this themselves. No
    /// other op reads the result; downloads multiply by the scales, and rotate back.
    pub fn quantize_int8(&self, x: &Tensor<Cuda>, group: usize) -> Result<Tensor<Cuda>> {
        let out = self.empty_quantized(BufferKind::Int8 { group }, x.rows(), x.cols())?;
        let block = quantized_block(x.cols()).filter(|_| all_aligned(&[x]));
        let kernel = if block.is_some() { "quantize_int8" } else { "quantize_int8_any" };
        let launch = self.launch("quantize_int8", kernel)?.matrix(x).quantized(&out);
        let launch = launch.int(x.rows()).int(x.cols()).int(group);
        // SAFETY: argument types and order match `quantize_int8` and `quantize_int8_any` in cuda/quantize_int8.cu;
        // `out` was made of the shape of x above, its rows padded. A block writes one row of `out`, and its scale.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// Returns the integers and the scales of rows from [`Cuda::quantize_int8`], for tests and tools. Waits.
    ///
    /// Errors if the tensor is in another format.
    pub fn integers(&self, x: &Tensor<Cuda>) -> Result<(Vec<i8>, Vec<f32>)> {
        let Some(BufferKind::Int8 { .. }) = x.quantized_kind() else {
            return Err(Error::new("the tensor does not contain 8-bit integers"));
        };
        // SAFETY: the tensor lives, and has a scale for each row.
        unsafe {
            let values = self.download_values::<u8>(x.address(), x.rows(), x.cols(), x.stride())?;
            let scales = self.download_values::<f32>(x.scales(), 1, x.rows(), x.rows())?;
            Ok((values.into_iter().map(|byte| byte as i8).collect(), scales))
        }
    }

    /// As [`Cuda::integers`], for a weight in [`Storage::Int8`](crate::backend::Storage::Int8), or in 4 bits, with rows
    /// without padding. Also returns the group of columns that were rotated.
    pub fn weight_integers(&self, weight: &Linear<Cuda>) -> Result<(Vec<i8>, Vec<f32>, usize)> {
        let weight = weight.weight();
        let kind = weight.quantized_kind();
        let Some(BufferKind::Int8 { group } | BufferKind::W4a8 { group }) = kind else {
            return Err(Error::new("the weight does not contain 8-bit integers"));
        };
        let (rows, cols, stride) = (weight.rows(), weight.cols(), weight.stride());
        let bytes = if weight.is_w4a8() { stride } else { cols };
        // SAFETY: the weight has `rows` rows of its stride and as many scales, and lives.
        unsafe {
            let values = self.download_values::<u8>(weight.address(), rows, bytes, stride)?;
            let scales = self.download_values::<f32>(weight.scales(), 1, rows, rows)?;
            let integers = match weight.is_w4a8() {
                true => values.chunks(stride).flat_map(|row| w4a8::integers_of_row(row, cols)).collect(),
                false => values.into_iter().map(|byte| byte as i8).collect(),
            };
            Ok((integers, scales, group))
        }
    }

    /// Returns the values of a weight in float32, row by row without padding, for tests and tools. Waits.
    pub fn weight_values(&self, weight: &Linear<Cuda>) -> Result<Vec<f32>> {
        self.matrix_values(&*self.ready(weight.weight())?)
    }

    /// As [`Cuda::weight_values`], for a matrix.
    pub fn matrix_values(&self, weight: &Weight) -> Result<Vec<f32>> {
        let (rows, cols, stride) = (weight.rows(), weight.cols(), weight.stride());
        // SAFETY: the weight has `rows` rows of its stride and, if quantized, as many scales, and lives.
        unsafe {
            let Some(kind) = weight.quantized_kind() else {
                let values = self.download_values::<u16>(weight.address(), rows, cols, stride)?;
                return Ok(values.into_iter().map(|bits| self.element().weight_value(bits)).collect());
            };
            let bytes = if weight.is_w4a8() { stride } else { cols };
            let values = self.download_values::<u8>(weight.address(), rows, bytes, stride)?;
            Ok(scaled(kind, &values, &self.download_values::<f32>(weight.scales(), 1, rows, rows)?, cols))
        }
    }

    /// Returns `x` in the format that a matrix multiplication with `weight` reads; `None` if `x` needs no change.
    pub(crate) fn operand(&self, x: &Tensor<Cuda>, weight: &Weight) -> Result<Option<Tensor<Cuda>>> {
        match (x.quantized_kind(), weight.quantized_kind().map(BufferKind::operand_kind)) {
            (None, Some(kind)) => self.quantize_to(x, kind).map(Some),
            (of_x, of_weight) if of_x == of_weight => Ok(None),
            _ => Err(Error::new("rows and weights must be quantized in the same way").at("op `linear`")),
        }
    }

    fn quantize_to(&self, x: &Tensor<Cuda>, kind: BufferKind) -> Result<Tensor<Cuda>> {
        match kind {
            BufferKind::Int8 { group } => self.quantize_int8(x, group),
            _ => self.quantize(x),
        }
    }

    /// Returns [`Cuda::operand`] of each pair. Two that are contiguous in memory are quantized at once.
    pub(crate) fn operands(&self, pairs: &[(&Tensor<Cuda>, &Weight)]) -> Result<Vec<Option<Tensor<Cuda>>>> {
        if let &[(top, top_weight), (bottom, bottom_weight)] = pairs
            && let Some(kind) = top_weight.quantized_kind().map(BufferKind::operand_kind)
            && bottom_weight.quantized_kind().map(BufferKind::operand_kind) == Some(kind)
            && top.quantized_kind().is_none()
            && let Ok(both) = Tensor::adjacent_rows(top.row_view(0..top.rows()), bottom.row_view(0..bottom.rows()))
        {
            let make = |rows| self.quantize_to(&both.row_view(rows), kind);
            let (top, bottom) = split_quantized(both.rows(), top.rows(), make)?;
            return Ok(vec![Some(top), Some(bottom)]);
        }
        pairs.iter().map(|(x, weight)| self.operand(x, weight)).collect()
    }
}

impl Tensor<Cuda> {
    /// Returns the type of the values if each row has a scale.
    pub(crate) fn quantized_kind(&self) -> Option<BufferKind> {
        (self.buffer().scales() != 0).then(|| self.buffer().kind())
    }

    /// Returns `true` if the values are e4m3 with a scale for each row.
    pub(crate) fn is_e4m3(&self) -> bool {
        self.quantized_kind() == Some(BufferKind::E4m3)
    }

    /// Returns the device address of the scale of the first row, if rows have scales.
    pub(crate) fn scales(&self) -> u64 {
        self.buffer().scales() + (self.offset() / self.stride().max(1) * size_of::<f32>()) as u64
    }

    /// Returns quantized values as float32. Waits.
    pub(crate) fn download_quantized(&self) -> Result<Vec<f32>> {
        let (cuda, rows) = (self.backend(), self.rows());
        // SAFETY: the tensor lives, and has a scale for each row.
        let (values, scales) = unsafe {
            let values = cuda.download_values::<u8>(self.address(), rows, self.cols(), self.stride())?;
            (values, cuda.download_values::<f32>(self.scales(), 1, rows, rows)?)
        };
        Ok(scaled(self.buffer().kind(), &values, &scales, self.cols()))
    }
}

/// Returns quantized rows of `cols` values times their scales, rotated back.
fn scaled(kind: BufferKind, values: &[u8], scales: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.chunks((values.len() / scales.len().max(1)).max(1)).zip(scales);
    match kind {
        BufferKind::W4a8 { group } => rows
            .flat_map(|(row, scale)| {
                let bytes: Vec<_> = w4a8::integers_of_row(row, cols).into_iter().map(|q| q as u8).collect();
                int8::values_of_row(&bytes, *scale, group)
            })
            .collect(),
        BufferKind::Int8 { group } => rows.flat_map(|(row, scale)| int8::values_of_row(row, *scale, group)).collect(),
        _ => rows.flat_map(|(row, scale)| row.iter().map(move |bits| e4m3::to_f32(*bits) * scale)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_is_refused_where_it_does_not_run() {
        for capability in [(8, 0), (8, 6), (10, 0), (11, 0)] {
            let message = check_capability(capability, "GPU", Field::Precision).unwrap_err().to_string();
            assert!(
                message.contains(&format!("has {}.{}", capability.0, capability.1)) && message.contains("hint"),
                "{message}"
            );
        }
        assert!(check_capability((9, 0), "GPU", Field::Precision).is_ok());
        for capability in [(8, 9), (12, 0)] {
            let built = kernels::built().multiply_e4m3(capability);
            assert_eq!(check_capability(capability, "GPU", Field::Precision).is_ok(), built, "{capability:?}");
        }
    }

    #[test]
    fn a_block_holds_the_rows_of_the_real_models() {
        for cols in [3072, 4096, 9216, 12288, 16384] {
            assert!(quantized_block(cols).is_some_and(|threads| threads * 32 >= cols), "{cols}");
        }
        assert_eq!(quantized_block(16392), None);
    }
}
