//! Transparent results: the ways to remove a plain background.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Field, Result};

/// The way to remove the background of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "SwitchOrText", into = "&'static str")]
pub enum Transparency {
    /// The image stays opaque.
    #[default]
    No,
    /// The image is edited to have another background, and both are compared.
    Edit,
    /// The background is what has its colour and is connected with the border.
    Key,
}

/// A value in JSON: `true` is the same as `edit`.
#[derive(Deserialize)]
#[serde(untagged)]
enum SwitchOrText {
    Switch(bool),
    Text(String),
}

impl Transparency {
    /// Returns a prompt that asks for a plain background, unless it is about a background already.
    pub(crate) fn prompt(self, prompt: &str) -> Cow<'_, str> {
        let text = prompt.trim_end();
        if self == Self::No || text.to_lowercase().contains("background") {
            return Cow::Borrowed(prompt);
        }
        Cow::Owned(match text.chars().last() {
            None => "plain white background".to_string(),
            Some('.' | '!' | '?') => format!("{text} Plain white background."),
            Some(_) => format!("{text}, plain white background"),
        })
    }

    /// Errors if a result that `is_changed` from an image or a frame that `is_reused` is to be transparent.
    pub(crate) fn check(self, is_changed: bool, is_reused: bool) -> Result<()> {
        let refused = |other: Field, hint: &str| {
            let what = format!("`{:#}` cannot be used with `{other:#}`", Field::Transparent);
            Err(Error::usage(what).for_field(Field::Transparent).hint(hint))
        };
        match self {
            Self::Edit | Self::Key if is_reused => refused(Field::Reuse, "leave one of them out"),
            Self::Edit if is_changed => refused(Field::Strength, Self::KEY_HINT),
            Self::No | Self::Edit | Self::Key => Ok(()),
        }
    }

    /// The hint if the background of an edited image is to be removed by two images.
    pub(crate) const KEY_HINT: &str = "use `key`, which removes the background of the result";
}

impl fmt::Display for Transparency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((*self).into())
    }
}

impl From<Transparency> for &'static str {
    fn from(transparency: Transparency) -> Self {
        match transparency {
            Transparency::No => "no",
            Transparency::Edit => "edit",
            Transparency::Key => "key",
        }
    }
}

impl FromStr for Transparency {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "no" | "false" => Ok(Self::No),
            "edit" | "true" => Ok(Self::Edit),
            "key" => Ok(Self::Key),
            _ => Err(format!("`{text}` is not a way to remove the background, expected edit or key")),
        }
    }
}

impl TryFrom<SwitchOrText> for Transparency {
    type Error = String;

    fn try_from(value: SwitchOrText) -> std::result::Result<Self, String> {
        match value {
            SwitchOrText::Switch(is_on) => Ok(if is_on { Self::Edit } else { Self::No }),
            SwitchOrText::Text(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_and_a_text_are_the_same_in_json() {
        let read = |json: &str| serde_json::from_str::<Transparency>(json).ok();
        assert_eq!([read("true"), read(r#""edit""#), read(r#""true""#)], [Some(Transparency::Edit); 3]);
        assert_eq!([read("false"), read(r#""no""#)], [Some(Transparency::No); 2]);
        assert_eq!(serde_json::to_string(&Transparency::Key).unwrap(), r#""key""#);
        assert_eq!([read("1"), read(r#""alpha""#)], [None; 2]);
    }

    #[test]
    fn a_prompt_asks_for_a_plain_background_once() {
        let prompt = |prompt: &str| Transparency::Key.prompt(prompt).into_owned();
        assert_eq!(prompt("a heart "), "a heart, plain white background");
        assert_eq!(prompt("A heart."), "A heart. Plain white background.");
        assert_eq!(prompt(""), "plain white background");
        for own in ["a heart on a blue background", "A heart. Plain white background."] {
            assert_eq!(prompt(own), own);
        }
        assert_eq!(Transparency::No.prompt("a heart"), "a heart");
    }
}
