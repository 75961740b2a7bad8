//! The part of a video frame that a session computes, when an earlier frame is cached.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::request::frame::{Changed, FrameRequest};
use crate::pipeline::request::kept;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::frame_store::StoredFrame;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::steps::Steps;
use crate::pipeline::session::partial::PartialSteps;
use crate::pipeline::session::references::Images;

/// The part of a frame that is computed.
pub(super) enum Frame<B: Backend> {
    /// All of it; the results are cached.
    All,
    /// These cells; the other cells come from an earlier frame.
    Cells(Arc<StoredFrame<B>>, Vec<bool>),
}

/// The source of a frame's image.
pub(super) enum Found<B: Backend> {
    /// The image of an earlier frame.
    Image(Arc<StoredFrame<B>>),
    Frame(Frame<B>),
}

impl<B: Backend> Found<B> {
    /// Returns `true` if the image of an earlier frame will be used.
    pub(super) fn is_known(residency: &Residency<B>, frame: &FrameRequest) -> bool {
        let patch = residency.info().vae.patch_pixels();
        let before = residency.frames.get(frame);
        before.is_some_and(|before| frame.changed(&before.of, before.compared_next(), patch) == Changed::Nothing)
    }

    /// Looks a frame up in the cache.
    pub(super) fn look_up(residency: &Residency<B>, frame: &FrameRequest) -> Self {
        let Some(before) = residency.frames.get(frame) else { return Self::Frame(Frame::All) };
        match frame.changed(&before.of, before.compared(), residency.info().vae.patch_pixels()) {
            Changed::Nothing => Self::Image(before),
            Changed::Cells(cells) => Self::Frame(Frame::Cells(before, cells)),
            Changed::Everything => Self::Frame(Frame::All),
        }
    }
}

/// Returns the steps that compute some tokens of an image, or that cache all tokens of a frame; `None` if all tokens
/// are computed and none is cached. `prompt` is the number of text tokens without padding.
///
/// Errors if memory runs out.
pub(super) fn partial_steps<B: Backend>(
    residency: &Residency<B>,
    Prepared { plan, needs, .. }: &Prepared,
    (images, frame, prompt): (&Images, Option<Frame<B>>, usize),
    steps: &Steps<B>,
) -> Result<Option<PartialSteps<B>>> {
    let (info, (height, width)) = (residency.info(), residency.info().latent_size(plan));
    let sizes = (&info.reference_sizes(plan)[..], [height, width]);
    let make_room = || residency.make_room(needs.kept + needs.step, Component::Transformer);
    match frame {
        Some(Frame::All) => {
            residency.frames.clear();
            make_room();
            Ok(Some(PartialSteps::recorded(steps)))
        }
        Some(Frame::Cells(before, cells)) => {
            // Padding tokens of the prompt are not recomputed.
            let tokens = kept::tokens(steps.split.whole(), prompt, &cells, before.of.is_shown);
            PartialSteps::new(steps, tokens, sizes, Some(before)).map(Some)
        }
        None => {
            let Some(tokens) = images.kept_tokens(info, plan) else { return Ok(None) };
            make_room();
            PartialSteps::new(steps, tokens, sizes, None).map(Some)
        }
    }
}
