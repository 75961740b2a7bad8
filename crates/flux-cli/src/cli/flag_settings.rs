//! Flags set in flux.toml: each key has the name of its flag. The command line takes precedence.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use flux::error::shown;
use flux::{Error, Result};

use super::explain;
use super::settings::{FlagSetting, FlagValue, RECIPE, Table, expanded, named};

/// Commands that generate images and take [`IMAGE_KEYS`](super::settings::IMAGE_KEYS), besides `flux PROMPT`.
const MAKE_IMAGES: [&str; 4] = [AGAIN, "batch", "chat", "grid"];
/// The command whose images have their own settings. Only the flags for files apply to it.
const AGAIN: &str = "again";
/// The flag that [`RECIPE`] sets if it is false.
const NO_RECIPE: &str = "no-recipe";
/// Flags for signing, which apply to any recipe.
const SIGN_CERT: &str = "sign-cert";
const SIGN_KEY: &str = "sign-key";
/// Commands with `--upsample` that take no keys of images.
const UPSAMPLE: [&str; 2] = ["upsample", "mcp"];

/// Returns the tables whose flags apply to the subcommand `name`.
pub fn tables_for(name: Option<&str>) -> &'static [Table] {
    match name {
        Some("serve") => &[Table::Serve, Table::Upsample],
        Some(name) if UPSAMPLE.contains(&name) => &[Table::Upsample],
        Some(name) if !MAKE_IMAGES.contains(&name) => &[],
        _ => &[Table::Images, Table::Upsample],
    }
}

/// Returns arguments for the flags of a table that are set and that the command line neither contains nor contradicts.
///
/// Errors when a flag does not exist, or a value is invalid.
pub fn arguments(
    command: &Command,
    given: &ArgMatches,
    settings: &[FlagSetting],
    table: Table,
) -> Result<Vec<OsString>> {
    let is_given = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let has = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long) && is_given(arg));
    // Skipped: everything but `recipe` and signing if there is a recipe, the size if there is an input image, and
    // `format` for `flux batch`, whose `--format` is the format of the list.
    let is_left_out = |name: &str| match (table, name) {
        (Table::Serve | Table::Upsample, _) | (_, NO_RECIPE | SIGN_CERT | SIGN_KEY) => false,
        _ if command.get_name() == AGAIN => true,
        (Table::Images, "format" | "quality") if command.get_name() == "batch" => true,
        (Table::Images, _) => has("recipe") || has("config-from-metadata") || name == "size" && has("input"),
    };
    let mut arguments = Vec::new();
    for setting in settings.iter().filter(|setting| setting.table == table) {
        let prefix = table.named().map_or("", |(_, prefix)| prefix);
        let is_recipe = table == Table::Images && setting.key == RECIPE;
        let name = if is_recipe { NO_RECIPE.to_string() } else { format!("{prefix}{}", setting.key.replace('_', "-")) };
        if is_left_out(&name) {
            continue;
        }
        let wrong = |what: String| Error::usage(what).at(setting.from.to_string());
        let flags = || command.get_arguments().filter(|arg| !arg.is_global_set() && arg.get_id() != "help");
        let Some(arg) = flags().find(|arg| arg.get_long() == Some(&*name)) else {
            let Some((named, prefix)) = table.named() else {
                continue; // The key belongs to another command.
            };
            let known = flags().filter_map(|flag| flag.get_long()?.strip_prefix(prefix));
            let known: Vec<_> = known.map(|name| name.replace('-', "_")).collect();
            return Err(wrong(format!("unknown key `{}` in [{named}]", shown(&setting.key)))
                .hint(format!("keys are {}", known.join(", "))));
        };
        let own = texts(arg, &name, setting).map_err(wrong)?;
        let alone = [command.get_name().to_string()].into_iter().chain(own.iter().cloned());
        if let Err(error) = command.clone().try_get_matches_from(alone)
            && matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
        {
            let explained = explain::explain(&error, command, &[]);
            return Err(wrong(explained.map_or_else(|| error.to_string(), |error| error.what().to_string())));
        }
        let excludes = |one: &Arg, other: &Arg| {
            command.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
        };
        let mut given = flags().filter(|other| is_given(other));
        if !is_left_out(&name)
            && !given.any(|other| other.get_id() == arg.get_id() || excludes(arg, other) || excludes(other, arg))
        {
            arguments.extend(own.into_iter().map(OsString::from));
        }
    }
    Ok(arguments)
}

/// Returns the arguments of a flag.
///
/// Errors when a required value is missing, or a value is not allowed.
fn texts(arg: &Arg, name: &str, setting: &FlagSetting) -> std::result::Result<Vec<String>, String> {
    let key = shown(&setting.key);
    let may_be_alone = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    match (&setting.value, arg.get_action()) {
        (FlagValue::Flag(is_set), _) if name == NO_RECIPE => {
            Ok((!is_set).then(|| format!("--{name}")).into_iter().collect())
        }
        (FlagValue::Flag(is_set), action) if may_be_alone || matches!(action, ArgAction::SetTrue) => {
            Ok(is_set.then(|| format!("--{name}")).into_iter().collect())
        }
        (FlagValue::Flag(_), _) => Err(format!("`{key}` requires a value, not true or false")),
        (FlagValue::Values(_), ArgAction::SetTrue) => Err(format!("`{key}` must be true or false")),
        (FlagValue::Values(values), action) if values.len() != 1 && !matches!(action, ArgAction::Append) => {
            Err(format!("`{key}` must be a single value, not a list"))
        }
        (FlagValue::Values(values), _) => {
            Ok(values.iter().map(|value| format!("--{name}={}", located(arg, name, setting, value))).collect())
        }
    }
}

/// Resolves a path in a value relative to the config file.
fn located(arg: &Arg, name: &str, FlagSetting { folder, .. }: &FlagSetting, value: &str) -> String {
    match (name, value.strip_prefix("unix:"), value.split_once('=')) {
        ("listen", Some(path), _) => format!("unix:{}", expanded(folder, path)),
        ("model" | "lora", _, Some((name, path))) => format!("{name}={}", named(folder, path)),
        ("dir" | "lora", ..) => named(folder, value),
        ("upsample-system", ..) if ["bfl", "own"].contains(&value) => value.to_string(),
        _ if arg.get_value_hint() == ValueHint::AnyPath => expanded(folder, value),
        _ => value.to_string(),
    }
}
