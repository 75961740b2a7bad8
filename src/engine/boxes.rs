//! Boxes: the places of objects, for models that were trained on tables of them.
//!
//! A prompt with boxes is a caption that cites objects as `<id>`, a space, and a JSON array with one row per object.
//! The text follows the prompt upsampler of FLUX.3 in diffusers.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::{Error, Field, Result};

/// Coordinates count from 0 to this at the bottom and the right of the image.
const SCALE: u16 = 1000;
/// A row of the text's own table with this much overlap is the same object as a box.
const MIN_SAME: f64 = 0.9;
/// The value of `from` in rows of objects that are new in an edit.
const TARGET: &str = "target";
/// The start of the name of a reference; its number counts from 0.
const REFERENCE: &str = "ref_image_";
/// Maximum number of boxes of an image. A row takes about 36 tokens and its description.
pub const MAX_BOXES: usize = 64;

/// A rectangle in thousandths of the image: top, left, bottom, right. The top is less than the bottom, and the left
/// less than the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rectangle([u16; 4]);

impl Rectangle {
    /// Creates a rectangle from top, left, bottom and right in thousandths.
    ///
    /// Errors if a coordinate is above 1000, or if the rectangle is empty.
    pub fn new(sides: [u16; 4]) -> std::result::Result<Self, String> {
        let [top, left, bottom, right] = sides;
        match () {
            () if sides.iter().any(|side| *side > SCALE) => Err(format!("coordinates go from 0 to {SCALE}")),
            () if top >= bottom => Err("the top must be less than the bottom".to_string()),
            () if left >= right => Err("the left must be less than the right".to_string()),
            () => Ok(Self(sides)),
        }
    }

    /// Reads four JSON numbers: integers are thousandths; if one has a decimal point, all are shares from 0 to 1, which
    /// are clamped and rounded half to even.
    fn from_json(numbers: &[serde_json::Number; 4]) -> std::result::Result<Self, String> {
        let is_share = numbers.iter().any(serde_json::Number::is_f64);
        let side = |number: &serde_json::Number| match (is_share, number.as_u64(), number.as_f64()) {
            (false, Some(side), _) => u16::try_from(side).map_err(|_| format!("coordinates go from 0 to {SCALE}")),
            (true, _, Some(share)) => Ok((share.clamp(0.0, 1.0) * f64::from(SCALE)).round_ties_even() as u16),
            _ => Err(format!("`{number}` is not a coordinate")),
        };
        let mut sides = [0; 4];
        for (place, number) in sides.iter_mut().zip(numbers) {
            *place = side(number)?;
        }
        Self::new(sides)
    }

    /// Returns top, left, bottom and right in thousandths.
    pub fn sides(self) -> [u16; 4] {
        self.0
    }

    /// Returns the intersection over the union of two rectangles.
    fn overlap(self, other: Self) -> f64 {
        let area = |Self([top, left, bottom, right]): Self| f64::from(bottom - top) * f64::from(right - left);
        let length = |from: usize, to: usize| {
            let (start, end) = (self.0[from].max(other.0[from]), self.0[to].min(other.0[to]));
            f64::from(end.saturating_sub(start))
        };
        let shared = length(0, 2) * length(1, 3);
        shared / (area(self) + area(other) - shared)
    }
}

impl<'de> Deserialize<'de> for Rectangle {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        let numbers = <[serde_json::Number; 4]>::deserialize(json)?;
        Self::from_json(&numbers).map_err(D::Error::custom)
    }
}

/// Reads `TOP,LEFT,BOTTOM,RIGHT` in thousandths, or with `%`.
impl FromStr for Rectangle {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a box, expected TOP,LEFT,BOTTOM,RIGHT from 0 to {SCALE}, such as 0,100,30%,900")
        };
        let side = |side: &str| match side.trim().strip_suffix('%') {
            None => side.trim().parse().ok(),
            Some(share) => {
                let share: f64 = share.parse().ok().filter(|share| (0.0..=100.0).contains(share))?;
                Some((share * f64::from(SCALE) / 100.0).round_ties_even() as u16)
            }
        };
        let sides = text.split(',').map(side).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        Self::new(sides.try_into().map_err(|_| wrong())?)
    }
}

impl fmt::Display for Rectangle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [top, left, bottom, right] = self.0;
        write!(f, "[{top}, {left}, {bottom}, {right}]")
    }
}

/// An object and its place: a row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with id and bbox")]
pub struct LayoutBox {
    /// Name of the object: a letter, then letters, digits and underscores, such as `cat_1`.
    pub id: String,
    /// Place in the result; `None` if an edit removes the object.
    #[serde(default, alias = "tgt_bbox", skip_serializing_if = "Option::is_none")]
    pub bbox: Option<Rectangle>,
    /// In an edit, the reference that contains the object, such as `ref_image_0`; without it the object is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Place in that reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_bbox: Option<Rectangle>,
    /// Description of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub desc: String,
}

impl LayoutBox {
    /// Errors if the names are invalid, if the row has no place, or if it names a reference that the image lacks.
    pub fn check(&self, references: usize) -> Result<()> {
        let wrong = |what: String| Err(Error::usage(what).for_field(Field::Boxes));
        let id = &self.id;
        if !is_id(id) {
            return wrong(format!("`{id}` is not the name of an object, expected a name such as `cat_1`"));
        }
        let number = self.from.as_deref().filter(|from| *from != TARGET);
        let number = number.map(|from| from.strip_prefix(REFERENCE).and_then(|number| number.parse::<usize>().ok()));
        match number {
            Some(None) => {
                wrong(format!("the source of box `{id}` must be `{TARGET}` or a name such as `{REFERENCE}0`"))
            }
            Some(Some(number)) if number >= references => {
                wrong(format!("box `{id}` is from reference {number}, but there are {references}, counted from 0"))
            }
            Some(Some(_)) if self.src_bbox.is_none() => wrong(format!("box `{id}` lacks its place in the reference")),
            None if self.src_bbox.is_some() => wrong(format!("box `{id}` has a place in a reference, but names none")),
            None if self.bbox.is_none() => wrong(format!("box `{id}` has no place")),
            _ => Ok(()),
        }
    }

    /// Returns the row as JSON, with the separators of Python. An edit has more keys than a new image.
    fn row(&self, edits: bool) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let place = |place: Option<Rectangle>| place.map_or("null".to_string(), |place| place.to_string());
        let (id, desc) = (text(&self.id), text(&self.desc));
        if !edits {
            return format!(r#"{{"id": {id}, "bbox": {}, "desc": {desc}}}"#, place(self.bbox));
        }
        let from = text(self.from.as_deref().unwrap_or(TARGET));
        let (source, target) = (place(self.src_bbox), place(self.bbox));
        format!(r#"{{"id": {id}, "from": {from}, "src_bbox": {source}, "tgt_bbox": {target}, "desc": {desc}}}"#)
    }
}

/// Returns the name of a reference in rows. References count from 0.
pub fn reference(number: usize) -> String {
    format!("{REFERENCE}{number}")
}

/// Returns `true` for the name of an object.
fn is_id(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_alphabetic()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Errors if a box is invalid, if two have one name, or if there are more than [`MAX_BOXES`].
pub fn check(boxes: &[LayoutBox], references: usize) -> Result<()> {
    if boxes.len() > MAX_BOXES {
        let what = format!("{} boxes were passed, expected at most {MAX_BOXES}", boxes.len());
        return Err(Error::usage(what).for_field(Field::Boxes));
    }
    for (index, layout_box) in boxes.iter().enumerate() {
        layout_box.check(references)?;
        let id = &layout_box.id;
        if boxes[..index].iter().any(|other| other.id == *id) {
            return Err(Error::usage(format!("box `{id}` occurs twice"))
                .for_field(Field::Boxes)
                .hint("give each object its own name, such as `cat_1` and `cat_2`"));
        }
    }
    Ok(())
}

/// Returns a prompt with boxes: objects that the prompt does not cite are cited at its end, then the table follows.
pub fn with_boxes(prompt: &str, boxes: &[LayoutBox], edits: bool) -> String {
    let (caption, _) = split(prompt);
    let missing = boxes.iter().filter(|layout_box| !caption.contains(&format!("<{}>", layout_box.id)));
    let cited = missing.map(|layout_box| format!(" <{}>", layout_box.id)).collect::<String>();
    let table = &prompt.trim_end()[caption.len()..];
    reconcile(&format!("{}{cited}{table}", caption.trim_end()), boxes, edits)
}

/// Returns the text with one table, in which `boxes` come first. A row of the text's own table that overlaps a box
/// almost entirely is that box: its citation gets the box's name, and its description is kept. Other valid rows that
/// the caption cites follow.
pub fn reconcile(text: &str, boxes: &[LayoutBox], edits: bool) -> String {
    let (caption, rows) = split(text);
    let mut caption = caption.trim_end().to_string();
    let mut boxes = boxes.to_vec();
    let mut added = Vec::new();
    for row in rows.iter().filter_map(|row| LayoutBox::deserialize(row).ok()) {
        let is_same = |layout_box: &LayoutBox| {
            let place = row.bbox.or(row.src_bbox).zip(layout_box.bbox.or(layout_box.src_bbox));
            place.is_some_and(|(a, b)| a.overlap(b) >= MIN_SAME)
        };
        let by_name = boxes.iter().position(|layout_box| layout_box.id == row.id);
        match by_name.or_else(|| boxes.iter().position(is_same)) {
            Some(index) => {
                caption = caption.replace(&format!("<{}>", row.id), &format!("<{}>", boxes[index].id));
                if !row.desc.is_empty() {
                    boxes[index].desc = row.desc;
                }
            }
            None => added.push(row),
        }
    }
    let is_cited = |row: &LayoutBox| caption.contains(&format!("<{}>", row.id));
    added.retain(|row| is_cited(row) && row.check(usize::MAX).is_ok() && !is_too_small(row));
    boxes.extend(added);
    format!("{caption} {}", table(&boxes, edits))
}

/// Returns the table of boxes: a JSON array with the separators of Python.
pub fn table(boxes: &[LayoutBox], edits: bool) -> String {
    let rows: Vec<_> = boxes.iter().map(|layout_box| layout_box.row(edits)).collect();
    format!("[{}]", rows.join(", "))
}

/// Returns `true` if a row's coordinates are on another scale, with 1 as the maximum.
fn is_too_small(row: &LayoutBox) -> bool {
    [row.bbox, row.src_bbox].into_iter().flatten().any(|Rectangle(sides)| sides.iter().all(|side| *side <= 1))
}

/// Splits a text into the caption and the rows of the table at its very end; without a table it has no rows.
fn split(text: &str) -> (&str, Vec<Value>) {
    let text = text.trim_end();
    let tables = text.char_indices().rev().filter(|(_, c)| *c == '[');
    // A row may hold lists, so the first `[` of the table is not the last of the text.
    let parsed =
        tables.filter_map(|(start, _)| Some((start, serde_json::from_str::<Vec<Value>>(&text[start..]).ok()?)));
    let mut parsed = parsed.filter(|(_, rows)| rows.iter().all(Value::is_object));
    parsed.next().map_or((text, Vec::new()), |(start, rows)| (&text[..start], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout_box(id: &str, sides: [u16; 4], desc: &str) -> LayoutBox {
        let bbox = Some(Rectangle::new(sides).unwrap());
        LayoutBox { id: id.to_string(), bbox, from: None, src_bbox: None, desc: desc.to_string() }
    }

    #[test]
    fn a_new_image_has_rows_of_three_keys() {
        let boxes = [layout_box("cat_1", [100, 0, 500, 1000], "a \"black\" cat"), layout_box("käse", [0, 0, 1, 1], "")];
        let text = with_boxes("A cat <cat_1> on a mat.", &boxes[..1], false);
        let row = r#"{"id": "cat_1", "bbox": [100, 0, 500, 1000], "desc": "a \"black\" cat"}"#;
        assert_eq!(text, format!("A cat <cat_1> on a mat. [{row}]"));
        assert_eq!(with_boxes("A cat", &boxes[..1], false), format!("A cat <cat_1> [{row}]"));
        assert!(boxes[1].check(0).is_err(), "names are ASCII");
    }

    #[test]
    fn an_edit_has_rows_of_five_keys() {
        let moved = LayoutBox {
            from: Some("ref_image_0".to_string()),
            src_bbox: Some(Rectangle::new([0, 0, 10, 10]).unwrap()),
            ..layout_box("cat_1", [5, 5, 20, 20], "")
        };
        let removed = LayoutBox { id: "dog_1".to_string(), bbox: None, ..moved.clone() };
        let text = with_boxes(
            "Move <cat_1>, remove <dog_1>, add",
            &[moved, removed, layout_box("sun_1", [0, 0, 9, 9], "ü")],
            true,
        );
        let rows = [
            r#"{"id": "cat_1", "from": "ref_image_0", "src_bbox": [0, 0, 10, 10], "tgt_bbox": [5, 5, 20, 20], "desc": ""}"#,
            r#"{"id": "dog_1", "from": "ref_image_0", "src_bbox": [0, 0, 10, 10], "tgt_bbox": null, "desc": ""}"#,
            r#"{"id": "sun_1", "from": "target", "src_bbox": null, "tgt_bbox": [0, 0, 9, 9], "desc": "ü"}"#,
        ];
        assert_eq!(text, format!("Move <cat_1>, remove <dog_1>, add <sun_1> [{}]", rows.join(", ")));
    }

    #[test]
    fn shares_are_clamped_and_rounded_half_to_even() {
        for (json, expected) in [
            ("[0.0005, 0.0015, 1.2, 1]", Ok([0, 2, 1000, 1000])),
            ("[-0.5, 0.25, 0.5, 0.75]", Ok([0, 250, 500, 750])),
            ("[0, 1, 1000, 999]", Ok([0, 1, 1000, 999])),
            ("[0, 0, 1001, 5]", Err("from 0 to 1000")),
            ("[500, 0, 500, 5]", Err("the top")),
            ("[0, 6, 500, 5]", Err("the left")),
            ("[0, -1, 500, 5]", Err("`-1`")),
            ("[0, 1, 500]", Err("length")),
        ] {
            let found = serde_json::from_str::<Rectangle>(json);
            match expected {
                Ok(sides) => assert_eq!(found.unwrap().0, sides, "{json}"),
                Err(words) => assert!(found.unwrap_err().to_string().contains(words), "{json}"),
            }
        }
        assert_eq!("0, 10%,33.35%,900".parse::<Rectangle>().unwrap().0, [0, 100, 334, 900]);
        for text in ["", "1,2,3", "1,2,3,4,5", "a,1,2,3", "0,0,101%,5", "5,0,5,9", "-1,0,5,9", "0,0,70000,9"] {
            assert!(text.parse::<Rectangle>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_table_of_a_text_is_reconciled_with_boxes() {
        let row = |id: &str, sides: [u16; 4], desc: &str| layout_box(id, sides, desc).row(false);
        let own = [
            row("kitten_1", [100, 100, 501, 500], "a kitten"),
            row("mat_1", [500, 0, 1000, 1000], "a mat"),
            r#"{"id": "dog_9", "bbox": [0, 0, 1, 1], "desc": "a dog"}"#.to_string(),
            row("bird_1", [0, 0, 100, 100], "a bird"),
        ];
        let text = format!("A photo of a cat <kitten_1> on a mat <mat_1>, no <dog_9>. [{}]", own.join(", "));
        let locked = [layout_box("cat_1", [100, 100, 500, 500], "")];
        let rows = [row("cat_1", [100, 100, 500, 500], "a kitten"), own[1].clone()].join(", ");
        let expected = format!("A photo of a cat <cat_1> on a mat <mat_1>, no <dog_9>. [{rows}]");
        assert_eq!(reconcile(&text, &locked, false), expected);

        let alone = row("cat_1", [100, 100, 500, 500], "");
        assert_eq!(reconcile("no table at all", &locked, false), format!("no table at all [{alone}]"));
        // A table with text behind it is part of the caption.
        let tail = format!("{text} and more");
        assert_eq!(reconcile(&tail, &locked, false), format!("{tail} [{alone}]"));
    }

    #[test]
    fn boxes_that_cannot_be_are_refused() {
        let good = layout_box("cat_1", [0, 0, 9, 9], "");
        let from = |from: &str, src_bbox| LayoutBox { from: Some(from.to_string()), src_bbox, ..good.clone() };
        let place = good.bbox;
        for (boxes, words) in [
            (vec![LayoutBox { id: "1cat".to_string(), ..good.clone() }], "`1cat`"),
            (vec![LayoutBox { id: String::new(), ..good.clone() }], "``"),
            (vec![LayoutBox { bbox: None, ..good.clone() }], "no place"),
            (vec![LayoutBox { src_bbox: place, ..good.clone() }], "names none"),
            (vec![from("ref_image_1", place)], "reference 1"),
            (vec![from("ref_image_0", None)], "lacks"),
            (vec![from("image", place)], "`target`"),
            (vec![good.clone(), good.clone()], "twice"),
            ((0..65).map(|n| LayoutBox { id: format!("a{n}"), ..good.clone() }).collect(), "at most 64"),
        ] {
            let error = check(&boxes, 1).unwrap_err();
            assert!(error.field() == Some(Field::Boxes) && error.what().contains(words), "{error}");
        }
        assert!(check(&[good.clone(), from("ref_image_0", place)][1..], 1).is_ok() && check(&[good], 0).is_ok());
    }
}
