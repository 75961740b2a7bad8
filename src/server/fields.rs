//! The fields of a request: of a body of JSON, or the texts of a form.
//!
//! Each field is taken by whoever understands it; what nobody took is named as unknown. `null` is as good as nothing.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{ApiError, Result};

/// The fields that nobody took yet.
#[derive(Debug, Default)]
pub struct Fields {
    values: BTreeMap<String, Value>,
    /// Whether numbers are written as texts.
    is_form: bool,
}

impl Fields {
    /// Errors when the body is no JSON object.
    pub fn from_json(body: &[u8]) -> Result<Self> {
        let values: Map<String, Value> = serde_json::from_slice(body).map_err(|e| {
            let what = if e.is_data() {
                "the body is no JSON object".to_string()
            } else {
                format!("the body is no JSON: {e}")
            };
            ApiError::bad("invalid_json", what)
        })?;
        Ok(Self::from_object(values))
    }

    /// Of an object of JSON.
    pub fn from_object(values: Map<String, Value>) -> Self {
        Self { values: values.into_iter().filter(|(_, value)| !value.is_null()).collect(), is_form: false }
    }

    /// Of names and texts in the order of a form. `name[][key]` is a key of an object of the list `name`; one that is
    /// there already begins the next object.
    ///
    /// Errors when a field comes twice.
    pub fn from_form(parts: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut values = BTreeMap::new();
        for (name, text) in parts {
            let nested = name.strip_suffix(']').and_then(|name| name.split_once("[]["));
            let before = match nested {
                Some((list, key)) => add_to_list(&mut values, list, key, text),
                None => values.insert(name.clone(), Value::String(text)).map(drop),
            };
            if before.is_some() {
                return Err(ApiError::value(name.clone(), format!("the field `{}` is there twice", shown(&name))));
            }
        }
        Ok(Self { values, is_form: true })
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name)
    }

    /// A text.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(name, "a text", &other)),
        }
    }

    /// A text that must be there.
    pub fn needed_text(&mut self, name: &'static str) -> Result<String> {
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// One of some words.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let known = words.iter().find(|(word, _)| *word == text);
        known.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            ApiError::value(name, format!("`{name}` is `{}`, expected {}", shown(&text), words.join(", ")))
        })
    }

    /// Yes or no.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(Value::String(text)) if self.is_form && matches!(&*text, "true" | "false") => Ok(Some(text == "true")),
            Some(other) => Err(wrong_type(name, "true or false", &other)),
        }
    }

    /// A whole number.
    pub fn whole(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::String(text) if self.is_form => text.trim().parse().ok(),
            // Some clients know floating point alone.
            Value::Number(number) => number.as_u64().or_else(|| {
                let number = number.as_f64()?;
                (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
            }),
            _ => return Err(wrong_type(name, "a whole number", &value)),
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(out_of_range(name, &value, &format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A number.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::String(text) if self.is_form => text.trim().parse().ok(),
            Value::Number(number) => number.as_f64(),
            _ => return Err(wrong_type(name, "a number", &value)),
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(out_of_range(name, &value, &format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A value of JSON; in a form, a text of JSON.
    pub fn value<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let value = match value {
            Value::String(text) if self.is_form => {
                serde_json::from_str(&text).map_err(|e| ApiError::value(name, format!("`{name}` is no JSON: {e}")))?
            }
            value => value,
        };
        serde_json::from_value(value).map(Some).map_err(|e| ApiError::value(name, format!("`{name}`: {e}")))
    }

    /// Errors when there are fields that nobody understands.
    pub fn finish(mut self) -> Result<()> {
        match self.values.pop_first() {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("the field `{}` is not known here", shown(&name));
                Err(ApiError::bad("unknown_parameter", message).of(name))
            }
        }
    }
}

/// Puts a text into the last object of a list. Returns something where the field is no list.
fn add_to_list(values: &mut BTreeMap<String, Value>, list: &str, key: &str, text: String) -> Option<()> {
    let Value::Array(objects) = values.entry(list.to_string()).or_insert_with(|| Value::Array(Vec::new())) else {
        return Some(());
    };
    // Numbers are numbers again.
    let value = serde_json::from_str(&text).ok().filter(Value::is_number).unwrap_or(Value::String(text));
    match objects.last_mut() {
        Some(Value::Object(object)) if !object.contains_key(key) => {
            object.insert(key.to_string(), value);
        }
        _ => objects.push(Value::Object(Map::from_iter([(key.to_string(), value)]))),
    }
    None
}

/// A field that must be there and is not.
pub fn missing(name: &'static str) -> ApiError {
    ApiError::bad("missing_required_parameter", format!("the field `{name}` is missing")).of(name)
}

fn wrong_type(name: &'static str, expected: &str, value: &Value) -> ApiError {
    let message = format!("`{name}` is {}, expected {expected}", shown(&value.to_string()));
    ApiError::bad("invalid_type", message).of(name)
}

fn out_of_range(name: &'static str, value: &Value, expected: &str) -> ApiError {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    ApiError::value(name, format!("`{name}` is {}, expected {expected}", shown(&text)))
}

/// What a client sent, as it may stand in a message.
pub fn shown(text: &str) -> String {
    flux::error::shortened(&flux::error::escaped(text), 80).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Fields {
        Fields::from_json(text.as_bytes()).unwrap()
    }

    fn form(parts: &[(&str, &str)]) -> Result<Fields> {
        Fields::from_form(parts.iter().map(|(name, text)| (name.to_string(), text.to_string())))
    }

    #[test]
    fn json_and_forms_have_the_same_values() {
        for mut fields in [
            json(r#"{"a": "x", "n": 3, "f": 0.5, "on": true, "gone": null}"#),
            form(&[("a", "x"), ("n", "3"), ("f", "0.5"), ("on", "true")]).unwrap(),
        ] {
            assert_eq!(fields.text("a").unwrap().as_deref(), Some("x"));
            assert_eq!(fields.whole("n", 1..=10).unwrap(), Some(3));
            assert_eq!(fields.number("f", 0.0..=1.0).unwrap(), Some(0.5));
            assert_eq!(fields.flag("on").unwrap(), Some(true));
            assert_eq!(fields.text("gone").unwrap(), None);
            fields.finish().unwrap();
        }
    }

    #[test]
    fn wrong_values_are_named() {
        let code = |error: ApiError| (error.code, error.param.unwrap().into_owned());
        assert_eq!(code(json(r#"{"n": "3"}"#).whole("n", 1..=10).unwrap_err()), ("invalid_type", "n".to_string()));
        for wrong in ["11", "0", "-1", "1.5", "1e300"] {
            let error = json(&format!(r#"{{"n": {wrong}}}"#)).whole("n", 1..=10).unwrap_err();
            assert_eq!(code(error), ("invalid_value", "n".to_string()), "{wrong}");
        }
        assert_eq!(json(r#"{"n": 3.0}"#).whole("n", 1..=10).unwrap(), Some(3), "as some clients write it");
        for wrong in ["nan", "inf", "", "1,5"] {
            let error = form(&[("f", wrong)]).unwrap().number("f", 0.0..=1.0).unwrap_err();
            assert_eq!(error.code, "invalid_value", "{wrong}");
        }
        let error = json(r#"{"q": "x"}"#).word("q", &[("a", 1), ("b", 2)]).unwrap_err();
        assert!(error.message.contains("a, b"), "{}", error.message);
        assert_eq!(code(json(r#"{"what": 1}"#).finish().unwrap_err()), ("unknown_parameter", "what".to_string()));
        for wrong in ["", "[]", "1", "{", "{\"a\":1}x", "\u{0}"] {
            assert_eq!(Fields::from_json(wrong.as_bytes()).unwrap_err().code, "invalid_json", "{wrong:?}");
        }
        assert_eq!(form(&[("a", "1"), ("a", "2")]).unwrap_err().code, "invalid_value");
    }

    #[test]
    fn nested_fields_of_a_form_are_a_list_of_objects() {
        let mut fields =
            form(&[("l[][name]", "a"), ("l[][weight]", "0.5"), ("l[][name]", "b"), ("l[][weight]", "1")]).unwrap();
        let list: Value = fields.values.remove("l").unwrap();
        assert_eq!(list, serde_json::json!([{"name": "a", "weight": 0.5}, {"name": "b", "weight": 1}]));
    }
}
