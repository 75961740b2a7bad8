//! Data of a quantized tensor outside its own bytes: scales, and the tables that its codes are looked up in.

use std::ops::Range;
use std::sync::Arc;

use crate::io::bytes::Bytes;

/// A range of a file's bytes.
#[derive(Clone)]
pub struct FileSlice {
    file: Arc<Bytes>,
    range: Range<usize>,
}

impl FileSlice {
    /// Creates a slice; `None` if the file does not contain the range.
    pub fn new(file: Arc<Bytes>, range: Range<usize>) -> Option<Self> {
        file.as_slice().get(range.clone())?;
        Some(Self { file, range })
    }

    /// Creates a slice of bytes in memory.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { file: Arc::new(Bytes::Owned(bytes)), range }
    }

    /// Returns the file that contains the slice.
    pub fn file(&self) -> &Arc<Bytes> {
        &self.file
    }

    /// Returns the range of the slice in the file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the bytes, at any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.file.as_slice()[self.range.clone()]
    }

    fn f32(&self, index: usize) -> f32 {
        f32::from_le_bytes(self.bytes().as_chunks::<4>().0[index])
    }

    /// Returns a range of the float32 numbers.
    fn f32_range(&self, numbers: Range<usize>) -> Self {
        let place = |number: usize| self.range.start + 4 * number;
        Self { file: Arc::clone(&self.file), range: place(numbers.start)..place(numbers.end) }
    }
}

/// The scales of a tensor's codes.
#[derive(Clone)]
pub enum Scales {
    /// No separate scales: the values are unscaled, or their blocks contain the scales.
    None,
    /// One scale for all values.
    Tensor(f32),
    /// One scale per row: float32 \[rows\].
    Rows(Box<FileSlice>),
    /// The value of code 127 in each row: float32 \[rows\].
    RowMaxima(Box<FileSlice>),
    /// One scale for each block of columns.
    Blocks(Box<BlockScales>),
    /// One float32 scale for each tile of rows and columns.
    Tiles(Box<TileScales>),
    /// One scale for each block of the flattened tensor, and the values of the codes.
    Codebook(Box<Codebook>),
}

/// The order of the scales of a matrix's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleLayout {
    /// [rows, blocks]
    Linear,
    /// Tiles of 128 rows and 4 blocks, 512 bytes each, in which rows that are 32 apart are adjacent, as tensor cores
    /// read them. Rows and blocks are padded to whole tiles.
    Swizzled,
}

/// Rows and blocks of a tile of [`ScaleLayout::Swizzled`].
const TILE: [usize; 2] = [128, 4];

impl ScaleLayout {
    /// Returns the rows and blocks including padding; `None` on overflow.
    pub fn padded(self, [rows, blocks]: [usize; 2]) -> Option<[usize; 2]> {
        match self {
            Self::Linear => Some([rows, blocks]),
            Self::Swizzled => {
                Some([rows.checked_next_multiple_of(TILE[0])?, blocks.checked_next_multiple_of(TILE[1])?])
            }
        }
    }

    /// Returns the index of a block's scale, in a matrix of `blocks` blocks per row.
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

/// A one-byte scale for each block of columns, and a float32 factor of all scales.
#[derive(Clone)]
pub struct BlockScales {
    /// The scales of the whole tensor, even if the view has only some of its rows: a tile contains rows of several
    /// views.
    scales: FileSlice,
    layout: ScaleLayout,
    rows: usize,
    first_row: usize,
    blocks: usize,
    tensor: f32,
}

impl BlockScales {
    /// Creates scales of `rows` rows of `blocks` blocks; `tensor` is the factor of all scales.
    ///
    /// Errors with the reason if the number of bytes does not match.
    pub fn new(
        scales: FileSlice,
        layout: ScaleLayout,
        [rows, blocks]: [usize; 2],
        tensor: f32,
    ) -> std::result::Result<Self, String> {
        let needed = layout.padded([rows, blocks]).and_then(|[rows, blocks]| rows.checked_mul(blocks));
        if needed != Some(scales.bytes().len()) {
            let there = scales.bytes().len();
            return Err(format!("has {there} block scales, which do not match {rows} rows of {blocks} blocks"));
        }
        Ok(Self { scales, layout, rows, first_row: 0, blocks, tensor })
    }

    /// Returns the scales of the whole tensor; the view may begin at a later row.
    pub fn bytes(&self) -> &[u8] {
        self.scales.bytes()
    }

    /// Returns the number of blocks per row.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the order of the scales.
    pub fn layout(&self) -> ScaleLayout {
        self.layout
    }

    /// Returns the factor of all scales.
    pub fn tensor(&self) -> f32 {
        self.tensor
    }

    /// Returns the bytes for the first `rows` rows of the view, in whole tiles if the layout has tiles, and the row of
    /// these bytes that is row 0 of the view.
    ///
    /// Errors with the reason if there are fewer rows.
    pub fn bytes_for_rows(&self, rows: usize) -> std::result::Result<(FileSlice, usize), String> {
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

    /// Returns the scale of a block in a row of the view.
    #[inline]
    pub fn get(&self, row: usize, block: usize) -> u8 {
        self.scales.bytes()[self.layout.place(self.first_row + row, block, self.blocks)]
    }
}

/// A float32 scale for each tile of a matrix. Tiles at the right and lower edge may be cut off.
#[derive(Clone)]
pub struct TileScales {
    /// Float32 \[rows of tiles, tiles per row\], of the whole matrix.
    scales: FileSlice,
    /// Rows and columns of a tile.
    tile: [usize; 2],
    /// Rows and columns of the matrix.
    shape: [usize; 2],
    first_row: usize,
}

impl TileScales {
    /// Creates the scales of a matrix of this shape.
    ///
    /// Errors with the reason if the number of scales does not match the number of tiles.
    pub fn new(scales: FileSlice, tile: [usize; 2], shape: [usize; 2]) -> std::result::Result<Self, String> {
        if tile.contains(&0) {
            return Err("has empty tiles".to_string());
        }
        let [down, across] = Self::count(tile, shape);
        if down.checked_mul(across).and_then(|tiles| tiles.checked_mul(4)) != Some(scales.bytes().len()) {
            return Err(format!("has {} scales, expected {down}x{across}", scales.bytes().len() / 4));
        }
        Ok(Self { scales, tile, shape, first_row: 0 })
    }

    /// Returns the tiles per column and per row of a matrix of this shape.
    pub fn count(tile: [usize; 2], shape: [usize; 2]) -> [usize; 2] {
        [shape[0].div_ceil(tile[0]), shape[1].div_ceil(tile[1])]
    }

    /// Returns the columns of a tile.
    pub fn columns(&self) -> usize {
        self.tile[1]
    }

    /// Returns the scales of a row of the view, from left to right.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f32> {
        let across = self.shape[1].div_ceil(self.tile[1]);
        let first = (self.first_row + row) / self.tile[0] * across;
        (first..first + across).map(|index| self.scales.f32(index))
    }
}

/// The values of 4-bit codes, and the largest magnitudes of blocks of the flattened tensor.
#[derive(Clone)]
pub struct Codebook {
    table: [f32; 16],
    /// Values per block.
    block: usize,
    maxima: Maxima,
    /// Values of the whole tensor.
    values: usize,
    /// The index of the view's first value in the flattened tensor.
    pub first_value: usize,
}

/// Largest magnitudes of blocks.
#[derive(Clone)]
pub enum Maxima {
    /// Float32 \[blocks\].
    F32(FileSlice),
    /// Quantized magnitudes.
    Nested(NestedMaxima),
}

/// Largest magnitudes, as `table[code] * maximum of the block of codes + offset`.
#[derive(Clone)]
pub struct NestedMaxima {
    /// A byte for each block of the tensor.
    pub codes: FileSlice,
    /// The 256 values of the codes.
    pub table: Arc<[f32]>,
    /// Codes per block.
    pub block: usize,
    /// Float32, one for each block of codes.
    pub maxima: FileSlice,
    /// The offset added to each magnitude.
    pub offset: f32,
}

impl Codebook {
    /// Creates a codebook of these values, with maxima of blocks of `block` values, for a tensor of `values` values.
    ///
    /// Errors with the reason if the number of maxima does not match the number of blocks.
    pub fn new(table: [f32; 16], block: usize, maxima: Maxima, values: usize) -> std::result::Result<Self, String> {
        if block == 0 {
            return Err("has empty blocks".to_string());
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

    /// Returns the values of the codes.
    pub fn table(&self) -> &[f32; 16] {
        &self.table
    }

    /// Returns the number of values per block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Returns the largest magnitude of the tensor's block that contains value `index` of the view.
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
    /// Returns the scales of some rows of a matrix of `cols` columns.
    pub(crate) fn row_range(&self, rows: Range<usize>, cols: usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::Tensor(scale) => Self::Tensor(*scale),
            Self::Rows(scales) => Self::Rows(Box::new(scales.f32_range(rows))),
            Self::RowMaxima(maxima) => Self::RowMaxima(Box::new(maxima.f32_range(rows))),
            Self::Blocks(scales) => {
                Self::Blocks(Box::new(BlockScales { first_row: scales.first_row + rows.start, ..(**scales).clone() }))
            }
            Self::Tiles(scales) => {
                Self::Tiles(Box::new(TileScales { first_row: scales.first_row + rows.start, ..(**scales).clone() }))
            }
            Self::Codebook(book) => Self::Codebook(Box::new(Codebook {
                first_value: book.first_value + rows.start * cols,
                ..(**book).clone()
            })),
        }
    }

    /// Returns `true` if there are no separate scales.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns `true` if these can be the scales of a tensor of this shape, in blocks of `block` values.
    pub(crate) fn fit(&self, shape: &[usize], block: usize) -> bool {
        match self {
            Self::None | Self::Tensor(_) => true,
            Self::Rows(scales) | Self::RowMaxima(scales) => {
                shape.first().and_then(|rows| rows.checked_mul(4)) == Some(scales.range.len())
            }
            Self::Blocks(scales) => *shape == [scales.rows, scales.blocks * block],
            Self::Tiles(scales) => *shape == scales.shape,
            Self::Codebook(book) => shape.iter().product::<usize>() == book.values,
        }
    }

    /// Returns the block scales of a format that always has them.
    #[inline(always)]
    pub(crate) fn block_scales(&self) -> &BlockScales {
        let Self::Blocks(scales) = self else { unreachable!("a view of such a format has these scales") };
        scales
    }

    /// Returns the tile scales of a format that always has them.
    #[inline(always)]
    pub(crate) fn tiles(&self) -> &TileScales {
        let Self::Tiles(scales) = self else { unreachable!("a view of such a format has these scales") };
        scales
    }

    /// Returns the codebook of a format that always has one.
    #[inline(always)]
    pub(crate) fn codebook(&self) -> &Codebook {
        let Self::Codebook(book) = self else { unreachable!("a view of such a format has these scales") };
        book
    }

    /// Returns the scale of a row; 1 if there is no single scale for the row.
    pub fn row_scale(&self, row: usize) -> f32 {
        match self {
            Self::Tensor(scale) => *scale,
            Self::Rows(scales) | Self::RowMaxima(scales) => scales.f32(row),
            Self::None | Self::Blocks(_) | Self::Tiles(_) | Self::Codebook(_) => 1.0,
        }
    }
}
