//! `flux config`: what holds where no flag says otherwise, and where it was set.

use flux::Result;

use super::print;
use crate::cli::settings::{KEYS, settings};

/// Prints a line for each key, or one object of JSON.
pub fn run(json: bool) -> Result<()> {
    let rows = KEYS.map(|(key, variable)| (key, variable, settings().get(key)));
    if json {
        let value = |(key, _, set): (&str, &str, Option<&crate::cli::settings::Setting>)| {
            let set = set.map(|set| serde_json::json!({ "value": set.value, "from": set.from.to_string() }));
            (key.to_string(), set.into())
        };
        return print(serde_json::Value::Object(rows.into_iter().map(value).collect()).to_string().as_bytes());
    }
    let line = |(key, variable, set): (&str, &str, Option<&crate::cli::settings::Setting>)| match set {
        Some(set) => format!("{key:15} {}  ({})", set.value, set.from),
        None => format!("{key:15} -  (not set: {key} in flux.toml, or {variable})"),
    };
    print(rows.map(line).join("\n").as_bytes())
}
