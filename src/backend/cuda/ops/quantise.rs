//! Launches cuda/quantise.cu and cuda/quantise_int8.cu, and holds the rules of quantised tensors: rows of 8-bit floats,
//! which are e4m3, or of 8-bit integers, with one float32 scale a row (see cuda/e4m3.cuh and cuda/int8.cuh).
//!
//! Only products take such tensors. Weights are quantised when they are loaded: e4m3 with the scale of least error for
//! each row, which is an output channel (see cuda/quantise_weight.cu), integers as activations. Activations are
//! quantised in the kernel that computes them, if that holds a whole row, and otherwise here.

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

/// Where rows of one matrix may be split between two products: cuBLASLt takes scales only at multiples of 16 bytes.
pub const SPLIT_MULTIPLE: usize = 16 / size_of::<f32>();
/// The most threads of a block that the vector kernels are compiled for.
const MAX_THREADS: usize = 512;

/// Errors when a GPU cannot compute in `precision`.
pub fn check(precision: Precision, device: &Device) -> Result<()> {
    if precision == Precision::Fp8 { check_fp8(device, Field::Precision) } else { Ok(()) }
}

/// Errors when a GPU does not compute in fp8, for which `field` asked.
pub fn check_fp8(device: &Device, field: Field) -> Result<()> {
    if device.element() != Element::Bf16 {
        return Err(of_fp8(Error::new("what is not in fp8 has to be in bf16, not in fp16"), field));
    }
    check_capability(device.capability(), device.name(), field)
}

/// The same, where what is not in fp8 is in bf16.
pub fn check_capability((major, minor): (i32, i32), name: &str, field: Field) -> Result<()> {
    let what = match (major, minor) {
        HOPPER => return Ok(()),
        (8, 9) | (12, _) if kernels::built().multiply_e4m3((major, minor)) => return Ok(()),
        (8, 9) | (12, _) => format!("this program was built without the kernels for fp8 that {name} needs"),
        // 10.x has mma.sync for old kernels only: by that fp8 would take longer than bf16 does.
        _ => format!("fp8 needs a GPU of compute capability 8.9, 9.0 or 12.x, {name} has {major}.{minor}"),
    };
    Err(of_fp8(Error::new(what), field).hint(format!("leave out `{field}`: 16 bits work on this GPU")))
}

/// Says that it is fp8 which was asked for.
fn of_fp8(error: Error, field: Field) -> Error {
    error.at(format!("{field:#} fp8")).of(field)
}

/// Threads of a block whose registers hold one row of `cols` values to be quantised; none if it does not fit.
pub fn quantised_block(cols: usize) -> Option<usize> {
    row_block(cols.next_multiple_of(MULTIPLE) / 8).filter(|threads| *threads <= MAX_THREADS)
}

/// Quantised rows 0..first and first..rows, for two products. `make` makes a range of the rows: all of them at once if
/// the scales of the second part then lie where cuBLASLt takes them, otherwise each part by itself.
pub fn split_quantised(
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
    /// Quantised [rows, cols], not initialised; kernels write the rows' padding too.
    pub(crate) fn empty_quantised(&self, kind: BufferKind, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let stride = cols.next_multiple_of(MULTIPLE);
        let buffer = Buffer::quantised(self.device(), kind, rows, stride)?;
        let [x, _] = Tensor::from_buffer(self, buffer, rows, stride).split_cols([cols, stride - cols]);
        Ok(x)
    }

    /// `x` in e4m3: each row divided by its scale, which is its largest magnitude / 448; rounded to nearest even.
    ///
    /// Products with weights in [`Storage::Fp8`](crate::backend::Storage::Fp8) do this themselves. No other op
    /// takes the result; downloads multiply by the scales.
    pub fn quantise(&self, x: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.empty_quantised(BufferKind::E4m3, x.rows(), x.cols())?;
        let block = quantised_block(x.cols()).filter(|_| all_aligned(&[x]));
        let kernel = if block.is_some() { "quantise_bf16" } else { "quantise_bf16_any" };
        let launch = self.launch("quantise", kernel)?.matrix(x).quantised(&out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `quantise_bf16` and `quantise_bf16_any` in cuda/quantise.cu; `out` was
        // made of the shape of x above, its rows padded. A block writes one row of `out`, and its scale.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// `x` as 8-bit integers, each `group` columns of its rows rotated: see [`int8::quantise_row`]. On a GPU that
    /// computes in fp16 the scales are those of activations as they lie in memory.
    ///
    /// Products with weights in [`Storage::Int8`](crate::backend::Storage::Int8) do this themselves. No other op takes
    /// the result; downloads multiply by the scales, and rotate back.
    pub fn quantise_int8(&self, x: &Tensor<Cuda>, group: usize) -> Result<Tensor<Cuda>> {
        let out = self.empty_quantised(BufferKind::Int8 { group }, x.rows(), x.cols())?;
        let block = quantised_block(x.cols()).filter(|_| all_aligned(&[x]));
        let kernel = if block.is_some() { "quantise_int8" } else { "quantise_int8_any" };
        let launch = self.launch("quantise_int8", kernel)?.matrix(x).quantised(&out);
        let launch = launch.int(x.rows()).int(x.cols()).int(group);
        // SAFETY: argument types and order match `quantise_int8` and `quantise_int8_any` in cuda/quantise_int8.cu;
        // `out` was made of the shape of x above, its rows padded. A block writes one row of `out`, and its scale.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// The integers and the scales of rows that [`Cuda::quantise_int8`] made: for tests and tools. Waits.
    ///
    /// Errors when the tensor is none of these.
    pub fn integers(&self, x: &Tensor<Cuda>) -> Result<(Vec<i8>, Vec<f32>)> {
        let Some(BufferKind::Int8 { .. }) = x.quantised_kind() else {
            return Err(Error::new("a tensor is not of 8-bit integers"));
        };
        // SAFETY: the tensor lives, and has a scale for each row.
        unsafe {
            let values = self.download_values::<u8>(x.address(), x.rows(), x.cols(), x.stride())?;
            let scales = self.download_values::<f32>(x.scales(), 1, x.rows(), x.rows())?;
            Ok((values.into_iter().map(|byte| byte as i8).collect(), scales))
        }
    }

    /// As [`Cuda::integers`], of a weight in [`Storage::Int8`](crate::backend::Storage::Int8), or in 4 bits, whose rows
    /// have no padding, and the group of columns that were rotated.
    pub fn weight_integers(&self, weight: &Linear<Cuda>) -> Result<(Vec<i8>, Vec<f32>, usize)> {
        let weight = weight.weight();
        let kind = weight.quantised_kind();
        let Some(BufferKind::Int8 { group } | BufferKind::W4a8 { group }) = kind else {
            return Err(Error::new("a weight is not of 8-bit integers"));
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

    /// The values of a weight in float32, row by row without padding: for tests and tools. Waits.
    pub fn weight_values(&self, weight: &Linear<Cuda>) -> Result<Vec<f32>> {
        self.matrix_values(&*self.ready(weight.weight())?)
    }

    /// As [`Cuda::weight_values`], of a matrix.
    pub fn matrix_values(&self, weight: &Weight) -> Result<Vec<f32>> {
        let (rows, cols, stride) = (weight.rows(), weight.cols(), weight.stride());
        // SAFETY: the weight has `rows` rows of its stride, of quantised ones also as many scales, and lives.
        unsafe {
            let Some(kind) = weight.quantised_kind() else {
                let values = self.download_values::<u16>(weight.address(), rows, cols, stride)?;
                return Ok(values.into_iter().map(|bits| self.element().weight_value(bits)).collect());
            };
            let bytes = if weight.is_w4a8() { stride } else { cols };
            let values = self.download_values::<u8>(weight.address(), rows, bytes, stride)?;
            Ok(scaled(kind, &values, &self.download_values::<f32>(weight.scales(), 1, rows, rows)?, cols))
        }
    }

    /// `x` as a product with `weight` reads it; none if `x` needs no change.
    pub(crate) fn operand(&self, x: &Tensor<Cuda>, weight: &Weight) -> Result<Option<Tensor<Cuda>>> {
        match (x.quantised_kind(), weight.quantised_kind().map(BufferKind::of_operands)) {
            (None, Some(kind)) => self.quantise_to(x, kind).map(Some),
            (of_x, of_weight) if of_x == of_weight => Ok(None),
            _ => Err(Error::new("quantised rows go with weights that are quantised alike").at("op `linear`")),
        }
    }

    fn quantise_to(&self, x: &Tensor<Cuda>, kind: BufferKind) -> Result<Tensor<Cuda>> {
        match kind {
            BufferKind::Int8 { group } => self.quantise_int8(x, group),
            _ => self.quantise(x),
        }
    }

    /// [`Cuda::operand`] of each pair. Two that lie one under the other in memory are quantised at once.
    pub(crate) fn operands(&self, pairs: &[(&Tensor<Cuda>, &Weight)]) -> Result<Vec<Option<Tensor<Cuda>>>> {
        if let &[(top, top_weight), (bottom, bottom_weight)] = pairs
            && let Some(kind) = top_weight.quantised_kind().map(BufferKind::of_operands)
            && bottom_weight.quantised_kind().map(BufferKind::of_operands) == Some(kind)
            && top.quantised_kind().is_none()
            && let Ok(both) = Tensor::adjacent_rows(top.row_view(0..top.rows()), bottom.row_view(0..bottom.rows()))
        {
            let make = |rows| self.quantise_to(&both.row_view(rows), kind);
            let (top, bottom) = split_quantised(both.rows(), top.rows(), make)?;
            return Ok(vec![Some(top), Some(bottom)]);
        }
        pairs.iter().map(|(x, weight)| self.operand(x, weight)).collect()
    }
}

impl Tensor<Cuda> {
    /// What the values are where each row has a scale.
    pub(crate) fn quantised_kind(&self) -> Option<BufferKind> {
        (self.buffer().scales() != 0).then(|| self.buffer().kind())
    }

    /// Whether the values are e4m3 with a scale for each row.
    pub(crate) fn is_e4m3(&self) -> bool {
        self.quantised_kind() == Some(BufferKind::E4m3)
    }

    /// Device address of the scale of the first row, where rows have scales.
    pub(crate) fn scales(&self) -> u64 {
        self.buffer().scales() + (self.offset() / self.stride().max(1) * size_of::<f32>()) as u64
    }

    /// Quantised values as float32. Waits.
    pub(crate) fn download_quantised(&self) -> Result<Vec<f32>> {
        let (cuda, rows) = (self.backend(), self.rows());
        // SAFETY: the tensor lives, and has a scale for each row.
        let (values, scales) = unsafe {
            let values = cuda.download_values::<u8>(self.address(), rows, self.cols(), self.stride())?;
            (values, cuda.download_values::<f32>(self.scales(), 1, rows, rows)?)
        };
        Ok(scaled(self.buffer().kind(), &values, &scales, self.cols()))
    }
}

/// Quantised rows of `cols` values times their scales, rotated back.
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
            assert!(quantised_block(cols).is_some_and(|threads| threads * 32 >= cols), "{cols}");
        }
        assert_eq!(quantised_block(16392), None);
    }
}
