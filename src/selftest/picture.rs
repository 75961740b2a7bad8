//! An image of the default model beside the one that it should be, and how long its stages take.

use std::sync::Arc;
use std::time::Instant;

use super::{Outcome, Test};
use crate::backend::Backend;
use crate::compare::difference;
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::input::read_bytes;
use crate::pipeline::{Image, Model, Request};
use crate::rgb::Rgb;

pub const NAME: &str = "image/256x256";
pub const STAGES: &str = "stages/256x256";
/// What the reference implementation in float32 draws of this prompt and seed.
const EXPECTED: &[u8] = include_bytes!("../../tests/golden/default-model/0.png");
const PROMPT: &str = "a red circle on a blue background";
const SEED: u64 = 100;
/// The least PSNR. The reference in bf16 is 49 to 56 dB from itself in float32.
const LEAST_DB: f64 = 45.0;

/// Draws the image on the device, and where that is another one on the reference, too; then on the device once more,
/// for its times.
pub fn test<B: Backend, R: Backend>(
    test: &mut Test<'_, B, R>,
    model: impl FnOnce() -> Result<ModelFiles>,
) -> Result<()> {
    let start = Instant::now();
    let files = match model() {
        Ok(files) => files,
        // A program without a model has none to draw with.
        Err(e) => return test.found(NAME, start, Ok((format!("not drawn: {}", e.what()), None))),
    };
    let (device, reference) = (test.device.clone(), (!test.is_reference).then(|| test.reference.clone()));
    let model = Model::load(device, &files);
    let mut first = None;
    test.one(NAME, |_| {
        let image = first.insert(draw(&model)?);
        let made = rgb(image);
        let mut found = vec![("the reference's", apart(&made, &read_bytes(EXPECTED)?)?)];
        if let Some(reference) = reference {
            found.push(("the CPU's", apart(&made, &rgb(&Model::load(reference, &files)?.generate(&request())?))?));
        }
        Ok(judged(&found))
    })?;
    test.one(STAGES, |_| {
        let first = first.map_or_else(|| draw(&model), Ok)?;
        Ok((times(&first, &draw(&model)?), None))
    })
}

fn request() -> Request {
    Request::new(PROMPT, SEED)
}

fn draw<B: Backend>(model: &Result<Arc<Model<B>>>) -> Result<Image> {
    model.as_ref().map_err(Clone::clone)?.generate(&request())
}

fn rgb(image: &Image) -> Rgb {
    Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb.clone() }
}

fn apart(made: &Rgb, expected: &Rgb) -> Result<f64> {
    difference(made, expected).map(|found| found.psnr_db).map_err(|e| Error::new(e.what().to_string()))
}

fn judged(found: &[(&str, f64)]) -> Outcome {
    let figures: Vec<_> = found.iter().map(|(what, db)| format!("{db:.1} dB from {what}")).collect();
    // Not so for a NaN as well.
    let is_near = found.iter().all(|(_, db)| *db >= LEAST_DB);
    (figures.join(", "), (!is_near).then(|| format!("expected at least {LEAST_DB} dB")))
}

/// The prompt is read once; everything else is warm the second time.
fn times(first: &Image, again: &Image) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let steps = &again.timings.steps_s;
    let step = steps.iter().sum::<f64>() / steps.len().max(1) as f64;
    format!(
        "text {}, step {}, decode {}, image {}",
        ms(first.timings.text_s),
        ms(step),
        ms(again.timings.decode_s),
        ms(again.timings.total_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_below_45_db_is_wrong() {
        assert_eq!(judged(&[("a", 45.0), ("b", f64::INFINITY)]), ("45.0 dB from a, inf dB from b".to_string(), None));
        assert!(judged(&[("a", 50.0), ("b", 44.9)]).1.is_some() && judged(&[("a", f64::NAN)]).1.is_some());
        let expected = read_bytes(EXPECTED).unwrap();
        assert_eq!((expected.width, expected.height), (256, 256));
    }
}
