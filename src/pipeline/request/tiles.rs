//! The sides of the tiles of a large image.

use serde::Serialize;

use crate::error::{Error, Field, Result};
use crate::input::{CELL, in_cells};
use crate::tiles;

/// The side of tiles that are chosen automatically, in pixels.
pub(super) const SIDE: usize = 1024;
/// The overlap of tiles of that side; smaller tiles share a quarter.
const OVERLAP: usize = 128;

/// The tiles of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct TilePlan {
    /// The side of the square tiles.
    pub side: usize,
    /// The least pixels that two neighbours share.
    pub overlap: usize,
    /// `true` if the first reference is the image to edit: each tile sees the same part of it.
    pub has_own_reference: bool,
}

/// Checks the fields of tiles without an image.
///
/// Errors if a value is out of range.
pub(crate) fn check_tiles(tile: Option<usize>, overlap: Option<usize>) -> Result<()> {
    let wrong = |field: Field, what: String, hint: &str| Err(Error::usage(what).for_field(field).hint(hint));
    let Some(side) = tile.filter(|side| *side > 0) else {
        return match overlap {
            Some(_) => {
                let what = format!("`{:#}` requires `{:#}`", Field::TileOverlap, Field::Tile);
                wrong(Field::TileOverlap, what, "set the side of the tiles too")
            }
            None => Ok(()),
        };
    };
    let sides = [(Field::Tile, side), (Field::TileOverlap, overlap.unwrap_or(0))];
    if let Some((field, pixels)) = sides.into_iter().find(|(_, pixels)| !pixels.is_multiple_of(CELL)) {
        let what = format!("`{field:#}` is {pixels} pixels, expected a multiple of {CELL}");
        return wrong(field, what, &format!("the nearest is {}", in_cells(pixels)));
    }
    if let Some(overlap) = overlap.filter(|overlap| *overlap >= side) {
        let what = format!("tiles of {side} pixels cannot share {overlap}");
        return wrong(Field::TileOverlap, what, "an eighth to a quarter of the tile is usual");
    }
    Ok(())
}

impl TilePlan {
    /// Creates tiles of this side; without an overlap, it depends on the side.
    pub(super) fn new(side: usize, overlap: Option<usize>, has_own_reference: bool) -> Self {
        let overlap = overlap.unwrap_or(OVERLAP.min(in_cells(side / 4)).min(side - CELL));
        Self { side, overlap, has_own_reference }
    }

    /// Returns the number of tiles of an image of this height and width in pixels.
    pub fn count(&self, [height, width]: [usize; 2]) -> usize {
        tiles::count([width, height].map(|side| side / CELL), self.in_tokens(CELL))
    }

    /// Returns the side and the overlap in tokens of `patch` pixels.
    pub(crate) fn in_tokens(&self, patch: usize) -> (usize, usize) {
        (self.side / patch, self.overlap / patch)
    }
}
