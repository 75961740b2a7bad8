//! The cases: every op of an image, at a real model's size with fewer rows, and at a ragged size.

use super::Test;
use super::images::{ConvKind, Convolution, ImageOp, OfImage};
use super::products::{Attended, Product, ProductKind, Projected};
use super::rows::{OfRows, Rotated, RowOp};
use flux::backend::Backend;
use flux::error::Result;
use flux::files::Format;
use flux::ops::{Conv, TokenLayout};

/// Rows at the real size.
const ROWS: usize = 256;
/// Columns of klein 4B.
const DIM: usize = 3072;

/// Tests every case.
///
/// Errors when a finding cannot be reported.
pub fn each<B: Backend, R: Backend>(test: &mut Test<'_, B, R>) -> Result<()> {
    for op in RowOp::ALL.map(|(op, _)| op) {
        test.case(&OfRows(op, [ROWS, DIM]))?;
        test.case(&OfRows(op, [37, 77]))?;
    }
    for (layout, heads, head_dim) in [(TokenLayout::new(1, 64, ROWS - 64), 24, 128), (TokenLayout::new(2, 5, 8), 3, 24)]
    {
        test.case(&Rotated { layout, heads, head_dim })?;
    }
    products(test)?;
    attention(test)?;
    images(test)
}

fn products<B: Backend, R: Backend>(test: &mut Test<'_, B, R>) -> Result<()> {
    for kind in [ProductKind::Plain, ProductKind::Bias, ProductKind::Residual, ProductKind::LowRank] {
        for shape in [[ROWS, DIM, 1024], [129, 40, 24]] {
            test.case(&Product { shape, format: Format::Bf16, kind })?;
        }
    }
    // Rows consist of whole blocks in every format.
    for (_, format) in Format::made() {
        test.case(&Product { shape: [65, 512, 160], format, kind: ProductKind::Plain })?;
    }
    let real = TokenLayout::new(1, 64, ROWS - 64);
    test.case(&Projected { layout: real, features: 512, dim: 512, mlp: 1024 })?;
    test.case(&Projected { layout: TokenLayout::new(1, 7, 30), features: 72, dim: 256, mlp: 40 })
}

fn attention<B: Backend, R: Backend>(test: &mut Test<'_, B, R>) -> Result<()> {
    for (tokens, heads, head_dim, causal) in [
        (1024, [4, 4], 128, None),
        (177, [2, 2], 128, None),
        (512, [8, 2], 128, Some(200)),
        (129, [4, 2], 64, Some(129)),
        (300, [1, 1], 512, None),
        (65, [2, 2], 24, None),
    ] {
        test.case(&Attended { tokens, heads, head_dim, causal })?;
    }
    Ok(())
}

fn images<B: Backend, R: Backend>(test: &mut Test<'_, B, R>) -> Result<()> {
    let plain = |conv, channels| Convolution { conv, channels, kind: ConvKind::Plain };
    test.case(&plain(Conv::same(64, 64, 3), [128, 128]))?;
    test.case(&plain(Conv::same(17, 13, 3), [24, 40]))?;
    test.case(&plain(Conv::same(33, 21, 1), [64, 24]))?;
    test.case(&plain(Conv::halve(34, 54), [40, 136]))?;
    test.case(&plain(Conv::same(9, 7, 3), [5, 3]))?;
    for kind in [ConvKind::Residual, ConvKind::Normed, ConvKind::Upsampled] {
        for (conv, channels) in [(Conv::same(32, 32, 3), [128, 128]), (Conv::same(17, 13, 3), [24, 40])] {
            test.case(&Convolution { conv, channels, kind })?;
        }
    }
    for op in ImageOp::ALL.map(|(op, _)| op) {
        test.case(&OfImage(op, [64, 64, 128]))?;
        test.case(&OfImage(op, [6, 10, 24]))?;
    }
    Ok(())
}
