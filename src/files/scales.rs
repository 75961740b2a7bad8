//! What a tensor in few bits has beside its own bytes: scales, and the tables that its codes are looked up in.

use std::ops::Range;
use std::sync::Arc;

use super::bytes::Bytes;

/// A range of a file's bytes.
#[derive(Clone)]
pub struct FileSlice {
    file: Arc<Bytes>,
    range: Range<usize>,
}

impl FileSlice {
    /// None when the file does not have the range.
    pub fn new(file: Arc<Bytes>, range: Range<usize>) -> Option<Self> {
        file.as_slice().get(range.clone())?;
        Some(Self { file, range })
    }

    /// All of some bytes in memory.
    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { file: Arc::new(Bytes::Owned(bytes)), range }
    }

    /// The file that holds it.
    pub fn file(&self) -> &Arc<Bytes> {
        &self.file
    }

    /// Where in the file it is.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The bytes, at any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.file.as_slice()[self.range.clone()]
    }

    fn f32(&self, index: usize) -> f32 {
        f32::from_le_bytes(self.bytes().as_chunks::<4>().0[index])
    }

    /// Some of the float32 numbers.
    fn f32_range(&self, numbers: Range<usize>) -> Self {
        let place = |number: usize| self.range.start + 4 * number;
        Self { file: Arc::clone(&self.file), range: place(numbers.start)..place(numbers.end) }
    }
}

/// What the codes of a tensor are multiplied by.
#[derive(Clone)]
pub enum Scales {
    /// The values are as they are, or their blocks hold their scales.
    None,
    /// One for all values.
    Tensor(f32),
    /// Float32 \[rows\].
    Rows(Box<FileSlice>),
    /// Float32 \[rows\]: what 127 stands for.
    RowMaxima(Box<FileSlice>),
    /// One for each block of columns.
    Blocks(Box<BlockScales>),
    /// One for each block of the flattened tensor, and the values that codes stand for.
    Codebook(Box<Codebook>),
}

/// In which order the scales of a matrix's blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleLayout {
    /// [rows, blocks]
    Linear,
    /// Tiles of 128 rows and 4 blocks, 512 bytes each, in which rows that are 32 apart follow each other, as tensor
    /// cores read them. Rows and blocks are padded to whole tiles.
    Swizzled,
}

/// Rows and blocks of a tile of [`ScaleLayout::Swizzled`].
const TILE: [usize; 2] = [128, 4];

impl ScaleLayout {
    /// Rows and blocks that have a place; none on overflow.
    pub fn padded(self, [rows, blocks]: [usize; 2]) -> Option<[usize; 2]> {
        match self {
            Self::Linear => Some([rows, blocks]),
            Self::Swizzled => {
                Some([rows.checked_next_multiple_of(TILE[0])?, blocks.checked_next_multiple_of(TILE[1])?])
            }
        }
    }

    /// Where the scale of a block lies, in a matrix of `blocks` blocks a row.
    #[inline(always)]
    pub fn place(self, row: usize, block: usize, blocks: usize) -> usize {
        match self {
            Self::Linear => row * blocks + block,
            Self::Swizzled => {
                let tile = row / TILE[0] * blocks.div_ceil(TILE[1]) + block / TILE[1];
                tile * TILE[0] * TILE[1] + row % 32 * 16 + row % TILE[0] / 32 * 4 + block % TILE[1]
            }
        }
    }
}

/// A scale of one byte for each block of columns, and a float32 for all of them.
#[derive(Clone)]
pub struct BlockScales {
    /// Of the whole tensor, also where the view has some of its rows: tiles have rows of several views.
    scales: FileSlice,
    layout: ScaleLayout,
    rows: usize,
    first_row: usize,
    blocks: usize,
    tensor: f32,
}

impl BlockScales {
    /// Scales of `rows` rows of `blocks` blocks; all are multiplied by `tensor`.
    ///
    /// Errors with the reason when there are more or fewer bytes.
    pub fn new(
        scales: FileSlice,
        layout: ScaleLayout,
        [rows, blocks]: [usize; 2],
        tensor: f32,
    ) -> std::result::Result<Self, String> {
        let needed = layout.padded([rows, blocks]).and_then(|[rows, blocks]| rows.checked_mul(blocks));
        if needed != Some(scales.bytes().len()) {
            let there = scales.bytes().len();
            return Err(format!("has {there} scales of blocks, which do not fit {rows} rows of {blocks} blocks"));
        }
        Ok(Self { scales, layout, rows, first_row: 0, blocks, tensor })
    }

    /// All of the tensor's, whose rows the view has from [`BlockScales::first_row`] on.
    pub fn bytes(&self) -> &[u8] {
        self.scales.bytes()
    }

    /// The row of the tensor that is row 0 of the view.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Blocks of a row.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// In which order they lie.
    pub fn layout(&self) -> ScaleLayout {
        self.layout
    }

    /// What all scales are multiplied by.
    pub fn tensor(&self) -> f32 {
        self.tensor
    }

    /// The bytes for the first `rows` rows of the view, of whole tiles where they lie in tiles, and the row of them
    /// that is row 0 of the view.
    ///
    /// Errors with the reason when there are not so many.
    pub fn of_rows(&self, rows: usize) -> std::result::Result<(FileSlice, usize), String> {
        let (first, height, row_bytes) = match self.layout {
            ScaleLayout::Linear => (self.first_row, 1, self.blocks),
            ScaleLayout::Swizzled => {
                (self.first_row / TILE[0] * TILE[0], TILE[0], self.blocks.next_multiple_of(TILE[1]))
            }
        };
        let end = (self.first_row + rows).next_multiple_of(height);
        let start = self.scales.range.start;
        let range = start + first * row_bytes..start + end * row_bytes;
        let slice = FileSlice::new(Arc::clone(&self.scales.file), range);
        Ok((slice.ok_or("has fewer scales than rows")?, self.first_row - first))
    }

    /// The byte of a block of a row of the view.
    #[inline]
    pub fn get(&self, row: usize, block: usize) -> u8 {
        self.scales.bytes()[self.layout.place(self.first_row + row, block, self.blocks)]
    }
}

/// The values that codes of 4 bits stand for, and largest magnitudes of blocks of the flattened tensor.
#[derive(Clone)]
pub struct Codebook {
    table: [f32; 16],
    /// Values of a block.
    block: usize,
    maxima: Maxima,
    /// Values of the whole tensor.
    values: usize,
    /// The place in the flattened tensor of the view's first value.
    first_value: usize,
}

/// Largest magnitudes of blocks.
#[derive(Clone)]
pub enum Maxima {
    /// Float32 \[blocks\].
    F32(FileSlice),
    /// Quantised themselves.
    Nested(NestedMaxima),
}

/// Largest magnitudes as `table[code] * maximum of the block of codes + offset`.
#[derive(Clone)]
pub struct NestedMaxima {
    /// A byte for each block of the tensor.
    pub codes: FileSlice,
    /// 256 values.
    pub table: Arc<[f32]>,
    /// Codes of a block.
    pub block: usize,
    /// Float32, one for each block of codes.
    pub maxima: FileSlice,
    /// Is added to each.
    pub offset: f32,
}

impl Codebook {
    /// The values of codes, and the maxima of blocks of `block` values of a tensor of `values` values.
    ///
    /// Errors with the reason when there are not as many maxima as blocks.
    pub fn new(table: [f32; 16], block: usize, maxima: Maxima, values: usize) -> std::result::Result<Self, String> {
        if block == 0 {
            return Err("has blocks of no values".to_string());
        }
        let blocks = values.div_ceil(block);
        let there = match &maxima {
            Maxima::F32(maxima) => Some(maxima.bytes().len()) == blocks.checked_mul(4),
            Maxima::Nested(nested) => {
                nested.codes.bytes().len() == blocks
                    && nested.table.len() == 256
                    && nested.block > 0
                    && Some(nested.maxima.bytes().len()) == blocks.div_ceil(nested.block).checked_mul(4)
            }
        };
        if !there {
            return Err(format!("does not have the largest magnitudes of {blocks} blocks of {block} values"));
        }
        Ok(Self { table, block, maxima, values, first_value: 0 })
    }

    /// The values that codes stand for.
    pub fn table(&self) -> &[f32; 16] {
        &self.table
    }

    /// Values of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// The place in the flattened tensor of the view's first value.
    pub fn first_value(&self) -> usize {
        self.first_value
    }

    /// The largest magnitude of the block of the tensor that holds value `index` of the view.
    pub fn maximum_of(&self, index: usize) -> f32 {
        let block = (self.first_value + index) / self.block;
        match &self.maxima {
            Maxima::F32(maxima) => maxima.f32(block),
            Maxima::Nested(nested) => {
                let code = usize::from(nested.codes.bytes()[block]);
                nested.table[code] * nested.maxima.f32(block / nested.block) + nested.offset
            }
        }
    }
}

impl Scales {
    /// Those of some rows of a matrix of `cols` columns.
    pub(super) fn row_range(&self, rows: Range<usize>, cols: usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::Tensor(scale) => Self::Tensor(*scale),
            Self::Rows(scales) => Self::Rows(Box::new(scales.f32_range(rows))),
            Self::RowMaxima(maxima) => Self::RowMaxima(Box::new(maxima.f32_range(rows))),
            Self::Blocks(scales) => {
                Self::Blocks(Box::new(BlockScales { first_row: scales.first_row + rows.start, ..(**scales).clone() }))
            }
            Self::Codebook(book) => Self::Codebook(Box::new(Codebook {
                first_value: book.first_value + rows.start * cols,
                ..(**book).clone()
            })),
        }
    }

    /// Whether there are none beside the values.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether they are those of a tensor of this shape and of blocks of so many values.
    pub(super) fn fit(&self, shape: &[usize], block: usize) -> bool {
        match self {
            Self::None | Self::Tensor(_) => true,
            Self::Rows(scales) | Self::RowMaxima(scales) => {
                shape.first().and_then(|rows| rows.checked_mul(4)) == Some(scales.range.len())
            }
            Self::Blocks(scales) => *shape == [scales.rows, scales.blocks * block],
            Self::Codebook(book) => shape.iter().product::<usize>() == book.values,
        }
    }

    /// Those of blocks, of a format that has no others.
    #[inline(always)]
    pub(super) fn of_blocks(&self) -> &BlockScales {
        let Self::Blocks(scales) = self else { unreachable!("a view of such a format has these scales") };
        scales
    }

    /// Those of a codebook, of a format that has no others.
    #[inline(always)]
    pub(super) fn codebook(&self) -> &Codebook {
        let Self::Codebook(book) = self else { unreachable!("a view of such a format has these scales") };
        book
    }

    /// What the codes of a row are multiplied by, where it is the same for all of them.
    pub fn of_row(&self, row: usize) -> f32 {
        match self {
            Self::Tensor(scale) => *scale,
            Self::Rows(scales) | Self::RowMaxima(scales) => scales.f32(row),
            Self::None | Self::Blocks(_) | Self::Codebook(_) => 1.0,
        }
    }
}
