//! Settings of other programs, in a common form.

use serde::Serialize;
use serde_json::Value;

/// Maximum length of a value that is no prompt, in bytes.
const MAX_VALUE: usize = 2000;

/// The settings that another program stored with an image.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Settings {
    /// The program, with its version if it is known.
    pub program: String,
    /// The prompt; `None` if it is ambiguous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The negative prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative: Option<String>,
    /// Width in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Height in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<usize>,
    /// Denoising steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// The seed of the noise, whose values differ between programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The scale of guidance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<f32>,
    /// The sampler's name in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<String>,
    /// The scheduler's name in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The model's name in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// All other settings, by their names in the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<(String, String)>,
}

impl Settings {
    /// Sets width and height from `512x768` or `(512, 768)`. Returns `true` if both are numbers.
    pub(super) fn set_size(&mut self, text: &str) -> bool {
        let text = text.trim_matches(['(', ')', '[', ']']);
        let Some((width, height)) = text.split_once(['x', '×', ',']) else { return false };
        set(&mut self.width, width.trim()) && set(&mut self.height, height.trim())
    }
}

/// Sets a value. Returns `true` if the text could be parsed.
pub(super) fn set<T: std::str::FromStr>(value: &mut Option<T>, text: &str) -> bool {
    *value = text.parse().ok();
    value.is_some()
}

/// Returns a number as a text, whole numbers without a decimal point.
pub(super) fn number_text(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
            let whole = whole.filter(|_| !number.is_u64() && !number.is_i64());
            Some(whole.map_or_else(|| number.to_string(), |number| (number as i64).to_string()))
        }
        Value::String(text) => Some(text.trim().to_string()),
        _ => None,
    }
}

/// Returns a value as a text, if it is not too long.
pub(super) fn short_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        value => number_text(value).unwrap_or_else(|| value.to_string()),
    };
    (text.len() <= MAX_VALUE).then_some(text)
}
