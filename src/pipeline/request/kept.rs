//! Selection of the image tokens to recompute, when the others are cached from another step or an earlier frame.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::model::info::ModelInfo;
use crate::ops::{ActiveTokens, TokenLayout};
use crate::pipeline::request::images::Change;
use crate::rgb::Rgb;

/// Width in tokens of the ring around changed tokens that is recomputed with them, because its neighbors change most.
const RING: usize = 1;

/// Reuse of tokens of an earlier video frame.
///
/// All tokens of a first frame are computed and cached. In a later frame with the same request, only tokens that
/// differ from the first frame are recomputed, and the tokens around them. If no token differs, the image of the
/// first frame is returned. Cached tokens never come from a frame that used the cache, so errors do not accumulate.
/// All tokens are recomputed if more than 0.6 of them would be, and after `refresh` frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reuse {
    /// Maximum difference between equal squares of 16 x 16 pixels: the mean absolute difference of their values, as a
    /// part of the largest value. At 0, equal squares have equal bytes.
    pub threshold: f32,
    /// Refresh interval: at least one of every `refresh` frames recomputes all tokens.
    pub refresh: usize,
}

impl Reuse {
    /// Checks the values.
    ///
    /// Errors if a value is out of range.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::usage(what).for_field(Field::Reuse).hint(hint));
        if !(0.0..=1.0).contains(&self.threshold) {
            let what = format!("the threshold is {}, expected 0 to 1", self.threshold);
            return wrong(what, "use 0.02 to ignore a camera's noise, 0 to ignore nothing");
        }
        if self.refresh == 0 {
            return wrong("all tokens are refreshed every 0 frames, expected at least 1".to_string(), "use at least 1");
        }
        Ok(())
    }
}

/// Checks that the model can cache some tokens; `what` is the field that requests it.
///
/// Errors if it cannot.
fn check(info: &ModelInfo, guided: bool, what: Field) -> Result<()> {
    let refused = |why: &str, hint: &str| Err(Error::usage(format!("`{what:#}` {why}")).for_field(what).hint(hint));
    if info.transformer.has_early_blocks() {
        return refused(
            "cannot be used with models that have early blocks",
            "leave it out, or use a FLUX.2-klein model",
        );
    }
    if info.caches_references {
        return refused(
            "cannot be used with cached keys and values of references",
            "leave it out, or use another kind of model",
        );
    }
    if guided {
        return refused("cannot be used with guidance", &format!("leave it out, or use `{} 1`", Field::Guidance));
    }
    Ok(())
}

/// Returns the number of tokens of an image to edit that are cached in its first step for the other steps.
///
/// Errors if the model cannot cache tokens, or there is no mask.
pub(crate) fn sparse_tokens(
    (change, references): (Option<&Change>, &[Arc<Rgb>]),
    info: &ModelInfo,
    guided: bool,
    txt: usize,
) -> Result<usize> {
    check(info, guided, Field::Sparse)?;
    if change.is_some_and(|change| !change.is_reference) {
        return Err(Error::usage(format!(
            "`{:#}` cannot be used with `{:#}`: partial steps read the rest of the image from the reference",
            Field::Sparse,
            Field::NoSelfReference
        ))
        .for_field(Field::Sparse)
        .hint("leave one of them out"));
    }
    match change.and_then(|change| under_mask(change, references, info, txt)) {
        Some(tokens) => Ok(tokens.kept().iter().map(Range::len).sum()),
        None => Err(Error::usage(format!("`{:#}` requires `{:#}`", Field::Sparse, Field::Mask))
            .for_field(Field::Sparse)
            .hint("pass a mask too, or leave it out")),
    }
}

/// Returns the number of tokens that are cached for a frame of this size, [height, width] in pixels: the tokens of
/// every step, and those of one more step, which are read.
///
/// Errors if the model cannot cache tokens, or there is no frame of that size.
pub(crate) fn frame_tokens(
    reuse: Reuse,
    (change, references): (Option<&Change>, &[Arc<Rgb>]),
    info: &ModelInfo,
    guided: bool,
    (txt, size, steps): (usize, [usize; 2], usize),
) -> Result<usize> {
    reuse.check()?;
    check(info, guided, Field::Reuse)?;
    let refused = |what: &str, hint: &str| {
        Err(Error::usage(format!("`{:#}` {what}", Field::Reuse)).for_field(Field::Reuse).hint(hint))
    };
    if change.is_some_and(|change| change.cells.is_some()) {
        return refused("cannot be used with a mask", "leave one of them out");
    }
    match change.map(|change| &change.image).or(references.first()) {
        Some(frame) if [frame.height, frame.width] == size => {}
        _ => return refused("requires a frame of the same size as the image", "pass a frame, and no other size"),
    }
    let shown = change.filter(|change| change.is_reference).map(|change| &change.image);
    let pixels: usize = shown.into_iter().chain(references).map(|image| image.height * image.width).sum();
    let patch = info.vae.patch_pixels();
    Ok((steps + 1) * (txt + (pixels + size[0] * size[1]) / (patch * patch)))
}

/// Returns the cells of a grid that are set, and the cells around them.
pub(crate) fn widened(cells: &[bool], [height, width]: [usize; 2]) -> Vec<bool> {
    let near = |at: usize, side: usize| at.saturating_sub(RING)..(at + RING + 1).min(side);
    let is_near = |cell: usize| {
        let (y, x) = (cell / width, cell % width);
        near(y, height).any(|y| near(x, width).any(|x| cells[y * width + x]))
    };
    (0..height * width).map(is_near).collect()
}

/// Returns the tokens of an image to edit that are recomputed under its mask; `None` without a mask. References
/// change little from step to step, and stay cached.
pub(crate) fn under_mask(
    change: &Change,
    references: &[Arc<Rgb>],
    info: &ModelInfo,
    txt: usize,
) -> Option<ActiveTokens> {
    let patch = info.vae.patch_pixels();
    let size = |image: &Rgb| [image.height / patch, image.width / patch];
    let own = size(&change.image);
    let regenerated: Vec<bool> = change.cells.as_ref()?.iter().map(|cell| *cell > 0.0).collect();
    let shown = Some(own).filter(|_| change.is_reference);
    let references = shown.into_iter().chain(references.iter().map(|image| size(image)));
    let references = references.map(|[height, width]| height * width).sum();
    let whole = TokenLayout { references, ..TokenLayout::new(1, txt, own[0] * own[1]) };
    Some(tokens(whole, txt, &widened(&regenerated, own), false))
}

/// Returns the tokens of a sequence that are recomputed if the image cells in `changes` change, with the first `text`
/// tokens of its text. If `is_shown`, the first reference is the image to edit or the frame, and its tokens at the
/// same places change too.
pub(crate) fn tokens(whole: TokenLayout, text: usize, changes: &[bool], is_shown: bool) -> ActiveTokens {
    let image = whole.references;
    ActiveTokens::with_text(whole, text, |token| match token.checked_sub(image) {
        Some(cell) => changes[cell],
        None => is_shown && changes.get(token) == Some(&true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_around_those_that_change_are_computed_too() {
        let cells: Vec<bool> = (0..20).map(|cell| cell == 0 || cell == 14).collect();
        let wide = widened(&cells, [4, 5]);
        let rows: Vec<String> =
            wide.chunks(5).map(|row| row.iter().map(|wide| if *wide { '#' } else { '.' }).collect()).collect();
        assert_eq!(rows, ["##...", "##.##", "...##", "...##"]);
        assert!(widened(&[false; 6], [2, 3]).iter().all(|wide| !wide));
    }

    #[test]
    fn the_image_that_is_changed_changes_where_it_is_shown() {
        let whole = TokenLayout { references: 6, ..TokenLayout::new(1, 2, 4) };
        let changes = [false, true, true, false];
        assert_eq!(tokens(whole, 2, &changes, true).active(), [0..2, 3..5, 9..11]);
        assert_eq!(tokens(whole, 1, &changes, false).active(), [0..1, 9..11]);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (threshold, refresh) in [(-0.1, 1), (1.1, 1), (f32::NAN, 1), (0.0, 0)] {
            assert!(Reuse { threshold, refresh }.check().unwrap_err().to_string().contains("hint"), "{threshold}");
        }
        assert!(Reuse { threshold: 0.0, refresh: 1 }.check().is_ok());
    }
}
