//! The second image of a transparent result: the same image on another background.
//!
//! A device generates both images one after the other, so a job has one ticket, one priority and one cancel flag.
//! [`Image`](super::Image) compares them when it is written.

use std::sync::Arc;

use crate::alpha::{self, Cutout};
use crate::backend::Backend;
use crate::error::{Error, Field, Result};
use crate::pipeline::session::shared_text::TextSource;
use crate::pipeline::{GivenReference, Image, Replica, Request, Session, Transparency};
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress};

/// Returns an image without its background; `None` if it stays opaque. `other` is the image on another background.
///
/// Errors if the background cannot be removed.
pub(super) fn cut_out(how: Transparency, image: &Rgb, other: Option<&Rgb>) -> Result<Option<Cutout>> {
    let cutout = match (how, other) {
        (Transparency::No, _) => return Ok(None),
        (Transparency::Key, _) => alpha::from_key(image),
        (Transparency::Edit, Some(other)) => alpha::from_two(image, other),
        (Transparency::Edit, None) => Err(Error::new("the image on another background is missing")),
    };
    cutout.map(Some).map_err(|e| e.for_field(Field::Transparent))
}

/// Returns the request of an image on another background: white if its own is dark, otherwise black. `first` is the
/// request of the image.
pub(super) fn second_request(first: &Request, image: Rgb) -> Request {
    let background = if alpha::is_light(&image) { "black" } else { "white" };
    Request {
        width: Some(image.width),
        height: Some(image.height),
        given_references: vec![Arc::new(GivenReference::alone(image, "the image".to_string()))],
        steps: first.steps,
        guidance: first.guidance,
        rng: first.rng,
        schedule: first.schedule.clone(),
        adapters: first.adapters.clone(),
        ..Request::new(format!("change the background to {background}"), first.seed)
    }
}

/// Returns the error of a [`second_request`] that the model refuses, such as one for an image of few pixels.
pub(super) fn refused(error: Error) -> Error {
    if error.is_out_of_memory() {
        return error;
    }
    Error::usage(format!("the image on another background: {}", error.what()))
        .for_field(Field::Transparent)
        .hint(Transparency::KEY_HINT)
}

/// Generates the image of a [`second_request`].
///
/// Errors as sessions do.
pub(super) fn generate<B: Backend>(
    replica: &Replica<B>,
    request: Request,
    cancel: &CancelFlag,
    report: impl Fn(Progress) + Send + Sync + 'static,
) -> Result<Image> {
    let work = move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| match rank {
        0 => session.run(&mut |progress| report(progress)),
        _ => session.run(&mut |_| {}),
    };
    let images = replica.ranks().run_items(vec![request], &TextSource::Own, cancel, &mut |_| {}, work)?;
    images.into_iter().next().ok_or_else(|| Error::new("a device made no image"))
}
