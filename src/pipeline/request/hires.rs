//! The second pass of an image: its pixels are enlarged, and the larger image is edited.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Field, Result};
use crate::input::{CELL, Region, Resize, in_cells};
use crate::model::info::ModelInfo;
use crate::pipeline::request::images::Change;
use crate::pipeline::request::plan::{Plan, Request};
use crate::rgb::Rgb;

/// Least and greatest factor of width and height.
const FACTORS: [f64; 2] = [1.25, 4.0];
/// Strength of the edit if the recipe has none.
const STRENGTH: f64 = 0.5;
/// Results with more pixels get a note.
const MANY_PIXELS: usize = 4 << 20;

/// A second pass. `by` or `size` is required. JSON may have only the factor, or `"WIDTHxHEIGHT"`, in place of the object.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct Hires {
    /// Factor of width and height, from 1.25 to 4. Sides are rounded to multiples of 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<f64>,
    /// Size of the result. If the proportions differ, the middle of the first image is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Resize>,
    /// File of an upscaler; without one, a Lanczos filter enlarges the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upscaler: Option<PathBuf>,
    /// Strength of the edit, from 0 to 1; 0.5 if omitted. With 0 the image is only enlarged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
    /// Denoising steps, of which the edit runs the last ones; those of the first pass if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Prompt of the edit; that of the first pass if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// `true` if the enlarged image is not the reference of its edit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_reference: bool,
}

/// The second pass of a [`Plan`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HiresPlan {
    /// Width of the result in pixels.
    pub width: usize,
    /// Height of the result in pixels.
    pub height: usize,
    /// The edit; `None` if the image is only enlarged.
    pub edit: Option<Box<Plan>>,
}

impl Serialize for Hires {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Hires {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Short;

        impl<'de> Visitor<'de> for Short {
            type Value = Hires;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a factor, WIDTHxHEIGHT, or an object with `by` or `size`")
            }

            fn visit_f64<E>(self, by: f64) -> std::result::Result<Hires, E> {
                Ok(Hires { by: Some(by), ..Hires::default() })
            }

            fn visit_u64<E: serde::de::Error>(self, by: u64) -> std::result::Result<Hires, E> {
                self.visit_f64(by as f64)
            }

            fn visit_i64<E: serde::de::Error>(self, by: i64) -> std::result::Result<Hires, E> {
                self.visit_f64(by as f64)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Hires, E> {
                match text.trim().parse() {
                    Ok(by) => self.visit_f64(by),
                    Err(_) => Ok(Hires { size: Some(text.trim().parse().map_err(E::custom)?), ..Hires::default() }),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Hires, A::Error> {
                Hires::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(Short)
    }
}

impl Hires {
    /// Errors if a value is out of range, or if there is not exactly one of `by` and `size`.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::usage(what).for_field(Field::Hires).hint(hint));
        let [least, most] = FACTORS;
        match (self.by, self.size) {
            (None, None) => return wrong("the second pass has no size".to_string(), "set a factor or a size"),
            (Some(_), Some(_)) => {
                return wrong("the second pass has a factor and a size".to_string(), "leave one of them out");
            }
            (Some(by), None) if !(least..=most).contains(&by) => {
                let what = format!("the factor of the second pass is {by}, expected {least} to {most}");
                return wrong(what, "2 is usual");
            }
            (None, Some(size @ Resize::Sides([Some(width), Some(height)])))
                if ![width, height].iter().all(|side| side.is_multiple_of(CELL)) =>
            {
                let what = format!("the size of the second pass is {size}, expected multiples of {CELL}");
                return wrong(what, &format!("the nearest is {}x{}", in_cells(width), in_cells(height)));
            }
            _ => {}
        }
        let strength = self.strength();
        if !(0.0..=1.0).contains(&strength) {
            let what = format!("the strength of the second pass is {strength}, expected 0 to 1");
            return wrong(what, "0.3 to 0.6 adds detail and keeps the image");
        }
        let prompt = self.prompt.as_ref().map_or(Ok(()), |prompt| Request::new(prompt, 0).check_prompt());
        prompt.map_err(|e| e.for_field(Field::Hires).prefixed("second pass"))
    }

    /// Returns the strength of the edit.
    pub fn strength(&self) -> f64 {
        self.strength.unwrap_or(STRENGTH)
    }

    /// Returns the part of a first image of this size that is enlarged.
    pub fn region(&self, [width, height]: [usize; 2]) -> Region {
        self.size.map_or(Region::all(width, height), |size| size.region([width, height]))
    }

    /// Returns the region of a result that shows the region `place` of the first image, which has size `first`.
    pub(crate) fn place_in_result(&self, place: Region, first: [usize; 2], result: [usize; 2]) -> Region {
        let part = self.region(first);
        let along = |start: usize, length: usize, from: usize, whole: usize, result: usize| {
            let scaled = |at: usize| at.saturating_sub(from).min(whole) * result / whole;
            [scaled(start), scaled(start + length)]
        };
        let [left, right] = along(place.left, place.width, part.left, part.width, result[0]);
        let [top, bottom] = along(place.top, place.height, part.top, part.height, result[1]);
        Region { left, top, width: right - left, height: bottom - top }
    }

    /// Returns width and height of the result for a first image of this size, in multiples of 16.
    ///
    /// Errors if the result would be too large, or not larger than the image.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2]> {
        let to = match (self.by, self.size) {
            (_, Some(to)) => to,
            (by, None) => {
                let [width, height] = size.map(|side| (side as f64 * by.unwrap_or(1.0)).round() as usize);
                Resize::Sides([Some(width), Some(height)])
            }
        };
        let enlarged = to.output_size(size).map_err(|e| e.for_field(Field::Hires).prefixed("second pass"))?;
        let enlarged = enlarged.map(in_cells);
        if enlarged != size && enlarged.iter().zip(size).all(|(side, from)| *side >= from) {
            return Ok(enlarged);
        }
        let [[from_width, from_height], [width, height]] = [size, enlarged];
        let what =
            format!("the second pass is {width}x{height}, not larger than the first, {from_width}x{from_height}");
        Err(Error::usage(what).for_field(Field::Hires).hint("choose a larger factor or size"))
    }
}

impl Request {
    /// Returns the request of the first pass.
    pub(crate) fn first_pass(&self) -> Self {
        Self { hires: None, ..self.clone() }
    }

    /// Returns the request of the second pass, which edits the enlarged image; `None` if the image is only enlarged,
    /// or there is no second pass.
    pub(crate) fn second_pass(&self, image: Arc<Rgb>) -> Option<Self> {
        let hires = self.hires.as_ref().filter(|hires| hires.strength() > 0.0)?;
        let change = Change { image, cells: None, strength: hires.strength(), is_reference: !hires.no_reference };
        let own = hires.prompt.is_some();
        Some(Self {
            prompt: hires.prompt.clone().unwrap_or_else(|| self.prompt.clone()),
            has_boxes: self.has_boxes && !own,
            embeddings: self.embeddings.clone().filter(|_| !own),
            steps: hires.steps.or(self.steps),
            change: Some(change),
            width: None,
            height: None,
            noise: None,
            latents: None,
            references: Vec::new(),
            given_references: Vec::new(),
            reference_weights: Vec::new(),
            sparse: false,
            hires: None,
            ..self.clone()
        })
    }
}

impl Plan {
    /// Adds the second pass of a request to the plan of its first one.
    ///
    /// Errors if the model cannot do what is requested, or as `count`.
    pub(super) fn with_hires(
        mut self,
        request: &Request,
        info: &ModelInfo,
        count: &dyn Fn(&str) -> Result<usize>,
    ) -> Result<Self> {
        let Some(hires) = &request.hires else { return Ok(self) };
        hires.check()?;
        if request.reuse.is_some() {
            return Err(Error::usage(format!("`{:#}` cannot be used with `{:#}`", Field::Hires, Field::Reuse))
                .for_field(Field::Hires)
                .hint("leave one of them out"));
        }
        let [width, height] = hires.output_size([self.width, self.height])?;
        let size = [self.width, self.height];
        if !request.regions.is_empty() && hires.region(size).size() != size {
            return Err(Error::usage("regions need a second pass of the proportions of the first".to_string())
                .for_field(Field::Hires)
                .hint("use a factor instead of a size"));
        }
        // Plans depend on sizes alone.
        let blank = Arc::new(Rgb { width, height, bytes: vec![0; 3 * width * height] });
        let edit = request.second_pass(blank).map(|second| Self::single(&second, info, count)).transpose();
        let edit = edit.map_err(|e| e.prefixed("second pass"))?;
        match &edit {
            Some(edit) => {
                // An edit keeps the composition, so larger sizes than those of the training do less harm.
                let size_note = info.size_note(width, height);
                let is_new = |note: &&String| !self.notes.contains(note) && Some(*note) != size_note.as_ref();
                let notes: Vec<_> =
                    edit.notes.iter().filter(is_new).map(|note| format!("second pass: {note}")).collect();
                self.notes.extend(notes);
                if width * height > MANY_PIXELS {
                    self.notes.push(format!(
                        "the second pass edits {width}x{height} in one piece: things may repeat, and it takes long"
                    ));
                }
            }
            None => self.notes.push("the second pass has strength 0: it only enlarges the image".to_string()),
        }
        self.hires = Some(HiresPlan { width, height, edit: edit.map(Box::new) });
        Ok(self)
    }

    /// Returns width and height of the result: those of the second pass, if there is one.
    pub fn output_size(&self) -> [usize; 2] {
        self.hires.as_ref().map_or([self.width, self.height], |hires| [hires.width, hires.height])
    }

    /// Returns the plan of the second pass, if it edits the image.
    pub fn second_pass(&self) -> Option<&Self> {
        self.hires.as_ref()?.edit.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;

    fn by(by: f64) -> Hires {
        Hires { by: Some(by), ..Hires::default() }
    }

    fn to(size: &str) -> Hires {
        Hires { size: size.parse().ok(), ..Hires::default() }
    }

    #[test]
    fn sizes_are_multiples_of_16_and_larger_than_the_first() {
        for (hires, size) in [
            (by(2.0), [256, 128]),
            (by(1.3), [160, 80]),
            (to("512"), [512, 256]),
            (to("x160"), [320, 160]),
            (to("256x256"), [256, 256]),
        ] {
            hires.check().unwrap();
            assert_eq!(hires.output_size([128, 64]).unwrap(), size);
        }
        assert_eq!(to("256x256").region([128, 64]).size(), [64, 64]);
        for hires in [to("128x64"), to("256x48"), to("64"), to("16384x16384")] {
            let error = hires.output_size([128, 64]).unwrap_err();
            assert_eq!(error.field().map(Field::key), Some("hires"), "{error}");
        }
    }

    #[test]
    fn a_place_grows_with_the_image() {
        let place = Region { left: 6, top: 5, width: 100, height: 70 };
        let doubled = Region { left: 12, top: 10, width: 200, height: 140 };
        assert_eq!(by(2.0).place_in_result(place, [112, 80], [224, 160]), doubled);
        let cut = Region { left: 0, top: 10, width: 160, height: 140 };
        assert_eq!(to("160x160").place_in_result(place, [112, 80], [160, 160]), cut);
    }

    #[test]
    fn json_may_be_the_size_alone() {
        let read = |json: &str| serde_json::from_str::<Hires>(json).map_err(|e| e.to_string());
        for (json, expected) in [
            ("2", by(2.0)),
            ("1.5", by(1.5)),
            (r#""1.5""#, by(1.5)),
            (r#""512x256""#, to("512x256")),
            (r#"{"size": "512x256"}"#, to("512x256")),
        ] {
            assert_eq!(read(json), Ok(expected), "{json}");
        }
        for (json, words) in [
            ("true", "expected a factor"),
            (r#""x""#, "expected"),
            (r#"{"scale": 2}"#, "unknown field `scale`, expected one of `by`"),
            (r#"{"by": "two"}"#, "two"),
        ] {
            assert!(read(json).is_err_and(|e| e.contains(words)), "{json}: {:?}", read(json));
        }
        let long = Hires { upscaler: Some("u.pth".into()), steps: Some(4), no_reference: true, ..by(2.0) };
        let json = serde_json::to_string(&long).unwrap();
        assert_eq!((read(&json), &*json), (Ok(long), r#"{"by":2.0,"upscaler":"u.pth","steps":4,"no_reference":true}"#));
    }

    #[test]
    fn values_out_of_range_are_errors() {
        let both = Hires { size: "512".parse().ok(), ..by(2.0) };
        for hires in [
            Hires::default(),
            both,
            by(1.2),
            by(4.1),
            by(f64::NAN),
            to("250x256"),
            Hires { strength: Some(1.1), ..by(2.0) },
            Hires { strength: Some(f64::NAN), ..by(2.0) },
            Hires { prompt: Some("\u{1}".to_string()), ..by(2.0) },
        ] {
            let error = hires.check().unwrap_err();
            assert!(error.field() == Some(Field::Hires) && error.to_string().contains("hint: "), "{error}");
        }
    }

    #[test]
    fn a_plan_has_both_passes() {
        let info = ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        let request =
            |hires| Request { width: Some(128), height: Some(64), hires: Some(hires), ..Request::new("x", 1) };
        let plan = Plan::new(&request(by(2.0)), &info).unwrap();
        let edit = plan.second_pass().unwrap();
        assert_eq!((plan.width, plan.output_size(), edit.width), (128, [256, 128], 256));
        assert_eq!((&edit.references, edit.strength, edit.hires.is_none()), (&vec![[128, 256]], Some(0.5), true));
        let enlarged = Plan::new(&request(Hires { strength: Some(0.0), ..by(2.0) }), &info).unwrap();
        assert!(enlarged.second_pass().is_none() && enlarged.output_size() == [256, 128]);
        assert!(enlarged.notes.iter().any(|note| note.contains("only enlarges")));
        let alone = Plan::new(&request(Hires { no_reference: true, ..by(2.0) }), &info).unwrap();
        assert!(alone.second_pass().unwrap().references.is_empty());
        for steps in [0, 100_000] {
            let error = Plan::new(&request(Hires { steps: Some(steps), ..by(2.0) }), &info).unwrap_err();
            assert!(error.to_string().contains("second pass: steps is"), "{error}");
        }
    }
}
