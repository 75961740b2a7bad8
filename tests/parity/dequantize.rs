//! cuda/dequantize.cu against `dequantize_rows`, to the bit, and multiplications with weights in the formats of files.

use std::sync::Arc;

use flux::backend::cuda::Cuda;
use flux::backend::{Device, Memory, Storage};
use flux::files::{
    BlockScales, Bytes, Codebook, FileSlice, Format, Maxima, NestedMaxima, ScaleLayout, Scales, TensorView,
};
use flux::nn::Linear;
use half::bf16;

use crate::compare::{Shape, compare, values};

/// Formats whose blocks include their scales.
const BLOCKS: [Format; 12] = [
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4Nl,
    Format::Iq4Xs,
];

/// Returns bytes of all kinds.
fn bytes(seed: u64, count: usize) -> Arc<Bytes> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    Arc::new(Bytes::Embedded((0..count).map(|_| byte()).collect::<Vec<_>>().leak()))
}

fn floats(seed: u64, count: usize) -> Arc<Bytes> {
    Arc::new(Bytes::Computed(values(seed, count)))
}

fn slice(file: Arc<Bytes>) -> FileSlice {
    let range = 0..file.as_slice().len();
    FileSlice::new(file, range).unwrap()
}

fn view(format: Format, [rows, cols]: [usize; 2], scales: Scales) -> TensorView {
    let count = format.bytes(&[rows, cols]).expect("whole blocks");
    TensorView::new(bytes(rows as u64 + 7, count), 0..count, format, vec![rows, cols], scales).unwrap()
}

fn row_scales(rows: usize) -> Box<FileSlice> {
    Box::new(slice(floats(3, rows)))
}

fn block_scales([rows, cols]: [usize; 2], block: usize, layout: ScaleLayout, seed: u64) -> Scales {
    let blocks = cols / block;
    let count = match layout {
        ScaleLayout::Linear => rows * blocks,
        ScaleLayout::Swizzled => rows.next_multiple_of(128) * blocks.next_multiple_of(4),
    };
    let scales = BlockScales::new(slice(bytes(seed, count)), layout, [rows, blocks], 0.37).unwrap();
    Scales::Blocks(Box::new(scales))
}

fn codebook([rows, cols]: [usize; 2], block: usize, is_nested: bool) -> Scales {
    let blocks = (rows * cols).div_ceil(block);
    let maxima = if is_nested {
        let (codes, table) = (slice(bytes(5, blocks)), values(6, 256).into());
        Maxima::Nested(NestedMaxima {
            codes,
            table,
            block: 16,
            maxima: slice(floats(7, blocks.div_ceil(16))),
            offset: 0.3,
        })
    } else {
        Maxima::F32(slice(floats(8, blocks)))
    };
    let table = values(9, 16).try_into().unwrap();
    Scales::Codebook(Box::new(Codebook::new(table, block, maxima, rows * cols).unwrap()))
}

/// Returns a weight in each format, of about this size: columns are whole blocks.
fn weights([rows, cols]: [usize; 2]) -> Vec<TensorView> {
    let shape = |block: usize| [rows, cols.next_multiple_of(block)];
    let mut weights: Vec<_> = BLOCKS.map(|format| view(format, shape(format.block().values), Scales::None)).into();
    // Columns that fp8 multiplications do not take, so that e4m3 is dequantized.
    let bytewise = [rows, cols.next_multiple_of(16) + 8];
    for format in [Format::E4m3, Format::E5m2] {
        weights.push(view(format, bytewise, Scales::None));
        weights.push(view(format, bytewise, Scales::Tensor(0.7)));
        weights.push(view(format, bytewise, Scales::Rows(row_scales(rows))));
    }
    weights.push(view(Format::Int8, bytewise, Scales::Tensor(0.01)));
    weights.push(view(Format::Int8, bytewise, Scales::Rows(row_scales(rows))));
    weights.push(view(Format::Int8, bytewise, Scales::RowMaxima(row_scales(rows))));
    for group in [4, 16, 64, 256, 1024] {
        let shape = shape(usize::from(group).max(8));
        weights.push(view(Format::Int8Rotated { group }, shape, Scales::Rows(row_scales(rows))));
    }
    for (format, block) in [(Format::Nvfp4, 16), (Format::Nvfp4LowFirst, 16), (Format::Mxfp8, 32)] {
        for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled] {
            weights.push(view(format, shape(block), block_scales(shape(block), block, layout, 4)));
        }
    }
    for (block, is_nested) in [(64, false), (64, true), (48, false)] {
        weights.push(view(Format::Codebook4, shape(8), codebook(shape(8), block, is_nested)));
    }
    weights
}

fn load(cuda: &Cuda, parts: &[TensorView]) -> Linear<Cuda> {
    Linear::load(cuda, "weight", parts, Storage::Native).unwrap()
}

/// Returns the operands of multiplications: the values, rounded once.
fn rounded(parts: &[TensorView]) -> Vec<f32> {
    parts.iter().flat_map(TensorView::to_f32).map(|value| bf16::from_f32(value).to_f32()).collect()
}

/// Checks for equal bits, or NaN on both sides.
fn expect_equal(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs =
        |(got, expected): &(&f32, &f32)| got.to_bits() != expected.to_bits() && !(got.is_nan() && expected.is_nan());
    let different: Vec<_> = got.iter().zip(expected).enumerate().filter(|(_, pair)| differs(pair)).collect();
    assert!(different.is_empty(), "{what}: {} of {} differ, first {:?}", different.len(), got.len(), different[0]);
}

#[test]
fn every_format_is_dequantized_to_the_bit() {
    let Some(cuda) = crate::cuda() else { return };
    let sizes: &[[usize; 2]] =
        if crate::small() { &[[3, 32], [37, 520]] } else { &[[1, 16], [3, 32], [37, 520], [300, 3072]] };
    for &size in sizes {
        for weight in weights(size) {
            let what = format!("{} {:?}", weight.format(), weight.shape());
            let got = cuda.download(&cuda.dequantize(&load(&cuda, std::slice::from_ref(&weight))).unwrap()).unwrap();
            expect_equal(&what, &got, &rounded(&[weight]));
        }
    }
}

/// Rows of a fused tensor become a layer in another order, and a layer has parts of several formats.
#[test]
fn parts_of_other_rows_and_formats_lie_one_under_the_other() {
    let Some(cuda) = crate::cuda() else { return };
    for weight in weights([384, 512]) {
        let parts = [weight.row_range(128..384), weight.row_range(0..128)];
        let got = cuda.download(&cuda.dequantize(&load(&cuda, &parts)).unwrap()).unwrap();
        expect_equal(&format!("parts of {}", weight.format()), &got, &rounded(&parts));
    }
    let parts = [Format::Q4K, Format::Q6K, Format::Q8_0].map(|format| view(format, [11, 512], Scales::None));
    let got = cuda.download(&cuda.dequantize(&load(&cuda, &parts)).unwrap()).unwrap();
    expect_equal("parts of several formats", &got, &rounded(&parts));
}

/// Every multiplication reads the weight as if it were bf16 in memory.
#[test]
fn products_are_those_of_the_dequantized_weight() {
    let Some(cuda) = crate::cuda() else { return };
    let cols = 512;
    for format in [Format::Int8, Format::Nvfp4] {
        let scales = |rows| match format {
            Format::Int8 => Scales::Tensor(0.01),
            _ => {
                let (count, layout) = (rows * cols / 16, ScaleLayout::Linear);
                // 1.0 in e4m3.
                let scales = slice(Arc::new(Bytes::Embedded(vec![0x38; count].leak())));
                Scales::Blocks(Box::new(BlockScales::new(scales, layout, [rows, cols / 16], 0.1).unwrap()))
            }
        };
        for rows in [13, 256] {
            let weight = view(format, [rows, cols], scales(rows));
            let dense = crate::compare::Weight::new(&weight.to_f32(), &[rows, cols], safetensors::Dtype::BF16);
            let (stored, dense) = (load(&cuda, &[weight]), dense.linear(&cuda));
            let x = Shape::dense(70, cols).tensor(&cuda, 1);
            let residual = || Shape::dense(70, rows).tensor(&cuda, 2);
            let all = |weight: &Linear<Cuda>| {
                let rows = flux::Tensor::linear_rows(&[(&x, weight), (&x, weight)]).unwrap();
                [x.linear(weight, None).unwrap(), x.linear_add(weight, residual()).unwrap(), rows]
                    .map(|y| cuda.download(&y).unwrap())
            };
            assert!(all(&stored) == all(&dense), "{format} of {rows} rows");
        }
    }
}

/// If the GPU multiplies e4m3, a file's own values and scales are read unchanged.
#[test]
fn e4m3_of_a_file_is_multiplied_as_it_is() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    for scales in [Scales::None, Scales::Tensor(0.7), Scales::Rows(row_scales(96))] {
        let codes: Vec<u8> = bytes(1, 96 * 256).as_slice().iter().map(|byte| byte & 0xbf).collect();
        let file = Arc::new(Bytes::Embedded(codes.leak()));
        let weight = TensorView::new(file, 0..96 * 256, Format::E4m3, vec![96, 256], scales).unwrap();
        let linear = load(&cuda, std::slice::from_ref(&weight));
        assert!(cuda.dequantize(&linear).is_err(), "it stays e4m3");
        expect_equal("values", &cuda.weight_values(&linear).unwrap(), &weight.to_f32());
        let x = Shape::dense(40, 256).tensor(&cuda, 1);
        let dense = crate::compare::Weight::new(&weight.to_f32(), &[96, 256], safetensors::Dtype::F32);
        let expected = cuda.download(&x.linear(&dense.linear(&cuda), None).unwrap()).unwrap();
        let got = cuda.download(&x.linear(&linear, None).unwrap()).unwrap();
        // Activations are rounded to e4m3 row by row, whose roundings are sixteen of bf16, and add up at random: 45
        // are about four of their typical sums.
        compare("e4m3 of a file", &got, &expected, 45.0);
    }
}

/// Prints each kernel's bandwidth relative to a copy, for the log.
#[test]
fn dequantizing_reaches_the_bandwidth_of_a_copy() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let size = [27648, 3072];
    let time = |work: &dyn Fn()| {
        let timed = || {
            let from = cuda.event().unwrap();
            (0..10).for_each(|_| work());
            let to = cuda.event().unwrap();
            cuda.wait(&to).unwrap();
            cuda.elapsed(&from, &to).unwrap().as_secs_f64() / 10.0
        };
        (0..5).map(|_| timed()).fold(f64::MAX, f64::min)
    };
    let x = Shape::dense(size[0], size[1]).tensor(&cuda, 1);
    let copied = 4.0 * (size[0] * size[1]) as f64 / time(&|| drop(flux::Tensor::concat_rows(&[&x]).unwrap()));
    println!("copy: {:.0} GB/s", copied / 1e9);
    for weight in weights(size) {
        let linear = load(&cuda, std::slice::from_ref(&weight));
        let bytes = weight.bytes().len() + 2 * weight.elements();
        let rate = bytes as f64 / time(&|| drop(cuda.dequantize(&linear).unwrap()));
        println!(
            "{} {:?}: {:.0} GB/s, {:.0} % of a copy",
            weight.format(),
            weight.shape(),
            rate / 1e9,
            100.0 * rate / copied
        );
    }
}
