//! Requests and plans of images in tiles: the transformer evaluates one tile at a time.

use crate::error::{Error, Field, Result};
use crate::model::info::ModelInfo;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::request::tiles::{SIDE, TilePlan, check_tiles};
use crate::pipeline::request::transparency::Transparency;

/// Maximum number of tiles, so that a small side does not request endless work.
const MAX_TILES: usize = 1024;
/// Above this strength, each tile may show the whole prompt.
const SAFE_STRENGTH: f64 = 0.4;

impl Request {
    /// Returns the tiles of an image of this height and width in pixels; `None` if it is computed whole.
    ///
    /// Errors if a value is out of range, or something of the request cannot be combined with tiles.
    pub(super) fn tiles(&self, info: &ModelInfo, size: [usize; 2]) -> Result<Option<TilePlan>> {
        check_tiles(self.tile, self.tile_overlap)?;
        // With a second pass, the tiles are those of its image.
        let is_tiled = |side: &usize| self.hires.is_none() && *side > 0 && size.iter().any(|length| length > side);
        let Some(side) = self.tile.filter(is_tiled) else { return Ok(None) };
        let own = self.change.as_ref().filter(|change| change.is_reference);
        let tiles = TilePlan::new(side, self.tile_overlap, own.is_some());
        let others = [
            (!self.regions.is_empty(), Field::Regions),
            (self.sparse, Field::Sparse),
            (self.reuse.is_some(), Field::Reuse),
            (self.transparent == Transparency::Edit, Field::Transparent),
        ];
        let refused = |what: String, hint: String| Err(Error::usage(what).for_field(Field::Tile).hint(hint));
        if let Some((_, other)) = others.into_iter().find(|(given, _)| *given) {
            let what = format!("`{:#}` cannot be used with `{other:#}`: the image is larger than a tile", Field::Tile);
            return refused(what, "leave one of them out".to_string());
        }
        if info.caches_references && self.has_images() {
            let what = format!("`{:#}` cannot be used with cached keys and values of references", Field::Tile);
            return refused(what, "use another kind of model".to_string());
        }
        match tiles.count(size) {
            count if count > MAX_TILES => {
                let what = format!("the image has {count} tiles, expected at most {MAX_TILES}");
                refused(what, format!("use larger tiles, such as `{} {SIDE}`", Field::Tile))
            }
            _ => Ok(Some(tiles)),
        }
    }
}

impl Plan {
    /// Returns height and width in pixels of the image or the tile of an evaluation.
    pub(crate) fn evaluated_size(&self) -> [usize; 2] {
        [self.height, self.width].map(|length| self.tiles.map_or(length, |tiles| length.min(tiles.side)))
    }

    /// Returns the sizes of the references that an evaluation sees, [height, width] in pixels.
    pub(crate) fn seen_references(&self) -> impl Iterator<Item = [usize; 2]> {
        let own = self.tiles.filter(|tiles| tiles.has_own_reference).map(|_| self.evaluated_size());
        own.into_iter().chain(self.references.iter().skip(usize::from(own.is_some())).copied())
    }

    /// Returns the number of tiles; 1 without tiles.
    pub(crate) fn tile_count(&self) -> usize {
        self.tiles.map_or(1, |tiles| tiles.count([self.height, self.width]))
    }

    /// Returns the number of different contexts of an evaluation in a step.
    pub(crate) fn contexts(&self) -> usize {
        if self.tiles.is_some_and(|tiles| tiles.has_own_reference) { self.tile_count() } else { 1 }
    }

    /// Returns the notes for the user about an image in tiles.
    pub(super) fn tile_notes(&self) -> Vec<String> {
        if self.tiles.is_none() {
            return Vec::new();
        }
        let ([height, width], count) = (self.evaluated_size(), self.tile_count());
        let mut notes = vec![format!("each step computes {count} tiles of {width}x{height}")];
        let strength = self.strength.unwrap_or(1.0);
        if strength > SAFE_STRENGTH {
            notes.push(format!(
                "tiles with strength {strength}: things of the prompt may repeat, {SAFE_STRENGTH} or less is safer"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::files::ModelFiles;
    use crate::pipeline::request::images::Change;
    use crate::pipeline::request::regions::{Area, RegionPrompt};
    use crate::rgb::Rgb;

    fn plan(request: &Request) -> Result<Plan> {
        Plan::new(request, &ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap())
    }

    fn tiled(tile: Option<usize>, tile_overlap: Option<usize>) -> Request {
        Request { width: Some(256), height: Some(128), tile, tile_overlap, ..Request::new("x", 1) }
    }

    fn change(is_reference: bool) -> Change {
        let image = Arc::new(Rgb { width: 256, height: 128, bytes: vec![9; 3 * 256 * 128] });
        Change { image, cells: None, strength: 0.4, is_reference }
    }

    #[test]
    fn an_image_larger_than_a_tile_has_tiles() {
        let of = |tile, overlap| plan(&tiled(tile, overlap)).unwrap();
        for tile in [None, Some(0), Some(256), Some(1024)] {
            let plan = of(tile, None);
            assert_eq!((plan.tiles, plan.tile_count(), plan.evaluated_size()), (None, 1, [128, 256]));
        }
        let tiles = of(Some(128), None);
        assert_eq!(tiles.tiles, Some(TilePlan { side: 128, overlap: 32, has_own_reference: false }));
        assert_eq!((tiles.tile_count(), tiles.evaluated_size()), (3, [128, 128]));
        assert_eq!(of(Some(128), Some(0)).tile_count(), 2);
        assert_eq!(of(Some(16), None).tiles.map(|tiles| tiles.overlap), Some(0));
        assert!(tiles.notes.iter().any(|note| note.contains("repeat")), "{:?}", tiles.notes);
    }

    #[test]
    fn each_tile_sees_its_part_of_the_image_to_edit() {
        let other = Arc::new(Rgb { width: 64, height: 32, bytes: vec![9; 3 * 64 * 32] });
        for (is_reference, seen) in [(true, vec![[128, 128], [32, 64]]), (false, vec![[32, 64]])] {
            let references = vec![Arc::clone(&other)];
            let request = Request { change: Some(change(is_reference)), references, ..tiled(Some(128), None) };
            let plan = plan(&Request { width: None, height: None, ..request }).unwrap();
            assert_eq!(plan.seen_references().collect::<Vec<_>>(), seen);
            assert_eq!(plan.contexts(), if is_reference { 3 } else { 1 });
            assert!(!plan.notes.iter().any(|note| note.contains("repeat")), "{:?}", plan.notes);
        }
    }

    #[test]
    fn what_cannot_be_is_an_error_of_its_field() {
        let region = RegionPrompt { area: Area::Box([0, 0, 500, 500]), prompt: "x".to_string() };
        for (request, field) in [
            (tiled(Some(120), None), Field::Tile),
            (tiled(Some(128), Some(8)), Field::TileOverlap),
            (tiled(Some(128), Some(128)), Field::TileOverlap),
            (tiled(None, Some(64)), Field::TileOverlap),
            (tiled(Some(0), Some(64)), Field::TileOverlap),
            (Request { width: Some(1024), height: Some(1024), ..tiled(Some(32), Some(16)) }, Field::Tile),
            (Request { regions: vec![region], ..tiled(Some(128), None) }, Field::Tile),
            (Request { transparent: Transparency::Edit, ..tiled(Some(128), None) }, Field::Tile),
        ] {
            let error = plan(&request).unwrap_err();
            assert_eq!(error.field(), Some(field), "{error}");
            assert!(error.to_string().contains("hint: "), "{error}");
        }
    }
}
