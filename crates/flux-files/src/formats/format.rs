//! Formats of tensor values in files: one table, with a row for each format.

use std::fmt;

use half::bf16;
use safetensors::Dtype;

use crate::formats::blocks::micro::FirstNibble;
use crate::formats::blocks::{self, codebook, floats, int8, iq4, k_quants, micro, small};
use crate::formats::e4m3::MULTIPLE;
use crate::formats::scales::{ScaleLayout, Scales};

/// Generates the enum [`Format`] and the functions that look up its rows. Each row of the table has the code that
/// decodes bytes and a [`Row`]. Decoders are called by name, so that they are inlined if the caller is compiled for a
/// vector unit.
macro_rules! formats {
    (
        ($bytes:ident, $scales:ident, $rows:ident, $cols:ident, $out:ident)
        $(
            $(#[$doc:meta])*
            $format:ident $({ $(#[$of_field:meta])* $field:ident: $type:ty = $usual:expr })? => $decode:expr, $row:expr;
        )*
    ) => {
        /// The format of a tensor's values in its own bytes. Other bytes that belong to a tensor, such as a tensor of
        /// scales, are in the [`Scales`](crate::Scales) of its view.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $format $({ $(#[$of_field])* $field: $type })?,)*
        }

        impl Format {
            /// All formats, in the order of the table.
            const ALL: &[Self] = &[$(Self::$format $({ $field: $usual })?),*];

            /// Returns the format's row of the table.
            pub fn row(self) -> Row {
                match self {
                    $(Self::$format $({ $field })? => $row,)*
                }
            }

            /// Decodes some bytes of whole rows to float32. This is the definition of each format.
            #[inline(always)]
            pub(crate) fn decode(
                self,
                $bytes: &[u8],
                $scales: &Scales,
                [$rows, $cols]: [usize; 2],
                $out: &mut [f32],
            ) {
                match self {
                    $(Self::$format $({ $field })? => $decode,)*
                }
            }
        }
    };
}

// Users see the names in the order of the rows.
formats! {
    (bytes, scales, rows, cols, out)

    /// bfloat16
    Bf16 => floats::bf16(bytes, out), Row {
        spellings: &["bfloat16"], nearest_of: &["fp16", "float16", "f16"], nearest_of_bits: &[16],
        max_magnitude: bf16::MAX.to_f32_const(),
        gguf: Some(Gguf { type_id: 30, file_type: 32 }),
        safetensors: Some(bare(Dtype::BF16)),
        ..row("bf16", [1, 2], Scales::is_none).made("bf16", Encode::Blocks(floats::to_bf16))
    };
    /// IEEE half precision
    F16 => floats::f16(bytes, out), Row {
        gguf: Some(Gguf { type_id: 1, file_type: 1 }),
        safetensors: Some(bare(Dtype::F16)),
        ..row("f16", [1, 2], Scales::is_none)
    };
    /// IEEE single precision
    F32 => floats::f32(bytes, out), Row {
        encode: Some(Encode::Blocks(floats::to_f32)),
        gguf: Some(Gguf { type_id: 0, file_type: 0 }),
        safetensors: Some(bare(Dtype::F32)),
        ..row("f32", [1, 4], Scales::is_none)
    };
    /// A matrix of e4m3 values with a float32 scale for each row, as
    /// [`quantize_row`](crate::formats::e4m3::quantize_row) makes them. Rows are padded with zeros to a multiple of
    /// [`MULTIPLE`], and the scales are a separate tensor.
    E4m3Rows => floats::e4m3(bytes, bytes.len() / rows, scales, cols, out),
        row("fp8 (e4m3)", [MULTIPLE, MULTIPLE], |it| matches!(it, Scales::Rows(_)));
    /// Floats with 4 bits of exponent and 3 of mantissa, without infinities; no scale, one, or one for each row.
    E4m3 => floats::e4m3(bytes, cols, scales, cols, out), Row {
        spellings: &[
            "f8", "float8", "f8e4m3", "f8e4m3fn", "fp8e4m3", "fp8e4m3fn", "float8e4m3", "float8e4m3fn", "e4m3",
            "e4m3fn", "fp8scaled",
        ],
        nearest_of: &["fp8e5m2", "float8e5m2"],
        kernel: Some(Kernel::Rows("dequantize_e4m3")),
        safetensors: Some(Layout { layer: Some("float8_e4m3fn"), in_header: true, ..bare(Dtype::F8_E4M3) }),
        ..row("fp8 (e4m3)", [1, 1], |it| matches!(it, Scales::None | Scales::Tensor(_) | Scales::Rows(_)))
            .made("fp8", Encode::Tensor(floats::e4m3_scale, floats::to_e4m3))
    };
    /// [`Format::E4m3`] with a float32 scale for each tile of rows and columns.
    E4m3Tiles => floats::e4m3_tiles(bytes, scales.tiles(), cols, out),
        row("fp8 (e4m3)", [1, 1], |it| matches!(it, Scales::Tiles(_)));
    /// Floats with 5 bits of exponent and 2 of mantissa; scales as in [`Format::E4m3`].
    E5m2 => floats::e5m2(bytes, scales, cols, out), Row {
        kernel: Some(Kernel::Rows("dequantize_e5m2")),
        safetensors: Some(Layout { layer: Some("float8_e5m2"), ..bare(Dtype::F8_E5M2) }),
        ..row("fp8 (e5m2)", [1, 1], |it| matches!(it, Scales::None | Scales::Tensor(_) | Scales::Rows(_)))
    };
    /// Signed 8-bit integers with one scale, or one for each row.
    Int8 => int8::int8(bytes, scales, cols, out), Row {
        spellings: &["i8", "int8tensorwise"],
        kernel: Some(Kernel::Rows("dequantize_int8")),
        safetensors: Some(layer("int8_tensorwise", Dtype::I8, None)),
        ..row("int8", [1, 1], |it| matches!(it, Scales::Tensor(_) | Scales::Rows(_) | Scales::RowMaxima(_)))
            .made("int8", Encode::Rows(int8::to_int8))
    };
    /// [`Format::Int8`] with groups of columns that were multiplied by a Hadamard matrix.
    Int8Rotated {
        /// The columns of a group: a power of 4.
        group: u16 = 256
    } => int8::int8_rotated(bytes, scales, cols, usize::from(group), out), Row {
        kernel: Some(Kernel::Rotated { in_warp: "dequantize_int8_rotated", wide: "dequantize_int8_rotated_wide" }),
        ..row("int8 (convrot)", [usize::from(group); 2], |it| matches!(it, Scales::Tensor(_) | Scales::Rows(_)))
    };
    /// e4m3 with a power of two as the scale of each 32 values.
    Mxfp8 => micro::mxfp8(bytes, scales.block_scales(), out), Row {
        kernel: Some(Kernel::BlockScales("dequantize_mxfp8", None)),
        safetensors: Some(layer("mxfp8", Dtype::F8_E4M3, Some(SCALES_OF_POWERS))),
        ..row("mxfp8", [32, 32], |it| matches!(it, Scales::Blocks(_)))
            .made("mxfp8", Encode::BlockScales(None, micro::to_mxfp8))
    };
    /// e2m1, two values in each byte, the first in the high half; an e4m3 scale for each 16 values and a float32 factor
    /// for all.
    Nvfp4 => micro::nvfp4(bytes, scales.block_scales(), FirstNibble::High, out), Row {
        nearest_of: &["mxfp4", "fp4", "nf4"],
        kernel: Some(Kernel::BlockScales("dequantize_nvfp4", Some(FirstNibble::High))),
        safetensors: Some(Layout { in_header: true, ..layer("nvfp4", Dtype::U8, Some(E4M3_SCALES)) }),
        ..row("nvfp4", [16, 8], |it| matches!(it, Scales::Blocks(_)))
            .made("nvfp4", Encode::BlockScales(Some(micro::nvfp4_scale), micro::to_nvfp4))
    };
    /// [`Format::Nvfp4`] with the first value in the low half.
    Nvfp4LowFirst => micro::nvfp4(bytes, scales.block_scales(), FirstNibble::Low, out), Row {
        kernel: Some(Kernel::BlockScales("dequantize_nvfp4", Some(FirstNibble::Low))),
        safetensors: Some(Layout {
            layer: None,
            file: Some("nvfp4"),
            ..layer("nvfp4", Dtype::U8, Some(BlockLayout { order: ScaleLayout::Linear, ..E4M3_SCALES }))
        }),
        ..row("nvfp4", [16, 8], |it| matches!(it, Scales::Blocks(_)))
    };
    /// Indices into a table of 16 values, two in each byte, the first in the high half; a largest magnitude for each
    /// block of the flattened tensor.
    Codebook4 => codebook::codebook4(bytes, scales.codebook(), out), Row {
        kernel: Some(Kernel::Codebook("dequantize_codebook4")),
        ..row("bitsandbytes 4-bit", [2, 1], |it| matches!(it, Scales::Codebook(_)))
    };
    /// GGUF: 8 bits and a scale for each 32 values.
    Q8_0 => small::q8_0(bytes, out), Row {
        spellings: &["q8"], nearest_of: &["q8k", "q81"], nearest_of_bits: &[8],
        ..gguf("Q8_0", [32, 34], [8, 7], "dequantize_q8_0").made("q8_0", Encode::Blocks(small::to_q8_0))
    };
    /// GGUF: 6 bits in blocks of 256 values, with a scale for each 16 values.
    Q6K => k_quants::q6_k(bytes, out), Row {
        nearest_of: &["q6"], nearest_of_bits: &[6], smaller_blocks: Some(Format::Q8_0),
        ..gguf("Q6_K", [256, 210], [14, 18], "dequantize_q6_k").made("q6_k", Encode::Blocks(k_quants::to_q6_k))
    };
    /// GGUF: 5 bits in blocks of 256 values, with a scale and a minimum for each 32 values.
    Q5K => k_quants::q5_k(bytes, out), Row {
        nearest_of: &["q5"], nearest_of_bits: &[5], smaller_blocks: Some(Format::Q5_1),
        ..gguf("Q5_K", [256, 176], [13, 16], "dequantize_q5_k").made("q5_k", Encode::Blocks(k_quants::to_q5_k))
    };
    /// GGUF: 5 bits, a scale and a minimum for each 32 values.
    Q5_1 => small::q5_1(bytes, out),
        gguf("Q5_1", [32, 24], [7, 9], "dequantize_q5_1").made("q5_1", Encode::Blocks(small::to_q5_1));
    /// GGUF: 5 bits and a scale for each 32 values.
    Q5_0 => small::q5_0(bytes, out),
        gguf("Q5_0", [32, 22], [6, 8], "dequantize_q5_0").made("q5_0", Encode::Blocks(small::to_q5_0));
    /// GGUF: 4 bits in blocks of 256 values, with a scale and a minimum for each 32 values.
    Q4K => k_quants::q4_k(bytes, out), Row {
        nearest_of: &["iq", "tq", "q2", "q3", "q4", "int4"],
        nearest_of_bits: &[2, 3, 4],
        smaller_blocks: Some(Format::Q5_0),
        ..gguf("Q4_K", [256, 144], [12, 14], "dequantize_q4_k").made("q4_k", Encode::Blocks(k_quants::to_q4_k))
    };
    /// GGUF: 4 bits, a scale and a minimum for each 32 values.
    Q4_1 => small::q4_1(bytes, out),
        gguf("Q4_1", [32, 20], [3, 3], "dequantize_q4_1").made("q4_1", Encode::Blocks(small::to_q4_1));
    /// GGUF: 4 bits and a scale for each 32 values.
    Q4_0 => small::q4_0(bytes, out),
        gguf("Q4_0", [32, 18], [2, 2], "dequantize_q4_0").made("q4_0", Encode::Blocks(small::to_q4_0));
    /// GGUF: 3 bits in blocks of 256 values, with a scale for each 16 values.
    Q3K => k_quants::q3_k(bytes, out), gguf("Q3_K", [256, 110], [11, 12], "dequantize_q3_k");
    /// GGUF: 2 bits in blocks of 256 values, with a scale and a minimum for each 16 values.
    Q2K => k_quants::q2_k(bytes, out), gguf("Q2_K", [256, 84], [10, 10], "dequantize_q2_k");
    /// GGUF: 4-bit indices into a fixed table, in blocks of 256 values, with a scale for each 32 values.
    Iq4Xs => iq4::iq4_xs(bytes, out), gguf("IQ4_XS", [256, 136], [23, 30], "dequantize_iq4_xs");
    /// GGUF: 4-bit indices into a fixed table, and a scale for each 32 values.
    Iq4Nl => iq4::iq4_nl(bytes, out), gguf("IQ4_NL", [32, 18], [20, 25], "dequantize_iq4_nl");
}

/// The properties of a format, besides its decoder.
#[derive(Clone, Copy)]
pub struct Row {
    /// The name in messages.
    title: &'static str,
    block: Block,
    /// A predicate: `true` if tensors of this format may have these scales.
    pub has: fn(&Scales) -> bool,
    /// The name for users, if weights can be quantized to the format.
    pub name: Option<&'static str>,
    /// Other spellings of the name, in lower case and without separators.
    pub spellings: &'static [&'static str],
    /// Beginnings of names of other programs' formats to which this format is nearest.
    pub nearest_of: &'static [&'static str],
    /// The numbers of bits for which this format is nearest.
    pub nearest_of_bits: &'static [u32],
    /// The encoder of the format.
    pub encode: Option<Encode>,
    /// The largest magnitude that the format holds.
    pub max_magnitude: f32,
    /// The format that replaces it if rows are not whole blocks: the next larger one.
    pub smaller_blocks: Option<Format>,
    /// The GPU kernel that converts to 16-bit weights. Without one, the host converts them.
    pub kernel: Option<Kernel>,
    /// The format's numbers in GGUF.
    pub gguf: Option<Gguf>,
    /// The layout in safetensors: a layer is a tensor of values, and others next to it.
    pub safetensors: Option<Layout>,
}

/// An encoder, by the scales that it needs.
#[derive(Clone, Copy)]
pub enum Encode {
    /// Values or blocks that need no separate scales.
    Blocks(fn(&[f32], &mut [u8])),
    /// Values with one scale for all, computed from the largest magnitude.
    Tensor(fn(f32) -> f32, fn(&[f32], f32, &mut [u8])),
    /// Rows, each with the scale that is returned.
    Rows(fn(&[f32], &mut [u8]) -> f32),
    /// Blocks with scales of one byte. If the first function is there, it computes a factor of all scales from the
    /// largest magnitude.
    BlockScales(Option<fn(f32) -> f32>, fn(&[f32], f32, &mut [u8], &mut [u8])),
}

/// A kernel of cuda/dequantize.cu, by its input.
#[derive(Clone, Copy)]
pub enum Kernel {
    /// Blocks that hold their scales.
    Blocks(&'static str),
    /// A scale for each row.
    Rows(&'static str),
    /// A scale for each row, and groups of columns that were multiplied by a matrix.
    Rotated {
        /// The kernel for groups that a warp holds.
        in_warp: &'static str,
        /// The kernel for wider groups.
        wide: &'static str,
    },
    /// A scale for each block of columns. With two values in a byte, also their order, and a factor of all scales.
    BlockScales(&'static str, Option<FirstNibble>),
    /// Codes, with a table of values and with largest magnitudes.
    Codebook(&'static str),
}

/// The numbers of a format in GGUF.
#[derive(Clone, Copy)]
pub struct Gguf {
    /// The type of a tensor.
    pub type_id: u32,
    /// The type of a file whose weights are mostly in the format, as llama.cpp numbers types of files.
    pub file_type: u32,
}

/// The layout of a layer in a safetensors file, for one format.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The dtype of the values, or of the bytes if a byte holds several values.
    pub dtype: Dtype,
    /// `true` if the dtype alone identifies the format.
    pub is_bare: bool,
    /// The name in metadata that declares the format of each layer.
    pub layer: Option<&'static str>,
    /// The name in metadata that declares one format for all layers.
    pub file: Option<&'static str>,
    /// `true` if transformers declare it in the header, as Black Forest Labs publish them, and not next to each layer.
    pub in_header: bool,
    /// The layout of block scales.
    pub block_scales: Option<BlockLayout>,
}

/// The layout of block scales in a safetensors file.
#[derive(Clone, Copy)]
pub struct BlockLayout {
    /// The dtype that is written, then others that are read.
    pub dtypes: &'static [Dtype],
    /// The order of the scales.
    pub order: ScaleLayout,
    /// `true` if a factor of all scales is stored next to them.
    pub has_factor: bool,
}

/// e4m3 scales with a factor, in the order of tensor cores.
const E4M3_SCALES: BlockLayout =
    BlockLayout { dtypes: &[Dtype::F8_E4M3, Dtype::U8], order: ScaleLayout::Swizzled, has_factor: true };

/// Scales that are powers of two, in the order of tensor cores.
const SCALES_OF_POWERS: BlockLayout =
    BlockLayout { dtypes: &[Dtype::U8, Dtype::F8_E8M0], order: ScaleLayout::Swizzled, has_factor: false };

impl Row {
    /// Returns the row with the name and the encoder of a format that weights can be quantized to.
    fn made(self, name: &'static str, encode: Encode) -> Self {
        Self { name: Some(name), encode: Some(encode), ..self }
    }
}

/// Creates a row with the properties that every format has.
fn row(title: &'static str, [values, bytes]: [usize; 2], has: fn(&Scales) -> bool) -> Row {
    Row {
        title,
        block: Block { values, bytes },
        has,
        name: None,
        spellings: &[],
        nearest_of: &[],
        nearest_of_bits: &[],
        encode: None,
        max_magnitude: f32::MAX,
        smaller_blocks: None,
        kernel: None,
        gguf: None,
        safetensors: None,
    }
}

/// Creates a row for blocks of GGUF, which hold their scales.
fn gguf(title: &'static str, block: [usize; 2], [type_id, file_type]: [u32; 2], kernel: &'static str) -> Row {
    let numbers = Some(Gguf { type_id, file_type });
    let kernel = Some(Kernel::Blocks(kernel));
    Row { max_magnitude: blocks::MAX, kernel, gguf: numbers, ..row(title, block, Scales::is_none) }
}

/// Creates the layout of a format that the dtype identifies.
fn bare(dtype: Dtype) -> Layout {
    Layout { dtype, is_bare: true, layer: None, file: None, in_header: false, block_scales: None }
}

/// Creates the layout of a format that metadata declares for each layer.
fn layer(name: &'static str, dtype: Dtype, block_scales: Option<BlockLayout>) -> Layout {
    Layout { is_bare: false, layer: Some(name), block_scales, ..bare(dtype) }
}

/// The smallest part of a row that has whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The number of values in a block.
    pub values: usize,
    /// The bytes of a block.
    pub bytes: usize,
}

impl Format {
    /// Finds the first format whose row `is_sought`.
    pub fn find(is_sought: impl Fn(&Row) -> bool) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| is_sought(&format.row()))
    }

    /// Finds the first format whose layout in safetensors `is_sought`.
    pub(crate) fn find_layout(is_sought: impl Fn(&Layout) -> bool) -> Option<Self> {
        Self::find(|row| row.safetensors.as_ref().is_some_and(&is_sought))
    }

    /// Returns the formats that weights can be quantized to, by their names.
    pub fn made() -> impl Iterator<Item = (&'static str, Self)> {
        Self::ALL.iter().filter_map(|format| Some((format.name()?, *format)))
    }

    /// Returns the name for users, if weights can be quantized to the format.
    pub fn name(self) -> Option<&'static str> {
        self.row().name
    }

    /// Returns `true` if GGUF files may have the format.
    pub fn is_in_gguf(self) -> bool {
        self.row().gguf.is_some()
    }

    /// Returns `true` if safetensors files may have the format.
    pub fn is_in_safetensors(self) -> bool {
        self.row().safetensors.is_some()
    }

    /// Returns `true` if the values are plain floats of 16 or 32 bits.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32)
    }

    /// Returns the smallest part of a row that has whole bytes.
    pub fn block(self) -> Block {
        self.row().block
    }

    /// Returns the bytes of `values` consecutive values in a row; `None` on overflow, or if they are not whole blocks.
    /// Only rows of [`Format::E4m3Rows`] are padded.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let block = self.block();
        if self != Self::E4m3Rows && !values.is_multiple_of(block.values) {
            return None;
        }
        values.div_ceil(block.values).checked_mul(block.bytes)
    }

    /// Returns the bytes of a tensor without its scales; `None` on overflow, or if the format has no tensors of this
    /// shape.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        // The number of values is checked too, because callers compute with it.
        let product = |axes: &[usize]| axes.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis));
        let (rows, cols) = match shape {
            [] => (1, 1),
            // A vector is one run of values.
            [len] if self != Self::E4m3Rows => (1, *len),
            [rows, cols @ ..] => (*rows, product(cols)?),
        };
        if self == Self::E4m3Rows && shape.len() != 2 {
            return None;
        }
        rows.checked_mul(cols)?;
        rows.checked_mul(self.row_bytes(cols)?)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_whole_blocks() {
        assert_eq!([0, 1, 3].map(|cols| Format::Bf16.row_bytes(cols)), [Some(0), Some(2), Some(6)]);
        assert_eq!([0, 1, 16, 17].map(|cols| Format::E4m3Rows.row_bytes(cols)), [0, 16, 16, 32].map(Some));
        assert_eq!(Format::F32.bytes(&[]), Some(4), "a scalar");
        assert_eq!((Format::F16.bytes(&[2, 3, 4]), Format::E4m3Rows.bytes(&[5, 20])), (Some(48), Some(160)));
        assert_eq!(["", "1", "123"].map(|axes| Format::E4m3Rows.bytes(&vec![2; axes.len()])), [None; 3], "not 2-D");
        assert_eq!([31, 32, 64].map(|cols| Format::Q8_0.bytes(&[2, cols])), [None, Some(68), Some(136)]);
        assert_eq!(Format::Q4K.bytes(&[512]), Some(288), "a vector");
        assert_eq!((Format::Q4_0.bytes(&[]), Format::Codebook4.bytes(&[3, 5])), (None, None));
        assert_eq!(Format::Int8Rotated { group: 64 }.bytes(&[2, 128]), Some(256));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        const LARGE: usize = 1 << (usize::BITS - 1);
        assert_eq!([Format::Bf16, Format::F32].map(|format| format.row_bytes(LARGE)), [None; 2]);
        assert_eq!(Format::E4m3Rows.row_bytes(usize::MAX), None);
        for shape in [&[LARGE, 2][..], &[2, LARGE], &[1, LARGE, 4], &[0, LARGE, 2], &[LARGE, 1]] {
            assert_eq!(Format::Bf16.bytes(shape), None, "{shape:?}");
        }
        assert_eq!(Format::Codebook4.bytes(&[LARGE, 2]), None);
    }
}
