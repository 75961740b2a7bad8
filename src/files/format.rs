//! How the values of a tensor lie in a file, and what they are: one table, with a row for each format.

use std::fmt;

use half::bf16;
use safetensors::Dtype;

use super::blocks::micro::FirstNibble;
use super::blocks::{self, codebook, floats, int8, iq4, k_quants, micro, small};
use super::e4m3::MULTIPLE;
use super::scales::{ScaleLayout, Scales};

/// Makes of a table of formats, whose rows say how bytes are decoded and what the [`Row`] is, the enum and what finds
/// a row. Decoders are called by name, so that they are inlined where the caller is compiled for a vector unit.
macro_rules! formats {
    (
        ($bytes:ident, $scales:ident, $rows:ident, $cols:ident, $out:ident)
        $(
            $(#[$doc:meta])*
            $format:ident $({ $(#[$of_field:meta])* $field:ident: $type:ty = $usual:expr })? => $decode:expr, $row:expr;
        )*
    ) => {
        /// How the values of a tensor lie in its own bytes. What else belongs to it, such as a tensor of scales, is in
        /// the [`Scales`](super::Scales) of its view.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $format $({ $(#[$of_field])* $field: $type })?,)*
        }

        impl Format {
            /// All of them, in the order of the table.
            const ALL: &[Self] = &[$(Self::$format $({ $field: $usual })?),*];

            /// What is said of the format.
            pub(crate) fn row(self) -> Row {
                match self {
                    $(Self::$format $({ $field })? => $row,)*
                }
            }

            /// Writes what some bytes of whole rows stand for, in float32. This is the definition of each format.
            #[inline(always)]
            pub(super) fn decode(
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

// Users are shown the names in the order of the rows.
formats! {
    (bytes, scales, rows, cols, out)

    /// bfloat16
    Bf16 => floats::bf16(bytes, out), Row {
        spellings: &["bfloat16"], nearest_of: &["fp16", "float16", "f16"], nearest_of_bits: &[16],
        most: bf16::MAX.to_f32_const(),
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
    /// A matrix of e4m3 values with a float32 scale for each row, as [`quantise_row`](super::e4m3::quantise_row) makes
    /// them. Rows are padded with zeros to a multiple of [`MULTIPLE`], and the scales are a tensor of their own.
    E4m3Rows => floats::e4m3(bytes, bytes.len() / rows, scales, cols, out),
        row("fp8 (e4m3)", [MULTIPLE, MULTIPLE], |it| matches!(it, Scales::Rows(_)));
    /// Floats of 4 bits of exponent and 3 of mantissa, without infinities; no scale, one, or one a row.
    E4m3 => floats::e4m3(bytes, cols, scales, cols, out), Row {
        spellings: &[
            "f8", "float8", "f8e4m3", "f8e4m3fn", "fp8e4m3", "fp8e4m3fn", "float8e4m3", "float8e4m3fn", "e4m3",
            "e4m3fn", "fp8scaled",
        ],
        nearest_of: &["fp8e5m2", "float8e5m2"],
        kernel: Some(Kernel::Rows("dequantise_e4m3")),
        safetensors: Some(Layout { layer: Some("float8_e4m3fn"), in_header: true, ..bare(Dtype::F8_E4M3) }),
        ..row("fp8 (e4m3)", [1, 1], |it| matches!(it, Scales::None | Scales::Tensor(_) | Scales::Rows(_)))
            .made("fp8", Encode::Tensor(floats::e4m3_scale, floats::to_e4m3))
    };
    /// Floats of 5 bits of exponent and 2 of mantissa; scales as [`Format::E4m3`].
    E5m2 => floats::e5m2(bytes, scales, cols, out), Row {
        kernel: Some(Kernel::Rows("dequantise_e5m2")),
        safetensors: Some(Layout { layer: Some("float8_e5m2"), ..bare(Dtype::F8_E5M2) }),
        ..row("fp8 (e5m2)", [1, 1], |it| matches!(it, Scales::None | Scales::Tensor(_) | Scales::Rows(_)))
    };
    /// Signed integers of 8 bits with a scale, or one a row.
    Int8 => int8::int8(bytes, scales, cols, out), Row {
        spellings: &["i8", "int8tensorwise"],
        kernel: Some(Kernel::Rows("dequantise_int8")),
        safetensors: Some(layer("int8_tensorwise", Dtype::I8, None)),
        ..row("int8", [1, 1], |it| matches!(it, Scales::Tensor(_) | Scales::Rows(_) | Scales::RowMaxima(_)))
            .made("int8", Encode::Rows(int8::to_int8))
    };
    /// [`Format::Int8`] whose groups of columns were multiplied by a Hadamard matrix.
    Int8Rotated {
        /// Columns of a group: a power of 4.
        group: u16 = 256
    } => int8::int8_rotated(bytes, scales, cols, usize::from(group), out), Row {
        kernel: Some(Kernel::Rotated { in_warp: "dequantise_int8_rotated", wide: "dequantise_int8_rotated_wide" }),
        ..row("int8 (convrot)", [usize::from(group); 2], |it| matches!(it, Scales::Tensor(_) | Scales::Rows(_)))
    };
    /// e4m3 with a power of two as the scale of each 32 values.
    Mxfp8 => micro::mxfp8(bytes, scales.of_blocks(), out), Row {
        kernel: Some(Kernel::BlockScales("dequantise_mxfp8", None)),
        safetensors: Some(layer("mxfp8", Dtype::F8_E4M3, Some(SCALES_OF_POWERS))),
        ..row("mxfp8", [32, 32], |it| matches!(it, Scales::Blocks(_)))
            .made("mxfp8", Encode::BlockScales(None, micro::to_mxfp8))
    };
    /// e2m1, two values a byte, the first one in the high half; an e4m3 scale for each 16 values and a float32 for all.
    Nvfp4 => micro::nvfp4(bytes, scales.of_blocks(), FirstNibble::High, out), Row {
        nearest_of: &["mxfp4", "fp4", "nf4"],
        kernel: Some(Kernel::BlockScales("dequantise_nvfp4", Some(FirstNibble::High))),
        safetensors: Some(Layout { in_header: true, ..layer("nvfp4", Dtype::U8, Some(E4M3_SCALES)) }),
        ..row("nvfp4", [16, 8], |it| matches!(it, Scales::Blocks(_)))
            .made("nvfp4", Encode::BlockScales(Some(micro::nvfp4_scale), micro::to_nvfp4))
    };
    /// [`Format::Nvfp4`] with the first value in the low half.
    Nvfp4LowFirst => micro::nvfp4(bytes, scales.of_blocks(), FirstNibble::Low, out), Row {
        kernel: Some(Kernel::BlockScales("dequantise_nvfp4", Some(FirstNibble::Low))),
        safetensors: Some(Layout {
            layer: None,
            file: Some("nvfp4"),
            ..layer("nvfp4", Dtype::U8, Some(BlockLayout { order: ScaleLayout::Linear, ..E4M3_SCALES }))
        }),
        ..row("nvfp4", [16, 8], |it| matches!(it, Scales::Blocks(_)))
    };
    /// Indices to a table of 16 values, two a byte, the first one in the high half; a largest magnitude for each block
    /// of the flattened tensor.
    Codebook4 => codebook::codebook4(bytes, scales.codebook(), out), Row {
        kernel: Some(Kernel::Codebook("dequantise_codebook4")),
        ..row("bitsandbytes 4-bit", [2, 1], |it| matches!(it, Scales::Codebook(_)))
    };
    /// GGUF: 8 bits and a scale for each 32 values.
    Q8_0 => small::q8_0(bytes, out), Row {
        spellings: &["q8"], nearest_of: &["q8k", "q81"], nearest_of_bits: &[8],
        ..gguf("Q8_0", [32, 34], [8, 7], "dequantise_q8_0").made("q8_0", Encode::Blocks(small::to_q8_0))
    };
    /// GGUF: 6 bits in blocks of 256 values, whose parts of 16 have a scale.
    Q6K => k_quants::q6_k(bytes, out), Row {
        nearest_of: &["q6"], nearest_of_bits: &[6], smaller_blocks: Some(Format::Q8_0),
        ..gguf("Q6_K", [256, 210], [14, 18], "dequantise_q6_k").made("q6_k", Encode::Blocks(k_quants::to_q6_k))
    };
    /// GGUF: 5 bits in blocks of 256 values, whose parts of 32 have a scale and a least value.
    Q5K => k_quants::q5_k(bytes, out), Row {
        nearest_of: &["q5"], nearest_of_bits: &[5], smaller_blocks: Some(Format::Q5_1),
        ..gguf("Q5_K", [256, 176], [13, 16], "dequantise_q5_k").made("q5_k", Encode::Blocks(k_quants::to_q5_k))
    };
    /// GGUF: 5 bits, a scale and a least value for each 32 values.
    Q5_1 => small::q5_1(bytes, out),
        gguf("Q5_1", [32, 24], [7, 9], "dequantise_q5_1").made("q5_1", Encode::Blocks(small::to_q5_1));
    /// GGUF: 5 bits and a scale for each 32 values.
    Q5_0 => small::q5_0(bytes, out),
        gguf("Q5_0", [32, 22], [6, 8], "dequantise_q5_0").made("q5_0", Encode::Blocks(small::to_q5_0));
    /// GGUF: 4 bits in blocks of 256 values, whose parts of 32 have a scale and a least value.
    Q4K => k_quants::q4_k(bytes, out), Row {
        nearest_of: &["iq", "tq", "q2", "q3", "q4", "int4"],
        nearest_of_bits: &[2, 3, 4],
        smaller_blocks: Some(Format::Q5_0),
        ..gguf("Q4_K", [256, 144], [12, 14], "dequantise_q4_k").made("q4_k", Encode::Blocks(k_quants::to_q4_k))
    };
    /// GGUF: 4 bits, a scale and a least value for each 32 values.
    Q4_1 => small::q4_1(bytes, out),
        gguf("Q4_1", [32, 20], [3, 3], "dequantise_q4_1").made("q4_1", Encode::Blocks(small::to_q4_1));
    /// GGUF: 4 bits and a scale for each 32 values.
    Q4_0 => small::q4_0(bytes, out),
        gguf("Q4_0", [32, 18], [2, 2], "dequantise_q4_0").made("q4_0", Encode::Blocks(small::to_q4_0));
    /// GGUF: 3 bits in blocks of 256 values, whose parts of 16 have a scale.
    Q3K => k_quants::q3_k(bytes, out), gguf("Q3_K", [256, 110], [11, 12], "dequantise_q3_k");
    /// GGUF: 2 bits in blocks of 256 values, whose parts of 16 have a scale and a least value.
    Q2K => k_quants::q2_k(bytes, out), gguf("Q2_K", [256, 84], [10, 10], "dequantise_q2_k");
    /// GGUF: indices of 4 bits to a fixed table, in blocks of 256 values, whose parts of 32 have a scale.
    Iq4Xs => iq4::iq4_xs(bytes, out), gguf("IQ4_XS", [256, 136], [23, 30], "dequantise_iq4_xs");
    /// GGUF: indices of 4 bits to a fixed table, and a scale for each 32 values.
    Iq4Nl => iq4::iq4_nl(bytes, out), gguf("IQ4_NL", [32, 18], [20, 25], "dequantise_iq4_nl");
}

/// What is said of a format, besides how it is decoded.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// What messages call it.
    title: &'static str,
    block: Block,
    /// Whether tensors have such scales.
    pub has: fn(&Scales) -> bool,
    /// What users call it, where weights are brought to it.
    pub name: Option<&'static str>,
    /// Other spellings of the name, in lower case and without what separates words.
    pub spellings: &'static [&'static str],
    /// How the names of other programs' formats begin to which it comes nearest.
    pub nearest_of: &'static [&'static str],
    /// The numbers of bits that it is meant by.
    pub nearest_of_bits: &'static [u32],
    /// How it is made.
    pub encode: Option<Encode>,
    /// The largest magnitude that it holds.
    pub most: f32,
    /// What takes its place where rows are no whole blocks of it: the next larger one.
    pub smaller_blocks: Option<Format>,
    /// How a GPU makes 16-bit weights of it; without, it gets them from the host.
    pub kernel: Option<Kernel>,
    /// Its numbers in GGUF.
    pub gguf: Option<Gguf>,
    /// How it lies in safetensors, where a layer is a tensor of values and what is beside it.
    pub safetensors: Option<Layout>,
}

/// How bytes are made of values.
#[derive(Clone, Copy)]
pub(crate) enum Encode {
    /// Values or blocks that need no scales beside them.
    Blocks(fn(&[f32], &mut [u8])),
    /// Values with one scale for all, which comes of the largest magnitude.
    Tensor(fn(f32) -> f32, fn(&[f32], f32, &mut [u8])),
    /// Rows, each with the scale that is returned.
    Rows(fn(&[f32], &mut [u8]) -> f32),
    /// Blocks and their scales of one byte. With the first, all scales are multiplied by what comes of the largest
    /// magnitude.
    BlockScales(Option<fn(f32) -> f32>, fn(&[f32], f32, &mut [u8], &mut [u8])),
}

/// A kernel of cuda/dequantise.cu, by what it reads.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// Blocks that hold their scales.
    Blocks(&'static str),
    /// A scale for each row.
    Rows(&'static str),
    /// The same with groups of columns that were multiplied by a matrix: those that a warp holds, and wider ones.
    Rotated { in_warp: &'static str, wide: &'static str },
    /// A scale for each block of columns; of two values a byte also the order, and a factor for all scales.
    BlockScales(&'static str, Option<FirstNibble>),
    /// The values of codes, and largest magnitudes.
    Codebook(&'static str),
}

/// The numbers of a format in GGUF.
#[derive(Clone, Copy)]
pub(crate) struct Gguf {
    /// Of the type of a tensor.
    pub type_id: u32,
    /// Of a file whose weights are mostly in it, as llama.cpp counts kinds of files.
    pub file_type: u32,
}

/// How a layer in a format lies in a safetensors file.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Of the values; of bytes where a byte has several.
    pub dtype: Dtype,
    /// Whether the dtype says enough.
    pub is_bare: bool,
    /// What it is called where the format of each layer is said.
    pub layer: Option<&'static str>,
    /// What it is called where one format of all layers is said.
    pub file: Option<&'static str>,
    /// Whether transformers say it in the header, as Black Forest Labs publish them, and not beside each layer.
    pub in_header: bool,
    /// Scales of blocks.
    pub block_scales: Option<BlockLayout>,
}

/// How scales of blocks lie in a safetensors file.
#[derive(Clone, Copy)]
pub(crate) struct BlockLayout {
    /// The dtype that is written, and others that are read.
    pub dtypes: &'static [Dtype],
    /// In which order they lie.
    pub order: ScaleLayout,
    /// Whether a number lies beside them by which all are multiplied.
    pub has_factor: bool,
}

/// e4m3, a factor, and as tensor cores read them.
const E4M3_SCALES: BlockLayout =
    BlockLayout { dtypes: &[Dtype::F8_E4M3, Dtype::U8], order: ScaleLayout::Swizzled, has_factor: true };

/// Powers of two, in the same order.
const SCALES_OF_POWERS: BlockLayout =
    BlockLayout { dtypes: &[Dtype::U8, Dtype::F8_E8M0], order: ScaleLayout::Swizzled, has_factor: false };

impl Row {
    /// The row of a format that weights are brought to.
    fn made(self, name: &'static str, encode: Encode) -> Self {
        Self { name: Some(name), encode: Some(encode), ..self }
    }
}

/// A row of what each format has.
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
        most: f32::MAX,
        smaller_blocks: None,
        kernel: None,
        gguf: None,
        safetensors: None,
    }
}

/// A row of blocks of GGUF, which hold their scales.
fn gguf(title: &'static str, block: [usize; 2], [type_id, file_type]: [u32; 2], kernel: &'static str) -> Row {
    let numbers = Some(Gguf { type_id, file_type });
    let kernel = Some(Kernel::Blocks(kernel));
    Row { most: blocks::MOST, kernel, gguf: numbers, ..row(title, block, Scales::is_none) }
}

/// The layout of what the dtype tells.
fn bare(dtype: Dtype) -> Layout {
    Layout { dtype, is_bare: true, layer: None, file: None, in_header: false, block_scales: None }
}

/// The layout of what is said of each layer.
fn layer(name: &'static str, dtype: Dtype, block_scales: Option<BlockLayout>) -> Layout {
    Layout { is_bare: false, layer: Some(name), block_scales, ..bare(dtype) }
}

/// The smallest part of a row that has whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Number of values in a block.
    pub values: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

impl Format {
    /// The first format whose row is as it should be.
    pub(crate) fn find(is_sought: impl Fn(&Row) -> bool) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| is_sought(&format.row()))
    }

    /// The format whose layout in safetensors is as it should be.
    pub(super) fn find_layout(is_sought: impl Fn(&Layout) -> bool) -> Option<Self> {
        Self::find(|row| row.safetensors.as_ref().is_some_and(&is_sought))
    }

    /// The formats that weights are brought to, by their names.
    pub fn made() -> impl Iterator<Item = (&'static str, Self)> {
        Self::ALL.iter().filter_map(|format| Some((format.name()?, *format)))
    }

    /// What users call it, where weights are brought to it.
    pub fn name(self) -> Option<&'static str> {
        self.row().name
    }

    /// Whether GGUF files have it.
    pub fn is_in_gguf(self) -> bool {
        self.row().gguf.is_some()
    }

    /// Whether safetensors files have it.
    pub fn is_in_safetensors(self) -> bool {
        self.row().safetensors.is_some()
    }

    /// Whether the values are plain floats of 16 or 32 bits.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32)
    }

    /// The smallest part of a row that has whole bytes.
    pub fn block(self) -> Block {
        self.row().block
    }

    /// Bytes of `values` values that follow each other in a row; none on overflow, or where they are no whole blocks.
    /// Only rows of [`Format::E4m3Rows`] are padded.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let block = self.block();
        if self != Self::E4m3Rows && !values.is_multiple_of(block.values) {
            return None;
        }
        values.div_ceil(block.values).checked_mul(block.bytes)
    }

    /// Bytes of a tensor without its scales; none on overflow, or where the format has no tensors of this shape.
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
        assert_eq!(["", "1", "123"].map(|axes| Format::E4m3Rows.bytes(&vec![2; axes.len()])), [None; 3], "no matrix");
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
