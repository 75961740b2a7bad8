//! What a session computes of a frame, where some of it may be that of an earlier one.

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

/// What is computed of a frame.
pub(super) enum Frame<B: Backend> {
    /// All of it, which is kept.
    All,
    /// These cells; the others are those of an earlier frame.
    Cells(Arc<StoredFrame<B>>, Vec<bool>),
}

/// How a frame is made.
pub(super) enum Found<B: Backend> {
    /// Its image is that of an earlier frame.
    Image(Arc<StoredFrame<B>>),
    Frame(Frame<B>),
}

impl<B: Backend> Found<B> {
    /// Whether the image of a frame will be that of an earlier one.
    pub(super) fn is_known(residency: &Residency<B>, frame: &FrameRequest) -> bool {
        let patch = residency.info().vae.patch_pixels();
        let before = residency.frames.get(frame);
        before.is_some_and(|before| frame.changed(&before.of, before.compared_next(), patch) == Changed::Nothing)
    }

    /// What there is of a frame.
    pub(super) fn of(residency: &Residency<B>, frame: &FrameRequest) -> Self {
        let Some(before) = residency.frames.get(frame) else { return Self::Frame(Frame::All) };
        match frame.changed(&before.of, before.compared(), residency.info().vae.patch_pixels()) {
            Changed::Nothing => Self::Image(before),
            Changed::Cells(cells) => Self::Frame(Frame::Cells(before, cells)),
            Changed::Everything => Self::Frame(Frame::All),
        }
    }
}

/// The steps that compute some tokens of an image, or keep those of a frame, whose prompt is the first tokens of its
/// text; none where all are computed and none is kept.
///
/// Errors when memory runs out.
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
            // What pads the prompt shows nothing.
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
