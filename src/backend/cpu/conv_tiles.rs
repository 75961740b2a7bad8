//! Convolution of bfloat16 weights on a unit that multiplies bfloat16, by [`MultiplyWindows`]: as [`super::conv`], but
//! without writing out windows.
//!
//! A band of the image is rounded to bfloat16 once, with its padding: `[phase][32 channels][term][row][pixel]`. A phase
//! is the pixels that are multiples of the stride apart, so that adjacent windows read adjacent pixels in it. As in a
//! linear layer, activations become one rounded term with `--precision bf16` and three exact terms otherwise, see
//! [`super::tiles`].

use half::bf16;
use rayon::prelude::*;

use super::conv::Weight;
use super::tiles::{Bf16Unit, Line, Lines, MultiplyWindows, Offsets, Packed, Windows};
use super::{Rows, math};
use crate::files::TensorView;
use crate::ops::Conv;

/// Channels of a line.
const CHANNELS: usize = 32;
/// Bytes of a band. Memory does not grow with the image's height, and caches hold a band. It is 31 rows of an image of
/// 1024 x 1024 with 128 channels, so rounding two rows again for the next band costs little.
const BAND_BYTES: usize = 8 << 20;

/// The multiplication, and the size of a band; tests use others.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    multiply: MultiplyWindows,
    band_bytes: usize,
}

impl Unit {
    pub(super) fn new(unit: &Bf16Unit) -> Self {
        Self { multiply: unit.multiply_windows, band_bytes: BAND_BYTES }
    }
}

/// A pixel that each window reads, counted from its first in the padded image, and the taps of the kernel on it.
struct Seen {
    y: usize,
    x: usize,
    taps: Vec<usize>,
}

/// Returns one pixel for each tap.
fn seen(kernel: usize) -> Vec<Seen> {
    (0..kernel * kernel).map(|tap| Seen { y: tap / kernel, x: tap % kernel, taps: vec![tap] }).collect()
}

/// Returns the pixels of the small image that output pixels in rows and columns of these parities read, through 3 x 3
/// taps on the large image.
fn seen_doubled(row_parity: usize, column_parity: usize) -> Vec<Seen> {
    // The large image's row 2 y + parity + tap - 1 is the small one's row y + pixel - 1.
    let pixel = |parity: usize, tap: usize| (parity + tap).div_ceil(2);
    let all = (row_parity..=row_parity + 1).flat_map(|y| (column_parity..=column_parity + 1).map(move |x| (y, x)));
    let taps =
        |y, x| (0..9).filter(|tap| (pixel(row_parity, tap / 3), pixel(column_parity, tap % 3)) == (y, x)).collect();
    all.map(|(y, x)| Seen { y, x, taps: taps(y, x) }).collect()
}

/// Packs [out, in, k, k] -> [out, (32 channels, pixel, channel)], the sum of the taps for each pixel, rounded to
/// bfloat16 if there are several.
fn pack_weight(view: &TensorView, seen: &[Seen]) -> Packed {
    let &[cout, cin, kh, kw] = view.shape() else { panic!("expected a convolution weight with four axes") };
    let (values, taps) = (view.bytes().as_chunks().0, kh * kw);
    Packed::lasting(cout, cin.div_ceil(CHANNELS) * seen.len() * CHANNELS, |row, col, cells| {
        let (first, seen) = (col / CHANNELS / seen.len() * CHANNELS, &seen[col / CHANNELS % seen.len()]);
        let channels = &values[(row * cin + first) * taps..(row * cin + cin.min(first + CHANNELS)) * taps];
        for (cell, channel) in cells.iter_mut().zip(channels.chunks_exact(taps)) {
            *cell = seen.taps.iter().map(|&tap| bf16::from_le_bytes(channel[tap]).to_f32()).sum();
        }
    })
}

/// The operands of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// [height * width, in]
    pub x: Rows<'a>,
    /// [out, in, k, k]
    pub weight: &'a Weight,
    /// \[out\]
    pub bias: &'a [f32],
    /// The geometry of x.
    pub conv: Conv,
}

/// Computes the convolution -> out [out_height * out_width, out], dense; added to `out` if `add`.
pub(super) fn conv2d(
    unit: Unit,
    terms: usize,
    Operands { x, weight, bias, conv }: Operands<'_>,
    out: &mut [f32],
    add: bool,
) {
    let seen = seen(conv.kernel);
    let weight = weight.packed.get_or_init(|| pack_weight(&weight.view, &seen));
    Image::new(unit, conv, x.cols, terms).bands(x, |image, lines, y, height| {
        let width = conv.out_width();
        let windows = Windows { height, width, pitch: image.pitch, first: y * width, row_step: width, step: 1 };
        (unit.multiply)(lines, &image.offsets(&seen), weight, windows, out, bias, add);
    });
}

/// Computes the 3 x 3 convolution of x upsampled -> out [2 * height * 2 * width, out], dense.
///
/// An output reads four different pixels of the small image, so it takes four taps of summed weights instead of nine.
pub(super) fn upsample_conv2d(unit: Unit, Operands { x, weight, bias, conv }: Operands<'_>, out: &mut [f32]) {
    let width = conv.width;
    let seen = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(row, column)| seen_doubled(row, column));
    let weights = weight.packed_doubled.get_or_init(|| seen.each_ref().map(|seen| pack_weight(&weight.view, seen)));
    Image::new(unit, conv, x.cols, 1).bands(x, |image, lines, y, height| {
        for (parity, (seen, weight)) in seen.iter().zip(weights).enumerate() {
            let first = (2 * y + parity / 2) * 2 * width + parity % 2;
            let windows = Windows { height, width, pitch: image.pitch, first, row_step: 4 * width, step: 2 };
            (unit.multiply)(lines, &image.offsets(seen), weight, windows, out, bias, false);
        }
    });
}

/// The layout of bands of an image in [`Lines`].
struct Image {
    conv: Conv,
    /// Groups of 32 channels.
    steps: usize,
    channels: usize,
    terms: usize,
    /// Lines of a row of a plane.
    pitch: usize,
    /// Rows of windows of a band.
    band: usize,
    /// Rows of a plane: those of a band, those below it that its last windows read, and those that the last strip of
    /// windows reaches.
    rows: usize,
}

impl Image {
    fn new(unit: Unit, conv: Conv, channels: usize, terms: usize) -> Self {
        let steps = channels.div_ceil(CHANNELS);
        let pitch = (conv.pad_before + conv.width + conv.pad_after).div_ceil(conv.stride);
        let row_bytes = conv.stride * conv.stride * steps * terms * pitch * size_of::<[u16; CHANNELS]>();
        let bands = conv.out_height().div_ceil((unit.band_bytes / row_bytes).max(1));
        let band = conv.out_height().div_ceil(bands);
        let farthest = (conv.kernel - 1) / conv.stride;
        let lines = Windows::lines(band, conv.out_width(), pitch);
        let rows = (lines + farthest * pitch + farthest).div_ceil(pitch).max(band + farthest);
        Self { conv, steps, channels, terms, pitch, band, rows }
    }

    /// Rounds band by band, and calls `multiply(self, lines, first row of windows, rows of windows)` for each.
    fn bands(&self, x: Rows<'_>, mut multiply: impl FnMut(&Self, &Lines, usize, usize)) {
        let out_height = self.conv.out_height();
        let mut lines =
            Lines::new(self.conv.stride * self.conv.stride * self.steps * self.terms * self.rows * self.pitch);
        for y in (0..out_height).step_by(self.band) {
            self.round(x, y, &mut lines);
            multiply(self, &lines, y, self.band.min(out_height - y));
        }
    }

    /// Rounds the rows that the windows from row `first` on read to `lines`.
    fn round(&self, x: Rows<'_>, first: usize, lines: &mut Lines) {
        let Conv { height, width, stride, pad_before, .. } = self.conv;
        // All planes of a row are written before the next row, so that x is read in order.
        let mut rows: Vec<Vec<&mut [Line]>> = (0..self.rows).map(|_| Vec::new()).collect();
        lines.get_mut().chunks_exact_mut(self.pitch).enumerate().for_each(|(i, lines)| rows[i % self.rows].push(lines));
        rows.into_par_iter().enumerate().for_each(|(row, mut planes)| {
            // Zeros past the last channel.
            let (mut values, mut rounded) = (vec![0.0; self.steps * CHANNELS], vec![0; self.steps * CHANNELS]);
            for (phase, planes) in planes.chunks_exact_mut(self.steps * self.terms).enumerate() {
                let y = ((first + row) * stride + phase / stride).wrapping_sub(pad_before);
                for column in 0..self.pitch {
                    let x_column = (column * stride + phase % stride).wrapping_sub(pad_before);
                    if y >= height || x_column >= width {
                        planes.iter_mut().for_each(|lines| lines[column].fill(0));
                        continue;
                    }
                    values[..self.channels].copy_from_slice(x.row(y * width + x_column));
                    for term in 0..self.terms {
                        math::take_bf16(&mut values, &mut rounded);
                        let planes = planes.iter_mut().skip(term).step_by(self.terms);
                        planes.zip(rounded.as_chunks().0).for_each(|(lines, line)| lines[column] = *line);
                    }
                }
            }
        });
    }

    /// Returns the offsets of a window's lines, in the order of a weight that was packed for `seen`.
    fn offsets(&self, seen: &[Seen]) -> Offsets {
        let (stride, plane) = (self.conv.stride, self.rows * self.pitch);
        let mut offsets = Vec::with_capacity(self.steps * seen.len() * self.terms);
        for step in 0..self.steps {
            for &Seen { y, x, .. } in seen {
                let phase = y % stride * stride + x % stride;
                let first = (phase * self.steps + step) * self.terms;
                offsets
                    .extend((0..self.terms).map(|term| (first + term) * plane + y / stride * self.pitch + x / stride));
            }
        }
        Offsets::new(&offsets, self.terms)
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Memory;
    use safetensors::Dtype;
    use safetensors::tensor::TensorView as FileTensor;

    use super::super::tests::values;
    use super::super::{Cpu, Precision, conv, tiles};
    use super::*;
    use crate::files::Safetensors;

    const EMULATED: Unit = Unit { multiply: tiles::multiply_windows_emulated, band_bytes: BAND_BYTES };

    /// Returns the emulation and the units of this CPU, with a band for all of a small image and with bands of one row.
    fn units() -> Vec<Unit> {
        let own = tiles::BF16.iter().filter(|unit| (unit.is_available)()).map(Unit::new);
        let units = std::iter::once(EMULATED).chain(own);
        units.flat_map(|unit| [unit, Unit { band_bytes: 0, ..unit }]).collect()
    }

    /// Returns pseudo-random values of -1 to 1.
    fn noise(seed: u64, n: usize) -> Vec<f32> {
        values(seed, n).iter().map(|value| value / 2.0).collect()
    }

    fn weight(values: &[f32], cout: usize, cin: usize, kernel: usize) -> Weight {
        let bytes: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        let shape = [cout, cin, kernel, kernel];
        let file = tempfile::NamedTempFile::new().unwrap();
        let tensor = FileTensor::new(Dtype::BF16, shape.to_vec(), &bytes).unwrap();
        safetensors::serialize_to_file([("w", tensor)], None, file.path()).unwrap();
        Weight::new(Safetensors::open(file.path(), "").unwrap().tensor("w").unwrap())
    }

    fn rounded(values: &[f32]) -> Vec<f32> {
        values.iter().map(|&value| bf16::from_f32(value).to_f32()).collect()
    }

    /// Values between one row of the image and the next.
    const BESIDE: usize = 3;

    fn image(values: &[f32], pixels: usize, channels: usize) -> Rows<'_> {
        Rows { data: values, rows: pixels, cols: channels, stride: channels + BESIDE }
    }

    /// Returns the largest difference, relative to the root mean square of the expected values.
    fn worst(got: &[f32], expected: &[f32]) -> f64 {
        assert_eq!(got.len(), expected.len());
        let scale = (expected.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / expected.len() as f64).sqrt();
        got.iter().zip(expected).map(|(&got, &expected)| f64::from(got - expected).abs()).fold(0.0, f64::max) / scale
    }

    /// Bound for sums in another order; a wrong tap or channel gives an error of 1e-2 and more.
    const BOUND: f64 = 1e-5;

    #[test]
    fn convolutions_match_float32() {
        let same = Conv::same;
        let cases = [
            (same(1, 1, 1), 1, 1),
            (same(1, 1, 3), 33, 17),
            (same(5, 7, 3), 8, 3),
            (same(6, 40, 1), 70, 35),
            (same(9, 33, 3), 40, 65),
            (same(4, 100, 5), 32, 32),
            // Several blocks of pixels, of windows and of columns.
            (same(3, 130, 3), 64, 40),
            (same(40, 16, 3), 20, 10),
            (Conv::halve(8, 6), 33, 5),
            (Conv::halve(11, 70), 64, 20),
            (Conv { height: 9, width: 10, kernel: 3, stride: 3, pad_before: 2, pad_after: 1 }, 10, 40),
        ];
        for (conv, cin, cout) in cases {
            let (pixels, out_pixels) = (conv.height * conv.width, conv.out_height() * conv.out_width());
            let (x, bias) = (noise(1, pixels * (cin + BESIDE)), noise(2, cout));
            let weight = weight(&noise(3, cout * cin * conv.kernel * conv.kernel), cout, cin, conv.kernel);
            for (terms, seen) in [(1, rounded(&x)), (2, x.clone()), (3, x.clone())] {
                let bound = if terms == 2 { 1e-4 } else { BOUND };
                let mut expected = vec![0.0; out_pixels * cout];
                conv::conv2d(image(&seen, pixels, cin), &weight, &bias, conv, &mut expected);
                let residual = noise(4, expected.len());
                for unit in units() {
                    let mut got = vec![f32::NAN; expected.len()];
                    conv2d(
                        unit,
                        terms,
                        Operands { x: image(&x, pixels, cin), weight: &weight, bias: &bias, conv },
                        &mut got,
                        false,
                    );
                    let off = worst(&got, &expected);
                    assert!(off < bound, "{conv:?}, {cin} -> {cout}, {terms} terms: {off:e}");

                    got.copy_from_slice(&residual);
                    conv2d(
                        unit,
                        terms,
                        Operands { x: image(&x, pixels, cin), weight: &weight, bias: &bias, conv },
                        &mut got,
                        true,
                    );
                    got.iter_mut().zip(&residual).for_each(|(got, residual)| *got -= residual);
                    let off = worst(&got, &expected);
                    assert!(off < bound, "{conv:?}, {cin} -> {cout}, {terms} terms, added: {off:e}");
                }
            }
        }
    }

    #[test]
    fn bands_are_of_one_height_and_take_no_more_than_they_may() {
        // A row of it takes 1 MiB in three terms.
        let image = |band_bytes| Image::new(Unit { band_bytes, ..EMULATED }, Conv::same(19, 5000, 3), 30, 3);
        assert_eq!([0, 4 << 20, 8 << 20, 32 << 20].map(|bytes| image(bytes).band), [1, 4, 7, 19]);
    }

    /// Returns the definition: every pixel four times, then the convolution.
    fn upsampled(x: Rows<'_>, weight: &Weight, bias: &[f32], height: usize, width: usize) -> Vec<f32> {
        let large: Vec<f32> = (0..4 * height * width)
            .flat_map(|pixel| x.row(pixel / (2 * width) / 2 * width + pixel % (2 * width) / 2))
            .copied()
            .collect();
        let rows = Rows { data: &large, rows: 4 * height * width, cols: x.cols, stride: x.cols };
        let mut out = vec![0.0; 4 * height * width * bias.len()];
        conv::conv2d(rows, weight, bias, Conv::same(2 * height, 2 * width, 3), &mut out);
        out
    }

    #[test]
    fn upsampled_convolutions_match_float32() {
        for (height, width, cin, cout) in
            [(1, 1, 1, 1), (3, 5, 40, 33), (7, 33, 8, 3), (2, 64, 32, 70), (20, 9, 33, 16)]
        {
            let pixels = height * width;
            let (x, bias) = (rounded(&noise(1, pixels * (cin + BESIDE))), noise(2, cout));
            // Sums of multiples of 1 / 16 below 4 are bfloat16 numbers; other sums are rounded.
            let sixteenths: Vec<f32> =
                noise(3, 9 * cout * cin).iter().map(|value| (value * 16.0).round() / 16.0).collect();
            for (values, bound) in [(sixteenths, BOUND), (noise(4, 9 * cout * cin), 3e-2)] {
                let weight = weight(&values, cout, cin, 3);
                let expected = upsampled(image(&x, pixels, cin), &weight, &bias, height, width);
                for unit in units() {
                    let mut got = vec![f32::NAN; expected.len()];
                    let (x, conv) = (image(&x, pixels, cin), Conv::same(height, width, 3));
                    upsample_conv2d(unit, Operands { x, weight: &weight, bias: &bias, conv }, &mut got);
                    let off = worst(&got, &expected);
                    assert!(off < bound, "{height} x {width}, {cin} -> {cout}: {off:e}");
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_not_a_number_reaches_the_windows_that_see_it() {
        let (conv, cin, cout) = (Conv::same(6, 40, 3), 34, 2);
        let mut x = noise(1, 6 * 40 * (cin + BESIDE));
        let (y, column) = (2, 39);
        x[(y * 40 + column) * (cin + BESIDE) + 33] = f32::NAN;
        let weight = weight(&noise(2, 9 * cin * cout), cout, cin, 3);
        for (unit, terms) in units().into_iter().flat_map(|unit| [(unit, 1), (unit, 3)]) {
            let mut got = vec![0.0; 6 * 40 * cout];
            let operands = Operands { x: image(&x, 6 * 40, cin), weight: &weight, bias: &[0.0; 2], conv };
            conv2d(unit, terms, operands, &mut got, false);
            for (i, value) in got.iter().enumerate() {
                let (at_y, at_column) = (i / cout / 40, i / cout % 40);
                assert_eq!(
                    value.is_nan(),
                    at_y.abs_diff(y) <= 1 && at_column.abs_diff(column) <= 1,
                    "row {at_y}, column {at_column}"
                );
            }
        }
    }

    #[test]
    fn ops_in_bfloat16_are_those_in_float32_but_for_rounding() {
        let (height, width, cin, cout) = (9, 14, 40, 24);
        let (x, bias, residual) = (noise(1, height * width * cin), noise(2, cout), noise(3, height * width * cout));
        let view = weight(&noise(4, 9 * cin * cout), cout, cin, 3).view;
        let [exact, rounded] = [Precision::F32, Precision::Bf16].map(|precision| {
            let cpu = Cpu::new(precision);
            let upload = |values: &[f32], cols: usize| cpu.upload(values, values.len() / cols, cols).unwrap();
            let (weight, bias, conv) =
                (crate::nn::ConvKernel::load(&cpu, &view).unwrap(), upload(&bias, cout), Conv::same(height, width, 3));
            let x = || upload(&x, cin);
            let plain = x().conv2d(&weight, &bias, conv).unwrap();
            let added = x().conv2d_add(&weight, &bias, conv, upload(&residual, cout)).unwrap();
            let doubled = x().upsample_conv2d(&weight, &bias, height, width).unwrap();
            [plain, added, doubled].map(|out| cpu.download(&out.pixels).unwrap())
        });
        for (op, (exact, rounded)) in ["conv2d", "conv2d_add", "upsample_conv2d"].iter().zip(exact.iter().zip(&rounded))
        {
            let off = worst(rounded, exact);
            // Rounding of values and of sums of weights; a missing residual, bias or tap gives more than 0.05.
            assert!(off < 0.03, "{op}: {off:e}");
            assert_eq!(off > 1e-5, tiles::bf16().is_some(), "{op}: only bfloat16 must round: {off:e}");
        }
    }
}
