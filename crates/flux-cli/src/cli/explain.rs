//! Parser errors in the style of all other errors: the fault, then a hint.

use std::error::Error as _;
use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use flux::Error;
use flux::error::KEYS;

/// Minimum similarity of a suggested word, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.6;

/// Explains an error of the parser. `None` if `error` only prints help.
pub fn explain(error: &clap::Error, command: &Command, arguments: &[OsString]) -> Option<Error> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let (command, name) = subcommand(command, arguments);
    let facts = Facts { error, command, arguments };
    let what = facts.what();
    Some(Error::usage(what).hint(facts.hint().unwrap_or_else(|| format!("`{name} --help` lists all flags"))))
}

/// Returns the subcommand that the arguments name, and its full name.
fn subcommand<'a>(command: &'a Command, arguments: &[OsString]) -> (&'a Command, String) {
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let (mut found, mut name) = (command, command.get_name().to_string());
    while let Some(inner) = words.next().and_then(|word| found.find_subcommand(word)) {
        found = inner;
        name = format!("{name} {}", inner.get_name());
    }
    (found, name)
}

/// A command line error and its context.
struct Facts<'a> {
    error: &'a clap::Error,
    command: &'a Command,
    arguments: &'a [OsString],
}

impl Facts<'_> {
    fn texts(&self, kind: ContextKind) -> Vec<String> {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => vec![text.clone()],
            Some(ContextValue::Strings(texts)) => texts.clone(),
            Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
            Some(ContextValue::StyledStrs(texts)) => texts.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }

    fn text(&self, kind: ContextKind) -> Option<String> {
        self.texts(kind).into_iter().next()
    }

    /// Returns a flag as it was given, and the name of its value: `-n` and `K` for `--count <K>`.
    fn flag(&self, shown: &str) -> (String, String) {
        let (flag, value) = shown.split_once([' ', '=']).unwrap_or((shown, ""));
        let value = value.replace(['<', '>', '[', ']'], "");
        let known = flag.strip_prefix("--");
        let known = known.and_then(|known| self.command.get_arguments().find(|arg| arg.get_long() == Some(known)));
        let letters = known.map(|arg| arg.get_short_and_visible_aliases().unwrap_or_default()).unwrap_or_default();
        let given =
            letters.into_iter().map(|letter| format!("-{letter}")).find(|letter| is_given(self.arguments, letter));
        let given = given.filter(|_| !is_given(self.arguments, flag));
        (given.unwrap_or_else(|| flag.to_string()), value)
    }

    fn what(&self) -> String {
        let argument = self.text(ContextKind::InvalidArg).unwrap_or_default();
        let (flag, value_name) = self.flag(&argument);
        let value = self.text(ContextKind::InvalidValue).unwrap_or_default();
        match self.error.kind() {
            ErrorKind::InvalidValue if value.is_empty() => format!("`{flag}` needs a value, {value_name}"),
            ErrorKind::InvalidValue => {
                format!("`{flag} {value}`: expected one of {}", self.texts(ContextKind::ValidValue).join(", "))
            }
            ErrorKind::ValueValidation => {
                let reason = self.error.source().map(|source| match source.downcast_ref::<Error>() {
                    Some(error) => format!(": {}", error.what()),
                    None => format!(": {source}"),
                });
                format!("`{flag} {value}`{}", reason.unwrap_or_default())
            }
            ErrorKind::UnknownArgument if !argument.starts_with('-') => {
                format!("unexpected argument `{argument}`")
            }
            ErrorKind::UnknownArgument => format!("unknown flag `{argument}`"),
            ErrorKind::InvalidSubcommand => {
                let name = self.text(ContextKind::InvalidSubcommand).unwrap_or_default();
                format!("unknown command `{name}`")
            }
            ErrorKind::MissingSubcommand => {
                format!("a command is missing, expected one of {}", self.texts(ContextKind::ValidSubcommand).join(", "))
            }
            ErrorKind::MissingRequiredArgument => {
                let missing = self.texts(ContextKind::InvalidArg);
                format!("`{}` {} missing", missing.join("`, `"), if missing.len() == 1 { "is" } else { "are" })
            }
            ErrorKind::ArgumentConflict => {
                let others: Vec<_> = self.texts(ContextKind::PriorArg).iter().map(|other| self.flag(other).0).collect();
                match others.as_slice() {
                    [other] if *other == flag => format!("`{flag}` was passed twice"),
                    [] => format!("`{flag}` cannot be used with the other arguments"),
                    others => format!("`{flag}` cannot be used with `{}`", others.join("`, `")),
                }
            }
            ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_string(),
            ErrorKind::TooManyValues => format!("unexpected value `{value}` for `{flag}`"),
            ErrorKind::NoEquals => format!("`{flag}` requires its value after `=`, as in `{flag}=VALUE`"),
            _ => self.first_line(),
        }
    }

    fn first_line(&self) -> String {
        let text = self.error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string()
    }

    fn hint(&self) -> Option<String> {
        let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand];
        let given = [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand];
        let given: Vec<String> = given.into_iter().filter_map(|kind| self.text(kind)).collect();
        // The parser also suggests dissimilar words, and underscore spellings of flags.
        let is_near = |word: &String| {
            given.iter().any(|given| strsim::normalized_damerau_levenshtein(given, word) >= MIN_SIMILARITY)
        };
        let suggested = kinds.into_iter().find_map(|kind| self.text(kind)).map(|word| word.replace('_', "-"));
        if let Some(suggested) = suggested.filter(is_near) {
            return Some(format!("did you mean `{suggested}`?"));
        }
        match self.error.kind() {
            ErrorKind::ArgumentConflict => Some("leave one of them out".to_string()),
            ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument => {
                let usage = self.text(ContextKind::Usage)?;
                // Several lines are the forms of all uses, which say nothing about this one.
                let usage =
                    Some(usage.trim_start_matches("Usage:").trim()).filter(|usage| usage.lines().count() == 1)?;
                Some(format!("`{}`", usage.split_whitespace().collect::<Vec<_>>().join(" ")))
            }
            ErrorKind::ValueValidation => {
                let error = self.error.source()?.downcast_ref::<Error>()?;
                error.shown_hint(KEYS)
            }
            _ => None,
        }
    }
}

/// Returns `true` if the arguments contain a flag, with or without its value in the same word.
pub fn is_given(arguments: &[OsString], flag: &str) -> bool {
    let flags = arguments.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    flags.into_iter().any(|word| match flag.strip_prefix("--") {
        Some(_) => word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')),
        None => word.starts_with(flag) && !word.starts_with("--"),
    })
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Unread};

    fn refused(line: &str) -> String {
        let arguments: Vec<_> = line.split(' ').map(Into::into).collect();
        match Cli::read(&arguments) {
            Err(Unread::Explained(error)) => error.to_string(),
            Err(Unread::ByClap(error)) => panic!("{line}: {error}"),
            Ok(_) => panic!("{line} was accepted"),
        }
    }

    #[test]
    fn every_mistake_is_one_fact_and_one_hint() {
        for (line, words) in [
            ("flux a -n 0", &["`-n 0`: expected a whole number", "`flux --help`"][..]),
            ("flux a --count=0", &["`--count 0`"]),
            ("flux batch a b --steps x", &["`--steps x`: expected", "`flux batch --help`"]),
            ("flux a --progress loud", &["`--progress loud`: expected one of auto,"]),
            ("flux a --lora", &["`--lora` needs a value, FILE:STRENGTH"]),
            ("flux a --stepz 3", &["unknown flag `--stepz`", "did you mean `--steps`?"]),
            ("flux sheet", &["`--output <FILE>`, `<FILE>...` are missing", "`flux sheet --output <FILE> <FILE>...`"]),
            ("flux a --size 64 -W 64", &["`--size` cannot be used with `-W`", "leave one of them out"]),
            ("flux a --steps 2 --steps 3", &["`--steps` was passed twice"]),
            ("flux convert a b c", &["unexpected argument `c`"]),
            ("flux a --schedule sigmas:2", &["`--schedule sigmas:2`: a noise level is 2, ", "hint: write them as in"]),
            ("flux a --rng x", &["`--rng x`: `x` ", "hint: ", " torch ", " portable"]),
            ("flux a --zzzzz", &["unknown flag `--zzzzz`", "hint: `flux --help` lists all flags"]),
            ("flux a --sign-cert b", &["`--sign-key <FILE>` is missing", "hint: `flux --help`"]),
        ] {
            let error = refused(line);
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
            assert_eq!(error.lines().count(), 2, "{error}");
        }
    }

    #[test]
    fn flags_are_found_as_they_were_given() {
        let arguments: Vec<_> = "flux -W64 --size=3 -- --steps".split(' ').map(Into::into).collect();
        let is_given = |flag| super::is_given(&arguments, flag);
        assert_eq!(["-W", "--size", "--steps", "--width", "-s"].map(is_given), [true, true, false, false, false]);
    }
}
