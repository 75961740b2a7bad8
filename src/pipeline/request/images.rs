//! The input images of a request: references, and an image to edit.

use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::model::info::{MAX_SIDE, ModelInfo};
use crate::rgb::Rgb;

/// Maximum number of reference images.
pub const MAX_REFERENCES: usize = 16;

/// An image to edit.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The image, in the size in which it is edited; see [`Edit::image`](crate::input::Edit::image).
    pub image: Arc<Rgb>,
    /// The regenerated part of each packed latent, from 0 to 1, row by row; `None` to regenerate everything. See
    /// [`Edit::cells`](crate::input::Edit::cells), whose values are only 0 or 1.
    pub cells: Option<Arc<[f32]>>,
    /// The part of the schedule that runs, from its end: 1 begins with pure noise, less with the noisy image.
    pub strength: f64,
    /// `true` if the transformer also sees the image as its first reference.
    pub is_reference: bool,
}

/// The part of a plan that depends on input images. Sizes are [height, width] in pixels.
pub(crate) struct ImagePlan {
    /// All reference images in their order, including an image to edit.
    pub references: Vec<[usize; 2]>,
    /// The size if the request has none.
    pub default_size: [usize; 2],
    pub first_step: usize,
    pub notes: Vec<String>,
}

impl ImagePlan {
    /// Creates the plan of the input images.
    ///
    /// Errors if an image does not suit the model, or `change` cannot be done in `steps` steps.
    pub(crate) fn new(
        references: &[Arc<Rgb>],
        change: Option<&Change>,
        steps: usize,
        info: &ModelInfo,
    ) -> Result<Self> {
        if references.len() > MAX_REFERENCES {
            let given = references.len();
            return Err(Error::usage(format!(
                "{given} reference images were passed, expected at most {MAX_REFERENCES}"
            ))
            .for_field(Field::Inputs)
            .hint("leave some out"));
        }
        let changed = change.map(|change| &change.image);
        for image in references.iter().chain(changed) {
            check_image(image, info)?;
        }
        let own = changed.filter(|_| change.is_some_and(|change| change.is_reference));
        let size = |image: &Arc<Rgb>| [image.height, image.width];
        let references: Vec<_> = own.into_iter().chain(references).map(size).collect();
        let (first_step, notes) = change.map_or(Ok((0, Vec::new())), |change| begin(change, steps, info))?;
        let default_size = changed.map(size).or(references.first().copied()).unwrap_or(info.default_image_size);
        Ok(Self { references, default_size, first_step, notes })
    }
}

/// Checks the size of an image.
///
/// Errors if the image does not consist of whole packed latents, or is too large.
fn check_image(image: &Rgb, info: &ModelInfo) -> Result<()> {
    let patch = info.vae.patch_pixels();
    let suits = |side: usize| (patch..=MAX_SIDE).contains(&side) && side.is_multiple_of(patch);
    if suits(image.width) && suits(image.height) && image.bytes.len() == 3 * image.width * image.height {
        return Ok(());
    }
    Err(Error::new(format!(
        "an image of {} x {} pixels cannot be encoded: this model takes sides of {patch} to {MAX_SIDE} pixels, in \
         multiples of {patch}",
        image.width, image.height
    ))
    .hint("resize it first"))
}

/// Returns the first step of an edit, and notes for the user.
///
/// Errors if nothing would change, or a value is out of range.
fn begin(change: &Change, steps: usize, info: &ModelInfo) -> Result<(usize, Vec<String>)> {
    let strength = change.strength;
    if !(0.0..=1.0).contains(&strength) {
        return Err(Error::usage(format!("the strength is {strength}, expected 0 to 1"))
            .for_field(Field::Strength)
            .hint("use 1 to regenerate the whole image, less to stay closer to it"));
    }
    let patch = info.vae.patch_pixels();
    let latents = change.image.width / patch * (change.image.height / patch);
    if let Some(cells) = &change.cells
        && !(cells.len() == latents && cells.iter().all(|cell| (0.0..=1.0).contains(cell)))
    {
        return Err(Error::new(format!("the mask has {} cells, expected {latents} from 0 to 1", cells.len()))
            .hint("create it with `Edit` for this image"));
    }
    let all = steps as f64;
    if strength == 0.0 {
        return Err(Error::usage(format!("a strength of 0 runs none of {steps} steps, so nothing changes"))
            .for_field(Field::Strength)
            .hint("use more than 0: at least one step runs"));
    }
    // Rounds as the reference does: towards fewer skipped steps, with at least one step left, however close to 0 the
    // strength is. Source: diffusers `Flux2KleinInpaintPipeline`.
    let first = ((all - (all * strength).min(all)).max(0.0) as usize).min(steps - 1);
    let same = (steps - first) as f64 / all;
    let note = (same != strength)
        .then(|| format!("a strength of {strength} runs {} of {steps} steps, the same as {same}", steps - first));
    Ok((first, note.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;

    fn info() -> ModelInfo {
        ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap()
    }

    fn image(width: usize, height: usize) -> Arc<Rgb> {
        Arc::new(Rgb { width, height, bytes: vec![9; 3 * width * height] })
    }

    fn change(strength: f64) -> Change {
        Change { image: image(32, 48), cells: None, strength, is_reference: true }
    }

    #[test]
    fn a_strength_begins_where_the_reference_does() {
        let first =
            |strength, steps| ImagePlan::new(&[], Some(&change(strength)), steps, &info()).map(|p| p.first_step);
        for (strength, expected) in [(1.0, 0), (0.8, 0), (0.76, 0), (0.75, 1), (0.6, 1), (0.5, 2), (0.25, 3)] {
            assert_eq!(first(strength, 4).unwrap(), expected, "{strength}");
        }
        assert_eq!(first(0.3, 50).unwrap(), 35);
        for tiny in [1e-9, 1e-17, f64::MIN_POSITIVE, 5e-324] {
            assert_eq!(first(tiny, 4).unwrap(), 3, "{tiny}");
        }
        for bad in [0.0, -0.0, -0.1, 1.1, f64::NAN] {
            let error = first(bad, 4).unwrap_err();
            assert!(error.field() == Some(Field::Strength) && error.to_string().contains("hint"), "{error}");
        }
    }

    #[test]
    fn a_strength_that_is_as_another_one_is_said() {
        let notes = |strength| ImagePlan::new(&[], Some(&change(strength)), 4, &info()).unwrap().notes;
        assert!(matches!(&notes(0.8)[..], [note] if note.contains(" 0.8 ") && note.contains(" 4 of 4 ")));
        assert!(notes(0.75).is_empty() && notes(1.0).is_empty());
    }

    #[test]
    fn the_image_to_change_is_the_first_reference_and_gives_the_size() {
        let others = [image(64, 16), image(16, 16)];
        let plan = ImagePlan::new(&others, Some(&change(1.0)), 4, &info()).unwrap();
        assert_eq!((plan.references, plan.default_size), (vec![[48, 32], [16, 64], [16, 16]], [48, 32]));
        let hidden = Change { is_reference: false, ..change(1.0) };
        let plan = ImagePlan::new(&others, Some(&hidden), 4, &info()).unwrap();
        assert_eq!((plan.references, plan.default_size), (vec![[16, 64], [16, 16]], [48, 32]));
        let plan = ImagePlan::new(&others, None, 4, &info()).unwrap();
        assert_eq!((plan.references, plan.default_size), (vec![[16, 64], [16, 16]], [16, 64]));
        assert_eq!(ImagePlan::new(&[], None, 4, &info()).unwrap().default_size, [256, 256]);
    }

    #[test]
    fn images_that_do_not_suit_the_model_are_refused() {
        let refused = |references: &[Arc<Rgb>]| {
            ImagePlan::new(references, None, 4, &info()).map(|plan| plan.references).unwrap_err().to_string()
        };
        assert!(refused(&[image(40, 32)]).contains("40 x 32"));
        assert!(refused(&vec![image(16, 16); MAX_REFERENCES + 1]).contains("17 reference images"));
        let cells = Some(Arc::from([0.5; 5]));
        let change = Change { cells, ..change(1.0) };
        let error = ImagePlan::new(&[], Some(&change), 4, &info()).map(|plan| plan.references).unwrap_err();
        assert!(error.to_string().contains("5 cells, expected 6"), "{error}");
    }
}
