//! Steps of a large image in overlapping tiles.
//!
//! The transformer evaluates each tile as an image of its own. The velocities are averaged, and one Euler step moves
//! the whole image. So tiles have no order and leave no seams.

use std::iter;
use std::ops::Range;

use super::Conditioning;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tiles::places;

/// The tiles of an image.
pub struct Tiles<B: Backend> {
    tiles: Vec<Tile<B>>,
    /// `true` if the context has rows for each tile, one tile after the other; otherwise all tiles share them.
    has_contexts: bool,
    /// The level of noise in an average, [1, 1] in float32.
    none: Tensor<B>,
}

struct Tile<B: Backend> {
    /// The rows of the image's tokens.
    runs: Vec<Range<usize>>,
    /// The part of the tile in the average of all tiles up to it, [tokens, 1].
    share: Tensor<B>,
}

/// Returns the rows of the tokens of each tile. The image has `size` [height, width], and tiles have this side and
/// overlap, all in tokens.
pub fn tile_runs([height, width]: [usize; 2], tile: (usize, usize)) -> Vec<Vec<Range<usize>>> {
    let runs = |columns: Range<usize>, rows: Range<usize>| match columns.len() == width {
        true => iter::once(rows.start * width..rows.end * width).collect(),
        false => rows.map(|row| row * width + columns.start..row * width + columns.end).collect(),
    };
    places([width, height], tile).into_iter().map(|place| runs(place.columns, place.rows)).collect()
}

/// Returns the part of each token of each tile in the average of all tiles up to it. So the first tile of a token has
/// 1, and an average needs no sum of weights on the device.
fn shares([height, width]: [usize; 2], tile: (usize, usize)) -> Vec<Vec<f32>> {
    let mut sums = vec![0.0; height * width];
    let share = |place: crate::tiles::Place| {
        let [across, down] = place.ramps(tile.1, 1);
        let tokens = place.rows.zip(down).flat_map(|(row, down)| {
            let columns = place.columns.clone().zip(&across);
            columns.map(move |(column, across)| (row * width + column, down * across))
        });
        tokens
            .map(|(token, weight)| {
                sums[token] += weight;
                weight / sums[token]
            })
            .collect()
    };
    places([width, height], tile).into_iter().map(share).collect()
}

impl<B: Backend> Tiles<B> {
    /// Creates the tiles of an image of `size` [height, width]; tiles have this side and overlap, all in tokens.
    ///
    /// Errors if memory runs out.
    pub fn new(backend: &B, size: [usize; 2], tile: (usize, usize), has_contexts: bool) -> Result<Self> {
        let made = tile_runs(size, tile).into_iter().zip(shares(size, tile));
        let tiles = made.map(|(runs, share)| Ok(Tile { runs, share: backend.upload(&share, share.len(), 1)? }));
        Ok(Self { tiles: tiles.collect::<Result<_>>()?, has_contexts, none: backend.upload_f32(&[0.0], 1, 1)? })
    }

    /// Returns the average of the velocities of all tiles. Every device has all tokens of the image, and its share of
    /// the tokens of a tile.
    ///
    /// Errors as `velocity`, or if memory runs out.
    pub(super) fn velocity(
        &self,
        latents: &Tensor<B>,
        conditioning: &Conditioning<'_, B>,
        velocity: impl Fn(&Tensor<B>, &Conditioning<'_, B>) -> Result<Tensor<B>>,
    ) -> Result<Tensor<B>> {
        let (split, context) = (conditioning.sequence.split, conditioning.context);
        let [_, _, own] = split.tokens();
        let mut average = latents.row_view(0..latents.rows());
        for (place, Tile { runs, share }) in self.tiles.iter().enumerate() {
            let (part, parts) = if self.has_contexts { (place, self.tiles.len()) } else { (0, 1) };
            let rows = context.rows() / parts;
            let context = &context.row_view(part * rows..(part + 1) * rows);
            let tile = latents.copy_runs(runs)?.row_view(own.clone());
            let made = velocity(&tile, &Conditioning { context, tiles: None, ..*conditioning })?;
            let made = made.all_gather_rows(&split.image_rows())?;
            let before = average.copy_runs(runs)?;
            // share * made + (1 - share) * before
            let made = made.inpaint_blend(&before, &before, share, &self.none)?;
            average = average.with_runs(runs, &made)?;
        }
        Ok(average)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_average_tiles_by_their_ramps() {
        let (size, tile) = ([7, 20], (8, 4));
        let (runs, shares) = (tile_runs(size, tile), shares(size, tile));
        let places = places([20, 7], tile);
        assert_eq!((runs.len(), runs[0].len(), places.len()), (4, 7, 4));
        // Each tile has a value of its own.
        let (mut average, mut sum, mut weights) = (vec![f32::NAN; 140], vec![0.0; 140], vec![0.0; 140]);
        for (i, ((runs, shares), place)) in runs.iter().zip(&shares).zip(&places).enumerate() {
            let [across, down] = place.ramps(4, 1);
            for (n, (token, share)) in runs.iter().cloned().flatten().zip(shares).enumerate() {
                let before = if *share == 1.0 { 0.0 } else { average[token] };
                average[token] = share * i as f32 + (1.0 - share) * before;
                let weight = across[n % 8] * down[n / 8];
                (sum[token], weights[token]) = (sum[token] + weight * i as f32, weights[token] + weight);
            }
        }
        assert!((0..140).all(|token| (average[token] - sum[token] / weights[token]).abs() < 1e-6), "{average:?}");
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one run of rows")]
    fn a_tile_as_wide_as_the_image_is_one_run() {
        assert_eq!(tile_runs([20, 6], (8, 4))[1], [24..72]);
        assert_eq!(tile_runs([6, 6], (8, 4)), [[0..36]]);
        assert_eq!(tile_runs([2, 6], (4, 2)), [[0..4, 6..10], [2..6, 8..12]]);
    }
}
