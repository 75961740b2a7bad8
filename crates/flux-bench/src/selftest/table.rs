//! The cases: every op of an image, at a real model's size with fewer rows, and at a ragged size.

use super::case::Visitor;
use super::images::{ConvKind, Convolution, ImageOp, OfImage};
use super::products::{Attended, Product, ProductKind, Projected};
use super::rows::{OfRows, Rotated, RowOp};
use flux::error::Result;
use flux::files::Format;
use flux::ops::{Conv, TokenLayout};

/// Rows at the real size.
const ROWS: usize = 256;
/// Columns of klein 4B.
const DIM: usize = 3072;

/// Passes every case to `visitor`.
///
/// Errors as the visitor does.
pub fn each(visitor: &mut impl Visitor) -> Result<()> {
    for op in RowOp::ALL.map(|(op, _)| op) {
        visitor.visit(&OfRows(op, [ROWS, DIM]))?;
        visitor.visit(&OfRows(op, [37, 77]))?;
    }
    for (layout, heads, head_dim) in [(TokenLayout::new(1, 64, ROWS - 64), 24, 128), (TokenLayout::new(2, 5, 8), 3, 24)]
    {
        visitor.visit(&Rotated { layout, heads, head_dim })?;
    }
    products(visitor)?;
    attention(visitor)?;
    images(visitor)
}

fn products(visitor: &mut impl Visitor) -> Result<()> {
    for kind in [ProductKind::Plain, ProductKind::Bias, ProductKind::Residual, ProductKind::LowRank] {
        for shape in [[ROWS, DIM, 1024], [129, 40, 24]] {
            visitor.visit(&Product { shape, format: Format::Bf16, kind })?;
        }
    }
    // Rows consist of whole blocks in every format.
    for (_, format) in Format::made() {
        visitor.visit(&Product { shape: [65, 512, 160], format, kind: ProductKind::Plain })?;
    }
    let real = TokenLayout::new(1, 64, ROWS - 64);
    visitor.visit(&Projected { layout: real, features: 512, dim: 512, mlp: 1024 })?;
    visitor.visit(&Projected { layout: TokenLayout::new(1, 7, 30), features: 72, dim: 256, mlp: 40 })
}

fn attention(visitor: &mut impl Visitor) -> Result<()> {
    for (tokens, heads, head_dim, causal) in [
        (1024, [4, 4], 128, None),
        (177, [2, 2], 128, None),
        (512, [8, 2], 128, Some(200)),
        (129, [4, 2], 64, Some(129)),
        (300, [1, 1], 512, None),
        (65, [2, 2], 24, None),
    ] {
        visitor.visit(&Attended { tokens, heads, head_dim, causal })?;
    }
    Ok(())
}

fn images(visitor: &mut impl Visitor) -> Result<()> {
    let plain = |conv, channels| Convolution { conv, channels, kind: ConvKind::Plain };
    visitor.visit(&plain(Conv::same(64, 64, 3), [128, 128]))?;
    visitor.visit(&plain(Conv::same(17, 13, 3), [24, 40]))?;
    visitor.visit(&plain(Conv::same(33, 21, 1), [64, 24]))?;
    visitor.visit(&plain(Conv::halve(34, 54), [40, 136]))?;
    visitor.visit(&plain(Conv::same(9, 7, 3), [5, 3]))?;
    for kind in [ConvKind::Residual, ConvKind::Normed, ConvKind::Upsampled] {
        for (conv, channels) in [(Conv::same(32, 32, 3), [128, 128]), (Conv::same(17, 13, 3), [24, 40])] {
            visitor.visit(&Convolution { conv, channels, kind })?;
        }
    }
    for op in ImageOp::ALL.map(|(op, _)| op) {
        visitor.visit(&OfImage(op, [64, 64, 128]))?;
        visitor.visit(&OfImage(op, [6, 10, 24]))?;
    }
    Ok(())
}
