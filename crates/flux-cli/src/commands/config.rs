//! `flux config`: the default of each setting, and its origin.

use flux::Result;

use super::print;
use crate::cli::settings::{FlagSetting, FlagValue, KEYS, Table, settings};

/// Prints a line for each key, or one JSON object.
pub fn run(json: bool) -> Result<()> {
    let rows = KEYS.map(|(key, variable)| (key, variable, settings().get(key)));
    if json {
        let value = |(key, _, set): (&str, &str, Option<&crate::cli::settings::Setting>)| {
            let set = set.map(|set| serde_json::json!({ "value": set.value, "from": set.from.to_string() }));
            (key.to_string(), set.into())
        };
        let mut all: serde_json::Map<_, _> = rows.into_iter().map(value).collect();
        let flags = |table| {
            settings().flags().iter().filter(move |set| set.table == table).map(|set| {
                let value = match &set.value {
                    FlagValue::Flag(flag) => (*flag).into(),
                    FlagValue::Values(values) => serde_json::json!(values),
                };
                (set.key.clone(), serde_json::json!({ "value": value, "from": set.from.to_string() }))
            })
        };
        all.extend(flags(Table::Images));
        all.insert("serve".to_string(), flags(Table::Serve).collect());
        all.insert("upsample".to_string(), flags(Table::Upsample).collect());
        return print(serde_json::Value::Object(all).to_string().as_bytes());
    }
    let line = |(key, variable, set): (&str, &str, Option<&crate::cli::settings::Setting>)| match set {
        Some(set) => format!("{key:15} {}  ({})", set.value, set.from),
        None => format!("{key:15} -  (not set: {key} in flux.toml, or {variable})"),
    };
    let flag = |set: &FlagSetting| {
        format!("{:15} {}  ({})", format!("{}{}", set.table.prefix(), set.key), set.value, set.from)
    };
    let flags = settings().flags().iter().map(flag);
    print(rows.map(line).into_iter().chain(flags).collect::<Vec<_>>().join("\n").as_bytes())
}
