//! Controls: input images that show a property of the result, such as its edges or its style.
//!
//! Models of this family have no ControlNet. They follow a control as a reference, with a line before the prompt that
//! says what to take from it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Field, Result};
use crate::input::edges;
use crate::rgb::Rgb;

/// The property that a control shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlKind {
    /// The style of an image.
    Style,
    /// The composition of an image.
    Composition,
    /// A face.
    Face,
    /// A sketch.
    Sketch,
    /// A line drawing.
    Lines,
    /// An edge map.
    Canny,
    /// A depth map.
    Depth,
    /// A pose.
    Pose,
}

/// Kinds with their names, and their lines without the image at the end. Recipes keep the lines, so they never change.
const KINDS: [(ControlKind, &str, &str); 8] = [
    (ControlKind::Style, "style", "Apply the style from"),
    (ControlKind::Composition, "composition", "Maintain the structure and composition from"),
    (ControlKind::Face, "face", "Keep the face from"),
    (ControlKind::Sketch, "sketch", "Follow the sketch in"),
    (ControlKind::Lines, "lines", "Fill in colors for the line drawing in"),
    (ControlKind::Canny, "canny", "Match the edge map in"),
    (ControlKind::Depth, "depth", "Match the depth map in"),
    (ControlKind::Pose, "pose", "Match the pose in"),
];

/// A control of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with kind and input")]
pub struct Control {
    /// The property that the image shows.
    pub kind: ControlKind,
    /// Index of the image among the inputs, from 0.
    pub input: usize,
    /// `true` if the input is any image, and the model sees the edges in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub make: bool,
}

impl Control {
    /// Returns the line of the prompt. Images count from 1.
    ///
    /// Source: krita-ai-diffusion `backend/workflow.py`.
    fn line(&self) -> String {
        let (_, _, line) = KINDS.iter().find(|(kind, ..)| *kind == self.kind).expect("every kind is in the table");
        format!("{line} image {}.", self.input.saturating_add(1))
    }
}

impl fmt::Display for ControlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS.iter().find(|(kind, ..)| kind == self).map_or("", |(_, name, _)| name))
    }
}

impl FromStr for ControlKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        KINDS.iter().find(|(_, name, _)| *name == text).map(|(kind, ..)| *kind).ok_or_else(|| {
            let names = KINDS.map(|(_, name, _)| name).join(", ");
            format!("`{text}` is not a kind of control, expected one of {names}")
        })
    }
}

/// Errors if a control is of an image that the recipe lacks, or if an image other than edges is to be made. `changes`
/// is `true` if the first input is edited.
pub fn check(controls: &[Control], inputs: usize, changes: bool) -> Result<()> {
    let wrong = |what: String| Err(Error::usage(what).for_field(Field::Controls));
    for Control { kind, input, make } in controls {
        if *input >= inputs {
            return wrong(format!("a control is input {input}, but there are {inputs}, counted from 0"));
        }
        if *make && *kind != ControlKind::Canny {
            return wrong(format!("`{kind}` maps are not made here, only `canny`; make the map with another program"));
        }
        if *make && *input == 0 && changes {
            return wrong("the image to edit cannot be replaced by its edges".to_string());
        }
    }
    Ok(())
}

/// Returns the lines of controls that a prompt lacks.
pub fn missing_lines(prompt: &str, controls: &[Control]) -> Vec<String> {
    let lines = controls.iter().map(Control::line);
    lines.filter(|line| !prompt.lines().any(|own| own.trim() == line)).collect()
}

/// Returns a prompt with the lines of its controls before it, except those that it has.
pub fn with_lines<'a>(prompt: &'a str, controls: &[Control]) -> Cow<'a, str> {
    let missing = missing_lines(prompt, controls);
    match missing.is_empty() {
        true => Cow::Borrowed(prompt),
        false => Cow::Owned(format!("{}\n{prompt}", missing.join("\n"))),
    }
}

/// Returns the input `index` as the model sees it: its edges, or the image itself.
pub fn seen(controls: &[Control], index: usize, image: Rgb) -> Rgb {
    if controls.iter().any(|control| control.make && control.input == index) { edges(&image) } else { image }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(kind: &str, input: usize, make: bool) -> Control {
        Control { kind: kind.parse().unwrap(), input, make }
    }

    #[test]
    fn each_kind_has_its_line_before_the_prompt() {
        let all = KINDS.map(|(kind, name, _)| {
            assert_eq!((name.parse(), kind.to_string().as_str()), (Ok(kind), name));
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            kind
        });
        let controls: Vec<_> =
            all.iter().zip(1..).map(|(kind, input)| Control { kind: *kind, input, make: false }).collect();
        let lines = "Apply the style from image 2.
Maintain the structure and composition from image 3.
Keep the face from image 4.
Follow the sketch in image 5.
Fill in colors for the line drawing in image 6.
Match the edge map in image 7.
Match the depth map in image 8.
Match the pose in image 9.
a red car";
        assert_eq!(with_lines("a red car", &controls), lines);
        assert_eq!(with_lines(lines, &controls), lines, "lines are there once");
        assert_eq!(with_lines("a red car", &[]), "a red car");
        assert!("canney".parse::<ControlKind>().unwrap_err().contains("canny, depth"));
    }

    #[test]
    fn controls_that_cannot_be_are_refused() {
        for (control, changes, words) in [
            (control("depth", 1, false), false, "input 1"),
            (control("depth", 0, true), false, "`depth`"),
            (control("canny", 0, true), true, "to edit"),
            (control("canny", usize::MAX, false), false, "18446744073709551615"),
        ] {
            let error = check(&[control], 1, changes).unwrap_err();
            assert!(error.field() == Some(Field::Controls) && error.what().contains(words), "{error}");
        }
        check(&[control("canny", 0, true), control("style", 0, false)], 1, false).unwrap();
        check(&[control("canny", 0, false)], 1, true).unwrap();
    }
}
