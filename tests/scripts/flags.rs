//! The list of flags that the scripts read, compared with the program's.

use std::collections::BTreeMap;
use std::fs;

use crate::program::{Run, flux, project};

/// Returns the flags in scripts/flags.sh by their other names, and the flags that take a value.
fn listed() -> (BTreeMap<String, String>, Vec<String>) {
    let text = fs::read_to_string(project("scripts/flags.sh")).expect("the list");
    let (names, values) = text.split_once("takes_value() {").expect("the list");
    let (_, names) = names.split_once("long_name() {").expect("the list");
    let words = |patterns: &str| -> Vec<String> {
        patterns.split(['|', ' ', '\\', '\n']).filter(|word| !word.is_empty()).map(str::to_string).collect()
    };
    let mut long = BTreeMap::new();
    for arm in names.split(";;") {
        if let Some((patterns, name)) =
            arm.split_once(')').and_then(|(before, after)| Some((before, after.split_once("name=")?.1)))
        {
            let patterns = patterns.rsplit(" in\n").next().unwrap_or_default();
            long.extend(words(patterns).into_iter().map(|other| (other, name.trim().to_string())));
        }
    }
    let values = values.split_once(" in\n").and_then(|(_, rest)| rest.split_once(')')).expect("the list").0;
    (long, words(values))
}

/// If the scripts do not know that a flag takes a value, they treat the value as a separate word.
#[test]
fn every_option_of_flux_with_a_value_is_known_to_the_scripts() {
    let (long, values) = listed();
    let help = Run::new(flux().arg("--help")).succeeds().stdout;
    let mut options = 0;
    for line in help.lines().map(str::trim).filter(|line| line.starts_with('-') && line.contains(" <")) {
        let (flags, _) = line.split_once(" <").expect("a value");
        let name = flags.rsplit(' ').next().expect("a flag");
        assert!(values.iter().any(|known| known == name), "{name} is not in flags.sh");
        if let Some((short, _)) = flags.split_once(", ") {
            assert_eq!(long.get(short).map(String::as_str), Some(name), "{short} is not in flags.sh");
        }
        options += 1;
    }
    assert!(options > 30, "{help}");
}

/// If only flux knows a name of a flag, the scripts miss the flag.
#[test]
fn every_name_that_flux_takes_for_a_flag_is_known_to_the_scripts() {
    let (long, _) = listed();
    let text = fs::read_to_string(project("crates/flux-cli/src/cli/foreign.rs")).expect("the names of other programs");
    let (_, same) = text.split_once("const SAME: ").and_then(|(_, rest)| rest.split_once("= [")).expect("the names");
    let same = same.split_once("\n];").expect("an end").0;
    let mut names = 0;
    for entry in same.split(']').map(|entry| entry.split('"').skip(1).step_by(2).collect::<Vec<_>>()) {
        // `format` is a flag of `flux convert`.
        let Some((name, others)) = entry.split_first().filter(|(name, _)| **name != "format") else { continue };
        for other in others {
            let flag = if other.len() == 1 { format!("-{other}") } else { format!("--{other}") };
            assert_eq!(long.get(&flag), Some(&format!("--{name}")), "{flag} is not in flags.sh");
            names += 1;
        }
    }
    assert!(names > 50, "{names}: {same}");
}
