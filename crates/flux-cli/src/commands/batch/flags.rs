//! Lines of flags, as in "Prompts from file" of AUTOMATIC1111's web UI: `--prompt "a cat" --seed 5`. Both the web UI's
//! flags and the program's own set fields of a recipe.

use flux::{Error, Result};
use serde_json::{Map, Value};

use super::table::value;
use crate::cli::foreign;

/// Flags of "Prompts from file" and the equivalent fields.
const FIELDS: [(&str, &str); 8] = [
    ("prompt", "prompt"),
    ("negative-prompt", "negative"),
    ("seed", "seed"),
    ("steps", "steps"),
    ("cfg-scale", "guidance"),
    ("width", "width"),
    ("height", "height"),
    ("n-iter", "n"),
];
/// Flags of "Prompts from file" without an equivalent field, with the values that have no effect, and a hint for other
/// values.
const OTHERS: [(&str, &[&str], &str); 18] = [
    ("sampler-name", &["euler"], "leave it out: the only sampler is Euler"),
    ("sampler-index", &[], "leave it out: the only sampler is Euler"),
    ("scheduler", &["automatic"], "leave it out, or pass `--schedule` to `flux batch`"),
    ("sd-model", &[], "pass the model to `flux batch` with `-d`"),
    ("outpath-samples", &[], "name the file with `--output`, relative to the output folder"),
    ("outpath-grids", &[], "leave it out: grids are not saved"),
    ("prompt-for-display", &[], "leave it out"),
    ("styles", &["", "none"], "add the text of the style to the prompt"),
    ("subseed", &["-1", "0"], "leave it out: seed variations are not supported"),
    ("subseed-strength", &["0", "0.0"], "leave it out: seed variations are not supported"),
    ("seed-resize-from-h", &["0", "-1"], "leave it out, or pass `--rng` to `flux batch`"),
    ("seed-resize-from-w", &["0", "-1"], "leave it out, or pass `--rng` to `flux batch`"),
    ("batch-size", &["1"], "set the number of images with `--n-iter`"),
    ("restore-faces", &["false"], "leave it out: face restoration is not supported"),
    ("tiling", &["false"], "leave it out: seamless tiling is not supported"),
    ("do-not-save-samples", &["false"], "leave it out: every image is saved"),
    ("do-not-save-grid", &["true", "false"], ""),
    ("clip-skip", &["1"], "leave it out: all layers of the text encoder are used"),
];
/// Flags of Midjourney prompts.
const MIDJOURNEY: [&str; 11] = ["chaos", "iw", "niji", "no", "q", "quality", "raw", "style", "stylize", "v", "weird"];
/// Flags of this program that set fields of a line.
const OURS: [(&str, &str); 17] = [
    ("prompt", "prompt"),
    ("negative", "negative"),
    ("seed", "seed"),
    ("steps", "steps"),
    ("guidance", "guidance"),
    ("width", "width"),
    ("height", "height"),
    ("size", "size"),
    ("count", "n"),
    ("output", "output"),
    ("input", "inputs"),
    ("lora", "adapters"),
    ("mask", "mask"),
    ("strength", "strength"),
    ("hires", "hires"),
    ("schedule", "schedule"),
    ("rng", "rng"),
];

/// Parses a line of flags. Returns `None` if the line is a plain prompt. A line counts as flags if it begins with a
/// flag, or contains a known one.
///
/// Errors with the name of a flag that is not allowed in lines.
pub fn row(line: &str) -> Option<Result<Map<String, Value>>> {
    let is_flag = |word: &str| {
        let name = word.strip_prefix("--").unwrap_or_default();
        name.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    let begins = line.split_whitespace().next().is_some_and(is_flag);
    if !begins && !line.split_whitespace().any(|word| is_flag(word) && is_known(word)) {
        return None;
    }
    // A prompt before the flags is not quoted, and may contain apostrophes.
    let start =
        if begins { Some(0) } else { line.match_indices(" --").map(|(at, _)| at).find(|at| known_at(line, *at)) };
    let (prompt, flags) = line.split_at(start.unwrap_or_default());
    Some(fields(prompt.trim(), flags))
}

fn known_at(line: &str, at: usize) -> bool {
    line[at..].split_whitespace().next().is_some_and(is_known)
}

/// Normalizes the name of a flag for comparison.
fn plain(word: &str) -> String {
    let name = word.trim_start_matches("--").split('=').next().unwrap_or_default();
    name.replace('_', "-").to_lowercase()
}

fn is_known(word: &str) -> bool {
    let name = plain(word);
    FIELDS.iter().chain(&OURS).any(|(known, _)| *known == name)
        || OTHERS.iter().any(|(known, ..)| *known == name)
        || MIDJOURNEY.contains(&name.as_str())
        || foreign::ours(&name).is_some()
        || foreign::hint(&name).is_some()
}

fn fields(prompt: &str, flags: &str) -> Result<Map<String, Value>> {
    let words = shlex::split(flags).ok_or_else(|| {
        Error::usage("the line has an unclosed quote")
            .hint("put text with an apostrophe in double quotes, as in \"it's\"")
    })?;
    let mut row = Map::new();
    if !prompt.is_empty() {
        row.insert("prompt".to_string(), prompt.into());
    }
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if !word.starts_with("--") {
            return Err(
                Error::usage(format!("`{word}` does not follow a flag")).hint("put text of several words in quotes")
            );
        }
        let (flag, own) =
            word.split_once('=').map_or((word.as_str(), None), |(flag, own)| (flag, Some(own.to_string())));
        let is_text = matches!(plain(flag).as_str(), "prompt" | "negative-prompt" | "negative");
        let mut given = match own {
            Some(own) => Some(own),
            None => words.next_if(|word| !word.starts_with("--")),
        };
        // As in AUTOMATIC1111, a text extends to the next flag.
        while let Some(more) = words.next_if(|word| is_text && given.is_some() && !word.starts_with("--")) {
            given = given.map(|given| format!("{given} {more}"));
        }
        let given = given.ok_or_else(|| Error::usage(format!("`{flag}` has no value")))?;
        if let Some((field, value)) = field(flag, &given)? {
            insert(&mut row, flag, field, value)?;
        }
    }
    Ok(row)
}

/// Returns the field of a flag and its value. `None` if the flag has no effect.
fn field(flag: &str, given: &str) -> Result<Option<(&'static str, Value)>> {
    let name = plain(flag);
    let ours = foreign::ours(&name).unwrap_or(&name);
    let known = FIELDS.iter().find(|(known, _)| *known == name);
    if let Some((_, field)) = known.or_else(|| OURS.iter().find(|(known, _)| *known == ours)) {
        let value = value(field, given, ',').map_err(|e| e.prefixed(flag))?;
        return Ok(Some((field, value)));
    }
    if let Some((_, neutral, hint)) = OTHERS.iter().find(|(known, ..)| *known == name) {
        return match neutral.contains(&given.to_lowercase().as_str()) {
            true => Ok(None),
            false => Err(Error::usage(format!("`{flag} {given}` is not supported in a line")).hint(*hint)),
        };
    }
    let error = Error::usage(format!("unknown flag `{flag}` in a line"));
    Err(error.hint(foreign::hint(&name).unwrap_or_else(|| {
        let names = FIELDS.iter().map(|(name, _)| format!("--{}", name.replace('-', "_"))).collect::<Vec<_>>();
        format!("the flags of a line are {}; write a prompt with such a word as a JSON line", names.join(", "))
    })))
}

fn insert(row: &mut Map<String, Value>, flag: &str, field: &str, value: Value) -> Result<()> {
    match (row.get_mut(field), value) {
        (Some(Value::Array(all)), Value::Array(more)) => all.extend(more),
        (Some(_), _) => return Err(Error::usage(format!("`{flag}` appears twice")).hint("leave one of them out")),
        (None, value) => {
            row.insert(field.to_string(), value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_of_a_line_are_fields() {
        for (line, expected) in [
            (r#"--prompt "a red circle" --seed 5 --steps 1"#, json!({"prompt": "a red circle", "seed": 5, "steps": 1})),
            ("--prompt a red circle --width 64", json!({"prompt": "a red circle", "width": 64})),
            (
                "--prompt 'x' --negative_prompt fog, rain --cfg_scale 2.5 --seed -1 --n_iter 2",
                json!({"prompt": "x", "negative": "fog, rain", "guidance": 2.5, "seed": -1, "n": 2}),
            ),
            ("--sampler_name Euler --tiling false --do_not_save_grid true --prompt=x", json!({"prompt": "x"})),
            ("a cat's hat --steps 2 --size 64x32", json!({"prompt": "a cat's hat", "steps": 2, "size": "64x32"})),
            ("--prompt x --input a.png --input b.png", json!({"prompt": "x", "inputs": ["a.png", "b.png"]})),
        ] {
            assert_eq!(Value::Object(row(line).unwrap().unwrap()), expected, "{line}");
        }
    }

    #[test]
    fn a_flag_that_no_line_may_have_is_named() {
        for (line, words) in [
            ("--prompt x --sampler_name \"DPM++ 2M\"", "--sampler_name"),
            ("--prompt x --sd_model other", "--sd_model"),
            ("--prompt x --restore_faces true", "--restore_faces"),
            ("--prompt x --hires_fix 1", "--hires_fix"),
            ("--foo bar", "--foo"),
            ("a cat --ar 16:9", "--ar"),
            ("--prompt x --steps", "--steps"),
            ("--prompt x --steps many", "many"),
            ("--prompt x --prompt y", "twice"),
            ("--prompt \"x", "quote"),
            ("--steps 2 more", "`more`"),
        ] {
            let error = row(line).unwrap_or_else(|| panic!("{line}")).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn a_prompt_with_hyphens_is_a_prompt() {
        for line in ["a door -- half open", "a well-known cat", "-- x", "a --word of mine", "---"] {
            assert!(row(line).is_none(), "{line}");
        }
    }
}
