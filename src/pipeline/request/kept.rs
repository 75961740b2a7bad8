//! Which tokens of an image are computed, where others are kept from another step or an earlier frame.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::model::info::ModelInfo;
use crate::ops::{ActiveTokens, TokenLayout};
use crate::pipeline::request::images::Change;
use crate::rgb::Rgb;

/// How many tokens around those that change are computed with them: these see their neighbours change most.
const RING: usize = 1;

/// Which tokens of a frame are those of an earlier one.
///
/// All tokens of a first frame are computed, and kept. Of a frame behind it, of which the same is asked, those are
/// computed that differ from it, and those around them; where none do, its image is that of the first. So what is kept
/// never comes of what was kept itself, and errors do not grow. All are computed again where more than 0.6 of them
/// would be, and after so many frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reuse {
    /// By how much a square of 16 x 16 pixels differs at most to be the same: the mean absolute difference of its
    /// values, as a part of the largest one. At 0 it is equal to the byte.
    pub threshold: f32,
    /// Of so many frames, all tokens of one are computed at least.
    pub refresh: usize,
}

impl Reuse {
    /// Errors when a value is out of its range.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::usage(what).of(Field::Reuse).hint(hint));
        if !(0.0..=1.0).contains(&self.threshold) {
            let what = format!("the threshold is {}, expected 0 to 1", self.threshold);
            return wrong(what, "0.02 leaves out a camera's noise, 0 nothing");
        }
        if self.refresh == 0 {
            return wrong("all tokens are to be computed of one of 0 frames".to_string(), "give at least 1");
        }
        Ok(())
    }
}

/// Errors when some tokens cannot be kept with this model; `what` asks for it.
fn check(info: &ModelInfo, guided: bool, what: Field) -> Result<()> {
    let refused = |why: &str, hint: &str| Err(Error::usage(format!("`{what:#}` {why}")).of(what).hint(hint));
    if info.transformer.has_early_blocks() {
        return refused(
            "is for models whose tokens all meet at once, which this kind is not",
            "leave it out, or use a FLUX.2-klein model",
        );
    }
    if info.caches_references {
        return refused(
            "does not go with keys and values of references that are made once",
            "leave it out, or use a model of another kind",
        );
    }
    if guided {
        return refused("is for models without guidance", &format!("leave it out, or ask for `{} 1`", Field::Guidance));
    }
    Ok(())
}

/// How many tokens of an image to change are kept from its first step for the others.
///
/// Errors when the model can keep none, or nothing says which.
pub(crate) fn sparse_tokens(
    (change, references): (Option<&Change>, &[Arc<Rgb>]),
    info: &ModelInfo,
    guided: bool,
    txt: usize,
) -> Result<usize> {
    check(info, guided, Field::Sparse)?;
    if change.is_some_and(|change| !change.is_reference) {
        return Err(Error::usage(format!(
            "`{:#}` does not go with `{:#}`: steps that compute a part know the rest from the reference",
            Field::Sparse,
            Field::NoSelfReference
        ))
        .of(Field::Sparse)
        .hint("leave one of them out"));
    }
    match change.and_then(|change| under_mask(change, references, info, txt)) {
        Some(tokens) => Ok(tokens.kept().iter().map(Range::len).sum()),
        None => Err(Error::usage(format!("`{:#}` has no meaning without `{:#}`", Field::Sparse, Field::Mask))
            .of(Field::Sparse)
            .hint("give a mask too, or leave it out")),
    }
}

/// How many tokens of a frame of this size in pixels, [height, width], are kept, those of each step counted, and those
/// of one step that are read.
///
/// Errors when the model can keep none, or there is no frame of that size.
pub(crate) fn frame_tokens(
    reuse: Reuse,
    (change, references): (Option<&Change>, &[Arc<Rgb>]),
    info: &ModelInfo,
    guided: bool,
    (txt, size, steps): (usize, [usize; 2], usize),
) -> Result<usize> {
    reuse.check()?;
    check(info, guided, Field::Reuse)?;
    let refused =
        |what: &str, hint: &str| Err(Error::usage(format!("`{:#}` {what}", Field::Reuse)).of(Field::Reuse).hint(hint));
    if change.is_some_and(|change| change.cells.is_some()) {
        return refused("is for frames without a mask", "leave one of them out");
    }
    match change.map(|change| &change.image).or(references.first()) {
        Some(frame) if [frame.height, frame.width] == size => {}
        _ => return refused("is for images of frames, in their size", "give a frame, and no other size"),
    }
    let shown = change.filter(|change| change.is_reference).map(|change| &change.image);
    let pixels: usize = shown.into_iter().chain(references).map(|image| image.height * image.width).sum();
    let patch = info.vae.patch_pixels();
    Ok((steps + 1) * (txt + (pixels + size[0] * size[1]) / (patch * patch)))
}

/// The cells of a grid that are set, and those around them.
pub(crate) fn widened(cells: &[bool], [height, width]: [usize; 2]) -> Vec<bool> {
    let near = |at: usize, side: usize| at.saturating_sub(RING)..(at + RING + 1).min(side);
    let is_near = |cell: usize| {
        let (y, x) = (cell / width, cell % width);
        near(y, height).any(|y| near(x, width).any(|x| cells[y * width + x]))
    };
    (0..height * width).map(is_near).collect()
}

/// The tokens of an image to change that are computed, where a mask says what is drawn anew. References change little
/// from step to step, and are kept.
pub(crate) fn under_mask(
    change: &Change,
    references: &[Arc<Rgb>],
    info: &ModelInfo,
    txt: usize,
) -> Option<ActiveTokens> {
    let patch = info.vae.patch_pixels();
    let size = |image: &Rgb| [image.height / patch, image.width / patch];
    let own = size(&change.image);
    let anew: Vec<bool> = change.cells.as_ref()?.iter().map(|cell| *cell > 0.0).collect();
    let shown = Some(own).filter(|_| change.is_reference);
    let references = shown.into_iter().chain(references.iter().map(|image| size(image)));
    let references = references.map(|[height, width]| height * width).sum();
    let whole = TokenLayout { references, ..TokenLayout::new(1, txt, own[0] * own[1]) };
    Some(tokens(whole, txt, &widened(&anew, own), false))
}

/// The tokens of a sequence that are computed where these cells of its image change, with so many of the first tokens
/// of its text. The first reference is the image that is changed or the frame that is drawn from where `is_shown`: its
/// tokens at the same places change too.
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
