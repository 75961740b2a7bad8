//! `conv2d` and its variants. Launches cuda/conv2d.cu: a GEMM over im2col rows, some pixels at a time, which supports
//! every convolution on every GPU. Convolutions with many channels gather their pixels during the GEMM, in
//! `conv2d_taps`. For 3 x 3 convolutions with rows of channels in multiples of 16 bytes, that keep the image's size or
//! halve it, Hopper has its own kernels, in `conv2d_sm90a`.

use std::ops::Range;

use super::conv2d_input::{Input, Rows};
use super::conv2d_narrow::{NARROW, NarrowShape};
use super::conv2d_output::{Output, Stage};
use super::conv2d_sm90a::{CHOICE, Call, Taps, takes};
use super::conv2d_taps::{self, Place};
use super::linear::output_columns;
use crate::backend::IM2COL_BYTES;
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::ops::{self, Activation, Conv, Conv2d, Convolved};

/// Splits rows 0 .. `rows` of `row_bytes` bytes into pieces of at most IM2COL_BYTES. All except the last have one size,
/// so that they share one plan, and are whole tiles of the GEMM.
fn pieces(rows: usize, row_bytes: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let most = (IM2COL_BYTES / row_bytes.max(1)).max(1);
    let piece = rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(128).min(most).max(1);
    (0..rows).step_by(piece).map(move |first| first..(first + piece).min(rows))
}

/// As [`pieces`], for 1 x 1 convolutions from `k` channels to `n`: no piece writes more than IM2COL_BYTES, or reads
/// more than twice as much. Pieces are needed because cuBLASLt fails for some matrices of 2^31 values.
fn pieces_of_one_tap(rows: usize, k: usize, n: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    pieces(rows, k.max(2 * n))
}

/// Returns `true` if an output depends only on its own pixel.
fn has_one_tap(conv: Conv) -> bool {
    conv == Conv::same(conv.height, conv.width, 1)
}

/// Returns the rows of pixels that the outputs `pixels` depend on, at least one and all within the image and its halo,
/// counted from the first row of the halo.
pub(super) fn rows_seen(conv: Conv, [above, below]: [usize; 2], pixels: &Range<usize>) -> Range<usize> {
    let [first, last] = [pixels.start, pixels.end.max(pixels.start + 1) - 1]
        .map(|pixel| above + pixel / conv.out_width() * conv.stride);
    let height = above + conv.height + below;
    let start = first.saturating_sub(conv.pad_before).min(height - 1);
    start..(last + conv.kernel).saturating_sub(conv.pad_before).clamp(start + 1, height)
}

/// The ops on the sums of a convolution.
#[derive(Default)]
pub(super) struct Epilogue<'a> {
    /// [output pixels, out], added to the sums.
    pub residual: Option<Tensor<Cuda>>,
    /// Applied to the sum.
    pub activation: Option<Activation<'a, Cuda>>,
    /// [output pixels, out] to write, with columns in multiples of eight; `None` for the residual or new memory.
    pub out: Option<Tensor<Cuda>>,
}

impl Cuda {
    pub(crate) fn conv2d_op(&self, conv2d: Conv2d<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { norm, upsample, halo, ref residual, activation, .. } = conv2d;
        match (norm, upsample) {
            (None, false) if halo.is_none() && residual.is_none() && activation.is_none() => self.conv2d_over(conv2d),
            (None, false) => self.conv2d_of_image(conv2d),
            (Some(norm), false) => self.norm_conv2d(conv2d, norm),
            (None, true) if residual.is_none() => self.upsample_conv2d(conv2d),
            _ => ops::conv2d::compose(self, conv2d),
        }
    }

    /// Runs a convolution of x itself.
    fn conv2d_of_image(&self, conv2d: Conv2d<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { x, weight, bias, conv, halo, residual, activation, .. } = conv2d;
        let epilogue = Epilogue { residual, activation, out: None };
        let input = Input::Image(Rows::new(&x, halo, conv, self.band_bytes())?);
        self.convolve(input, weight, bias, conv, epilogue)
    }

    /// Computes `conv2d(input)` and its epilogue; overwrites the residual if it is writable.
    ///
    /// Errors if `FLUX_CONV2D` names no available kernel.
    pub(super) fn convolve(
        &self,
        mut input: Input<'_>,
        weight: &ConvKernel<Cuda>,
        bias: &Tensor<Cuda>,
        conv: Conv,
        Epilogue { residual, activation, out }: Epilogue<'_>,
    ) -> Result<Convolved<Cuda>> {
        let hopper = self.hopper_wanted(CHOICE)?;
        let weight = &weight.weight().0;
        let rows = conv.out_height() * conv.out_width();
        let fresh = match (out, &residual) {
            (Some(out), _) => Some(out),
            (None, Some(residual)) if residual.writable() => None,
            (None, Some(residual)) => Some(self.empty_output(residual.rows(), residual.cols())?),
            (None, None) => Some(self.empty_output(rows, output_columns(weight, Some(bias)))?),
        };
        let out = fresh.as_ref().or(residual.as_ref()).expect("there is a tensor unless the residual is reused");
        let mut output = Output::new(out, residual.as_ref());
        let same = conv == Conv::same(conv.height, conv.width, 3) && !matches!(input, Input::Doubled(_));
        // For an odd number of rows or columns the kernel would read past the last one.
        let halves = conv == Conv::halve(conv.height, conv.width)
            && (conv.height | conv.width).is_multiple_of(2)
            && input.halo() == [0, 0]
            && matches!(input, Input::Image(_));
        let out_aligned = all_aligned(&[out]) && residual.as_ref().is_none_or(Tensor::aligned);
        let (mut statistics, mut rest) = (None, activation);
        if hopper && (same || halves) && takes(&input, weight, bias) && out_aligned {
            let weight = Taps { address: weight.address(), rows: weight.rows(), channels: input.source().cols() };
            let (height, width) = (conv.out_height(), conv.out_width());
            let (input, output) = (&mut input, &mut output);
            let call = Call { input, weight, bias, activation, output, height, width };
            rest = None;
            statistics = match NarrowShape::find(&NARROW, out.cols()) {
                _ if halves => Some(self.run_hopper_halve(call)?),
                Some(shape) => self.run_hopper_narrow(CHOICE, shape, call).map(|()| None)?,
                None => Some(self.run_hopper_conv2d(call)?),
            };
        } else {
            let from_residual = residual.as_ref().map(Matrix::new);
            let product = self.product(input.source(), weight, Matrix::new(out), out.cols());
            let product = Product { bias: Some(bias.address()), residual: from_residual, ..product };
            if has_one_tap(conv) && matches!(input, Input::Image(_)) {
                let (mut stage, on_host) = (Stage::default(), input.source().buffer().is_on_host());
                for rows in pieces_of_one_tap(rows, product.k, product.n) {
                    let mut piece = output.open_product(&product, rows)?;
                    // SAFETY: `Tensor::conv2d` checked the shapes; with one tap, input and output have the same rows.
                    unsafe {
                        if on_host {
                            piece.x = stage.load(self, piece.x, [piece.m, piece.k])?;
                        }
                        self.gemm()?.run(&piece)?;
                    }
                    output.close()?;
                }
            } else {
                let product = Product { m: rows, ..product };
                if !matches!(input, Input::Doubled(_)) && conv2d_taps::takes(&input, conv, &product) {
                    rest = None;
                    self.conv2d_taps(&mut input, conv, &product, activation, &mut output)?;
                } else {
                    self.conv2d_rows(&mut input, weight, conv, &product, &mut output)?;
                }
            }
        }
        let out = fresh.or(residual).expect("as above");
        let padding = out.cols() - weight.rows();
        let [mut pixels, _] = out.split_cols([weight.rows(), padding]);
        match rest {
            None => {}
            Some(Activation::Relu) => pixels = self.relu_op(pixels)?,
            Some(Activation::LeakyRelu(slope)) => pixels = self.leaky_relu_op(pixels, slope)?,
        }
        // The statistics of an output with padding include the padding.
        Ok(Convolved { pixels, statistics: statistics.filter(|_| padding == 0) })
    }

    /// Computes `conv2d(x)`. The result overwrites x if x is large, its rows are at least as long as the output's, and
    /// nothing else uses it.
    fn conv2d_over(&self, conv2d: Conv2d<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { ref x, weight, bias, conv, .. } = conv2d;
        let (rows, k, n) = (x.rows(), x.cols(), weight.rows());
        let pieces = pieces_of_one_tap(rows, k, n);
        if !has_one_tap(conv) || n > k || !n.is_multiple_of(8) || pieces.len() < 2 {
            return self.conv2d_of_image(conv2d);
        }
        let to = Matrix { address: x.address(), stride: n };
        let product = Product { bias: Some(bias.address()), ..self.product(x, &weight.weight().0, to, n) };
        let buffer = match conv2d.x.into_buffer() {
            Ok(buffer) => buffer,
            Err(x) => return self.conv2d_of_image(Conv2d { x, ..conv2d }),
        };
        let (mut stage, mut aside, on_host) = (Stage::default(), Stage::default(), buffer.is_on_host());
        for rows in pieces {
            let mut piece = product.rows(rows.clone());
            if on_host {
                // SAFETY: the buffer has the rows of x that are still to be read.
                piece.x = unsafe { stage.load(self, piece.x, [piece.m, k]) }?;
            } else if lies_before(&rows, k, n) {
                // SAFETY: `Tensor::conv2d_over` checked the shapes; nothing else uses the buffer, and the piece's rows
                // end before those that are still to be read.
                unsafe { self.gemm()?.run(&piece) }?;
                continue;
            }
            let out = aside.room(self, piece.out, piece.m)?;
            // SAFETY: as above, but the matrix multiplication writes to `aside`, which has room for the piece; the copy
            // from there to its place follows the reads on the stream.
            unsafe {
                self.gemm()?.run(&Product { out, ..piece })?;
                self.copy_host_rows(out, piece.out, [piece.m, n])?;
            }
        }
        Ok(Tensor::from_buffer(self, buffer, rows, n).into())
    }

    /// Computes `product` over the pixels of `input`, with its m rows, and the activation.
    fn conv2d_taps(
        &self,
        input: &mut Input<'_>,
        conv: Conv,
        product: &Product,
        activation: Option<Activation<'_, Cuda>>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let halo = input.halo();
        for band in input.bands(conv.out_height(), output.max_band(conv.out_width(), self.band_bytes())) {
            let rows = band.start * conv.out_width()..band.end * conv.out_width();
            let part = input.show(rows_seen(conv, halo, &rows))?;
            let place = Place { conv, halo, first_row: rows.start, doubled: false };
            self.run_taps(&part, &place, &output.open_product(product, rows)?, activation)?;
            output.close()?;
        }
        Ok(())
    }

    /// Computes `product` over im2col rows of `input`, with its m rows.
    fn conv2d_rows(
        &self,
        input: &mut Input<'_>,
        weight: &Weight,
        conv: Conv,
        product: &Product,
        output: &mut Output<'_>,
    ) -> Result<()> {
        // The padding columns are zeros in im2col rows and in the weight, so they may take part.
        let stride = weight.stride();
        let mut columns = None;
        let taps = conv.kernel * conv.kernel;
        // A doubled image is addressed at its doubled size.
        let halvings = usize::from(matches!(input, Input::Doubled(_)));
        let halo @ [above, below] = input.halo().map(|rows| rows << halvings);
        for rows in pieces(product.m, 2 * stride) {
            let columns = match &columns {
                Some(columns) => columns,
                // The first piece is the longest.
                None => columns.insert(Buffer::new(self.device(), self.element().kind(), rows.len() * stride)?),
            };
            let seen = rows_seen(conv, halo, &rows);
            let part = input.show(seen.start >> halvings..seen.end.div_ceil(1 << halvings))?;
            let (x, wide) = (&part.pixels, all_aligned(&[&part.pixels]));
            let launch = self.launch("conv2d", if wide { "im2col" } else { "im2col_any" })?;
            let launch =
                launch.matrix(x).address(columns.address()).long(stride).int(rows.start).int(rows.len()).int(x.cols());
            let launch = launch
                .int(above + conv.height + below)
                .int(conv.width)
                .int(conv.kernel)
                .int(conv.stride)
                .int(conv.pad_before)
                .int(conv.out_width());
            let launch = launch.int(above).int(part.first).int(halvings);
            // The wide kernel has a block for each tap, the other iterates over the columns of all taps.
            let (runs, blocks) = if wide { (x.cols() / 8, taps) } else { (stride / 8, 1) };
            let (grid, block) = row_tiles(rows.len(), runs);
            // SAFETY: argument types and order match cuda/conv2d.cu. The ops checked x to have height * width rows and
            // those of its halo, or as many before it is doubled. The kernel reads only inside the image and its halo,
            // and only the rows that `rows_seen` returned, which `part` has; it writes as many rows of `stride` values
            // as the piece has, for which `columns` has room; a weight's stride is a multiple of eight. The previous
            // GEMM, which read `columns`, comes before it on the stream.
            unsafe { launch.run([grid[0] * blocks, 1, 1], block) }?;
            let x = Matrix { address: columns.address(), stride };
            let piece = Product { k: stride, x, ..output.open_product(product, rows)? };
            // SAFETY: `columns` has the piece's rows of `stride` values, as the padded weight; the rest is the op's.
            unsafe { self.gemm()?.run(&piece) }?;
            output.close()?;
        }
        Ok(())
    }
}

/// Returns `true` if, of two dense matrices at one address with rows of n and of k values, `rows` of the first end
/// before `rows` of the second begin.
fn lies_before(rows: &Range<usize>, k: usize, n: usize) -> bool {
    rows.end * n <= rows.start * k
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_and_are_of_one_size() {
        for (rows, row_bytes) in [(0, 8), (1, 8), (1 << 20, 2304), (254_500, 4608), (1 << 24, 4608), (5, 1 << 30)] {
            let pieces: Vec<_> = pieces(rows, row_bytes).collect();
            assert!(
                pieces.iter().all(|piece| piece.len() * row_bytes <= IM2COL_BYTES || piece.len() == 1),
                "{rows} x {row_bytes}"
            );
            assert_eq!(pieces.iter().map(ExactSizeIterator::len).sum::<usize>(), rows);
            assert!(
                pieces.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() >= pair[1].len()),
                "{rows} x {row_bytes}"
            );
        }
        assert_eq!(pieces_of_one_tap(1 << 20, 256, 128).len(), 1, "a shortcut at 1024 x 1024");
        assert_eq!(pieces_of_one_tap(1 << 24, 256, 128).len(), 16, "and at 4096 x 4096");
    }

    #[test]
    fn the_rows_seen_are_those_under_the_outputs() {
        // The rows that im2col of cuda/conv2d.cu reads.
        let read = |conv: Conv, [above, below]: [usize; 2], pixels: &Range<usize>| {
            let rows = pixels.clone().flat_map(|pixel| {
                let first = above + pixel / conv.out_width() * conv.stride;
                (0..conv.kernel)
                    .filter_map(move |ky| (first + ky).checked_sub(conv.pad_before))
                    .filter(move |&y| y < above + conv.height + below)
            });
            (rows.clone().min(), rows.max())
        };
        for conv in [
            Conv::same(9, 7, 3),
            Conv::same(1, 1, 3),
            Conv::same(6, 5, 1),
            Conv::halve(8, 6),
            Conv::halve(7, 9),
            Conv::same(5, 6, 5),
        ] {
            let all = conv.out_height() * conv.out_width();
            for start in 0..all {
                for end in start + 1..=all {
                    for halo in [[0, 0], [conv.pad_before, 0], [0, conv.pad_after], [conv.pad_before, conv.pad_after]] {
                        let seen = rows_seen(conv, halo, &(start..end));
                        assert_eq!(
                            read(conv, halo, &(start..end)),
                            (Some(seen.start), Some(seen.end - 1)),
                            "{conv:?} {halo:?} {start}..{end}"
                        );
                    }
                }
            }
        }
    }

    /// Simulates `conv2d_over` on numbers: a row of `k` equal numbers becomes a row of `n`.
    #[test]
    fn a_result_goes_over_what_was_read_only() {
        for (rows, k, n, piece) in [(100, 8, 4, 16), (100, 8, 8, 16), (33, 9, 1, 4), (64, 8, 7, 5), (7, 6, 3, 7)] {
            let mut memory: Vec<usize> = (0..rows * k).map(|cell| cell / k).collect();
            let (mut direct, mut aside) = (0, 0);
            for first in (0..rows).step_by(piece) {
                let rows = first..(first + piece).min(rows);
                if lies_before(&rows, k, n) {
                    direct += 1;
                    // A matrix multiplication writes its rows in any order.
                    rows.rev().for_each(|row| {
                        let value = memory[row * k];
                        memory[row * n..][..n].fill(value);
                    });
                } else {
                    aside += 1;
                    let made: Vec<usize> = rows.clone().flat_map(|row| vec![memory[row * k]; n]).collect();
                    memory[rows.start * n..][..made.len()].copy_from_slice(&made);
                }
            }
            assert!((0..rows * n).all(|cell| memory[cell] == cell / n), "{rows} {k} {n} {piece}");
            assert!(aside >= 1 && (k < 2 * n || aside == 1), "{rows} {k} {n}: {direct} and {aside}");
        }
    }
}
