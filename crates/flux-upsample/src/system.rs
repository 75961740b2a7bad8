//! System prompts: the task of the language model, one for each mode.

use std::collections::BTreeMap;

use flux::error::{Error, Field, Result};

/// The kind of prompt to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// `true` if there are input images.
    pub edits: bool,
    /// `true` if there are boxes.
    pub boxes: bool,
    /// `true` if the image model wants full captions, as FLUX.3 does.
    pub captions: bool,
}

impl Mode {
    /// Returns the name of the mode in the file of Black Forest Labs.
    fn key(self) -> &'static str {
        match (self.edits, self.boxes) {
            (false, false) => "t2i",
            (true, false) => "i2i",
            (false, true) => "t2i_bbox",
            (true, true) => "i2i_bbox",
        }
    }

    /// Returns this program's own prompt.
    fn own(self) -> &'static str {
        match (self.captions, self.edits, self.boxes) {
            (true, false, false) => include_str!("system/flux3-image.txt"),
            (true, true, false) => include_str!("system/flux3-edit.txt"),
            (true, false, true) => include_str!("system/flux3-image-boxes.txt"),
            (true, true, true) => include_str!("system/flux3-edit-boxes.txt"),
            (false, false, _) => include_str!("system/flux2-image.txt"),
            (false, true, _) => include_str!("system/flux2-edit.txt"),
        }
    }
}

/// The system prompts to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum System {
    /// The program's own prompts.
    Own,
    /// The prompts of Black Forest Labs for FLUX.3.
    Bfl(BflPrompts),
    /// The prompts of Black Forest Labs for FLUX.3 models, and the program's own for other models.
    BflOrOwn(BflPrompts),
    /// One text for all modes.
    Text(String),
}

/// The prompts of Black Forest Labs by mode: the content of their file `system_prompts.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BflPrompts(BTreeMap<String, String>);

impl BflPrompts {
    /// Reads the JSON of the file.
    ///
    /// Errors if a mode has no prompt.
    pub fn read(json: &str) -> Result<Self> {
        let wrong = |what: String| {
            let hint = "fetch the file again with `flux download flux3-prompts --verify`";
            Error::new(format!("cannot read the system prompts: {what}")).hint(hint)
        };
        let prompts: BTreeMap<String, String> = serde_json::from_str(json).map_err(|e| wrong(e.to_string()))?;
        match ["t2i", "i2i", "t2i_bbox", "i2i_bbox"].into_iter().find(|mode| !prompts.contains_key(*mode)) {
            Some(missing) => Err(wrong(format!("`{missing}` is missing"))),
            None => Ok(Self(prompts)),
        }
    }
}

impl System {
    /// Returns the prompt of a mode, and `true` if it is the program's own.
    ///
    /// Errors if there is none for this kind of models.
    pub fn prompt(&self, mode: Mode) -> Result<(&str, bool)> {
        match self {
            Self::Text(text) => Ok((text.as_str(), false)),
            Self::Bfl(prompts) | Self::BflOrOwn(prompts) if mode.captions => {
                Ok((prompts.0[mode.key()].as_str(), false))
            }
            Self::Bfl(_) => Err(Error::usage("the system prompts of Black Forest Labs are for FLUX.3 models")
                .for_field(Field::Upsample)
                .hint("use the program's own with `--upsample-system own`")),
            Self::Own | Self::BflOrOwn(_) => Ok((mode.own().trim_end(), true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUX2: Mode = Mode { edits: false, boxes: false, captions: false };

    #[test]
    fn each_mode_has_a_prompt_of_its_own() {
        let modes = [false, true].into_iter().flat_map(|edits| [false, true].map(|boxes| (edits, boxes)));
        let own: Vec<_> =
            modes.map(|(edits, boxes)| Mode { edits, boxes, captions: true }).map(|mode| mode.own()).collect();
        let distinct: std::collections::BTreeSet<_> = own.into_iter().chain([FLUX2.own()]).collect();
        assert_eq!(distinct.len(), 5);
    }

    #[test]
    fn the_prompts_of_bfl_are_for_flux3() {
        let json = r#"{"t2i": "a", "i2i": "b", "t2i_bbox": "c", "i2i_bbox": "d"}"#;
        let prompts = BflPrompts::read(json).unwrap();
        let edits = Mode { edits: true, boxes: true, captions: true };
        assert_eq!(System::Bfl(prompts.clone()).prompt(edits).unwrap(), ("d", false));
        assert!(System::Bfl(prompts.clone()).prompt(FLUX2).is_err());
        assert!(System::BflOrOwn(prompts).prompt(FLUX2).unwrap().1);
        for damaged in ["", "{}", r#"{"t2i": "a"}"#, r#"{"t2i": 1, "i2i": "b", "t2i_bbox": "c", "i2i_bbox": "d"}"#] {
            assert!(BflPrompts::read(damaged).is_err(), "{damaged}");
        }
    }
}
