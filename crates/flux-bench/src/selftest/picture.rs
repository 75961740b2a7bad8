//! An image of the default model compared with a stored one, and the times of its stages.

use std::sync::Arc;
use std::time::Instant;

use super::{Outcome, Test};
use flux::backend::Backend;
use flux::compare::difference;
use flux::error::{Error, Result};
use flux::files::ModelFiles;
use flux::input::read_bytes;
use flux::pipeline::{Image, Model, Request};
use flux::rgb::Rgb;

pub const NAME: &str = "image/256x256";
pub const STAGES: &str = "stages/256x256";
/// The reference implementation's image in float32 for this prompt and seed.
const EXPECTED: &[u8] = include_bytes!("../../../../tests/golden/default-model/0.png");
const PROMPT: &str = "a red circle on a blue background";
const SEED: u64 = 100;
/// Minimum PSNR. The reference in bf16 has 49 to 56 dB compared with float32.
const MIN_DB: f64 = 45.0;

/// Generates the image on the device, on the reference if that is another backend, and again on the device for its
/// times.
pub fn test<B: Backend, R: Backend>(
    test: &mut Test<'_, B, R>,
    model: impl FnOnce() -> Result<ModelFiles>,
) -> Result<()> {
    let start = Instant::now();
    let files = match model() {
        Ok(files) => files,
        // Builds without a model skip this test.
        Err(e) => return test.found(NAME, start, Ok((format!("skipped: {}", e.what()), None))),
    };
    let (device, reference) = (test.device.clone(), (!test.is_reference).then(|| test.reference.clone()));
    let model = Model::load(device, &files);
    let mut first = None;
    test.one(NAME, |_| {
        let image = first.insert(draw(&model)?);
        let made = rgb(image);
        let mut found = vec![("the reference", apart(&made, &read_bytes(EXPECTED)?)?)];
        if let Some(reference) = reference {
            found.push(("the CPU", apart(&made, &rgb(&Model::load(reference, &files)?.generate(&request())?))?));
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
    // `false` for NaN.
    let is_near = found.iter().all(|(_, db)| *db >= MIN_DB);
    (figures.join(", "), (!is_near).then(|| format!("expected at least {MIN_DB} dB")))
}

/// Formats the times. The prompt is encoded only for the first image; the other stages are warm for the second.
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
