//! Video frames that reuse tokens of an earlier frame.

use std::sync::Arc;

use crate::pipeline::request::fields::Request;
use crate::pipeline::request::kept::{Reuse, widened};
use crate::rgb::Rgb;

/// Maximum part of a frame that may change for its tokens to be recomputed selectively. Beyond this part, recomputing
/// all tokens is hardly more work.
const MAX_CHANGED: f64 = 0.6;

/// A frame and its request.
#[derive(Debug, Clone)]
pub(crate) struct FrameRequest {
    reuse: Reuse,
    /// The request without the frame.
    request: Request,
    frame: Arc<Rgb>,
    /// `true` if the model sees the frame, as its first reference.
    pub(crate) is_shown: bool,
}

/// The part of a frame that is recomputed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Nothing,
    /// These cells of 16 x 16 pixels, including the ring around changed cells.
    Cells(Vec<bool>),
    Everything,
}

impl FrameRequest {
    /// Creates the frame request of a request that has a frame and reuses tokens.
    pub(crate) fn from_request(request: &Request) -> Option<Self> {
        let (reuse, frame) = (request.reuse?, Arc::clone(request.images().next()?));
        let nothing = || Arc::new(Rgb { width: 0, height: 0, bytes: Vec::new() });
        let is_shown = request.change.as_ref().is_none_or(|change| change.is_reference);
        let mut request = request.clone();
        match &mut request.change {
            Some(change) => change.image = nothing(),
            None => request.references[0] = nothing(),
        }
        Some(Self { reuse, request, frame, is_shown })
    }

    /// Returns `true` if both frames have the same size and the same request.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let size = |of: &Self| [of.frame.width, of.frame.height];
        size(self) == size(other) && self.request == other.request
    }

    /// Returns the part of the frame that is recomputed, given the cached tokens of `before`, with which `compared`
    /// frames were compared.
    pub(crate) fn changed(&self, before: &Self, compared: usize, patch: usize) -> Changed {
        if compared >= self.reuse.refresh {
            return Changed::Everything;
        }
        let [width, height] = [self.frame.width / patch, self.frame.height / patch];
        let differs = |cell: usize| {
            let place = [cell % width, cell / width];
            let difference = self.frame.cell_difference(&before.frame, place, [width, height]);
            difference.is_none_or(|levels| levels > 255.0 * f64::from(self.reuse.threshold))
        };
        let cells: Vec<bool> = (0..width * height).map(differs).collect();
        let cells = widened(&cells, [height, width]);
        match cells.iter().filter(|changed| **changed).count() {
            0 => Changed::Nothing,
            count if count as f64 > MAX_CHANGED * cells.len() as f64 => Changed::Everything,
            _ => Changed::Cells(cells),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gray cells, 8 x 8 of them; the first `bright` are brighter by `levels`.
    fn frame(bright: usize, levels: u8) -> Arc<Rgb> {
        let level = |i: usize| if i / 3 % 128 / 16 + i / 3 / 128 / 16 * 8 < bright { 100 + levels } else { 100 };
        Arc::new(Rgb { width: 128, height: 128, bytes: (0..3 * 128 * 128).map(level).collect() })
    }

    fn frame_request(frame: &Arc<Rgb>, threshold: f32, prompt: &str) -> FrameRequest {
        let reuse = Some(Reuse { threshold, refresh: 3 });
        let references = vec![Arc::clone(frame)];
        FrameRequest::from_request(&Request { reuse, references, ..Request::new(prompt, 1) }).unwrap()
    }

    #[test]
    fn what_differs_by_more_than_the_threshold_is_computed_with_what_is_around_it() {
        let before = frame_request(&frame(0, 0), 0.02, "x");
        let changed = |bright, levels| frame_request(&frame(bright, levels), 0.02, "x").changed(&before, 1, 16);
        assert_eq!((changed(0, 0), changed(64, 5)), (Changed::Nothing, Changed::Nothing), "5.1 levels are a fiftieth");
        let Changed::Cells(cells) = changed(1, 6) else { panic!("a cell") };
        let set: Vec<_> = (0..64).filter(|cell| cells[*cell]).collect();
        assert_eq!(set, [0, 1, 8, 9]);
        assert_eq!(changed(40, 6), Changed::Everything, "48 of 64");
        assert!(matches!(changed(24, 6), Changed::Cells(_)), "32 of 64");
    }

    #[test]
    fn at_a_threshold_of_0_a_single_level_is_a_change_and_after_some_frames_all_is_computed() {
        let (before, same) = (frame_request(&frame(0, 0), 0.0, "x"), frame_request(&frame(0, 0), 0.0, "x"));
        assert_eq!(same.changed(&before, 2, 16), Changed::Nothing);
        assert_eq!(same.changed(&before, 3, 16), Changed::Everything);
        let mut near = frame(0, 0).as_ref().clone();
        near.bytes[0] += 1;
        assert!(matches!(frame_request(&Arc::new(near), 0.0, "x").changed(&before, 1, 16), Changed::Cells(_)));
    }

    #[test]
    fn only_frames_of_which_the_same_is_asked_are_alike() {
        let first = frame_request(&frame(0, 0), 0.0, "x");
        assert!(first.is_like(&frame_request(&frame(3, 9), 0.0, "x")));
        assert!(
            !first.is_like(&frame_request(&frame(0, 0), 0.0, "y"))
                && !first.is_like(&frame_request(&frame(0, 0), 0.1, "x"))
        );
        let wide = Arc::new(Rgb { width: 256, height: 64, bytes: frame(0, 0).bytes.clone() });
        assert!(!first.is_like(&frame_request(&wide, 0.0, "x")));
    }
}
