//! The second pass of an image as a recipe asks for it: its pixels are enlarged, and the larger image is edited.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Field, Result};
use crate::input::{CELL, Region, Resize, in_cells};

/// Least and greatest factor of width and height.
const FACTORS: [f64; 2] = [1.25, 4.0];
/// Strength of the edit if the recipe has none.
const STRENGTH: f64 = 0.5;

/// A second pass. `by` or `size` is required. JSON may have only the factor, or `"WIDTHxHEIGHT"`, in place of the
/// object.
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
        Ok(())
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
        let too_large = |e: Error| {
            let error = Error::usage(format!("second pass: {}", e.what())).for_field(Field::Hires);
            error.hint("choose a smaller factor or size")
        };
        let enlarged = to.output_size(size).map_err(too_large)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            let error = hires.check().unwrap_err();
            assert!(error.field() == Some(Field::Hires) && error.to_string().contains("hint: "), "{error}");
        }
    }
}
