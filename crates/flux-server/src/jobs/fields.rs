//! The fields of a request, from a JSON body or the texts of a form.
//!
//! Each field is removed when it is read, and the remaining ones are reported as unknown. `null` counts as missing.
//! Numbers and flags may be texts, as in forms.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::http::error::{ApiError, MAX_ERRORS, Result, shown};
use crate::jobs::names;

/// Returns the bytes of the texts in a value.
pub fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        _ => 0,
    }
}

/// The fields that were not read yet.
#[derive(Debug, Default)]
pub struct Fields {
    values: BTreeMap<String, Given>,
    /// Errors of fields with two values.
    faults: Faults,
}

/// A field under the name that the client sent, which errors use.
#[derive(Debug)]
struct Given {
    name: String,
    value: Value,
}

impl Fields {
    /// Parses a JSON body.
    ///
    /// Errors if the body is not a JSON object, or a field appears twice.
    pub fn from_json(body: &[u8]) -> Result<Self> {
        let Members { values, repeated } = serde_json::from_slice(body).map_err(|e| {
            let what = if e.is_data() {
                "the body is not a JSON object".to_string()
            } else {
                format!("the body is not JSON: {e}")
            };
            ApiError::bad("invalid_json", what)
        })?;
        repeated.map_or_else(|| Ok(Self::from_object(values)), |name| Err(occurs_twice(name)))
    }

    /// Creates the fields from a JSON object.
    pub fn from_object(values: Map<String, Value>) -> Self {
        let filled = values.into_iter().filter(|(_, value)| !value.is_null());
        let values = filled.map(|(name, value)| (name.clone(), Given { name, value })).collect();
        Self { values, faults: Faults::default() }
    }

    /// Creates the fields from the texts of a form, in order. `name[][key]` is a key of an object in the list `name`. A
    /// repeated key starts the next object, and so does another number in `name[0][key]`. `name[]` and `name[0]` are
    /// texts of a list.
    ///
    /// Errors if a field appears twice.
    pub fn from_form(parts: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut values = BTreeMap::new();
        let mut number = String::new();
        for (name, text) in parts {
            let is_new = match nested(&name) {
                Some((list, place, key)) => {
                    let begins = !place.is_empty() && place != number;
                    number = place.to_string();
                    add_to_list(&mut values, list, (key, begins), text)
                }
                None => values.insert(name.clone(), Value::String(text)).is_none(),
            };
            if !is_new {
                return Err(occurs_twice(name));
            }
        }
        Ok(Self::from_object(values.into_iter().collect()))
    }

    /// Returns the names of the remaining fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Renames fields of other APIs to this server's [names]. Drops empty texts except the prompt, since some
    /// clients send every field that they know.
    pub fn with_own_names(self) -> Self {
        let mut own = Self { faults: self.faults, ..Self::default() };
        for (key, given) in self.values {
            let key = names::field(&key).map_or(key, str::to_string);
            if key != "prompt" && given.value.as_str().is_some_and(|text| text.trim().is_empty()) {
                continue;
            }
            match own.values.get(&key) {
                Some(known) if known.value != given.value => {
                    let (first, second) = (shown(&known.name), shown(&given.name));
                    let message = format!("`{first}` and `{second}` are names of one field, but have different values");
                    own.faults.add(ApiError::value(given.name, message));
                }
                Some(_) => {}
                None => {
                    own.values.insert(key, given);
                }
            }
        }
        own
    }

    fn take(&mut self, name: &str) -> Option<Given> {
        self.values.remove(name)
    }

    /// Takes a field with the name that the client sent.
    pub fn given(&mut self, name: &str) -> Option<(String, Value)> {
        self.take(name).map(|given| (given.name, given.value))
    }

    /// Returns a field as a short text for the log, without taking it.
    pub fn said(&self, name: &str) -> Option<String> {
        let found = self.values.iter().find(|(key, _)| *key == name || names::field(key) == Some(name));
        let value = &found?.1.value;
        Some(value.as_str().map_or_else(|| shown(&value.to_string()), shown))
    }

    /// Returns the bytes of a field's texts.
    pub fn bytes(&self, name: &str) -> usize {
        fn bytes(value: &Value) -> usize {
            match value {
                Value::String(text) => text.len(),
                Value::Array(values) => values.iter().map(bytes).sum(),
                Value::Object(values) => values.values().map(bytes).sum(),
                _ => 0,
            }
        }
        self.values.get(name).map_or(0, |given| bytes(&given.value))
    }

    /// Takes a text.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Given { value: Value::String(text), .. }) => Ok(Some(text)),
            Some(given) => Err(given.wrong_type("a string")),
        }
    }

    /// Takes a required text.
    pub fn needed_text(&mut self, name: &'static str) -> Result<String> {
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// Takes one of several words, ignoring case.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Result<Option<T>> {
        let Some(given) = self.take(name) else { return Ok(None) };
        let Value::String(text) = &given.value else { return Err(given.wrong_type("a string")) };
        let known = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim()));
        known.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            given.out_of_range(&words.join(", "))
        })
    }

    /// Takes a boolean.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        let Some(given) = self.take(name) else { return Ok(None) };
        given.flag().map(Some).ok_or_else(|| given.wrong_type("true or false"))
    }

    /// Returns `true` if a field was sent, without taking it.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns `true` if a field is a boolean, without taking it.
    pub fn is_flag(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|given| given.flag().is_some())
    }

    /// Takes an integer.
    pub fn whole(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(given) = self.take(name) else { return Ok(None) };
        // Some clients only send floating-point numbers.
        let whole = |number: f64| (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64);
        let number = match &given.value {
            Value::String(text) => text.trim().parse().ok().or_else(|| whole(text.trim().parse().ok()?)),
            Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            _ => return Err(given.wrong_type("a whole number")),
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(given.out_of_range(&format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Takes a seed. -1 means a random seed, as if the field were missing.
    pub fn seed(&mut self, name: &'static str) -> Result<Option<u64>> {
        let is_random = |given: &Given| match &given.value {
            Value::String(text) => matches!(text.trim(), "-1" | "random"),
            value => value.as_f64() == Some(-1.0),
        };
        if self.values.get(name).is_some_and(is_random) {
            self.take(name);
        }
        self.whole(name, 0..=u64::MAX)
    }

    /// Takes a number.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(given) = self.take(name) else { return Ok(None) };
        let number = match &given.value {
            Value::String(text) => text.trim().parse().ok(),
            Value::Number(number) => number.as_f64(),
            _ => return Err(given.wrong_type("a number")),
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(given.out_of_range(&format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Takes a JSON value, or a text that contains one.
    pub fn value<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>> {
        let Some(Given { name, value }) = self.take(name) else { return Ok(None) };
        let read = match &value {
            // The text itself may be the value.
            Value::String(text) => serde_json::from_str(text).or_else(|e| {
                let is_json = text.trim_start().starts_with(['[', '{']);
                T::deserialize(&value).map_err(|own| if is_json { e } else { own })
            }),
            value => T::deserialize(value),
        };
        read.map(Some).map_err(|e| ApiError::value(name.clone(), format!("`{}`: {e}", shown(&name))))
    }

    /// Errors if there are unknown fields, or fields with two values.
    pub fn finish(self) -> Result<()> {
        let mut faults = self.faults;
        // A body may have any number of fields, but a response lists few errors.
        self.values.into_values().take(MAX_ERRORS + 1).for_each(|given| faults.add(unknown(given.name)));
        faults.check()
    }
}

/// The members of a JSON object.
struct Members {
    values: Map<String, Value>,
    /// A name that appears twice. A map would silently keep one of the values.
    repeated: Option<String>,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(body: D) -> std::result::Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Members, A::Error> {
                let mut members = Members { values: Map::new(), repeated: None };
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if members.values.contains_key(&name) {
                        members.repeated = Some(name);
                    } else {
                        members.values.insert(name, value);
                    }
                }
                Ok(members)
            }
        }

        body.deserialize_map(Reader)
    }
}

/// All errors of a request, in the order in which its fields were read.
#[derive(Debug, Default)]
pub struct Faults(Vec<ApiError>);

impl Faults {
    pub fn add(&mut self, error: ApiError) {
        self.0.push(error);
    }

    /// Adds the errors of a result.
    pub fn extend(&mut self, done: Result<()>) {
        done.unwrap_or_else(|error| self.0.extend(error.apart()));
    }

    /// Returns the value of a field, or `None` if it is missing or invalid.
    pub fn ok<T>(&mut self, read: Result<Option<T>>) -> Option<T> {
        read.unwrap_or_else(|error| {
            self.add(error);
            None
        })
    }

    /// Errors with all collected errors, if there are any.
    pub fn check(self) -> Result<()> {
        match ApiError::all(self.0) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Given {
    fn flag(&self) -> Option<bool> {
        match &self.value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => flag_of(text.trim()),
            value => value.as_u64().and_then(|number| flag_of(&number.to_string())),
        }
    }

    fn wrong_type(&self, expected: &str) -> ApiError {
        let message = format!("`{}` is {}, expected {expected}", shown(&self.name), shown(&self.value.to_string()));
        ApiError::bad("invalid_type", message).with_param(self.name.clone())
    }

    fn out_of_range(&self, expected: &str) -> ApiError {
        let text = self.value.as_str().map_or_else(|| self.value.to_string(), str::to_string);
        ApiError::value(self.name.clone(), format!("`{}` is {}, expected {expected}", shown(&self.name), shown(&text)))
    }
}

fn flag_of(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(["true", "1", "yes", "on"]) { Some(true) } else { is(["false", "0", "no", "off"]).then_some(false) }
}

/// Splits `list[][key]`, `list[0][key]`, `list[]` or `list[0]` into list, number and key.
fn nested(name: &str) -> Option<(&str, &str, Option<&str>)> {
    let (list, rest) = name.strip_suffix(']')?.split_once('[')?;
    let (place, key) = match rest.split_once("][") {
        Some((place, key)) => (place, Some(key)),
        None => (rest, None),
    };
    place.chars().all(|c| c.is_ascii_digit()).then_some((list, place, key))
}

/// Adds a text to a list: to its last object, or to a new one. Returns `false` if the field is not a list.
fn add_to_list(
    values: &mut BTreeMap<String, Value>,
    list: &str,
    (key, begins): (Option<&str>, bool),
    text: String,
) -> bool {
    let Value::Array(items) = values.entry(list.to_string()).or_insert_with(|| Value::Array(Vec::new())) else {
        return false;
    };
    let Some(key) = key else {
        items.push(text.into());
        return true;
    };
    // Forms send numbers as text.
    let value = serde_json::from_str(&text).ok().filter(Value::is_number).unwrap_or(Value::String(text));
    match items.last_mut() {
        Some(Value::Object(object)) if !begins && !object.contains_key(key) => {
            object.insert(key.to_string(), value);
        }
        _ => items.push(Value::Object(Map::from_iter([(key.to_string(), value)]))),
    }
    true
}

/// Returns the error of a field with two values.
fn occurs_twice(name: String) -> ApiError {
    let message = format!("the field `{}` occurs twice", shown(&name));
    ApiError::value(name, message)
}

/// Returns the error of a missing field.
pub fn missing(name: &'static str) -> ApiError {
    ApiError::bad("missing_required_parameter", format!("the field `{name}` is missing")).with_param(name)
}

/// Returns the error of an unknown field or file.
pub fn unknown(name: String) -> ApiError {
    let instead = match names::file_field(&name).0 {
        Some(_) => Some("/v1/images/edits and /v1/jobs accept images"),
        None => names::instead(&name),
    };
    let instead = instead.map_or_else(String::new, |instead| format!(": {instead}"));
    let message = format!("`{}` is not supported here{instead}", shown(&name));
    ApiError::bad("unknown_parameter", message).with_param(name)
}

/// Returns a client's value for use in an error: numbers and flags as they are, anything else as [`shown`].
pub fn brief(value: &Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(text) => shown(text).into(),
        other => shown(&other.to_string()).into(),
    }
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
    fn the_error_of_a_value_is_that_of_its_form() {
        let wrong = |text: &str| json(&format!(r#"{{"v": {}}}"#, serde_json::json!(text))).value::<Vec<u8>>("v");
        let is_syntax = |text: &str| wrong(text).unwrap_err().message.contains("line 1");
        assert!(is_syntax("[1, 2") && is_syntax("[1, \"x\"]") && !is_syntax("even"));
        assert_eq!(wrong("[1, 2]").unwrap(), Some(vec![1, 2]));
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
        assert_eq!(code(json(r#"{"n": [3]}"#).whole("n", 1..=10).unwrap_err()), ("invalid_type", "n".to_string()));
        for wrong in ["11", "0", "-1", "1.5", "1e300"] {
            let error = json(&format!(r#"{{"n": {wrong}}}"#)).whole("n", 1..=10).unwrap_err();
            assert_eq!(code(error), ("invalid_value", "n".to_string()), "{wrong}");
        }
        for text in ["3.0", "\"3\"", "\" 3.0 \""] {
            let read = json(&format!(r#"{{"n": {text}}}"#)).whole("n", 1..=10).unwrap();
            assert_eq!(read, Some(3), "a form that some clients send: {text}");
        }
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
        let twice = Fields::from_json(br#"{"seed": 1, "prompt": "x", "seed": 2}"#).unwrap_err();
        assert_eq!(code(twice), ("invalid_value", "seed".to_string()));
        assert_eq!(form(&[("a", "1"), ("a", "2")]).unwrap_err().code, "invalid_value");
    }

    #[test]
    fn values_of_a_client_are_shown_in_short() {
        let list = Value::from(vec!["x"; 1000]);
        assert!(brief(&list).as_str().is_some_and(|text| text.len() < 100));
        assert_eq!(brief(&Value::from(3)), 3);
    }

    #[test]
    fn nested_fields_of_a_form_are_a_list() {
        let list = |parts: &[(&str, &str)]| form(parts).unwrap().given("l").unwrap().1;
        let both = serde_json::json!([{"name": "a", "weight": 0.5}, {"name": "b", "weight": 1}]);
        let parts = [("l[][name]", "a"), ("l[][weight]", "0.5"), ("l[][name]", "b"), ("l[][weight]", "1")];
        assert_eq!(list(&parts), both);
        let parts = [("l[0][name]", "a"), ("l[0][weight]", "0.5"), ("l[1][weight]", "1"), ("l[1][name]", "b")];
        assert_eq!(list(&parts), both);
        assert_eq!(list(&[("l[0]", "a"), ("l[1]", "b")]), serde_json::json!(["a", "b"]));
        assert_eq!(list(&[("l[]", "a")]), serde_json::json!(["a"]));
    }

    #[test]
    fn other_names_of_a_field_are_one_field() {
        let text =
            r#"{"num_inference_steps": 4, "steps": 4, "guidanceScale": "1.5", "seed": "-1", "size": "", "prompt": ""}"#;
        let mut fields = json(text).with_own_names();
        assert_eq!(fields.whole("steps", 1..=10).unwrap(), Some(4));
        assert_eq!(fields.number("guidance", 0.0..=9.0).unwrap(), Some(1.5));
        assert_eq!((fields.seed("seed").unwrap(), fields.text("size").unwrap()), (None, None));
        assert_eq!(fields.needed_text("prompt").unwrap(), "");
        fields.finish().unwrap();
        let mut fields = json(r#"{"num_inference_steps": 4, "steps": 5}"#).with_own_names();
        fields.whole("steps", 1..=10).unwrap();
        assert_eq!(fields.finish().unwrap_err().code, "invalid_value");
    }

    #[test]
    fn flags_have_several_spellings() {
        for (text, expected) in [("true", true), ("\"False\"", false), ("1", true), ("\"0\"", false), ("\"on\"", true)]
        {
            assert_eq!(json(&format!(r#"{{"f": {text}}}"#)).flag("f").unwrap(), Some(expected), "{text}");
        }
        for wrong in ["2", "\"maybe\"", "[]", "1.5"] {
            assert_eq!(json(&format!(r#"{{"f": {wrong}}}"#)).flag("f").unwrap_err().code, "invalid_type", "{wrong}");
        }
    }
}
